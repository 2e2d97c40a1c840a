"""From numbers to places on a chart, and the round numbers along its edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

MICROSECONDS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
BYTES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
Units = tuple[tuple[str, float], ...]


def unit_for(largest: float, units: Units) -> tuple[str, float]:
    """The largest unit of which there is at least one: its name, and how much it is."""
    return next(((name, size) for name, size in units if largest >= size), units[-1])


def in_unit(value: float, units: Units) -> str:
    """`41.85 ms`: four digits."""
    name, size = unit_for(value, units)
    return f"{digits(value / size)} {name}"


def digits(value: float) -> str:
    """Four digits, as many of them behind the point as it takes."""
    if value == 0:
        return "0"
    behind = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(behind, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Scale:
    """A stretch of numbers along a stretch of pixels."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, about: int) -> list[float]:
        """Round numbers, about so many: steps are 1, 2 or 5 times a power of ten."""
        span = (self.high - self.low) or 1.0
        rough = span / max(about, 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]
