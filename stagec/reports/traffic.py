"""Who sends how many bytes to whom in a step, with collectives as rings and direct exchanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from stagec.backend.program import Mesh
from stagec.compiled import Compiled
from stagec.step_count import ClassCount

MOST_BLOCKS = 64
"""Rows of the picture: ranks, or as many ranks one after the other as it takes."""
MOST_PAIRS = 4_000_000
"""Pairs of an exchange that are added up one by one."""


def traffic(job: Compiled) -> tuple[np.ndarray, int]:
    """Bytes that the ranks of a block send to those of another: [blocks, blocks], and how many ranks are a block. What goes to another pool is not among them.

    A ring hands on (n-1)/n of the whole, an all-reduce twice that (Patarasuk and Yuan 2009); an exchange has a part for each rank.
    """
    mesh = job.trace_set.mesh
    block = -(-mesh.num_ranks // MOST_BLOCKS)
    count = -(-mesh.num_ranks // block)
    found = np.zeros((count, count))
    for rank_class in job.counts:
        member = is_member(mesh, rank_class.where)
        for (action_axes, among, kind, shift), num_bytes in sent(rank_class).items():
            if not set(action_axes) <= set(mesh.axes):
                continue
            ranks = groups(mesh, action_axes, dict(among))
            size = ranks.shape[1]
            if kind == "all_to_all":
                shifts = (
                    range(1, size)
                    if ranks.size * size <= MOST_PAIRS
                    else range(1, size, size // 16 or 1)
                )
                part = num_bytes / size * ((size - 1) / max(len(shifts), 1))
            else:
                shifts, part = [shift], num_bytes * factor(kind, size)
            for step in shifts:
                peers = np.roll(ranks, -step, axis=1)
                own = member[ranks]
                np.add.at(found, (ranks[own] // block, peers[own] // block), part)
    return found, block


def factor(kind: str, size: int) -> float:
    """The share of the whole tensor's bytes that a rank hands on."""
    ring = (size - 1) / size
    return {"send": 1.0, "all_reduce": 2 * ring}.get(kind, ring)


def sent(counted: ClassCount) -> dict[tuple[tuple[str, ...], tuple, str, int], float]:
    """The whole tensor's bytes by axes, members, kind and shift, of one rank in one step."""
    found: dict[tuple[tuple[str, ...], tuple, str, int], float] = defaultdict(float)
    for each in counted.operations:
        numbers = each.numbers
        if each.is_collective:
            whole = max(numbers.before, numbers.after)
            found[each.axes, each.among, each.name, 1] += float(each.runs) * whole
        elif each.sends:
            found[each.axes, (), "send", each.shift] += float(each.runs) * numbers.before
    return found


def groups(mesh: Mesh, axes: tuple[str, ...], among: dict[str, tuple[int, ...]]) -> np.ndarray:
    """The groups over some axes: [groups, members], members ascending."""
    ranks = np.arange(mesh.num_ranks).reshape(mesh.sizes)
    for axis, places in among.items():
        ranks = np.take(ranks, places, axis=mesh.axes.index(axis))
    inside = [i for i, axis in enumerate(mesh.axes) if axis in axes]
    outside = [i for i, axis in enumerate(mesh.axes) if axis not in axes]
    size = int(np.prod([ranks.shape[i] for i in inside], dtype=np.int64))
    return ranks.transpose([*outside, *inside]).reshape(-1, size)


def is_member(mesh: Mesh, where: Mapping[str, tuple[int, ...]]) -> np.ndarray:
    """For each rank, whether it is in the class."""
    found = np.ones(mesh.sizes, bool)
    for axis, places in where.items():
        allowed = np.zeros(mesh.size(axis), bool)
        allowed[list(places)] = True
        shape = [mesh.size(axis) if a == axis else 1 for a in mesh.axes]
        found &= allowed.reshape(shape)
    return found.ravel()
