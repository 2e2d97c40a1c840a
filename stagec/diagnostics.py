"""What a user did wrong: `Diagnostic`, `CompileError`, and how they are shown.

    error[E0301]: axis `tp` of size 16 does not divide `K = 8`
      --> examples/llama3.stg:36:12
       |
    36 |   shard H, K over tp
       |            ^ splits `k` of `Attention`
       = help: ...

A mistake of ours is an assertion and has no place here (STYLE.md, section 1).
"""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    NameLoc,
    StringAttr,
)
from xdsl.ir import Attribute

from stagec.diagnostic_codes import CODES
from stagec.reading import read_file

MOST_COMPARED = 1000
"""Names among which one like a misspelt one is looked for."""

WIDEST_LINE = 160
"""Longer source lines are cut around the place that is shown."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of source text. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @staticmethod
    def point(file: str, line: int, column: int) -> Span:
        """A place without a known end; it is shown as the word that starts there."""
        return Span(file, line, column, line, column)

    @property
    def start(self) -> Span:
        """The place where it begins, which is all that the IR says of it."""
        return Span.point(self.file, self.line, self.column)

    @staticmethod
    def flag(text: str, start: int = 0, end: int = 0) -> Span:
        """A place on the command line: `--device h100 { node = 4 }`, or some characters of it, counted from 0. It has no line."""
        return Span(text, 0, start + 1, 0, end + 1)

    @staticmethod
    def whole_line(file: str, line: int) -> Span:
        """A line of a file, from its first character to its end."""
        return Span(file, line, 1, line + 1, 1)

    @property
    def is_flag(self) -> bool:
        return not self.line

    def to(self, other: Span) -> Span:
        """From the start of this to the end of `other`."""
        return Span(self.file, self.line, self.column, other.end_line, other.end_column)

    def __contains__(self, other: Span) -> bool:
        """Whether `other` is a part of this text, or all of it."""
        starts = (self.line, self.column) <= (other.line, other.column)
        ends = (other.end_line, other.end_column) <= (self.end_line, self.end_column)
        return self.file == other.file and starts and ends


class TypedWord(str):
    """A word of a command, and what it was part of: `4` of `--set-b tp=4`, which is the `origin` of what is wrong with it."""

    origin: str

    def __new__(cls, text: str, origin: str = "") -> TypedWord:
        word = super().__new__(cls, text)
        word.origin = origin
        return word


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong where it shows in several places, which are told as one."""

    kind: Kind
    name: str = ""
    """The name that nothing defines, or that means two things."""
    within: str = ""
    """The module in which it does."""


Kind = Literal[
    "no dim",
    "no value",
    "no callable",
    "no caches",
    "no axis",
    "no mesh",
    "no plan",
    "name of a dim",
    "no shared dim",
    "shape of a cache",
    "sizes said twice",
    "split along a pipeline",
]


@dataclass(frozen=True)
class Diagnostic:
    """One mistake (code `E...`) or one doubt (`W...`)."""

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    """What the caret points at."""
    secondary: Sequence[tuple[Span, str]] = ()
    """Other places that matter, each with its label: where the other size came from."""
    notes: Sequence[str] = ()
    """Facts that led here."""
    help: str | Sequence[str] = ()
    """What to write instead."""
    origin: str = ""
    """Where the text came from if not from a file: `--set tp=3`."""
    mistake: Mistake | None = None

    def __post_init__(self) -> None:
        assert self.code in CODES, f"{self.code} is not in stagec/diagnostic_codes.py"

    @property
    def is_error(self) -> bool:
        return self.code.startswith("E")

    @property
    def helps(self) -> tuple[str, ...]:
        """Each piece of advice."""
        if isinstance(self.help, str):
            return (self.help,) if self.help else ()
        return tuple(text for text in self.help if text)


class CompileError(Exception):
    """The user's mistakes that one phase found. `sources` has the text of each file read."""

    def __init__(
        self, diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None
    ) -> None:
        self.diagnostics = tuple(diagnostics)
        self.sources: dict[str, str] = dict(sources or {})
        super().__init__("\n".join(f"{d.code}: {d.message}" for d in self.diagnostics))

    def __str__(self) -> str:
        """The diagnostics as the command line shows them."""
        return f"\n{self.render()}" if self.diagnostics else ""

    def render(self) -> str:
        return render(self.diagnostics, self.sources)

    def keep_texts(self) -> None:
        """Read now the files that its diagnostics show: later, the same paths may lead to others."""
        texts = _Texts(self.sources)
        for each in self.diagnostics:
            for span in (each.span, *(place for place, _ in each.secondary)):
                if span is not None and not span.is_flag:
                    texts.line(span.file, span.line)


def refused(
    code: str,
    message: str,
    span: Span | None = None,
    label: str = "",
    *,
    secondary: Sequence[tuple[Span, str]] = (),
    notes: Sequence[str] = (),
    help: str | Sequence[str] = (),
    origin: str = "",
    sources: Mapping[str, str] | None = None,
) -> CompileError:
    """One mistake, to be raised."""
    found = Diagnostic(code, message, span, label, secondary, notes, help, origin)
    return CompileError([found], sources)


def refuse_beside(path: str, why: str, said: Mapping[str, object]) -> None:
    """E0711 for the first flag or argument that is said, and that a file has decided."""
    for word, value in said.items():
        if value:
            message = f"`{word}` changes nothing: `{path}` {why}"
            raise refused("E0711", message, origin=word, help="leave it out, or name the model")


def refused_line(path: str, place: Span | int, message: str, help_: str) -> CompileError:
    """E0421: a mistake in a line of a file of numbers, or in a part of it; or, where that is 0, in the file."""
    if not place:
        return refused("E0421", message, origin=path, help=help_)
    span = place if isinstance(place, Span) else Span.whole_line(path, place)
    return refused("E0421", message, span, help=help_)


@dataclass
class Diagnostics:
    """Collects the diagnostics of a phase, so that all are reported at once."""

    found: list[Diagnostic] = field(default_factory=list)
    most: int | None = None
    """So many errors end the phase: nobody reads more, and suggestions for each take time."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The texts that they are about."""
    num_errors: int = 0
    """So many were found, each place of a mistake counted."""
    _known: set[tuple[object, ...]] = field(default_factory=set)

    def say(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        label: str = "",
        secondary: Sequence[tuple[Span, str]] = (),
        notes: Sequence[str] = (),
        help: str | Sequence[str] = (),
        origin: str = "",
        mistake: Mistake | None = None,
    ) -> None:
        """Add one."""
        self.add(Diagnostic(code, message, span, label, secondary, notes, help, origin, mistake))

    def add(self, diagnostic: Diagnostic) -> None:
        """Remember it, unless the same was found before (a module may be read twice)."""
        d = diagnostic
        key = (d.code, d.message, d.span, d.label, d.origin, *d.secondary, *d.notes, d.helps)
        if key not in self._known:
            self._known.add(key)
            self.found.append(diagnostic)
            self.num_errors += diagnostic.is_error
            if self.num_errors == self.most:
                raise CompileError(self.errors, self.sources)

    @property
    def errors(self) -> list[Diagnostic]:
        return each_once(sorted((d for d in self.found if d.is_error), key=_position))

    @property
    def warnings(self) -> list[Diagnostic]:
        return sorted((d for d in self.found if not d.is_error), key=_position)

    def raise_errors(self, sources: Mapping[str, str]) -> None:
        """End the phase if a mistake was found."""
        if self.errors:
            raise CompileError(self.errors, sources)


Told = tuple[str, Span | None, str]
T = TypeVar("T")


def told_by(each: Diagnostic) -> Told:
    """What warnings have in common that say the same."""
    return each.code, each.span, each.message


def in_all(found: Sequence[Sequence[T]], by: Callable[[T], Hashable]) -> list[T]:
    """What each of several programs is told of, as the first of them is; `by` is what makes two the same."""
    told = [{by(each) for each in own} for own in found]
    return [each for each in (found[0] if found else ()) if all(by(each) in own for own in told)]


def told_of_parts(
    found: Sequence[Sequence[Diagnostic]], says: Sequence[Callable[[Span], bool]]
) -> list[list[Diagnostic]]:
    """What each program of one job is told of: what several are, the first of them. `says` tells of each whether its plan says something in a place.

    What several plans say in one place, where it holds for all pools or is a flag, has to be told of each of them.
    """
    told = [{told_by(each): each for each in own} for own in found]
    heard: set[Told] = set()

    def is_told(key: Told, span: Span | None) -> bool:
        saying = [own for own, at in zip(told, says, strict=True) if span is not None and at(span)]
        return key not in heard and all(key in own for own in saying)

    left: list[list[Diagnostic]] = []
    for own in told:
        left.append([each for key, each in own.items() if is_told(key, each.span)])
        heard |= own.keys()
    return left


MOST_PLACES = 3
"""So many further places of one mistake are shown, others counted."""


def each_once(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each mistake where it shows first, with the other places in which it does."""
    groups: dict[object, list[Diagnostic]] = {}
    for each in diagnostics:
        groups.setdefault(each.mistake or id(each), []).append(each)
    return [_as_one(*group) for group in groups.values()]


def _as_one(first: Diagnostic, *others: Diagnostic) -> Diagnostic:
    places = [each.span for each in others if each.span is not None]
    where = [*first.secondary, *((place, "and here") for place in places[:MOST_PLACES])]
    more = len(places) - MOST_PLACES
    notes = [*first.notes]
    if more > 0:
        notes.append(f"and in {more} further place{'s' * (more > 1)}")
    help_ = next((each.helps for each in (first, *others) if each.helps), ())
    return replace(first, secondary=where, notes=notes, help=help_) if others else first


def _position(diagnostic: Diagnostic) -> tuple[bool, str, int, int]:
    span = diagnostic.span
    return (True, span.file, span.line, span.column) if span else (False, "", 0, 0)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean ...?` for a misspelt name, or nothing."""
    close = closest(name, known)
    return f"did you mean `{close}`?" if close else ""


def suggestion(name: str, known: Collection[str]) -> str:
    """`did you mean ...?` for a misspelt name; where none is like it, the names that there are, in their order."""
    listed = f"there {'is' if len(known) == 1 else 'are'} {quoted(known)}" if known else ""
    return did_you_mean(name, known) or listed


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, if one is like it at all. Not looked for among very many."""
    names = known if isinstance(known, Collection) else list(known)
    if len(names) > MOST_COMPARED:
        return None
    candidates = sorted(set(names) - {name})
    for candidate in candidates:
        if candidate.lower() == name.lower():
            return candidate
    matches = difflib.get_close_matches(name, candidates, n=MOST_ALIKE, cutoff=0.6)
    return min(matches, key=lambda known: slips(name, known), default=None)


MOST_ALIKE = 4
"""So many names that have most letters in common are looked at for how one is mistyped as the other."""


def slips(name: str, known: str) -> tuple[bool, int]:
    """How a name is mistyped: whether more is wrong than an end left out, and by how many letters (others, missing, too many, in each other's places)."""
    before: list[int] = []
    row = list(range(len(known) + 1))
    for i, letter in enumerate(name, 1):
        above, row, further = row, [i], before
        before = above
        for j, other in enumerate(known, 1):
            least = min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != other))
            if i > 1 < j and letter == known[j - 2] and other == name[i - 2]:
                least = min(least, further[j - 2] + 1)
            row.append(least)
    return name not in known, row[-1]


def file_meant(path: str, ending: str = "") -> str:
    """A help for a file that is not there, or is a folder: one beside it, or in it, that ends so."""
    if os.path.exists(path) and not os.path.isdir(path):
        return ""
    folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
    ending = ending or os.path.splitext(name)[1]
    try:
        there = sorted(each for each in os.listdir(folder or ".") if each.endswith(ending))
    except (OSError, ValueError):
        return f"there is no folder `{folder}`" if folder else ""
    close = closest(name, there) if name else None
    if close:
        return f"did you mean `{os.path.join(folder, close)}`?"
    if ending and there and len(there) <= MOST_ALIKE:
        names = quoted(os.path.join(folder, each) for each in there)
        return f"there {'is' if len(there) == 1 else 'are'} {names}"
    where = f"in `{folder}`" if folder else "where the command runs"
    if not ending:
        return "name a file"
    if there:
        return f"name one of the `{ending}` files {where}"
    return f"no file {where} ends in `{ending}`"


def quoted(names: Iterable[str], last: str = "and") -> str:
    """`a`, `b` and `c`."""
    ticked = [f"`{name}`" for name in names]
    if len(ticked) < 2:
        return "".join(ticked)
    return f"{', '.join(ticked[:-1])} {last} {ticked[-1]}"


def location_of(span: Span) -> FileLineColLoc:
    """Where an op came from, for the IR."""
    return FileLineColLoc(StringAttr(span.file), IntAttr(span.line), IntAttr(span.column))


def span_of(location: Attribute) -> Span | None:
    """The inverse of `location_of`; nothing for an op without a place in a file. Of a place in another's name, and of several, the first that is in a file."""
    match location:
        case FileLineColLoc(filename=file, line=line, column=column):
            return Span.point(file.data, line.data, column.data)
        case CallSiteLoc(callee=inner) | NameLoc(location=inner):
            return span_of(inner)
        case FusedLoc(locations=ArrayAttr(data=several)):
            return next(filter(None, map(span_of, several)), None)
        case _:
            return None


def line_of(location: Attribute) -> str:
    """`file:line`, or nothing."""
    span = span_of(location)
    return f"{span.file}:{span.line}" if span is not None else ""


def render(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> str:
    """Every diagnostic as text, an empty line between them.

    A file that is not in `sources` is read from disk; if it is not there either, the place is given
    without its text.
    """
    texts = _Texts(dict(sources or {}))
    return "\n".join(_render_one(d, texts) for d in diagnostics)


class _Texts:
    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        self.lines: dict[str, list[str]] = {}

    def line(self, file: str, number: int) -> str | None:
        if file not in self.sources:
            try:
                self.sources[file] = read_file(file).decode("utf-8", errors="replace")
            except (OSError, ValueError):
                self.sources[file] = ""
        if file not in self.lines:
            # Not splitlines(): it breaks lines at form feeds and the like, which the parser does not.
            self.lines[file] = self.sources[file].split("\n")
        lines = self.lines[file]
        if not self.sources[file] or not 1 <= number <= len(lines):
            return None
        return lines[number - 1].removesuffix("\r")


@dataclass(frozen=True)
class _Mark:
    span: Span
    label: str
    sign: str


def _render_one(diagnostic: Diagnostic, texts: _Texts) -> str:
    kind = "error" if diagnostic.is_error else "warning"
    out = [f"{kind}[{diagnostic.code}]: {printable(diagnostic.message)}"]
    marks = [_Mark(span, label, "-") for span, label in dict.fromkeys(diagnostic.secondary)]
    if diagnostic.span:
        marks.insert(0, _Mark(diagnostic.span, diagnostic.label, "^"))
    width = max((len(str(mark.span.line)) for mark in marks), default=1)
    margin = " " * width
    if diagnostic.origin:
        out.append(f"{margin}--> {printable(diagnostic.origin)}")
    files = list(dict.fromkeys(mark.span.file for mark in marks))
    for file in files:
        first = next(mark.span for mark in marks if mark.span.file == file)
        arrow = "-->" if file == files[0] and not diagnostic.origin else ":::"
        place = f":{first.line}:{first.column}" if first.line else ""
        out.append(f"{margin}{arrow} {printable(file)}{place}")
        out += _render_file([mark for mark in marks if mark.span.file == file], margin, texts)
    for kind, remarks in (("note", diagnostic.notes), ("help", diagnostic.helps)):
        for remark in remarks:
            head, *rest = printable(remark, keep="\n").split("\n")
            out.append(f"{margin} = {kind}: {head}")
            out += [f"{margin}         {line}".rstrip() for line in rest]
    return "\n".join(out) + "\n"


def _render_file(marks: Sequence[_Mark], margin: str, texts: _Texts) -> list[str]:
    out: list[str] = []
    previous = 0
    if marks[0].span.is_flag:
        return [_below_flag(mark, margin) for mark in marks if mark.span.end_column > 1]
    for number in sorted({mark.span.line for mark in marks}):
        here = sorted((m for m in marks if m.span.line == number), key=lambda m: m.span.column)
        text = texts.line(here[0].span.file, number)
        if text is None:
            return []
        if not previous:
            out.append(f"{margin} |")
        elif number > previous + 2:
            out.append("...")
        elif number == previous + 2:
            between = texts.line(here[0].span.file, number - 1) or ""
            out.append(f"{number - 1:>{len(margin)}} | {_shown(between)[0]}".rstrip())
        previous = number
        shown, columns = _shown(text, here[0].span.column)
        out.append(f"{number:>{len(margin)}} | {shown}".rstrip())
        for mark in here:
            start, end = _extent(mark.span, text)
            left, right = columns(start), columns(end)
            underline = " " * left + mark.sign * max(1, right - left)
            out.append(f"{margin} | {underline} {printable(mark.label)}".rstrip())
    return out


def _below_flag(mark: _Mark, margin: str) -> str:
    """Some characters of a flag, which stands behind the arrow, underlined."""
    start, end = mark.span.column - 1, mark.span.end_column - 1
    cells = [_width(_cell(each)) for each in mark.span.file]
    signs = " " * sum(cells[:start]) + mark.sign * sum(cells[start:end])
    return f"{margin} |  {signs} {printable(mark.label)}".rstrip()


def _extent(span: Span, text: str) -> tuple[int, int]:
    """First and last (exclusive) column to underline, from 0."""
    start = min(max(span.column - 1, 0), len(text))
    if span.end_line > span.line:
        return start, max(start, len(text.rstrip()))
    end = min(span.end_column - 1, len(text))
    if end <= start:
        end = start
        while end < len(text) and (text[end].isalnum() or text[end] == "_"):
            end += 1
    return start, end


def _shown(text: str, column: int = 1):
    """A source line as it is shown, and a function from its columns to those on the screen."""
    first = 0
    if len(text) > WIDEST_LINE:
        first = min(max(0, column - WIDEST_LINE // 2), len(text) - WIDEST_LINE)
    last = first + WIDEST_LINE
    prefix = "..." if first else ""
    cells = [_cell(character) for character in text[first:last]]
    positions = [len(prefix)]
    for cell in cells:
        positions.append(positions[-1] + _width(cell))

    def columns(position: int) -> int:
        return positions[min(max(position - first, 0), len(cells))]

    return prefix + "".join(cells) + ("..." if last < len(text) else ""), columns


def _cell(character: str) -> str:
    if character == "\t":
        return "    "
    if character.isprintable() or unicodedata.combining(character):
        return character
    return "\N{REPLACEMENT CHARACTER}"


def _width(cell: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in cell
    )


def printable(text: str, keep: str = "") -> str:
    """The text without anything that could move a terminal's cursor."""
    return "".join(c if c in keep else _cell(c) for c in text)
