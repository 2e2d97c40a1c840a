"""What passes mark ops with, beside what the ops compute: properties, each of the ops that it means something for.

    %g = stg.contract ... {phase = "wgrad", scope = "Block.Mlp", made_by = "build-backward"}

They are printed among the attributes, but an attribute that is no property of its op is refused, unless its name has a dot, as MLIR wants
of attributes that are for others: all that is discardable may be dropped without any difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Operation
from xdsl.irdl import IRDLOperation, ParsePropInAttrDict, opt_prop_def
from xdsl.irdl.constraints import VerificationContext
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import PlacementAttr
from stagec.dialects.op import DialectOp, MarkConstraint

DIALECTS = ("stg.", "dist.", "sched.")
PHASES = ("fwd", "recompute", "bwd", "wgrad", "grad_reduce", "optim")
"""Parts of a training step. `bwd` makes the gradients of inputs, `wgrad` those of weights."""
PURPOSES = ("tp", "cp", "ep", "zero", "p2p")
"""What a communication is for, in the words of a plan's `overlap`."""
ISSUED_WITH = ("with_pass", "with_unit")
"""With what a gather is issued that is issued once per step."""
MADE_BY = "made_by"


@dataclass(frozen=True)
class Mark(MarkConstraint):
    """What a property of this name may say."""

    name: str
    wanted: str
    fits: Callable[[Attribute], bool]

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        if not self.fits(attr):
            raise VerifyException(f"`{self.name}` is to be {self.wanted}, not {attr}")

    def mapping_type_vars(self, type_var_mapping: Mapping[Any, Any]) -> Mark:
        return self


def mark(name: str, wanted: str, fits: Callable[[Attribute], bool]) -> Attribute | None:
    return opt_prop_def(Mark(name, wanted, fits), prop_name=name)


def text_mark(name: str) -> Attribute | None:
    """A text."""
    return mark(name, "a text", lambda value: isinstance(value, StringAttr))


def word_mark(name: str, words: Iterable[str]) -> Attribute | None:
    """One of some words."""
    known = tuple(words)
    return mark(
        name,
        f"one of {', '.join(known)}",
        lambda value: isinstance(value, StringAttr) and value.data in known,
    )


def list_mark(name: str) -> Attribute | None:
    """Several texts."""
    return mark(
        name,
        "a list of texts",
        lambda value: (
            isinstance(value, ArrayAttr) and all(isinstance(each, StringAttr) for each in value)
        ),
    )


def placement_mark(name: str) -> Attribute | None:
    return mark(name, "a placement", lambda value: isinstance(value, PlacementAttr))


def flag_mark(name: str) -> Attribute | None:
    """There, or not."""
    return mark(name, "a flag", lambda value: isinstance(value, UnitAttr))


def count_mark(name: str) -> Attribute | None:
    """A whole number, not below 0."""
    return mark(
        name,
        "a whole number",
        lambda value: (
            isinstance(value, IntegerAttr) and value.type == i64 and value.value.data >= 0
        ),
    )


class MarkedOp(DialectOp):
    """An op of a program: which part of a step it is of, and where in the model it comes from."""

    irdl_options = (ParsePropInAttrDict(),)

    phase = word_mark("phase", PHASES)
    """`fwd` where nothing is said."""
    scope = text_mark("scope")
    """The module call that it comes from: `Block.Attention`."""
    made_by = text_mark("made_by")
    """The pass that made it, for readers."""
    gradient_of = count_mark("gradient_of")
    """It makes, with others, the gradients of one op of the forward pass: its number."""
    part_of = text_mark("part_of")
    """With others it took the place of an op of this kind: `softmax`."""
    begins_unit = count_mark("begins_unit")
    """A pass of an FSDP unit begins with it, within that of more: forward where a stage gathers the unit once, or backward, the forward pass having been made
    again with more than the unit. A number, which the gather of the unit has as `hook` in the second case."""
    follows_unit = flag_mark("follows_unit")
    """It is the first after the backward pass of an FSDP unit that is in another."""
    of_stage = flag_mark("of_stage")
    """It is of a reduction that is issued where the schedule of a pipeline reduces the gradients of its stage."""
    leaves = flag_mark("leaves")
    """It takes a gradient that is complete to the host, or reads it before it goes: in its own order, not in that of reductions."""
    late = flag_mark("late")
    """It is of a gradient's reduction that waits for the end of the backward pass."""


class Marks(MutableMapping[str, Attribute]):
    """The marks of an op, by name. One that means nothing for the op is a `KeyError`.

    Ops of dialects that know nothing of marks have them as attributes.
    """

    def __init__(self, op: Operation) -> None:
        self.op = op

    def may_have(self, name: str) -> bool:
        return name in marks_of_class(type(self.op)) or not self.op.name.startswith(DIALECTS)

    def place(self, name: str) -> dict[str, Attribute]:
        return self.op.properties if name in marks_of_class(type(self.op)) else self.op.attributes

    def __getitem__(self, name: str) -> Attribute:
        return self.place(name)[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.place(name)

    def __setitem__(self, name: str, value: Attribute) -> None:
        if not self.may_have(name):
            raise KeyError(f"`{name}` of {self.op.name}")
        self.place(name)[name] = value

    def __delitem__(self, name: str) -> None:
        del self.place(name)[name]

    def __iter__(self) -> Iterator[str]:
        known = marks_of_class(type(self.op))
        yield from (name for name in self.op.properties if name in known)
        yield from self.op.attributes

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def take(self, others: Mapping[str, Attribute]) -> None:
        """Take over the marks of another op, as far as they mean something for this one."""
        for name, value in others.items():
            if self.may_have(name):
                self[name] = value


_KNOWN: dict[type[Operation], frozenset[str]] = {}


def marks_of_class(kind: type[Operation]) -> frozenset[str]:
    """The marks that ops of a class may have."""
    if kind not in _KNOWN:
        found: frozenset[str] = frozenset()
        if issubclass(kind, IRDLOperation):
            properties = kind.get_irdl_definition().properties.items()
            found = frozenset(name for name, each in properties if isinstance(each.constr, Mark))
        _KNOWN[kind] = found
    return _KNOWN[kind]


def marks(op: Operation) -> Marks:
    return Marks(op)


def put_marks(op: Operation, attributes: Mapping[str, Attribute]) -> None:
    """What was read among the attributes of an op."""
    for name, value in attributes.items():
        marks(op).place(name)[name] = value


def text(op: Operation, key: str, default: str = "") -> str:
    """What a mark says, such as `scope` or `phase`."""
    attribute = op.properties.get(key) or op.attributes.get(key)
    return attribute.data if type(attribute) is StringAttr else default


def verify_attributes(op: Operation) -> None:
    """`VerifyException` for an attribute that no pass reads."""
    if not op.attributes or not op.name.startswith(DIALECTS):
        return
    for name in op.attributes:
        if "." not in name:
            raise VerifyException(f"{op.name}: `{name}` means nothing for this op")
