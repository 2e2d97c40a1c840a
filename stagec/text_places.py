"""Reading TOML, and where what it says stands in the text, which `tomllib` does not tell: `read_toml`, `TomlText`, and likewise of JSON, `json_place`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from json import JSONDecodeError
from typing import Any

from stagec.diagnostics import Span

AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
STRING = r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
SPACE = re.compile(r"(?:\s|#[^\n]*)+")
HEADER = re.compile(r"(\[\[?)([^\]\n]*)\]\]?[^\n]*")
KEY = re.compile(r"([^=\n]*[^=\s])[ \t]*=[ \t]*")
NAME = re.compile(r'"([^"]*)"|\'([^\']*)\'|([\w-]+)')
VALUE = re.compile(rf"{STRING}|#[^\n]*|.|\n", re.DOTALL)

JSON_HELP = "write a value behind each colon, and a comma between two"
Path = tuple[str | int, ...]


class NoToml(Exception):
    """What is wrong, and where."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.message, self.span = message, span


def read_toml(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = AT.fullmatch(str(error))
        message, line, column = found.groups() if found else (str(error), None, None)
        lines = text.rstrip().split("\n")
        line, column = (line, column) if line else (len(lines), len(lines[-1]) + 1)
        message = f"{message[:1].lower()}{message[1:]}"
        raise NoToml(message, Span.point(file, int(line), int(column or 1))) from None
    except RecursionError:
        raise NoToml("it nests too deeply", Span.point(file, 1, 1)) from None
    except ValueError:  # of Python's limit on the digits of a whole number
        raise NoToml("a number has thousands of digits", Span.point(file, 1, 1)) from None


def json_place(error: ValueError, file: str) -> tuple[Span | None, str]:
    """Where a text is no JSON, if that is known, and why."""
    if not isinstance(error, JSONDecodeError):
        return None, str(error)
    return Span.point(file, error.lineno, error.colno), f"{error.msg[:1].lower()}{error.msg[1:]}"


CELL = re.compile(r'\s*(?P<cell>"(?:[^"]|"")*"|[^,]*?)\s*(?:,|$)')


def csv_place(text: str, file: str, line: int, cell: int, word: str = "") -> Span:
    """Where a cell of a line stands, counted from 0, and in it a word; the line where it has no such cell."""
    written = text.splitlines()[line - 1]
    begin, end = next(
        islice((each.span("cell") for each in CELL.finditer(written)), cell, None), (0, 0)
    )
    inner = re.compile(rf'(?<![^\s|",]){re.escape(word)}(?![^\s|",])').search(written, begin, end)
    if word and inner is not None:
        begin, end = inner.span()
    return (
        Span(file, line, begin + 1, line, end + 1) if begin < end else Span.whole_line(file, line)
    )


JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def json_key(text: str, file: str, path: Path) -> Span | None:
    """Where a key of a JSON text stands, with its value unless that has parts; nothing if it is not there. Of several the last, as `json` reads it."""
    inside: list[list[str | int]] = []
    """Of the brackets that are open: in a list the place of the next value, in a mapping the key of it."""
    key, found, span = False, None, None
    for token in JSON_TOKEN.finditer(text):
        word = token[0]
        if found is not None and word != ":":
            end = token.end() if word[0] not in "[{" else found[1]
            span, found = TomlText(text, file).span(found[0], end), None
        if word in "[{":
            inside.append([0] if word == "[" else [""])
            key = word == "{"
        elif word in "]}":
            inside.pop()
            key = False
        elif word == ",":
            key = isinstance(inside[-1][0], str)
            if not key:
                inside[-1][0] = int(inside[-1][0]) + 1
        elif key:
            inside[-1][0], key = json.loads(word), False
            if tuple(each[0] for each in inside) == path:
                found = token.span()
    return span


class TomlText:
    """A text that is TOML, and where its keys stand."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file

    def place(self, *path: str | int) -> Span | None:
        """Where a key stands with its value; where it is not written, the table that it would be in."""
        for length in range(len(path), 0, -1):
            for known, start, end in self.places:
                if known[:length] == path[:length]:
                    return self.span(start, end)
        return None

    def span(self, start: int, end: int) -> Span:
        line = self.text.count("\n", 0, start)
        column = start - (self.text.rfind("\n", 0, start) + 1)
        return Span(self.file, line + 1, column + 1, line + 1, column + end - start + 1)

    @cached_property
    def places(self) -> list[tuple[Path, int, int]]:
        return list(self._places())

    def _places(self) -> Iterator[tuple[Path, int, int]]:
        """The path of each header and key, and where it begins and ends: with its value, if that is on the same line."""
        text, at, header = self.text, 0, Path()
        counts: dict[Path, int] = {}
        while at < len(text):
            if space := SPACE.match(text, at):
                at = space.end()
            elif found := HEADER.match(text, at):
                header = _names(found[2])
                if found[1] == "[[":
                    counts[header] = counts.get(header, -1) + 1
                    header = (*header, counts[header])
                yield header, at, found.end(2) + len(found[1])
                at = found.end()
            elif found := KEY.match(text, at):
                end = self._value_end(found.end())
                last = end if "\n" not in text[at:end] else found.end(1)
                yield (*header, *_names(found[1])), at, last
                at = end
            else:
                return

    def _value_end(self, at: int) -> int:
        depth, end = 0, at
        for token in VALUE.finditer(self.text, at):
            word = token[0]
            if word == "\n" and not depth:
                break
            depth += (word in "[{") - (word in "]}")
            if not word.isspace() and word[0] != "#":
                end = token.end()
        return end


def _names(text: str) -> Path:
    return tuple(next(filter(None, each), "") for each in NAME.findall(text))
