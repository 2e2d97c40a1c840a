"""How what an attribute holds is written, and read again: a form says both.

FORM = listed(record(Stage, kind=TEXT, layers=several(NUMBER)))      // ["first" 3 1, "middle" 4 0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from xdsl.ir import Data
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from stagec import symbolic

T = TypeVar("T")


@dataclass(frozen=True)
class TextForm(Generic[T]):
    read: Callable[[AttrParser], T]
    written: Callable[[T], str]
    """Empty for what goes without saying."""


class OwnData(Data[T]):
    """Shared by our attributes and types. xDSL asks of each that is made whether it is of a kind that it knows, which takes longer than to make it."""

    def __post_init__(self) -> None:
        self.verify()


class WrittenData(OwnData[T]):
    """Shared by attributes whose text is of a form."""

    FORM: ClassVar[TextForm[Any]]

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> T:
        return cls.FORM.read(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(self.FORM.written(self.data))


def parse_quoted(parser: AttrParser, what: str, read: Callable[[str], T]) -> T:
    """What stands in quotes; a `ValueError` of `read` is an error at its place."""
    position = parser.pos
    text = parser.parse_str_literal(f" expected {what}")
    try:
        return read(text)
    except ValueError as error:
        parser.raise_error(str(error), position)


# Words and numbers

NUMBER = TextForm[int](lambda p: p.parse_integer(allow_boolean=False, allow_negative=False), str)


def quoted(what: str, read: Callable[[str], T]) -> TextForm[T]:
    return TextForm(lambda parser: parse_quoted(parser, what, read), lambda value: f'"{value}"')


SIZE = quoted("a size", symbolic.parse)
SYMBOL = TextForm[str](lambda parser: parser.parse_symbol_name().data, lambda name: f"@{name}")


def text(what: str) -> TextForm[str]:
    return quoted(what, str)


def identifier(what: str) -> TextForm[str]:
    return TextForm(lambda parser: parser.parse_identifier(f", {what},"), str)


def word(what: str, known: Mapping[str, T]) -> TextForm[T]:
    """One of some words."""
    words = {value: each for each, value in known.items()}

    def read(parser: AttrParser) -> T:
        position = parser.pos
        found = parser.parse_identifier(f", {what},")
        if found not in known:
            parser.raise_error(f"`{found}` is not {what}: {', '.join(known)}", position)
        return known[found]

    return TextForm(read, words.__getitem__)


def one_of(*words: str) -> TextForm[str]:
    """One of some words, of which the first goes without saying."""
    return TextForm(
        lambda parser: next((w for w in words if parser.parse_optional_keyword(w)), words[0]),
        lambda value: "" if value == words[0] else value,
    )


# What consists of several


def listed(each: TextForm[T], delimiter: str = "[]") -> TextForm[tuple[T, ...]]:
    between, (opening, closing) = AttrParser.Delimiter(tuple(delimiter)), delimiter

    def read(parser: AttrParser) -> tuple[T, ...]:
        return tuple(parser.parse_comma_separated_list(between, lambda: each.read(parser)))

    return TextForm(
        read, lambda values: f"{opening}{', '.join(map(each.written, values))}{closing}"
    )


def numbers() -> TextForm[tuple[int, ...]]:
    """Whole numbers with blanks between them."""

    def read(parser: AttrParser) -> tuple[int, ...]:
        found: list[int] = []
        while (number := parser.parse_optional_integer(allow_boolean=False)) is not None:
            found.append(number)
        return tuple(found)

    return TextForm(read, lambda values: " ".join(map(str, values)))


def pair(
    first: TextForm[Any], second: TextForm[Any], between: str = "="
) -> TextForm[tuple[Any, Any]]:
    def read(parser: AttrParser) -> tuple[Any, Any]:
        found = first.read(parser)
        parser.parse_characters(between)
        return found, second.read(parser)

    return TextForm(read, lambda p: f"{first.written(p[0])} {between} {second.written(p[1])}")


def behind(keyword: str, form: TextForm[T]) -> TextForm[T]:
    def read(parser: AttrParser) -> T:
        parser.parse_keyword(keyword)
        return form.read(parser)

    return TextForm(read, lambda value: f"{keyword} {form.written(value)}")


def option(keyword: str, form: TextForm[T], default: T) -> TextForm[T]:
    """What stands behind a keyword, where it is not as usual."""
    return TextForm(
        lambda parser: form.read(parser) if parser.parse_optional_keyword(keyword) else default,
        lambda value: "" if value == default else f"{keyword} {form.written(value)}",
    )


def flag(keyword: str) -> TextForm[bool]:
    return TextForm(
        lambda parser: parser.parse_optional_keyword(keyword) is not None,
        lambda value: keyword * value,
    )


def repeated(keyword: str, form: TextForm[T]) -> TextForm[tuple[T, ...]]:
    """Each behind the keyword."""

    def read(parser: AttrParser) -> tuple[T, ...]:
        found: list[T] = []
        while parser.parse_optional_keyword(keyword):
            found.append(form.read(parser))
        return tuple(found)

    return TextForm(read, lambda values: " ".join(f"{keyword} {form.written(v)}" for v in values))


def record(kind: Callable[..., T], /, **fields: TextForm[Any]) -> TextForm[T]:
    """What has fields, in the order in which they are written."""

    def read(parser: AttrParser) -> T:
        return kind(**{each: form.read(parser) for each, form in fields.items()})

    def written(value: T) -> str:
        words = (form.written(getattr(value, each)) for each, form in fields.items())
        return " ".join(filter(None, words))

    return TextForm(read, written)


def angled(form: TextForm[T]) -> TextForm[T]:
    def read(parser: AttrParser) -> T:
        with parser.in_angle_brackets():
            return form.read(parser)

    return TextForm(read, lambda value: f"<{form.written(value)}>")


def mapped(form: TextForm[Any], made: Callable[[Any], T], given: Callable[[T], Any]) -> TextForm[T]:
    """The form of something else that is written in the same way."""
    return TextForm(
        lambda parser: made(form.read(parser)), lambda value: form.written(given(value))
    )
