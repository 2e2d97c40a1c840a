"""From numbers to places on a chart, and the round numbers along its edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

MICROSECONDS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
BYTES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
DECIMAL_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
Units = tuple[tuple[str, float], ...]


def unit_for(largest: float, units: Units) -> tuple[str, float]:
    """The largest unit of which there is at least one: its name, and how much it is."""
    return next(((name, size) for name, size in units if largest >= size), units[-1])


def in_unit(value: float, units: Units) -> str:
    """`41.85 ms`: four digits."""
    name, size = unit_for(value, units)
    return f"{digits(value / size)} {name}"


def digits(value: float) -> str:
    """Four digits, as many of them behind the point as it takes: `41.85`, `718,800`."""
    value = float(f"{value:.4g}")
    if value == 0:
        return "0"
    behind = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(behind, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def behind_the_point(largest: float) -> int:
    """How many digits numbers of one table have behind the point: two, and fewer where the largest of them would have more than four digits.

    They all have as many, so that what stands above one another can be compared, and sums can be checked.
    """
    return 2 if largest < 99.995 else 1 if largest < 999.95 else 0


def size_of(num_bytes: float) -> str:
    """`12.34 GiB`, `172.1 GiB`, `40.00 MiB`: at most four digits. Nothing is larger than GiB here, the unit in which devices are sold."""
    unit, size = unit_for(num_bytes, BYTES[1:])
    number = num_bytes / size
    return f"{number:,.{0 if size == 1 else behind_the_point(number)}f} {unit}"


PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def amount(number: int) -> str:
    """Four digits and a decimal prefix: 70,553,706,496 is `70.55 G`."""
    step = 0
    while step + 1 < len(PREFIXES) and number >= 1000 * 1000**step:
        step += 1
    if step == 0:
        return f"{number} "
    value = number / 1000**step
    digits = 4 - len(str(int(value)))
    if round(value, digits) >= 1000 and step + 1 < len(PREFIXES):
        step, value, digits = step + 1, value / 1000, 3
    return f"{value:.{max(digits, 0)}f} {PREFIXES[step]}"


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
