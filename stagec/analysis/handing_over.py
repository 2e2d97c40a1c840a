"""The messages in which devices of one pool hand what they have of a cache to devices of another, that holds it otherwise.

A dim that n devices of the one side split and m of the other is cut into as many parts as both divide, their least common multiple:
each device has as many of them as any other of its pool, and each part is on one device of either side. Of each part every
microbatch hands over its share: which sequences are in which is the engine's business. What several devices have in full, each
sends in shares: with p copies on one side and q on the other there are lcm(p, q) shares, so that every device sends as much, and
every copy is sent every byte once. All devices of a pool run one program: how many messages there are is the same for each, and the
peer is a formula in its coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, lcm, prod

from stagec import symbolic
from stagec.analysis.coordinates import index
from stagec.diagnostics import quoted
from stagec.dialects import dist
from stagec.dialects.sched.pools import PEER_STAGE
from stagec.dialects.types import TIME_AXES, TensorType, bytes_of
from stagec.symbolic import ZERO, Size, constant


@dataclass(frozen=True)
class PoolSide:
    """How the devices of a pool hold a cache."""

    first: int
    """The first rank."""
    mesh: Mapping[str, int]
    holds: TensorType
    microbatches: int
    axis: str = ""
    """The axis of the pool's stages: a layer is on the ranks at one place of it."""

    def split(self, dim: str) -> tuple[str, ...]:
        """The axes that split a dim, of more ranks than one."""
        return tuple(a for a in self.holds.dim(dim).split if self.is_along(a))

    @property
    def copies(self) -> tuple[str, ...]:
        """The axes along which devices have the same."""
        splits = set(self.holds.split_axes)
        return tuple(
            a for a in self.mesh if a not in splits and a != self.axis and self.is_along(a)
        )

    def is_along(self, axis: str) -> bool:
        return axis not in TIME_AXES and self.mesh[axis] > 1

    def ways(self, axes: Sequence[str]) -> int:
        return prod(self.mesh[axis] for axis in axes)

    def joint(self, axes: Sequence[str]) -> Size:
        """A rank's place along axes taken as one, the last of them the fastest."""
        found = ZERO
        for axis in axes:
            found = found * self.mesh[axis] + index(axis)
        return found

    def stride(self, axis: str) -> int:
        axes = list(self.mesh)
        return prod(self.mesh[each] for each in axes[axes.index(axis) + 1 :])

    def offset(self, axes: Sequence[str], joint: Size) -> Size:
        """How far behind the first rank that is which stands at a place along axes taken as one."""
        found = ZERO
        for number, axis in enumerate(axes):
            inner = constant(self.ways(axes[number + 1 :]))
            place = symbolic.call("floordiv", joint, inner)
            if number:
                place = symbolic.call("mod", place, constant(self.mesh[axis]))
            found = found + place * self.stride(axis)
        return found


def other_side(said: dist.HandedOp) -> PoolSide:
    """The side of the other pool, as the module states it."""
    axis = said.axis.data if said.axis is not None else ""
    return PoolSide(
        said.first.value.data,
        dict(said.mesh.data.axes),
        said.holds,
        said.microbatches.value.data,
        axis,
    )


@dataclass(frozen=True)
class Parts:
    """What is cut into parts, of which devices of each side have equally many."""

    axes: tuple[str, ...]
    """The axes of this side."""
    others: tuple[str, ...]
    """The axes of the other side."""
    count: int

    def places(self, own: PoolSide, other: PoolSide) -> Iterator[tuple[Size, Size]]:
        """For each part that a device of this side has: where the other one's is along its axes taken as one, and from its first rank."""
        each, theirs = self.count // own.ways(self.axes), self.count // other.ways(self.others)
        for number in range(each):
            part = own.joint(self.axes) * each + number
            place = symbolic.call("floordiv", part, constant(theirs))
            yield place, other.offset(self.others, place)


@dataclass(frozen=True)
class Messages:
    """The messages of a device about one layer of a cache, in order."""

    ranks: tuple[Size, ...]
    """The peer of each."""
    num_bytes: Size
    """The bytes of each message."""
    num_parts: int
    """Into which sequences are cut, by the devices of both pools."""
    places: tuple[Mapping[str, Size], ...] = ()
    """Of each, where its peer is along the axes that split a dim there, taken as one."""


def messages(own: PoolSide, other: PoolSide, moving: Size, batch: str, gives: bool) -> Messages:
    """The messages that a device of `own` gives, or takes. `moving` is the number of elements of a layer that are handed over, in one copy."""
    cut = {
        dim: Parts(
            own.split(dim),
            other.split(dim),
            lcm(own.ways(own.split(dim)), other.ways(other.split(dim))),
        )
        for dim in own.holds.names
    }
    copies = Parts(own.copies, other.copies, lcm(own.ways(own.copies), other.ways(other.copies)))
    turns = lcm(own.microbatches, other.microbatches)
    receiver = other if gives else own
    shares = copies.count // receiver.ways(receiver.copies)
    stage = (
        symbolic.symbol(PEER_STAGE) * other.stride(other.axis)
        if other.axis and other.is_along(other.axis)
        else ZERO
    )
    places = [*(list(each.places(own, other)) for each in cut.values())]
    places.append(list(copies.places(own, other)))
    chosen = [each for each in product(*places) for _ in range(turns // own.microbatches)]
    first = constant(other.first) + stage
    ranks = [first + symbolic.total(offset for _, offset in each) for each in chosen]
    along = [dict(zip(cut, (place for place, _ in each), strict=False)) for each in chosen]
    parts = prod(each.count for each in cut.values()) * turns * shares
    of_batch = cut[batch].count if batch in cut else 1
    num_bytes = bytes_of(moving, own.holds.dtype) / parts
    return Messages(tuple(ranks), num_bytes, of_batch, tuple(along))


def not_dividing(own: PoolSide, other: PoolSide, size: Fraction) -> str:
    """Why messages from `own` of `size` bytes are none of whole bytes: what divides over the devices of both does over the parts of both, so
    that shares of copies and microbatches are left."""
    pairs = ((side, axis) for side in (own, other) for axis in side.copies)
    over = [f"{axis} = {side.mesh[axis]}" for side, axis in pairs]
    turns = lcm(own.microbatches, other.microbatches)
    copies = lcm(own.ways(own.copies), other.ways(other.copies))
    shares = turns * (copies // other.ways(other.copies))
    text = f"{ceil(size * shares):,} bytes go over in {shares} shares"
    text += f", as devices along {quoted(over)} have copies" if over else ""
    return text + (f", and there are {turns} microbatches" if turns > 1 else "")
