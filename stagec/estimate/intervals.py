"""Sets of times: sorted disjoint intervals, as an array [n, 2] of starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagec.arrays import Floats

Intervals = np.ndarray
SAME = 1e-9
"""Relative difference that is left between two sums of the same times in different orders."""
ROUNDED = 1e-12
"""Relative difference that rounding leaves between two times that are the same."""


def union(starts: np.ndarray, ends: np.ndarray, gap: float = 0.0) -> Intervals:
    """The times that any of the intervals covers, where `starts` and `ends` are `[n]`. Intervals with at most `gap` between them become one."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return np.zeros((0, 2))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > ends[:-1] + gap])
    last = np.concatenate([first[1:], [True]])
    return np.stack([starts[first], ends[last]], axis=1)


def length(intervals: Intervals) -> float:
    """The total length of a set."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def covered_before(intervals: Intervals, times: np.ndarray) -> np.ndarray:
    """For each time, the length of the part of the set that lies before it. Of the intervals some may be empty."""
    if not len(intervals):
        return np.zeros(np.shape(times))
    lengths = intervals[:, 1] - intervals[:, 0]
    total = np.cumsum(lengths)
    return np.interp(times, intervals.ravel(), np.stack([total - lengths, total], axis=1).ravel())


def overlap(intervals: Intervals, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """For each interval from `starts` to `ends`, the length of the part of it that is in the set."""
    before_start, before_end = covered_before(intervals, np.stack([starts, ends]))
    return before_end - before_start


def complement(intervals: Intervals, end: float) -> Intervals:
    """The times from 0 to `end` that are not in the set."""
    starts = np.concatenate([[0.0], intervals[:, 1]])
    ends = np.concatenate([intervals[:, 0], [end]])
    kept = ends > starts
    return np.stack([starts[kept], ends[kept]], axis=1)


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The times that are in both sets."""
    bounds = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    if len(bounds) < 2:
        return np.zeros((0, 2))
    middle = (bounds[:-1] + bounds[1:]) / 2
    inside = contains(first, middle) & contains(second, middle)
    return union(bounds[:-1][inside], bounds[1:][inside])


def contains(intervals: Intervals, times: np.ndarray) -> np.ndarray:
    """For each time, whether it is in the set; the end of an interval is not."""
    at = np.searchsorted(intervals[:, 0], times, side="right") - 1
    return (at >= 0) & (times < intervals[np.maximum(at, 0), 1]) if len(intervals) else at >= 0


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The times that are in the first set and not in the second."""
    if not len(first):
        return first
    return intersection(first, complement(second, float(first[-1, 1])))


def at_most(intervals: Intervals, count: int) -> Intervals:
    """The set, with at most `count` intervals: the shortest gaps between intervals are closed until there are no more."""
    if len(intervals) <= count:
        return intervals
    starts, ends = intervals.T
    gaps = np.sort(starts[1:] - ends[:-1])
    return union(starts, ends, float(gaps[len(starts) - count - 1]))


@dataclass(frozen=True)
class Covered:
    """The times that any of some intervals covers, in one plan or in several: intervals that follow each other without overlap, some of them empty."""

    starts: Floats
    """`[interval]`, or `[interval, plan]`, in ascending order."""
    ends: Floats

    @staticmethod
    def of(starts: Floats, ends: Floats) -> Covered:
        """The times that intervals cover, which may overlap: `[n]` each, or `[n, plan]`."""
        if not len(starts):
            return Covered(starts, ends)
        # What runs on one stream is in order, but for how sums are rounded.
        if not (starts[1:] >= starts[:-1] * (1 - ROUNDED)).all():
            order = np.argsort(starts, axis=0, kind="stable")
            starts, ends = (np.take_along_axis(each, order, axis=0) for each in (starts, ends))
        ends = np.maximum.accumulate(ends, axis=0)
        begun = np.concatenate([starts[:1], np.maximum(starts[1:], ends[:-1])])
        return Covered(begun, np.maximum(ends, begun))

    def shared_with(self, other: Covered) -> Floats:
        """How long both last at once: one number, or `[plan]`."""
        plans = self.starts.shape[1:]
        if not len(self.starts) or not len(other.starts):
            return np.zeros(plans)
        lengths = self.ends - self.starts
        total = np.cumsum(lengths, axis=0)
        own = _by_plan(self.starts, self.ends), _by_plan(total - lengths, total)
        times = _by_plan(other.starts, other.ends)
        before = np.array([np.interp(*each) for each in zip(times, *own, strict=True)])
        return (before[:, 1::2] - before[:, ::2]).sum(axis=1).reshape(plans)


def _by_plan(first: Floats, second: Floats) -> Floats:
    """`[plan, 2 * interval]`, the numbers of each interval side by side, with one plan where there is no such axis."""
    found = np.empty((*first.shape[1:], 2 * len(first)))
    found[..., ::2], found[..., 1::2] = first.T, second.T
    return found.reshape(-1, 2 * len(first))
