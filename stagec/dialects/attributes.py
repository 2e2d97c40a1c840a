"""Attributes that the dialects share: dims and the axes that split them, names, sizes, placements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import ClassVar

from xdsl.ir import Attribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from stagec import symbolic
from stagec.dialects.text_forms import (
    NUMBER,
    SIZE,
    TextForm,
    WrittenData,
    angled,
    identifier,
    listed,
    mapped,
    pair,
)
from stagec.symbolic import Size


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dim and the axes that split it, major first."""

    name: str
    split: tuple[str, ...] = ()

    @property
    def size(self) -> Size:
        return _size(self)

    def __str__(self) -> str:
        if not self.split:
            return self.name
        if len(self.split) == 1:
            return f"{self.name}/{self.split[0]}"
        return f"{self.name}/({'*'.join(self.split)})"


@lru_cache(maxsize=4096)
def _size(dim: Dim) -> Size:
    return symbolic.symbol(dim.name) / symbolic.product(map(symbolic.symbol, dim.split))


def parse_dim(parser: AttrParser) -> Dim:
    name = parse_name(parser)
    if parser.parse_optional_characters("/") is None:
        return Dim(name)
    if parser.parse_optional_punctuation("(") is None:
        return Dim(name, (parse_name(parser),))
    split = [parse_name(parser)]
    while parser.parse_optional_characters("*") is not None:
        split.append(parse_name(parser))
    parser.parse_punctuation(")")
    return Dim(name, tuple(split))


def print_lines(printer: Printer, lines: Iterable[str]) -> None:
    """A list in braces, each entry on a line of its own."""
    first = True
    with printer.indented():
        printer.print_string("{")
        for line in lines:
            printer.print_string("" if first else ",")
            printer._print_new_line()
            printer.print_string(line)
            first = False
    if not first:
        printer._print_new_line()
    printer.print_string("}")


DIM_OR_AXIS = identifier("the name of a dim or of an axis")
NAMES = listed(DIM_OR_AXIS)
parse_name, parse_names, parse_size = DIM_OR_AXIS.read, NAMES.read, SIZE.read


@irdl_attr_definition
class SizeAttr(WrittenData[Size]):
    """An exact size expression, printed in quotes: `"B*S/dp"`."""

    name = "stg.size"
    FORM: ClassVar = SIZE


@irdl_attr_definition
class RankAttr(WrittenData[Size]):
    """A rank of the whole job, in the coordinates of another: `"8 + floordiv(tp.index, 2)"`. Ranks of a class have peers of their own by it."""

    name = "stg.rank"
    FORM: ClassVar = SIZE


@irdl_attr_definition
class LayerStagesAttr(WrittenData[tuple[int, ...]]):
    """For each layer, the place of its stage along the axis of the stages: `<0 x 16, 1 x 16>`."""

    name = "stg.layer_stages"
    FORM: ClassVar = mapped(
        listed(pair(NUMBER, NUMBER, "x"), "<>"),
        lambda runs: tuple(stage for stage, count in runs for _ in range(count)),
        lambda stages: [(stage, len(list(same))) for stage, same in groupby(stages)],
    )

    def of_layer(self, layer: int) -> int:
        """The stage of a layer; for what is in no layer, its only stage."""
        return self.data[max(layer, 0)]


@irdl_attr_definition
class RequestsAttr(WrittenData[tuple[tuple[Size, Size, Size], ...]]):
    """Sequences of a row that differ in length: how many, of how many new positions, that attend to how many: `<["4", "2048", "2048"]>`."""

    name = "stg.requests"
    FORM: ClassVar = listed(listed(SIZE), "<>")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[Size, Size, Size], ...]:
        position = parser.pos
        found = super().parse_parameter(parser)
        if any(len(kind) != 3 for kind in found):
            parser.raise_error("expected a count, new positions, and positions in all", position)
        return found


@irdl_attr_definition
class NamesAttr(WrittenData[tuple[str, ...]]):
    """Names of dims or of mesh axes, in order: `[cp, tp]`."""

    name = "stg.names"
    FORM: ClassVar = NAMES


@irdl_attr_definition
class NumbersAttr(WrittenData[tuple[int, ...]]):
    """Which of several, by number: `[0, 2]`."""

    name = "stg.numbers"
    FORM: ClassVar = listed(NUMBER)


def sizes_in(attribute: Attribute) -> Iterator[Size]:
    """The sizes that an attribute states."""
    if type(attribute) is SizeAttr:
        yield attribute.data
    elif type(attribute) is RequestsAttr:
        for kind in attribute.data:
            yield from kind


@irdl_attr_definition
class PlacementAttr(WrittenData[tuple[Dim, ...]]):
    """The axes that split each index of an op's iteration space: `<[B/dp, H/tp]>`."""

    name = "dist.placement"
    FORM: ClassVar = angled(listed(TextForm(parse_dim, str)))

    @staticmethod
    def of(splits: Mapping[str, Sequence[str]]) -> PlacementAttr:
        return PlacementAttr(tuple(Dim(n, tuple(s)) for n, s in splits.items() if s))

    @property
    def splits(self) -> dict[str, tuple[str, ...]]:
        return {d.name: d.split for d in self.data}
