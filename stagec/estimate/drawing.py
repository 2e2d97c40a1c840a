"""Rows of bars on a time axis of characters, as a paper draws a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

IDLE = "."


@dataclass(frozen=True)
class DrawnBar:
    """A bar. `letter` stands for its label where that does not fit; `stage` says which bars share a colour, -1 is of none."""

    start: float
    end: float
    label: str
    letter: str
    stage: int = -1


@dataclass(frozen=True)
class Run:
    """Characters that follow each other and are of one bar, or of none."""

    text: str
    bar: DrawnBar | None


def runs(bars: Sequence[DrawnBar], span: float, width: int) -> Iterator[Run]:
    """`F0--F1--....B0------`: bars on `width` columns that last from 0 to `span`. One too short to be seen is left out."""
    cells: list[tuple[str, DrawnBar | None]] = [(IDLE, None)] * width
    for bar in bars:
        first, last = (round(time / span * width) if span else 0 for time in (bar.start, bar.end))
        text = bar.label if len(bar.label) <= last - first else bar.letter[: last - first]
        cells[first:last] = [(letter, bar) for letter in text.ljust(last - first, "-")]
    for _, group in groupby(cells, key=lambda cell: id(cell[1])):
        found = list(group)
        yield Run("".join(letter for letter, _ in found), found[0][1])
