"""The memory peak of a rank class for many plans at once.

When a buffer is born and dies depends on the program, the layers and the schedule, not on how large it is. So the buffers that
are alive at each node are counted once, by the closed forms of their sizes; of the counts only distinct ones are kept, and
for each plan the largest sum of counts times sizes is the peak. Sums stay below 2**53, where floats are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stagec.backend.lowering import Arrangement
from stagec.explaining.sweeping.vectors import Columns
from stagec.memory.gradients import GradientBuffers
from stagec.memory.kinds import Kind
from stagec.memory.lifetimes import Lifetimes, lifetimes
from stagec.memory.values import ValueTable
from stagec.symbolic import Size, constant

EXACT = 2**53


@dataclass(frozen=True)
class LiveCounts:
    """Moments that may be the peak: row i has `counts[i, k]` buffers of the size `forms[k]`."""

    forms: tuple[Size, ...]
    counts: np.ndarray

    def highest(self, sizes: Columns) -> np.ndarray:
        """The largest sum, of each plan."""
        if not len(self.counts):
            return sizes.constant(0)
        values = [sizes.number(form) for form in self.forms]
        bytes_of = np.stack([value.astype(float) for value in values])
        sums = self.counts.astype(float) @ bytes_of
        best = sums.max(axis=0)
        assert best.max(initial=0) < EXACT, "a rank of 8 PiB"
        return best.astype(np.int64)


def live_counts(
    arrangement: Arrangement,
    tables: Sequence[ValueTable],
    layers: Sequence[Mapping[str, Size | int]],
    gradients: GradientBuffers,
) -> LiveCounts:
    """Of a rank class, in any plan of the same structure. `layers` are those of each of its virtual stages."""
    lives = lifetimes(arrangement, tables, gradients)
    lives = lives.select(lives.kind != Kind.HOST)
    forms, number = numbered(lives, tables, layers)
    if not len(lives):
        return LiveCounts((), np.zeros((0, 0), np.int64))
    change = np.zeros((lives.num_nodes + 1, len(forms)), np.int32)
    np.add.at(change, (lives.birth, number), 1)
    np.subtract.at(change, (lives.death + 1, number), 1)
    # The most is just before something dies: elsewhere the next node has as much.
    dies = np.flatnonzero(np.bincount(lives.death, minlength=lives.num_nodes))
    counts = np.cumsum(change, axis=0)[dies]
    return LiveCounts(forms, distinct(counts))


def numbered(
    lives: Lifetimes, tables: Sequence[ValueTable], layers: Sequence[Mapping[str, Size | int]]
) -> tuple[tuple[Size, ...], np.ndarray]:
    """The distinct sizes of buffers, and the number of each buffer's."""
    forms: dict[Size, int] = {}
    number = np.zeros(len(lives), np.int64)
    for chunk, table in enumerate(tables):
        own = np.flatnonzero(lives.chunk == chunk)
        value = lives.value[own]
        is_sum = table.num_bytes[value] != lives.num_bytes[own]
        key = value * 2 + is_sum
        kinds, inverse = np.unique(key, return_inverse=True)
        found: list[int] = []
        for each in kinds.tolist():
            form = table.forms[each // 2].substitute(layers[chunk])
            if each % 2:
                top, bottom = int(table.accumulated[each // 2]), int(table.num_bytes[each // 2])
                form = form * constant(Fraction(top, bottom))
            found.append(forms.setdefault(form, len(forms)))
        number[own] = np.array(found, np.int64)[inverse]
    return tuple(forms), number


def distinct(counts: np.ndarray) -> np.ndarray:
    """Rows without repetition, and without those that another row has as much of everything as."""
    weights = np.random.default_rng(0).integers(1, 2**40, counts.shape[1])
    _, first = np.unique(counts.astype(np.int64) @ weights, return_index=True)
    rows = counts[first]
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    kept: list[np.ndarray] = []
    while len(rows):
        # The row with the largest sum is below no other.
        best = rows[0]
        kept.append(best)
        rows = rows[~np.all(rows <= best, axis=1)]
    return np.stack(kept)
