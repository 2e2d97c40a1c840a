"""Attributes that the dialects share: dims and the axes that split them, names, sizes, placements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TypeVar

from xdsl.ir import Attribute, Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from stagec import symbolic
from stagec.symbolic import Size

T = TypeVar("T")


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


def parse_names(parser: AttrParser) -> tuple[str, ...]:
    return tuple(
        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_name(parser))
    )


def parse_name(parser: AttrParser) -> str:
    """A dim's or axis' name."""
    return parser.parse_identifier(", the name of a dim or of an axis,")


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


def parse_quoted(parser: AttrParser, what: str, read: Callable[[str], T]) -> T:
    """What stands in quotes; a `ValueError` of `read` is an error at its place."""
    position = parser.pos
    text = parser.parse_str_literal(f" expected {what}")
    try:
        return read(text)
    except ValueError as error:
        parser.raise_error(str(error), position)


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


def parse_size(parser: AttrParser) -> Size:
    """A quoted size expression."""
    return parse_quoted(parser, "a size", symbolic.parse)


class QuotedSize(Data[Size]):
    """Shared by attributes that are one expression, printed in quotes."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Size:
        return parse_size(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f'"{self.data}"')


@irdl_attr_definition
class SizeAttr(QuotedSize):
    """An exact size expression, printed in quotes: `"B*S/dp"`."""

    name = "stg.size"


@irdl_attr_definition
class RankAttr(QuotedSize):
    """A rank of the whole job, in the coordinates of another: `"8 + floordiv(tp.index, 2)"`. Ranks of a class have peers of their own by it."""

    name = "stg.rank"


@irdl_attr_definition
class LayerStagesAttr(Data[tuple[int, ...]]):
    """Of each layer, the place of its stage along the axis of the stages: `<0 x 16, 1 x 16>`."""

    name = "stg.layer_stages"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int, ...]:
        def run() -> tuple[int, ...]:
            stage = parser.parse_integer(allow_boolean=False, allow_negative=False)
            parser.parse_characters("x")
            return (stage,) * parser.parse_integer(allow_boolean=False, allow_negative=False)

        runs = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, run)
        return tuple(stage for each in runs for stage in each)

    def print_parameter(self, printer: Printer) -> None:
        runs = [(stage, len(list(same))) for stage, same in groupby(self.data)]
        printer.print_string(f"<{', '.join(f'{stage} x {count}' for stage, count in runs)}>")

    def of_layer(self, layer: int) -> int:
        """Of a layer; of what is in none, its only stage."""
        return self.data[max(layer, 0)]


@irdl_attr_definition
class RequestsAttr(Data[tuple[tuple[Size, Size, Size], ...]]):
    """Sequences of a row that differ in length: how many, of how many new positions, that attend to how many: `<["4", "2048", "2048"]>`."""

    name = "stg.requests"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[Size, Size, Size], ...]:
        found: list[tuple[Size, Size, Size]] = []
        with parser.in_angle_brackets():
            position = parser.pos
            for sizes in parser.parse_comma_separated_list(
                parser.Delimiter.NONE,
                lambda: parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, lambda: parse_size(parser)
                ),
            ):
                if len(sizes) != 3:
                    parser.raise_error(
                        "expected a count, new positions, and positions in all", position
                    )
                found.append((sizes[0], sizes[1], sizes[2]))
        return tuple(found)

    def print_parameter(self, printer: Printer) -> None:
        kinds = (", ".join(f'"{size}"' for size in kind) for kind in self.data)
        printer.print_string(f"<{', '.join(f'[{kind}]' for kind in kinds)}>")


@irdl_attr_definition
class NamesAttr(Data[tuple[str, ...]]):
    """Names of dims or of mesh axes, in order: `[cp, tp]`."""

    name = "stg.names"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[str, ...]:
        return parse_names(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"[{', '.join(self.data)}]")


def sizes_in(attribute: Attribute) -> Iterator[Size]:
    """The sizes that an attribute states."""
    if type(attribute) is SizeAttr:
        yield attribute.data
    elif type(attribute) is RequestsAttr:
        for kind in attribute.data:
            yield from kind


@irdl_attr_definition
class PlacementAttr(Data[tuple[Dim, ...]]):
    """The axes that split each index of an op's iteration space: `<[B/dp, H/tp]>`."""

    name = "dist.placement"

    @staticmethod
    def of(splits: Mapping[str, Sequence[str]]) -> PlacementAttr:
        return PlacementAttr(tuple(Dim(n, tuple(s)) for n, s in splits.items() if s))

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Dim, ...]:
        with parser.in_angle_brackets():
            return tuple(
                parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, lambda: parse_dim(parser)
                )
            )

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<[{', '.join(map(str, self.data))}]>")

    @property
    def splits(self) -> dict[str, tuple[str, ...]]:
        return {d.name: d.split for d in self.data}
