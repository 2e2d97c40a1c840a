"""Files that say how busy experts are: a line for each layer, a number for each expert, commas between them."""

from __future__ import annotations

from stagec.diagnostics import CompileError, Span, refused
from stagec.reading import read_whole_text
from stagec.text_places import csv_place


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
            words = [word.strip() for word in content.split(",")]
            for at, word in enumerate(words):
                if not (word.isascii() and word.isdecimal()) or len(word) > 18:
                    place = csv_place(text, path, number, at, word)
                    raise failed(f"`{word}` is not a count of tokens", place, span)
            rows.append(tuple(map(int, words)))
            if len(rows[-1]) != len(rows[0]):
                message = f"a line of {len(rows[-1])} numbers, and the first has {len(rows[0])}"
                raise failed(message, Span.whole_line(path, number), span)
    if not rows:
        raise failed(f"`{path}` has no numbers", span)
    return rows


def failed(message: str, span: Span, named: Span | None = None) -> CompileError:
    """`named` is where the plan names the file, of a line of which `span` is."""
    help = "write a line for each layer, with a whole number for each expert: `120, 80, 95, 105`"
    secondary = [(named, "the plan names it")] if named is not None else []
    return refused("E0411", message, span, secondary=secondary, help=help)
