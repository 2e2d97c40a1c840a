"""Which ranks have which stages.

    loop            stage s is on rank s mod p
    v               stages go down the ranks and up again: s on rank s or 2p - 1 - s
    bidirectional   stage s is on ranks s and p - 1 - s (DualPipe)

A schedule of the user's own has its stages where its actions are.
"""

from pathlib import Path

from stagec.arrays import distinct
from stagec.schedules.build import build
from stagec.schedules.catalogue import CATALOGUE, check_sizes
from stagec.schedules.table import Schedule

Placement = tuple[tuple[int, ...], ...]
"""For each stage the ranks that have it, ascending."""


def placement(name: str, p: int, v: int, m: int, directory: str | Path = ".") -> Placement:
    """Where the stages of a schedule are. Raises `ScheduleError` like `build`."""
    if name not in CATALOGUE:
        return placement_of(build(name, p, v, m, directory))
    check_sizes(name, p, v, m)
    match CATALOGUE[name].placement:
        case "v":
            return tuple((s if s < p else 2 * p - 1 - s,) for s in range(2 * p))
        case "bidirectional":
            return tuple(tuple(sorted({s, p - 1 - s})) for s in range(p))
        case _:
            return tuple((s % p,) for s in range(p * v))


def placement_of(schedule: Schedule) -> Placement:
    """Where the stages of a schedule are that is built already."""
    return tuple(tuple(distinct(row[row >= 0]).tolist()) for row in schedule.owner)
