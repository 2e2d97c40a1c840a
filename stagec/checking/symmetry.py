"""Ranks that cannot be told apart: the smallest set whose replay is the replay of all.

Two ranks have the same *color* when they run the same program, their groups have members of the
same colors, and their peers have the same colors: the coarsest equitable partition, found by
refining until nothing splits. If run times depend only on the program, ranks of one color do
everything at the same moment, so one of each color, exchanging with the colors of its peers,
behaves exactly as all ranks do. A dependency cycle of the colors is one of the ranks too: in a
finite graph, going back along edges that every rank of a color has must come round.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from stagec.checking.trace_set import CheckedSet


@dataclass(frozen=True)
class Color:
    """One of the ranks of a color, and what its slots lead to."""

    rank: int
    groups: tuple[int, ...]
    """Color of each group slot's group."""
    peers: tuple[tuple[int, int], ...]
    """Color of each peer slot's peer, and the slot at which that peer has this rank."""


@dataclass
class Coloring:
    """`of_rank` gives a rank's color; `members` the (color, slot) pairs that make up a group color."""

    of_rank: dict[int, int]
    colors: tuple[Color, ...]
    members: tuple[frozenset[tuple[int, int]], ...]


_T = TypeVar("_T", bound=Hashable)


class _Numbering(Generic[_T]):
    """Numbers for things, in the order in which they come."""

    def __init__(self) -> None:
        self.numbers: dict[_T, int] = {}

    def __call__(self, thing: _T) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))


_RankKey = tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]]


def color_ranks(checked: CheckedSet, start: Callable[[int], Hashable]) -> Coloring:
    """Refine until stable, from the partition that `start` gives.

    Every transfer must have its other half, and every group its members: the rules that come
    before this one see to that.
    """
    ranks, summaries = checked.ranks, checked.summaries
    where: dict[str, list[tuple[int, int]]] = {}
    slot_of: dict[tuple[int, int, bool], int] = {}
    for rank in ranks:
        summary = summaries[rank]
        for slot, group in enumerate(summary.groups):
            where.setdefault(group, []).append((rank, slot))
        for slot, (peer, sends) in enumerate(zip(summary.peers, summary.sends, strict=True)):
            slot_of[rank, peer, sends] = slot
    back = {
        rank: tuple(
            (peer, slot_of[peer, rank, not sends])
            for peer, sends in zip(summaries[rank].peers, summaries[rank].sends, strict=True)
        )
        for rank in ranks
    }
    first = _Numbering[Hashable]()
    color = {rank: first(start(rank)) for rank in ranks}
    num_colors = len(first.numbers)
    while True:
        group_numbering = _Numbering[frozenset[tuple[int, int]]]()
        group_color = {
            group: group_numbering(frozenset((color[rank], slot) for rank, slot in uses))
            for group, uses in where.items()
        }
        refined = _Numbering[_RankKey]()
        keys: dict[int, _RankKey] = {
            rank: (
                color[rank],
                tuple(group_color[group] for group in summaries[rank].groups),
                tuple((color[peer], slot) for peer, slot in back[rank]),
            )
            for rank in ranks
        }
        new = {rank: refined(keys[rank]) for rank in ranks}
        if len(refined.numbers) == num_colors:
            break
        color, num_colors = new, len(refined.numbers)
    representative: dict[int, int] = {}
    for rank in ranks:
        representative.setdefault(color[rank], rank)
    colors = tuple(
        Color(rank, keys[rank][1], keys[rank][2]) for _, rank in sorted(representative.items())
    )
    return Coloring(color, colors, tuple(group_numbering.numbers))
