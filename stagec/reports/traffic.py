"""Who sends how many bytes to whom in a step, with collectives as rings and direct exchanges."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from stagec.backend.program import Collective, Mesh, RankClass, TraceSet, Transfer
from stagec.summary import counted_nodes

MOST_BLOCKS = 64
"""Rows of the picture: ranks, or as many ranks one after the other as it takes."""
MOST_PAIRS = 4_000_000
"""Pairs of an exchange that are added up one by one."""


def traffic(traces: TraceSet) -> tuple[np.ndarray, int]:
    """Bytes that the ranks of a block send to those of another: [blocks, blocks], and how many ranks are a block.

    A ring hands on (n-1)/n of the whole, an all-reduce twice that (Patarasuk and Yuan 2009); an exchange has a part for each rank.
    """
    mesh = traces.mesh
    block = -(-mesh.num_ranks // MOST_BLOCKS)
    count = -(-mesh.num_ranks // block)
    found = np.zeros((count, count))
    for rank_class in traces.classes:
        member = is_member(mesh, rank_class)
        for (action_axes, among, kind, shift), num_bytes in sent(rank_class).items():
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
    """Of the whole tensor's bytes that a rank hands on."""
    ring = (size - 1) / size
    return {"send": 1.0, "all_reduce": 2 * ring}.get(kind, ring)


def sent(rank_class: RankClass) -> dict[tuple[tuple[str, ...], tuple, str, int], float]:
    """The whole tensor's bytes by axes, members, kind and shift, of one rank in one step."""
    found: dict[tuple[tuple[str, ...], tuple, str, int], float] = defaultdict(float)
    for node, count in counted_nodes(rank_class):
        action = node.action
        if isinstance(action, Collective):
            whole = max(action.operand_bytes, action.result_bytes)
            found[action.axes, action.among, action.kind, 1] += float(count) * whole
        elif isinstance(action, Transfer) and action.kind == "send":
            found[action.axes, (), "send", action.shift] += float(count) * action.num_bytes
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


def is_member(mesh: Mesh, rank_class: RankClass) -> np.ndarray:
    """Of each rank, whether it is of the class."""
    found = np.ones(mesh.sizes, bool)
    for axis, places in rank_class.where.items():
        allowed = np.zeros(mesh.size(axis), bool)
        allowed[list(places)] = True
        shape = [mesh.size(axis) if a == axis else 1 for a in mesh.axes]
        found &= allowed.reshape(shape)
    return found.ravel()
