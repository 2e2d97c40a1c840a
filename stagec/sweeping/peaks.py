"""The memory peak of a rank class for many plans at once.

When a buffer is born and dies depends on the program, the layers and the schedule, but not on how large the buffer is. So a moment (a node of the
program) is described by how many buffers of each size are alive then. These counts are the same for all plans of a structure; only different ones are
kept. The peak of a plan is the largest sum, over moments, of counts times the sizes in bytes that the plan has. Sums are exact below `EXACT` bytes.
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
"""8 PiB, in bytes: up to here floats hold whole numbers exactly. Plans in which a rank needs this much or more are left out of a sweep."""


@dataclass(frozen=True)
class LiveCounts:
    """The moments of a rank that may need most memory, and how many buffers of which size are alive at each."""

    forms: tuple[Size, ...]
    """The different sizes of buffers, in bytes."""
    counts: np.ndarray
    """`[moment, form]`: how many buffers of each size are alive."""

    def highest(self, sizes: Columns) -> np.ndarray:
        """`[plan]`: the bytes alive at the moment with most; `EXACT` where it is that much or more."""
        if not len(self.counts):
            return sizes.constant(0)
        values = [sizes.number(form) for form in self.forms]
        bytes_of = np.stack([value.astype(float) for value in values])
        sums = self.counts.astype(float) @ bytes_of
        return np.minimum(sums.max(axis=0), EXACT).astype(np.int64)


@dataclass(frozen=True)
class KindsAtPeak:
    """The moments of a rank in their order, and how many buffers of which size and kind are alive at each."""

    forms: tuple[Size, ...]
    """Sizes of buffers in bytes: one for each pair of size and kind."""
    kinds: np.ndarray
    """`[form]`: the kind of each pair."""
    counts: np.ndarray
    """`[moment, form]`: how many buffers of each pair are alive."""

    def bytes_of(self, kind: Kind, sizes: Columns) -> np.ndarray:
        """`[plan]`: the bytes of one kind at the first moment at which all kinds together take most; `EXACT` where all take that much or more."""
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
    """The buffers of a rank class, on its device, its host and NVMe, as they are in all plans of a structure: when each is alive, and its symbolic size."""

    lives: Lifetimes
    forms: tuple[Size, ...]
    """The different sizes of buffers, in bytes."""
    number: np.ndarray
    """`[buffer]`: which of `forms` is the buffer's size."""

    def of(self, chosen: np.ndarray) -> RankLives:
        """Some of the buffers: `chosen` is a mask or the numbers of those wanted."""
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
        """The buffers that the first microbatch of each virtual stage saves for the backward pass, as if all were alive at one moment."""
        own = self.saved
        stage, microbatch = own.lives.stage, own.lives.microbatch
        first = np.full(stage.max(initial=0) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, stage, microbatch)
        own = own.of(microbatch == first[stage])
        once = np.zeros(len(own.lives), np.int64)
        return replace(own, lives=replace(own.lives, birth=once, death=once, num_nodes=1))

    @property
    def moments_of_most(self) -> LiveCounts:
        """The moments that may be the peak in some plan: those at which no other moment has as many buffers of every size."""
        counts = self.counts(self.number, len(self.forms))
        used = np.flatnonzero(counts.any(axis=0))
        forms = tuple(self.forms[k] for k in used.tolist())
        return LiveCounts(forms, distinct(counts[:, used]) if len(counts) else counts)

    @property
    def kinds_at_peak(self) -> KindsAtPeak:
        """All different moments, with the kind of each buffer."""
        key = self.number * len(Kind) + self.lives.kind
        keys, number = np.unique(key, return_inverse=True)
        counts = self.counts(number, len(keys))
        forms = tuple(self.forms[k] for k in (keys // len(Kind)).tolist())
        return KindsAtPeak(forms, keys % len(Kind), counts[np.sort(first_of_each(counts))])

    def counts(self, number: np.ndarray, count: int) -> np.ndarray:
        """How many buffers are alive, by a `number` that each buffer has (0 to `count` - 1), at the moments at which there may be most: `[moment, number]`."""
        lives = self.lives
        # Most is alive just before a buffer dies: at any other moment the next node has at least as much.
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
    """The lifetimes and sizes of the buffers of a rank class. `tables` and `layers` have an entry for each of its virtual stages.

    An entry of `layers` gives sizes that are the stage's own, such as its number of layers.
    """
    lives = lifetimes(arrangement, tables)
    return RankLives(lives, *numbered(lives, tables, layers))


def numbered(
    lives: Lifetimes, tables: Sequence[ValueTable], layers: Sequence[Mapping[str, Size | int]]
) -> tuple[tuple[Size, ...], np.ndarray]:
    """The different sizes of buffers in bytes, and `[buffer]`: which of them each buffer has."""
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
    """The numbers of the rows of `counts` (`[moment, form]`) that equal no row before them."""
    weights = np.random.default_rng(0).integers(1, 2**40, counts.shape[1])
    return np.unique(counts.astype(np.int64) @ weights, return_index=True)[1]


def distinct(counts: np.ndarray) -> np.ndarray:
    """The rows of `counts` (`[moment, form]`) that may have the largest sum: none is repeated, and none is at most another one in every column."""
    rows = counts[first_of_each(counts)]
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    kept: list[np.ndarray] = []
    while len(rows):
        # The row with the largest sum is below no other.
        best = rows[0]
        kept.append(best)
        rows = rows[~np.all(rows <= best, axis=1)]
    return np.stack(kept)
