"""What a plan says besides what the program shows, and the passes that are still to come.

    dist.plan "ddp8" batch "B" trains {precision = {weights = "bf16"}, optimizer = {name = "adamw"}} at {}
    dist.passes ["propagate-shardings", "localize-shapes", "build-backward"]

With these a printed module is all that there is to go on from: `stagec x.mlir -o traces/`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, UnitAttr
from xdsl.ir import Operation
from xdsl.irdl import opt_prop_def, prop_def
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from stagec.diagnostics import Span, span_of
from stagec.dialects.op import DefaultBuilder, around, op_definition

PLACE = re.compile(r"(.*):(\d+):(\d+)-(\d+):(\d+)")


@op_definition
class PlanOp(DefaultBuilder):
    """The clauses of a plan that the passes to come, the plan of memory and the estimate of times read.

    A clause that is not written says what it says by default; `at` has the places of what is written in the text.
    `batch` is the dim that microbatches and data parallelism split;
    `new` is the dim of the new tokens of what is served;
    a program that `trains` ends in a loss, which the step is to make smaller.
    """

    name = "dist.plan"

    plan_name = prop_def(StringAttr)
    batch = prop_def(StringAttr)
    new = opt_prop_def(StringAttr)
    trains = opt_prop_def(UnitAttr)
    clauses = prop_def(DictionaryAttr)
    places = prop_def(DictionaryAttr)

    assembly_format = "$plan_name `batch` $batch (`new` $new^)? (`trains` $trains^)? $clauses `at` $places attr-dict"

    @property
    def batch_dim(self) -> str:
        """The dim that microbatches and data parallelism split: the leading one of the first input."""
        return self.batch.data

    @property
    def new_dim(self) -> str | None:
        """The dim of the new tokens of a sequence, or of all that are in one row; None of what is not served."""
        return None if self.new is None else self.new.data

    @property
    def is_training(self) -> bool:
        """Whether the output is a loss that the step is to make smaller."""
        return self.trains is not None


def place_of(span: Span) -> str:
    """A place in a text, as `at` has it."""
    return f"{span.file}:{span.line}:{span.column}-{span.end_line}:{span.end_column}"


def span_at(text: str) -> Span | None:
    """The inverse of `place_of`; nothing for what is no place."""
    place = PLACE.fullmatch(text)
    return Span(place[1], *map(int, place.groups()[1:])) if place is not None else None


def clause_span(op: Operation, *paths: str) -> Span | None:
    """Where the plan says what a pass finds wrong: the first of some clauses, by path, that is written; where nothing is, the place of `op`."""
    *_, module = op, *around(op)
    plans = (
        each for region in module.regions for each in region.block.ops if isinstance(each, PlanOp)
    )
    for plan in plans:
        for path in paths:
            if isinstance(place := plan.places.data.get(path), StringAttr):
                return span_at(place.data)
    return span_of(op.location)


@op_definition
class PassesOp(DefaultBuilder):
    """The passes that a compilation has still to run, in order. Whoever runs the first takes it off the list."""

    name = "dist.passes"

    passes = prop_def(ArrayAttr[StringAttr])

    assembly_format = "$passes attr-dict"

    @property
    def texts(self) -> tuple[str, ...]:
        """As `stagec-opt -p` reads them."""
        return tuple(text.data for text in self.passes)

    def verify_(self) -> None:
        for text in self.texts:
            if not is_pass(text):
                raise self.mistake(f"`{text}` is not a pass with its arguments")


@lru_cache(maxsize=1024)
def is_pass(text: str) -> bool:
    """Whether a text is one pass with its arguments."""
    try:
        return len(list(parse_pipeline(text))) == 1
    except ArgSpecParseError:
        return False
