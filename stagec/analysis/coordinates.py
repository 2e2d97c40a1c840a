"""Sizes that depend on which rank it is: `cp.index` is a rank's coordinate along axis `cp`.

Ranks whose programs have other numbers are classes of their own: a causal mask that is not balanced, experts
that are not equally busy. A size names the coordinate; nothing else of a program depends on the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from xdsl.ir import Operation

from stagec import symbolic
from stagec.dialects.attributes import sizes_in
from stagec.dialects.dist.sequences import OF_ONE
from stagec.dialects.types import StackType
from stagec.symbolic import ZERO, Size
from stagec.symbolic.conditions import with_known

SUFFIX = ".index"


def index(axis: str) -> Size:
    """A rank's coordinate along an axis, from 0."""
    return symbolic.symbol(f"{axis}{SUFFIX}")


def joint_index(axes: Iterable[str]) -> Size:
    """A rank's coordinate along several axes taken as one, the last of them the fastest."""
    joint = ZERO
    for axis in axes:
        joint = joint * symbolic.symbol(axis) + index(axis)
    return joint


def axes_in(names: Iterable[str]) -> set[str]:
    """The axes whose coordinates are among the names."""
    return {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)}


def sizes_stated(op: Operation) -> Iterator[Size]:
    """Every size that an op, or one in its regions, states."""
    for inner in op.walk():
        for attribute in (*inner.properties.values(), *inner.attributes.values()):
            yield from sizes_in(attribute)
        for result in inner.results:
            if isinstance(result.type, StackType):
                yield result.type.count


@dataclass(frozen=True)
class Coordinates:
    """Ranks that share all numbers: their coordinates along the axes that matter, and a rank's as names."""

    where: dict[str, tuple[int, ...]]
    values: Mapping[str, int]

    @property
    def name(self) -> str:
        """`cp0,1 ep3`, `ep4-35`; `all` if nothing depends on the rank."""
        named = (f"{axis}{listed(at)}" for axis, at in self.where.items())
        return " ".join(named) or "all"


def listed(numbers: Sequence[int]) -> str:
    """Ascending numbers, `0,1,4-35`: more than three in a row by the first and the last."""
    found: list[str] = []
    first = 0
    for at, number in enumerate(numbers, 1):
        if at < len(numbers) and numbers[at] == number + 1:
            continue
        row = list(map(str, numbers[first:at]))
        found += row if len(row) <= 3 else [f"{row[0]}-{row[-1]}"]
        first = at
    return ",".join(found)


@dataclass(frozen=True)
class Others:
    """Further numbers that depend on a rank's coordinates along some axes, from the values of all names there."""

    axes: set[str]
    numbers: Callable[[Mapping[str, int]], tuple[object, ...]]


def coordinate_classes(
    ops: Sequence[Operation],
    values: Mapping[str, int],
    mesh: Mapping[str, int],
    others: Others | None = None,
) -> list[Coordinates]:
    """The ranks, by the numbers that the sizes in `ops` have for them, and by others."""
    sizes = {s for op in ops for s in sizes_stated(op) if axes_in(s.names)}
    # What is of one sequence is a number of no rank: sums over a rank's are among the others.
    sizes = {s for s in sizes if s.names.isdisjoint(OF_ONE)}
    concerned = {axis for s in sizes for axis in axes_in(s.names)}
    concerned |= others.axes if others else set()
    axes = [axis for axis in mesh if axis in concerned]
    groups: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for place in product(*(range(mesh[axis]) for axis in axes)):
        here = with_known(values, names_at(axes, place))
        numbers = tuple(s.evaluate(here) for s in sorted(sizes, key=str))
        numbers += others.numbers(here) if others else ()
        groups.setdefault(numbers, []).append(place)
    found: list[Coordinates] = []
    for places in groups.values():
        for block in blocks(places):
            first = tuple(at[0] for at in block)
            where = dict(zip(axes, block, strict=True))
            found.append(Coordinates(where, names_at(axes, first)))
    return found


def names_at(axes: Sequence[str], place: Sequence[int]) -> dict[str, int]:
    return {f"{axis}{SUFFIX}": at for axis, at in zip(axes, place, strict=True)}


def blocks(places: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """The places as products of coordinates along each axis: one if they are, else one for each place."""
    along = [tuple(sorted(set(at))) for at in zip(*places, strict=True)]
    if len(list(product(*along))) == len(places):
        return [along]
    return [[(at,) for at in place] for place in places]
