"""Reading files: a program and what it imports, as syntax."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stagec.diagnostics import CompileError, Diagnostics, Span, file_meant, refused
from stagec.frontend import syntax
from stagec.frontend.parser import DEEPEST, parse
from stagec.reading import read_file, without_detours
from stagec.shipped_models import STG, model_meant
from stagec.trust import may_read, outside


@dataclass
class Source:
    """A file and the files that it imports, each once, in the order in which they are needed."""

    file: str
    """The file that was asked for; it comes last in `files`."""
    files: dict[str, syntax.Program] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """The text of each file, for diagnostics and hashes."""


def parse_file(path: str | Path) -> Source:
    """The program in a file. Raises `CompileError` with the syntax errors of all its files."""
    reader = _Reader(Source(str(path)))
    reader.read(str(path), None)
    reader.findings.raise_errors(reader.source.texts)
    return reader.source


def parse_text(text: str, file: str = "<text>", opened: Mapping[str, str] | None = None) -> Source:
    """The program in a text. What it imports is looked for beside `file`.

    `opened` has the texts, by path, of files that an editor has open: they count instead of what is on disk.
    """
    reader = _Reader(Source(file))
    reader.opened = {os.path.realpath(path): each for path, each in (opened or {}).items()}
    reader.reading.append((os.path.realpath(file), file))
    reader.parse(text, file)
    reader.findings.raise_errors(reader.source.texts)
    return reader.source


def decode(content: bytes, file: str) -> str:
    """The text of a file. Raises `CompileError` with the place if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise refused(
            "E0107",
            f"byte {content[error.start]:#04x} is not UTF-8",
            Span.point(file, line, column),
            help="save the file as UTF-8 text",
            sources={file: content.decode("utf-8", errors="replace")},
        ) from None


def read_text(file: str) -> str:
    """The text of one file, without what it imports. E0701 if it cannot be read."""
    try:
        content = read_file(file)
    except OSError as error:
        message = f"cannot read `{file}`: {uncapitalised(error.strerror or str(error))}"
        raise refused("E0701", message, origin=file, help=model_meant(file)) from None
    return decode(content, file)


def uncapitalised(reason: str) -> str:
    """The words of an `OSError` as a part of a sentence: `No such file` begins in small letters, 64 MiB stays."""
    return reason[:1].lower() + reason[1:]


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.findings = Diagnostics()
        self.reading: list[tuple[str, str]] = []
        """Real path and shown name of each file whose imports are being read."""
        self.known: set[str] = set()
        self.opened: Mapping[str, str] = {}
        """The texts of files that are not read from disk, by real path."""

    def read(self, file: str, importer: syntax.ImportFile | None) -> None:
        """Read a file unless it was read before."""
        span = importer.path.span if importer else None
        try:
            real = os.path.realpath(file)
        except ValueError as error:
            self.unreadable(file, span, str(error))
            return
        if importer is not None:
            file = without_detours(file)
        circle = [shown for known, shown in self.reading if known == real]
        if circle:
            names = [shown for _, shown in self.reading]
            chain = " -> ".join([*names[names.index(circle[0]) :], circle[0]])
            message = f"`{file}` imports itself"
            notes = (f"the imports go round: {chain}",) if len(names) > 1 else ()
            self.findings.say("E0206", message, span, notes=notes, help="leave the import out")
            return
        if real in self.known:
            return
        if len(self.reading) == DEEPEST:
            message = f"imports nest more than {DEEPEST} levels deep"
            help_ = "import from this file what the innermost ones import"
            self.findings.say("E0106", message, span, help=help_)
            return
        self.known.add(real)
        if importer is not None and not may_read(file, os.path.dirname(self.source.file)):
            self.findings.add(outside(file, span))
            return
        text = self.opened.get(real)
        try:
            content = read_file(file) if text is None else b""
        except OSError as error:
            self.unreadable(file, span, error.strerror or str(error))
            return
        self.reading.append((real, file))
        try:
            self.parse(decode(content, file) if text is None else text, file)
        except CompileError as error:
            self.source.texts |= error.sources
            for diagnostic in error.diagnostics:
                self.findings.add(diagnostic)
        self.reading.pop()

    def unreadable(self, file: str, span: Span | None, reason: str) -> None:
        message = f"cannot read `{file}`: {uncapitalised(reason)}"
        help_ = [file_meant(file, STG) if span else model_meant(file)]
        help_ += ["the path is relative to the file that imports it"] if span else []
        origin = "" if span else file
        self.findings.say("E0701", message, span, help=help_, origin=origin)

    def parse(self, text: str, file: str) -> None:
        """Parse one file and read what it imports."""
        self.source.texts[file] = text
        try:
            program = parse(text, file)
        except CompileError as error:
            for diagnostic in error.diagnostics:
                self.findings.add(diagnostic)
            return
        for item in program.items:
            if isinstance(item, syntax.ImportFile):
                folder = os.path.dirname(file)
                self.read(os.path.join(folder, item.path.text), item)
        self.source.files[file] = program
