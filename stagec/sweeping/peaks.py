"""The memory peak of a rank class for many plans at once.

When a buffer is born and dies depends on the program, the layers and the schedule, not on how large it is. So the buffers that
are alive at each node are counted once, by the closed forms of their sizes; of the counts only distinct ones are kept, and
for each plan the largest sum of counts times sizes is the peak. Sums are told as far as floats are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.memory import Kind
from stagec.memory.lifetimes import Lifetimes, lifetimes
from stagec.memory.value_table import ValueTable
from stagec.symbolic import Size
from stagec.symbolic.columns import Columns
from stagec.unrolling.rank import Arrangement

EXACT = 2**53
"""8 PiB. Plans of which a rank needs more are left out."""


@dataclass(frozen=True)
class LiveCounts:
    """Moments that may be the peak: row i has `counts[i, k]` buffers of the size `forms[k]`."""

    forms: tuple[Size, ...]
    counts: np.ndarray

    def highest(self, sizes: Columns) -> np.ndarray:
        """The largest sum, of each plan; `EXACT` where it is that much or more."""
        if not len(self.counts):
            return sizes.constant(0)
        values = [sizes.number(form) for form in self.forms]
        bytes_of = np.stack([value.astype(float) for value in values])
        sums = self.counts.astype(float) @ bytes_of
        return np.minimum(sums.max(axis=0), EXACT).astype(np.int64)


@dataclass(frozen=True)
class KindsAtPeak:
    """Moments in their order: row i has `counts[i, k]` buffers of the size `forms[k]`, for what `kinds[k]` says."""

    forms: tuple[Size, ...]
    kinds: np.ndarray
    counts: np.ndarray

    def bytes_of(self, kind: Kind, sizes: Columns) -> np.ndarray:
        """What a kind takes at the first moment at which all kinds together take most, in each plan."""
        if not len(self.counts):
            return sizes.constant(0)
        bytes_of = np.stack([sizes.number(form).astype(float) for form in self.forms])
        counts = self.counts.astype(float)
        sums = counts @ bytes_of
        own = np.flatnonzero(self.kinds == kind)
        found = (counts[sums.argmax(axis=0)][:, own] * bytes_of[own].T).sum(axis=1)
        return np.where(sums.max(axis=0) < EXACT, found, EXACT).astype(np.int64)


@dataclass(frozen=True)
class RankLives:
    """The buffers of a rank class, on its device and beyond it, in any plan of the same structure."""

    lives: Lifetimes
    forms: tuple[Size, ...]
    number: np.ndarray
    """Of each buffer, its size among the forms."""

    def of(self, chosen: np.ndarray) -> RankLives:
        return RankLives(self.lives.select(chosen), self.forms, self.number[chosen])

    @property
    def on_device(self) -> RankLives:
        return self.of(self.lives.kind < Kind.HOST)

    @property
    def on_host(self) -> RankLives:
        return self.of(self.lives.kind == Kind.HOST)

    @property
    def on_nvme(self) -> RankLives:
        return self.of(self.lives.kind == Kind.NVME)

    @property
    def saved(self) -> RankLives:
        return self.of(self.lives.kind == Kind.SAVED)

    @property
    def saved_by_one(self) -> RankLives:
        """What the first microbatch of each virtual stage saves, as if all at one moment."""
        own = self.saved
        stage, microbatch = own.lives.stage, own.lives.microbatch
        first = np.full(stage.max(initial=0) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, stage, microbatch)
        own = own.of(microbatch == first[stage])
        once = np.zeros(len(own.lives), np.int64)
        return replace(own, lives=replace(own.lives, birth=once, death=once, num_nodes=1))

    @property
    def most(self) -> LiveCounts:
        """The moments that may be the peak."""
        counts = self.counts(self.number, len(self.forms))
        used = np.flatnonzero(counts.any(axis=0))
        forms = tuple(self.forms[k] for k in used.tolist())
        return LiveCounts(forms, distinct(counts[:, used]) if len(counts) else counts)

    @property
    def kinds_at_peak(self) -> KindsAtPeak:
        key = self.number * len(Kind) + self.lives.kind
        keys, number = np.unique(key, return_inverse=True)
        counts = self.counts(number, len(keys))
        forms = tuple(self.forms[k] for k in (keys // len(Kind)).tolist())
        return KindsAtPeak(forms, keys % len(Kind), counts[np.sort(first_of_each(counts))])

    def counts(self, number: np.ndarray, count: int) -> np.ndarray:
        """Buffers alive by their number, where there may be most: `[moment, number]`."""
        lives = self.lives
        # The most is just before something dies: elsewhere the next node has as much.
        dies = np.flatnonzero(np.bincount(lives.death, minlength=lives.num_nodes))
        width = len(dies) + 1
        begin = number * width + np.searchsorted(dies, lives.birth)
        end = number * width + np.searchsorted(dies, lives.death) + 1
        change = np.bincount(begin, minlength=count * width).astype(np.int32)
        change -= np.bincount(end, minlength=count * width).astype(np.int32)
        return np.cumsum(change.reshape(count, width), axis=1, dtype=np.int32)[:, :-1].T


def rank_lives(
    arrangement: Arrangement,
    tables: Sequence[ValueTable],
    layers: Sequence[Mapping[str, Size | int]],
) -> RankLives:
    """The lifetimes of the buffers of a rank class. `layers` has the layers of each of its virtual stages."""
    lives = lifetimes(arrangement, tables)
    return RankLives(lives, *numbered(lives, tables, layers))


def numbered(
    lives: Lifetimes, tables: Sequence[ValueTable], layers: Sequence[Mapping[str, Size | int]]
) -> tuple[tuple[Size, ...], np.ndarray]:
    """The distinct sizes of buffers, and the number of each buffer's."""
    forms: dict[Size, int] = {}
    number = np.zeros(len(lives), np.int64)
    for stage, table in enumerate(tables):
        own = np.flatnonzero(lives.stage == stage)
        value = lives.value[own]
        is_sum = table.num_bytes[value] != lives.num_bytes[own]
        key = value * 2 + is_sum
        kinds, inverse = np.unique(key, return_inverse=True)
        found: list[int] = []
        for each in kinds.tolist():
            written = table.sums if each % 2 else table.forms
            form = written[each // 2].substitute(layers[stage])
            found.append(forms.setdefault(form, len(forms)))
        number[own] = np.array(found, np.int64)[inverse]
    return tuple(forms), number


def first_of_each(counts: np.ndarray) -> np.ndarray:
    """Where each distinct row stands first."""
    weights = np.random.default_rng(0).integers(1, 2**40, counts.shape[1])
    return np.unique(counts.astype(np.int64) @ weights, return_index=True)[1]


def distinct(counts: np.ndarray) -> np.ndarray:
    """Rows without repetition, and without those that another row has as much of everything as."""
    rows = counts[first_of_each(counts)]
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    kept: list[np.ndarray] = []
    while len(rows):
        # The row with the largest sum is below no other.
        best = rows[0]
        kept.append(best)
        rows = rows[~np.all(rows <= best, axis=1)]
    return np.stack(kept)
