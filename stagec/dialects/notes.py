"""What passes note on any op, as attributes beside its properties: which there are, and what they may say.

    %g = stg.contract ... {phase = "wgrad", scope = "Block.Mlp", made_by = "build-backward"}

An attribute that is none of these is a mistake, unless its name has a dot, as MLIR wants of attributes that are for others.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from stagec.dialects import stg
from stagec.dialects.attributes import PlacementAttr

DIALECTS = ("stg.", "dist.", "sched.")
PURPOSES = ("tp", "cp", "ep", "zero", "p2p")
"""What a communication is for, in the words of a plan's `overlap`."""


def is_text(value: Attribute) -> bool:
    return isinstance(value, StringAttr)


def is_flag(value: Attribute) -> bool:
    return isinstance(value, UnitAttr)


def is_count(value: Attribute) -> bool:
    return isinstance(value, IntegerAttr) and value.value.data >= 0


def one_of(*words: str) -> Callable[[Attribute], bool]:
    return lambda value: isinstance(value, StringAttr) and value.data in words


NOTES: dict[str, tuple[Callable[[Attribute], bool], str]] = {
    "phase": (one_of(*stg.PHASES), f"one of {', '.join(stg.PHASES)}"),
    "purpose": (one_of(*PURPOSES), f"one of {', '.join(PURPOSES)}"),
    "scope": (is_text, "a text"),
    "made_by": (is_text, "a text"),
    "kind": (is_text, "a text"),
    "tied": (is_text, "a text"),
    stg.PART_OF: (is_text, "a text"),
    stg.NAMES: (lambda value: isinstance(value, ArrayAttr), "a list"),
    stg.PLACEMENT: (lambda value: isinstance(value, PlacementAttr), "a placement"),
    stg.ISSUED: (one_of(stg.WITH_PASS, stg.WITH_UNIT), f"{stg.WITH_PASS} or {stg.WITH_UNIT}"),
    "lag": (is_count, "a whole number"),
    "prefetch": (is_count, "a whole number"),
    "bucket_bytes": (is_count, "a whole number"),
    "first_bucket_bytes": (is_count, "a whole number"),
    **{
        name: (is_flag, "a flag")
        for name in (
            "late",
            "apart",
            "copied",
            "serial",
            "in_place",
            stg.STEPS,
            stg.FOLLOWS_UNIT,
            stg.OF_STAGE,
            stg.IF_FREED,
            stg.MAKES_GRADIENTS,
        )
    },
}
"""By name: whether a value can be one, and what it has to be."""


def verify_notes(op: Operation) -> None:
    """`VerifyException` for a note that there is not, or that says what it cannot."""
    if not op.attributes or not op.name.startswith(DIALECTS):
        return
    for name, value in op.attributes.items():
        if name in NOTES:
            fits, wanted = NOTES[name]
            if not fits(value):
                raise VerifyException(f"{op.name}: `{name}` is to be {wanted}, not {value}")
        elif "." not in name:
            raise VerifyException(f"{op.name}: no pass reads a note `{name}`")
