"""Draw rows of bars on a time axis with characters, as papers draw the tasks of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

IDLE = "."


@dataclass(frozen=True)
class DrawnBar:
    """A bar from `start` to `end`, in any unit of time. It shows its label, or `letter` where the label does not fit.

    Bars of the same `stage` have the same colour; a bar of stage -1 has none.
    """

    start: float
    end: float
    label: str
    letter: str
    stage: int = -1


@dataclass(frozen=True)
class Run:
    """Neighbouring characters of a row that belong to one bar, or to none."""

    text: str
    bar: DrawnBar | None


def runs(bars: Sequence[DrawnBar], span: float, width: int) -> Iterator[Run]:
    """Draw one row, such as `F0--F1--....B0------`. Its `width` columns stand for the time from 0 to `span`. A bar that is too short to be seen is left out."""
    cells: list[tuple[str, DrawnBar | None]] = [(IDLE, None)] * width
    for bar in bars:
        first, last = (round(time / span * width) if span else 0 for time in (bar.start, bar.end))
        text = bar.label if len(bar.label) <= last - first else bar.letter[: last - first]
        cells[first:last] = [(letter, bar) for letter in text.ljust(last - first, "-")]
    for _, group in groupby(cells, key=lambda cell: id(cell[1])):
        found = list(group)
        yield Run("".join(letter for letter, _ in found), found[0][1])
