"""Stretches of time that do not overlap, as arrays of starts and of ends in ascending order."""

from __future__ import annotations

import numpy as np

Spans = tuple[np.ndarray, np.ndarray]


def joined(starts: np.ndarray, ends: np.ndarray, gap: float = 0.0) -> Spans:
    """The time that any of some stretches covers; those with at most `gap` between them become one."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.concatenate([[True], starts[1:] > ends[:-1] + gap])
    lasts = np.concatenate([begins[1:], [True]])
    return starts[begins], ends[lasts]


def without(spans: Spans, other: Spans) -> Spans:
    """What is left of some stretches where the others are not."""
    edges = np.concatenate([*spans, *other])
    if not len(edges):
        return spans
    marks = np.concatenate(
        [
            np.full(len(spans[0]), 1),
            np.full(len(spans[1]), -1),
            np.full(len(other[0]), -2),
            np.full(len(other[1]), 2),
        ]
    )
    order = np.argsort(edges, kind="stable")
    edges, level = edges[order], np.cumsum(marks[order])
    here = np.flatnonzero(level[:-1] == 1)
    return joined(edges[here], edges[here + 1])


def at_most(spans: Spans, count: int) -> Spans:
    """As many as one can draw: the shortest gaps between them are closed."""
    starts, ends = spans
    if len(starts) <= count:
        return spans
    gaps = np.sort(starts[1:] - ends[:-1])
    return joined(starts, ends, float(gaps[len(starts) - count - 1]))


def shares(spans: Spans, longer: Spans) -> np.ndarray:
    """What share of each of some stretches is covered by those that they were made of: 0 to 1."""
    starts, ends = spans
    covered = np.concatenate([[0.0], np.cumsum(ends - starts)])
    first = np.searchsorted(starts, longer[0], side="left")
    last = np.searchsorted(ends, longer[1], side="right")
    return (covered[last] - covered[first]) / (longer[1] - longer[0])
