"""Rows of bars on a time axis of characters, as a paper draws a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IDLE = "."


@dataclass(frozen=True)
class Drawn:
    """A bar. `letter` stands for its label where that does not fit."""

    start: float
    end: float
    label: str
    letter: str


def draw(bars: Sequence[Drawn], span: float, width: int) -> str:
    """`F0--F1--....B0------`: bars on `width` columns that last from 0 to `span`. One too short to be seen is left out."""
    cells = [IDLE] * width
    for bar in bars:
        first, last = (round(time / span * width) if span else 0 for time in (bar.start, bar.end))
        text = bar.label if len(bar.label) <= last - first else bar.letter[: last - first]
        cells[first:last] = text.ljust(last - first, "-")
    return "".join(cells)
