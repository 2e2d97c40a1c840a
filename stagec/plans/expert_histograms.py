"""Files that say how busy experts are: a line for each layer, a number for each expert, commas between them."""

from __future__ import annotations

from collections.abc import Sequence

from stagec.diagnostics import CompileError, Span, refused
from stagec.reading import read_whole_text


def read_histograms(path: str, span: Span) -> list[tuple[int, ...]]:
    """The rows of a file: whole numbers, such as counts of tokens. Blank lines and those after `#` say nothing."""
    try:
        text = read_whole_text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise failed(f"cannot read `{path}`: {reason}", span) from None
    rows: list[tuple[int, ...]] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            line_span = Span.whole_line(path, number)
            rows.append(row_of(content, line_span, span))
            if len(rows[-1]) != len(rows[0]):
                message = f"a line of {len(rows[-1])} numbers, and the first has {len(rows[0])}"
                raise failed(message, line_span, span)
    if not rows:
        raise failed(f"`{path}` has no numbers", span)
    return rows


def row_of(content: str, place: Span, span: Span) -> tuple[int, ...]:
    words: Sequence[str] = [word.strip() for word in content.split(",")]
    wrong = next((w for w in words if not (w.isascii() and w.isdecimal()) or len(w) > 18), None)
    if wrong is not None:
        raise failed(f"`{wrong}` is not a count of tokens", place, span)
    return tuple(map(int, words))


def failed(message: str, span: Span, named: Span | None = None) -> CompileError:
    """`named` is where the plan names the file, of a line of which `span` is."""
    help = "write a line for each layer, with a whole number for each expert: `120, 80, 95, 105`"
    secondary = [(named, "the plan names it")] if named is not None else []
    return refused("E0411", message, span, secondary=secondary, help=help)
