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
            rows.append(row_of(content, f"{path}:{number}", span))
    widths = sorted({len(row) for row in rows})
    if not rows:
        raise failed(f"`{path}` has no numbers", span)
    if len(widths) > 1:
        raise failed(f"the lines of `{path}` have {widths[0]} to {widths[-1]} numbers", span)
    return rows


def row_of(content: str, place: str, span: Span) -> tuple[int, ...]:
    words: Sequence[str] = [word.strip() for word in content.split(",")]
    wrong = next((w for w in words if not (w.isascii() and w.isdecimal()) or len(w) > 18), None)
    if wrong is not None:
        raise failed(f"`{wrong}` in {place} is not a count of tokens", span)
    return tuple(map(int, words))


def failed(message: str, span: Span) -> CompileError:
    help = "write a line for each layer, with a whole number for each expert: `120, 80, 95, 105`"
    return refused("E0411", message, span, help=help)
