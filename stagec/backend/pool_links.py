"""Which message of one pool that trains is which one of another: who sends what to whom, by groups of ranks that do the same.

All microbatches are handed over alike, so that it is enough to look at one, and at what is told once per step: the n-th message of a channel
between two ranks is the n-th that is taken. Groups are linked if any of their ranks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.arrays import Ints
from stagec.backend.errors import TraceError
from stagec.backend.program import Mesh, PooledTraces, TraceProgram, TraceSet
from stagec.backend.ranks import at_coordinates
from stagec.dialects.sched.actions import Collective, Transfer

Key = tuple[int | str, ...]
"""The key of ranks that do the same: their pool, and where they are in it."""


@dataclass(frozen=True)
class Handed:
    """What a program sends to other pools, or takes from them, in the order of its positions, of each microbatch."""

    actions: tuple[Transfer, ...]
    tags: Ints
    """The tags of microbatches, ascending."""
    position: Ints
    """[microbatch, message]: of the node."""


def handed(program: TraceProgram, kind: str, once: bool) -> Handed:
    """Sends or receives whose other ends are in other pools: of microbatches, or `once` per step. E0613 where microbatches differ in them."""
    actions: dict[Transfer, int] = {}
    found: list[tuple[Ints, Ints, Ints]] = []
    first = program.first_node
    for number, segment in enumerate(program.segments):
        rows = np.flatnonzero((program.segment == number) & ((program.microbatch < 0) == once))
        for place, node in enumerate(segment.nodes if len(rows) else ()):
            action = node.action
            if not isinstance(action, Transfer) or action.peer is None or action.kind != kind:
                continue
            # Of other sequences each, microbatches hand over messages of other sizes.
            alike = replace(action, num_bytes=0)
            code = np.full(len(rows), actions.setdefault(alike, len(actions)), np.int64)
            found.append((program.tag[rows], first[rows] + place, code))
    if not found:
        return Handed((), np.zeros(0, np.int64), np.zeros((0, 0), np.int64))
    tag, position, code = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((position, tag))
    tags, counts = np.unique(tag, return_counts=True)
    shape = (len(tags), int(counts[0]))
    if (counts != counts[0]).any() or (code[order].reshape(shape) != code[order][: shape[1]]).any():
        raise unequal("microbatches hand over other values than the first one does")
    known = list(actions)
    names = tuple(known[number] for number in code[order][: shape[1]].tolist())
    return Handed(names, tags, position[order].reshape(shape))


@dataclass(frozen=True)
class Party:
    """Ranks of a pool that do the same."""

    key: Key
    ranks: Ints
    """In their pool."""
    first: int
    """The pool's first rank."""
    mesh: Mesh
    sends: Handed
    takes: Handed


@dataclass(frozen=True)
class PoolLink:
    """A message of a microbatch: which one of the giver's sends is which one of the taker's receives."""

    giver: Key
    sent: int
    taker: Key
    taken: int


def links(parties: Sequence[Party]) -> list[PoolLink]:
    """All messages between parties, of one microbatch. E0613 for one without another end."""
    sent, got = (ends(parties, kind) for kind in ("send", "recv"))
    if sent.shape != got.shape or not np.array_equal(sent[:, :4], got[:, :4]):
        raise unequal("a message between pools has no other end")
    pairs = np.unique(np.concatenate([sent[:, 4:], got[:, 4:]], axis=1), axis=0)
    return [
        PoolLink(parties[giver].key, one, parties[taker].key, other)
        for giver, one, taker, other in pairs.tolist()
    ]


def ends(parties: Sequence[Party], kind: str) -> Ints:
    """[n, 6]: source, destination, channel, bytes, party, which message; in order."""
    found: list[Ints] = [np.zeros((0, 6), np.int64)]
    for number, party in enumerate(parties):
        own = party.sends if kind == "send" else party.takes
        here = party.ranks + party.first
        for place, action in enumerate(own.actions):
            assert action.peer is not None
            there = at_coordinates(party.mesh, action.peer.rank, party.ranks)
            ways = (here, there) if kind == "send" else (there, here)
            said = [
                np.full(len(here), n, np.int64)
                for n in (action.channel, action.num_bytes, number, place)
            ]
            found.append(np.stack([*ways, *said], axis=1))
    rows = np.concatenate(found)
    # Messages of one channel between two ranks keep their order.
    return rows[np.lexsort((rows[:, 5], rows[:, 2], rows[:, 1], rows[:, 0]))]


def waits_both_ways(traces: PooledTraces) -> bool:
    """Whether pools wait for each other: they are parts of one pipeline, and not one behind the other."""
    if any(meets_others(each) for _, each in traces.pools):
        return True
    waits = {name: sources_of(each) for name, each in traces.pools}
    for _ in waits:
        for others in waits.values():
            others |= {far for other in tuple(others) for far in waits.get(other, ())}
    return any(name in others for name, others in waits.items())


def meets_others(traces: TraceSet) -> bool:
    """Whether some collective of it is over all pools."""
    nodes = (node for each in traces.classes for node in each.program.nodes_that_run())
    return any(isinstance(n.action, Collective) and n.action.ranks for n in nodes)


def sources_of(traces: TraceSet) -> set[str]:
    """The pools that one takes something from."""
    actions = [n.action for c in traces.classes for n in c.program.nodes_that_run()]
    return {
        a.peer.pool
        for a in actions
        if isinstance(a, Transfer) and a.peer is not None and a.kind == "recv"
    }


def unequal(message: str) -> TraceError:
    return TraceError(
        "E0613",
        message,
        help="a pass of the plan's own changed one of the pools: nothing is written",
    )
