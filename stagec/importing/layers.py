"""Layers in a row as nested repeats, the shortest text for them: five of one kind and one of another, ten times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class RepeatedParts:
    """A row of parts, so many times. A part is the name of a module, or again `RepeatedParts`."""

    count: int
    parts: tuple[str | RepeatedParts, ...]


Parts = tuple["str | RepeatedParts", ...]


def rolled(kinds: Sequence[str]) -> Parts:
    """The row, rolled up. Runs of one kind first, then what repeats among those."""
    names = tuple(kinds)

    @cache
    def best(start: int, end: int) -> tuple[int, Parts]:
        """Cost and parts of a stretch: a name costs 1, and so does each repeat."""
        length = end - start
        if length == 1:
            return 1, (names[start],)
        found: tuple[int, Parts] | None = None
        for period in range(1, length // 2 + 1):
            if length % period or names[start : end - period] != names[start + period : end]:
                continue
            cost, parts = best(start, start + period)
            if found is None or cost + 1 < found[0]:
                found = cost + 1, (RepeatedParts(length // period, parts),)
            break
        for cut in cuts(start, end):
            left, right = best(start, cut), best(cut, end)
            if found is None or left[0] + right[0] < found[0]:
                found = left[0] + right[0], left[1] + right[1]
        assert found is not None
        return found

    def cuts(start: int, end: int) -> Iterator[int]:
        if names[start] == names[end - 1] and len(set(names[start:end])) == 1:
            return
        for cut in range(start + 1, end):
            if length_of_run(cut) or end - start <= 24:
                yield cut

    def length_of_run(cut: int) -> bool:
        return names[cut - 1] != names[cut]

    return best(0, len(names))[1] if names else ()


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
