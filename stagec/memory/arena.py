"""Offsets in one arena: each buffer gets the tightest gap that is free all its life.

Best fit over buffers sorted by size, largest first (as TensorFlow Lite's planner does: Pisarchyk and Lee 2020, "greedy by
size"), which needs all lifetimes beforehand: a compiler has them, an allocator at run time has not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagec.arrays import Ints
from stagec.memory.lifetimes import Lifetimes


@dataclass(frozen=True)
class Arena:
    """`offset[i]` is where buffer i of the lifetimes begins."""

    offset: Ints
    num_bytes: int
    """Up to the end of the highest buffer."""
    live_peak_bytes: int
    """The most that is alive at once: no arena is smaller."""

    @property
    def fragmentation_bytes(self) -> int:
        return self.num_bytes - self.live_peak_bytes


def assign_offsets(lives: Lifetimes) -> Arena:
    """Place every buffer of a rank class."""
    count = len(lives)
    offset = np.zeros(count, np.int64)
    order = np.lexsort((lives.birth, -lives.num_bytes))
    birth, death, size = lives.birth[order], lives.death[order], lives.num_bytes[order]
    placed = np.zeros(count, np.int64)
    for i in range(count):
        together = np.flatnonzero((birth[:i] <= death[i]) & (birth[i] <= death[:i]))
        placed[i] = tightest(placed[together], size[together], int(size[i]))
    offset[order] = placed
    end = int((placed + size).max(initial=0))
    live = int(lives.live_bytes().max(initial=0))
    return Arena(offset, end, live)


def tightest(start: Ints, size: Ints, wanted: int) -> int:
    """The start of the smallest gap between blocks that holds `wanted` bytes; behind all if none does."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    ends = np.maximum.accumulate(start[order] + size[order])
    before = np.concatenate([[0], ends[:-1]])
    gaps = start[order] - before
    fits = np.flatnonzero(gaps >= wanted)
    if not len(fits):
        return int(ends[-1])
    return int(before[fits[np.argmin(gaps[fits])]])
