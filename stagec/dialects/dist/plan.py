"""What a plan says besides what the program shows, and the passes that are still to come.

    dist.plan "ddp8" batch "B" trains {precision = {weights = "bf16"}, optimizer = {name = "adamw"}} at {}
    dist.passes ["propagate-shardings", "localize-shapes", "build-backward"]

With these a printed module is all that there is to go on from: `stagec x.mlir -o traces/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, VerifyException


@irdl_op_definition
class PlanOp(IRDLOperation):
    """The clauses of a plan that the passes to come, the plan of memory and the estimate of times read.

    A clause that is not written says what it says by default; `at` has the places of what is written in the text.
    `batch` is the dim that microbatches and data parallelism split;
    a program that `trains` ends in a loss, which the step is to make smaller.
    """

    name = "dist.plan"

    plan_name = prop_def(StringAttr)
    batch = prop_def(StringAttr)
    trains = opt_prop_def(UnitAttr)
    clauses = prop_def(DictionaryAttr)
    places = prop_def(DictionaryAttr)

    assembly_format = (
        "$plan_name `batch` $batch (`trains` $trains^)? $clauses `at` $places attr-dict"
    )

    def __init__(
        self,
        name: str,
        batch: str,
        trains: bool,
        clauses: Mapping[str, Attribute],
        places: Mapping[str, str],
    ) -> None:
        super().__init__(
            properties={
                "plan_name": StringAttr(name),
                "batch": StringAttr(batch),
                "trains": UnitAttr() if trains else None,
                "clauses": DictionaryAttr(dict(clauses)),
                "places": DictionaryAttr({key: StringAttr(at) for key, at in places.items()}),
            }
        )


@irdl_op_definition
class PassesOp(IRDLOperation):
    """The passes that a compilation has still to run, in order. Whoever runs the first takes it off the list."""

    name = "dist.passes"

    passes = prop_def(ArrayAttr[StringAttr])

    assembly_format = "$passes attr-dict"

    def __init__(self, passes: Sequence[str]) -> None:
        super().__init__(properties={"passes": ArrayAttr([StringAttr(text) for text in passes])})

    @property
    def texts(self) -> tuple[str, ...]:
        """As `stagec-opt -p` reads them."""
        return tuple(text.data for text in self.passes)

    def verify_(self) -> None:
        for text in self.texts:
            if not is_pass(text):
                raise VerifyException(f"dist.passes: `{text}` is no pass with its arguments")


@lru_cache(maxsize=1024)
def is_pass(text: str) -> bool:
    """Whether a text is one pass with its arguments."""
    try:
        return len(list(parse_pipeline(text))) == 1
    except ArgSpecParseError:
        return False
