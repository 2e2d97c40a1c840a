"""Layers in a row as nested repeats, the shortest text for them: five of one kind and one of another, ten times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stagec.arrays import Ints


@dataclass(frozen=True)
class RepeatedParts:
    """A row of parts, so many times. A part is the name of a module, or again `RepeatedParts`."""

    count: int
    parts: tuple[str | RepeatedParts, ...]


Parts = tuple["str | RepeatedParts", ...]


ANY_CUT = 24
"""Stretches that are no longer are cut anywhere, others where one kind follows another."""
NEVER = 1 << 20
"""The cost of what is no way."""


def rolled(kinds: Sequence[str]) -> Parts:
    """The row, rolled up. Runs of one kind first, then what repeats among those."""
    if not kinds:
        return ()
    numbers = {name: n for n, name in enumerate(dict.fromkeys(kinds))}
    return shortest(np.array([numbers[name] for name in kinds])).parts(kinds, 0, len(kinds))


@dataclass(frozen=True)
class Shortest:
    """How each stretch of a row is written: as one of its periods, repeated, or as two stretches."""

    periods: Ints
    """By length and start; 0 for none."""
    cuts: Ints

    def parts(self, names: Sequence[str], start: int, end: int) -> Parts:
        found: list[str | RepeatedParts] = []
        while start < end:
            length = end - start
            own = int(self.cuts[length, start]) or length
            if self.cuts[own, start]:
                found += self.parts(names, start, start + own)
            elif own == 1:
                found.append(names[start])
            else:
                period = int(self.periods[own, start])
                found.append(RepeatedParts(own // period, self.parts(names, start, start + period)))
            start += own
        return tuple(found)


def shortest(names: Ints) -> Shortest:
    """A name costs 1, and so does each repeat: lengths one after the other, all starts at once."""
    many = len(names)
    by_start = np.full((many + 1, many + 1), NEVER, np.int32)
    by_end = by_start.copy()
    periods, chosen = np.zeros((2, many + 1, many), np.int16)
    by_start[1, :many] = by_end[1, 1:] = 1
    inside = np.zeros(many, np.int32)
    inside[1:][names[1:] == names[:-1]] = NEVER
    alike = [repeating(names, period) for period in range(many // 2 + 1)]
    for length in range(2, many + 1):
        starts = many - length + 1
        cost = np.full(starts, NEVER, np.int32)
        for period in range(1, length // 2 + 1):
            if length % period:
                continue
            new = (alike[period][:starts] >= length - period) & (periods[length, :starts] == 0)
            cost[new] = by_start[period, :starts][new] + 1
            periods[length, :starts][new] = period
        halves = by_start[1:length, :starts] + by_end[length - 1 : 0 : -1, length:]
        if length > ANY_CUT:
            halves += sliding_window_view(inside, starts)[1:length]
        first = halves.argmin(axis=0)
        split = halves[first, np.arange(starts)]
        is_cut = split < cost
        chosen[length, :starts] = np.where(is_cut, first + 1, 0)
        by_start[length, :starts] = by_end[length, length:] = np.where(is_cut, split, cost)
    return Shortest(periods, chosen)


def repeating(names: Ints, period: int) -> Ints:
    """For each place how many names in a row are those a period later."""
    differ = np.flatnonzero(names[: len(names) - period] != names[period:])
    places = np.arange(len(names))
    ends = np.append(differ, len(names) - period)
    return np.maximum(ends[np.searchsorted(differ, places)] - places, 0)


def calls(parts: Parts, counts: Sequence[int] = ()) -> Iterator[tuple[str, list[int]]]:
    """Each call in the text, in order, with the layers that it is, by number."""
    yield from _calls(parts, [0])[0]


def _calls(parts: Parts, starts: list[int]) -> tuple[list[tuple[str, list[int]]], int]:
    """Calls of parts that begin at each of `starts`, and how many layers long the parts are."""
    found: list[tuple[str, list[int]]] = []
    offset = 0
    for part in parts:
        here = [s + offset for s in starts]
        if isinstance(part, str):
            found.append((part, here))
            offset += 1
            continue
        length = sum(_length(p) for p in part.parts)
        inner = sorted(s + n * length for s in here for n in range(part.count))
        found += _calls(part.parts, inner)[0]
        offset += part.count * length
    return found, offset


def _length(part: str | RepeatedParts) -> int:
    return 1 if isinstance(part, str) else part.count * sum(map(_length, part.parts))
