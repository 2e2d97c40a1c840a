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

MAX_REFINEMENTS = 256
"""A chain of n ranks takes n/2; longer ones are not worth the time."""


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


@dataclass
class _Links:
    """Which slots lead where: (rank, slot) of each group, and (peer, its slot) of each peer slot."""

    groups: dict[int, tuple[str, ...]]
    uses: dict[str, list[tuple[int, int]]]
    peers: dict[int, tuple[tuple[int, int], ...]]


_RankKey = tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]]
_Members = frozenset[tuple[int, int]]


def color_ranks(checked: CheckedSet, start: Callable[[int], Hashable]) -> Coloring:
    """Refine until stable, from the partition that `start` gives.

    Every transfer must have its other half, and every group its members: the rules that come
    before this one see to that.
    """
    links = _links(checked)
    first = _Numbering[Hashable]()
    color = {rank: first(start(rank)) for rank in checked.ranks}
    num_colors = len(first.numbers)
    num_rounds = 0
    while True:
        keys, members = _look_around(links, color)
        refined = _Numbering[_RankKey]()
        new = {rank: refined(key) for rank, key in keys.items()}
        if len(refined.numbers) == num_colors:
            break
        num_rounds += 1
        if num_rounds < MAX_REFINEMENTS:
            color, num_colors = new, len(refined.numbers)
        else:
            # Each rank apart is an equitable partition too.
            color = {rank: number for number, rank in enumerate(checked.ranks)}
            num_colors = len(color)
    representative: dict[int, int] = {}
    for rank in checked.ranks:
        representative.setdefault(color[rank], rank)
    colors = tuple(
        Color(rank, keys[rank][1], keys[rank][2]) for _, rank in sorted(representative.items())
    )
    return Coloring(color, colors, members)


def _links(checked: CheckedSet) -> _Links:
    summaries = checked.summaries
    uses: dict[str, list[tuple[int, int]]] = {}
    slot_of: dict[tuple[int, int, bool], int] = {}
    for rank in checked.ranks:
        summary = summaries[rank]
        for slot, group in enumerate(summary.groups):
            uses.setdefault(group, []).append((rank, slot))
        for slot, (peer, sends) in enumerate(zip(summary.peers, summary.sends, strict=True)):
            slot_of[rank, peer, sends] = slot
    peers = {
        rank: tuple(
            (peer, slot_of[peer, rank, not sends])
            for peer, sends in zip(summaries[rank].peers, summaries[rank].sends, strict=True)
        )
        for rank in checked.ranks
    }
    return _Links({rank: summaries[rank].groups for rank in checked.ranks}, uses, peers)


def _look_around(
    links: _Links, color: dict[int, int]
) -> tuple[dict[int, _RankKey], tuple[_Members, ...]]:
    """What each rank sees of the colors around it, and the members of each group color."""
    numbering = _Numbering[_Members]()
    group_color = {
        group: numbering(frozenset((color[rank], slot) for rank, slot in uses))
        for group, uses in links.uses.items()
    }
    keys = {
        rank: (
            color[rank],
            tuple(group_color[group] for group in links.groups[rank]),
            tuple((color[peer], slot) for peer, slot in links.peers[rank]),
        )
        for rank in color
    }
    return keys, tuple(numbering.numbers)
