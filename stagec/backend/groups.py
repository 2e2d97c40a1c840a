"""Groups of ranks: their kinds, their ids, and `comm_group.json`.

A group's id is an affine function of its members' coordinates: kind k's g-th group is
`first + k + stride * g`. `stride` divides 500 and is at least the number of kinds, so the groups of
one rank, which are of different kinds, differ modulo 500: ASTRA-sim shares tags between ids that do
not. All ids have equally many digits, so that every rank's trace of a class is equally long.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.arrays import distinct
from stagec.backend.errors import TraceError
from stagec.backend.program import Mesh
from stagec.backend.ranks import coordinate, joint_coordinate, ranks_where
from stagec.dialects.sched.actions import Collective

TAG_PERIOD = 500
"""ASTRA-sim: a group's tags start at `id * 1000000`, modulo 500000000."""

ALL_RANKS = 1
"""The id of the group of all ranks of a job of several pools, where some collective is over it."""

_STRIDES = [d for d in range(1, TAG_PERIOD + 1) if TAG_PERIOD % d == 0]


@dataclass(frozen=True, slots=True)
class GroupKind:
    """The groups of ranks that differ only along `axes`; of those, only members `among`.

    `axes` in mesh order and without axes of size one, so that equal groups have one kind.
    """

    axes: tuple[str, ...]
    among: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def size(self, mesh: Mesh) -> int:
        among = dict(self.among)
        return math.prod(
            len(among[axis]) if axis in among else mesh.size(axis) for axis in self.axes
        )

    def other_axes(self, mesh: Mesh) -> tuple[str, ...]:
        """What tells the groups of this kind apart."""
        return tuple(axis for axis in mesh.axes if axis not in self.axes)

    def members(self, mesh: Mesh) -> np.ndarray:
        """Offsets of the members from the member at coordinate 0 of all `axes`, ascending."""
        where = {axis: (0,) for axis in self.other_axes(mesh)}
        return ranks_where(mesh, where | dict(self.among))


def kind_of(collective: Collective, mesh: Mesh) -> GroupKind:
    axes = tuple(a for a in mesh.axes if a in collective.axes and mesh.size(a) > 1)
    among = tuple(sorted((axis, tuple(sorted(chosen))) for axis, chosen in collective.among))
    for axis, chosen in among:
        assert axis in axes, f"`{axis}` restricts a group that does not extend along it"
        assert len(set(chosen)) == len(chosen), chosen
        assert chosen[0] >= 0, chosen
        assert chosen[-1] < mesh.size(axis), chosen
    among = tuple((axis, chosen) for axis, chosen in among if len(chosen) < mesh.size(axis))
    kind = GroupKind(axes, among)
    assert kind.size(mesh) > 1, f"{collective} is over a group of one, which never ends"
    return kind


@dataclass(frozen=True)
class GroupIds:
    """The ids of all groups of all kinds."""

    kinds: tuple[GroupKind, ...]
    first: int
    stride: int
    width: int
    """Decimal digits of every id."""
    of_job: bool = False
    """Whether its ranks are in the group of all ranks of the job, too."""

    @staticmethod
    def assign(
        kinds: Sequence[GroupKind], mesh: Mesh, above: int = 0, of_job: bool = False
    ) -> "GroupIds":
        """`above`: the largest id of another pool of the job."""
        num_kinds = len(kinds) + of_job
        if num_kinds > TAG_PERIOD:
            raise TraceError(
                "E0610",
                f"ranks would belong to {num_kinds} kinds of groups",
                help="fewer axes, or products of them, need fewer",
                note=f"ASTRA-sim tells {TAG_PERIOD} apart",
            )
        order = {axis: number for number, axis in enumerate(mesh.axes)}
        kinds = sorted(kinds, key=lambda k: ([order[axis] for axis in k.axes], k.among))
        stride = next(d for d in _STRIDES if d >= num_kinds)
        largest = 0
        for number, kind in enumerate(kinds):
            groups = math.prod(mesh.size(axis) for axis in kind.other_axes(mesh))
            largest = max(largest, number + stride * (groups - 1))
        above = max(above, ALL_RANKS) if of_job else above
        width = len(str(above + 1)) if above else 1

        def first() -> int:
            lowest = max(10 ** (width - 1), above + 1)
            # Behind that of the job's group, which another kind would have: so they differ modulo the period, too.
            return lowest + (ALL_RANKS + 1 - lowest) % stride if of_job else lowest

        while first() + largest >= 10**width:
            width += 1
        return GroupIds(tuple(kinds), first(), stride, width, of_job)

    def largest(self, mesh: Mesh) -> int:
        """The largest id."""
        return max(
            (
                self.first
                + number
                + self.stride * (math.prod(mesh.size(axis) for axis in kind.other_axes(mesh)) - 1)
                for number, kind in enumerate(self.kinds)
            ),
            default=self.first,
        )

    def of_ranks(self, kind: int, mesh: Mesh, ranks: np.ndarray) -> np.ndarray:
        """The id of each rank's group of one kind."""
        group = joint_coordinate(mesh, self.kinds[kind].other_axes(mesh), ranks)
        return self.first + kind + self.stride * group


def comm_groups(
    ids: GroupIds, mesh: Mesh, users: Sequence[np.ndarray]
) -> Iterator[tuple[int, list[int]]]:
    """Ids and members, by ascending id, of the groups to which a rank of `users[kind]` belongs."""
    found: list[tuple[np.ndarray, np.ndarray, int]] = []
    for number, kind in enumerate(ids.kinds):
        base = users[number].copy()
        for axis in kind.axes:
            base -= coordinate(mesh, axis, base) * mesh.stride(axis)
        base = distinct(base)
        found.append((ids.of_ranks(number, mesh, base), base, number))
    if not found:
        return
    all_ids = np.concatenate([f[0] for f in found])
    bases = np.concatenate([f[1] for f in found])
    kinds = np.concatenate([np.full(len(f[0]), f[2]) for f in found])
    members = [kind.members(mesh) for kind in ids.kinds]
    for i in np.argsort(all_ids):
        yield int(all_ids[i]), (bases[i] + members[kinds[i]]).tolist()


def comm_group_json(groups: Iterator[tuple[int, list[int]]]) -> bytes:
    """The file's text: one group per line."""
    lines = (f'"{number}": {members}' for number, members in groups)
    body = ",\n".join(lines)
    return (f"{{\n{body}\n}}\n" if body else "{}\n").encode()
