"""What each node of a rank waits for: its data, the node before it on its stream, and what `waits` says of its row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from stagec.analysis.stated_sizes import wrong
from stagec.arrays import Ints, distinct
from stagec.dialects import sched, stg
from stagec.dialects.sched import COMPUTE_STREAM
from stagec.dialects.sched.tasks import PerRowAttr
from stagec.unrolling.rank import Arrangement, RankBody
from stagec.unrolling.stage import OWN, Dep

Deps = tuple[tuple[Dep, ...], ...]
"""What each node of a body depends on."""


@dataclass(frozen=True)
class Queues:
    """The dependencies of a rank's nodes, all arrays in issue order."""

    slots: Ints
    """`[n, slots]`: the position of the node behind each argument of a row, -1 for none: its data, then what queues add."""
    added: Sequence[Deps]
    """For each body of the rank, what its nodes wait for besides their data."""


@dataclass
class QueueFinder:
    """Finds what nodes of ranks wait for. Ranks share most of their bodies."""

    _known: dict[object, Deps] = field(default_factory=dict)
    _found: dict[object, Queues] = field(default_factory=dict)
    _standings: dict[object, Standing] = field(default_factory=dict)

    def of(self, rank: Arrangement) -> Queues:
        """The queues of a rank, found once for all that ask."""
        program = rank.run.program
        key = (program, program.order, program.gathered, program.rounds, program.waits)
        if key not in self._found:
            self._found[key] = self._find(rank)
        return self._found[key]

    def _find(self, rank: Arrangement) -> Queues:
        """Let each node follow the one before it on its stream.

        Within a body that is a node of its own; the first of a body follows the last node that the stream had in an earlier
        row, which is one more slot per stream. The last slot is what a row waits for. E0709 if a row is issued before
        one that it reads.
        """
        order, first = rank.order, rank.first
        body = rank.body[order]
        source_row, source_node = rank.source_row[order], rank.source_node[order]
        data = np.where(source_row >= 0, first[rank.place[source_row]] + source_node, -1)
        data = data.astype(np.int64)
        check_order(rank, data)
        width, waits = data.shape[1], waits_of(rank)
        standing = [self._standing(rank, each) for each in rank.bodies]
        streams = sorted({stream for each in standing for stream in each.streams})
        added = np.full((len(body), len(streams) + 1), -1, np.int64)
        for k, stream in enumerate(streams):
            added[:, k] = ends_before(rank, body, [each.last_in(stream) for each in standing])
        computed = ends_before(rank, body, [each.last_computed for each in standing])
        added[:, -1] = np.where(waits >= 0, computed[waits], -1)
        waiting = {rank.bodies[at].body for at in distinct(body[added[:, -1] >= 0]).tolist()}
        found: list[Deps] = []
        for each, nodes in zip(rank.bodies, standing, strict=True):
            waits_too = each.body in waiting
            key = (each.body, tuple(streams), width, waits_too)
            if key not in self._known:
                self._known[key] = chained(each.body.deps, nodes, streams, width, waits_too)
            found.append(self._known[key])
        return Queues(np.concatenate([data, added], axis=1, dtype=np.int32), found)

    def _standing(self, rank: Arrangement, each: RankBody) -> Standing:
        owners = rank.run.stages[each.stage].owners
        key = (each.body, tuple(owners))
        if key not in self._standings:
            self._standings[key] = Standing.of(each, owners)
        return self._standings[key]


@dataclass(frozen=True)
class Standing:
    """The queues in which the nodes of a body stand: their own streams', and the computation's where that waits for them.

    A collective over the ranks that share a tied weight stands in the queues of all communication.
    """

    streams: Sequence[str]
    """The stream of each node."""
    is_serial: Sequence[bool]
    is_everywhere: Sequence[bool]
    last_computed: int
    """The last node that computes; -1 for none."""

    @staticmethod
    def of(each: RankBody, owners: Collection[str]) -> Standing:
        nodes = each.body.nodes
        tied = [
            not each.body.is_bucket
            and isinstance(op, sched.CollectiveOp)
            and stg.text(op, "tied") in owners
            for op in nodes
        ]
        computes = [i for i, op in enumerate(nodes) if isinstance(op, sched.ComputeOp)]
        serial = ["serial" in op.properties for op in nodes]
        return Standing(list(map(stream_of, nodes)), serial, tied, max(computes, default=-1))

    def nodes_in(self, stream: str) -> list[int]:
        """The nodes that stand in a queue."""
        others = self.is_serial if stream == COMPUTE_STREAM else self.is_everywhere
        return [i for i, own in enumerate(self.streams) if own == stream or others[i]]

    def last_in(self, stream: str) -> int:
        return max(self.nodes_in(stream), default=-1)


def turns(ahead: Ints) -> Ints:
    """Rows in the order in which the device takes them, of how far ahead each is issued."""
    rows = np.arange(len(ahead))
    return np.argsort(np.where(ahead > 0, rows - ahead + 0.5, rows), kind="stable")


def check_order(rank: Arrangement, slots: Ints) -> None:
    """E0709 if a row is issued before one that it reads."""
    early = np.flatnonzero((slots >= rank.first[:-1, None]).any(axis=1))
    if len(early):
        row = rank.describe(int(rank.order[early[0]]))
        raise wrong(rank.run.program, f"{row} is issued before what it reads")


def numbered_ahead(rank: Arrangement) -> Ints | None:
    """How many nodes before its place each row is taken by the device; nothing where none is."""
    if rank.run.program.ahead is None:
        return None
    order = turns(rows_back(rank, "ahead", rank.run.program.ahead, otherwise=0))
    lengths = np.diff(rank.first)
    numbered = np.empty(len(order), np.int64)
    numbered[order] = np.cumsum(lengths[order]) - lengths[order]
    return rank.first[:-1] - numbered


Held = dict[int, dict[int, list[int]]]
"""For a row in issue order, for a node of it: the positions of nodes that it waits for besides."""


def held_nodes(rank: Arrangement) -> Held:
    """What `held` says. E0709 if it is about nodes that there are not."""
    found: Held = {}
    said = rank.run.program.held
    if said is None:
        return found
    lengths = np.diff(rank.first)
    for row, node, back, awaited in said.data.table.tolist():
        if row >= len(lengths) or node >= lengths[row] or awaited >= lengths[row - back]:
            message = f"`held` is about a node that there is not: {row}.{node}<{back}.{awaited}"
            raise wrong(rank.run.program, message)
        position = int(rank.first[row - back]) + awaited
        found.setdefault(row, {}).setdefault(node, []).append(position)
    return found


def check_turns(rank: Arrangement, waiting: Queues, ahead: Ints | None, held: Held) -> None:
    """E0709 if the device takes a row before what it waits for."""
    if ahead is None:
        return
    width = waiting.slots.shape[1]
    used = np.zeros((len(rank.bodies), width), bool)
    for each, added, row in zip(rank.bodies, waiting.added, used, strict=True):
        deps = [*each.body.deps, *added]
        row[[slot for own in deps for slot, _ in own if slot != OWN]] = True
    slots = np.where(used[rank.body[rank.order]], waiting.slots, -1)
    awaited = {row: [p for own in nodes.values() for p in own] for row, nodes in held.items()}
    width = max(map(len, awaited.values()), default=0)
    asked = np.full((len(slots), width), -1, np.int64)
    for row, own in awaited.items():
        asked[row, : len(own)] = own
    asked = np.concatenate([slots, asked], axis=1)
    row_of = np.maximum(0, np.searchsorted(rank.first, asked, side="right") - 1)
    is_other = (asked >= 0) & (row_of != np.arange(len(slots))[:, None])
    own_numbers = rank.first[:-1] - ahead
    is_early = is_other & (asked - ahead[row_of] >= own_numbers[:, None])
    early = np.flatnonzero(is_early.any(axis=1))
    if len(early):
        row = rank.describe(int(rank.order[early[0]]))
        raise wrong(rank.run.program, f"`ahead` puts {row} before what it waits for")


def waits_of(rank: Arrangement) -> Ints:
    """For each row in issue order the position of the one that `waits` means; -1 for none."""
    back = rows_back(rank, "waits", rank.run.program.waits, otherwise=-1)
    return np.where(back >= 0, np.arange(len(back)) - back, -1)


def rows_back(rank: Arrangement, name: str, said: PerRowAttr | None, otherwise: int) -> Ints:
    """How many rows before each the one is that a property means. E0709 if there are not so many."""
    back = rank.said(name, said, otherwise)
    # The device takes a row first of all that is ahead of the first.
    early = np.flatnonzero(back > np.arange(len(back)) + (name == "ahead"))
    if len(early):
        position = int(early[0])
        row = rank.describe(int(rank.order[position]))
        message = f"`{name}` of {row} counts {back[position]} rows back, and there are {position}"
        raise wrong(rank.run.program, message)
    return back


def ends_before(rank: Arrangement, body: Ints, ends: Sequence[int]) -> Ints:
    """For each row, the last node of an earlier row that counts; -1 for none. `ends` says which of the nodes of each body that is."""
    end = np.array(ends or [-1], np.int64)[body]
    position = np.where(end >= 0, rank.first[:-1] + end, -1)
    return np.concatenate([[-1], np.maximum.accumulate(position)[:-1]])


def stream_of(op: Operation) -> str:
    stream = op.properties["stream"]
    assert isinstance(stream, StringAttr)
    return stream.data


def chained(own: Deps, standing: Standing, streams: Sequence[str], width: int, waits: bool) -> Deps:
    """Chain the nodes of a body; the first on each stream waits for the last slot too if `waits`."""
    added: list[list[Dep]] = [[] for _ in own]
    for k, stream in enumerate(streams):
        before: Dep = (width + k, 0)
        for i in standing.nodes_in(stream):
            added[i].append(before)
            before = (OWN, i)
    found: list[tuple[Dep, ...]] = []
    for deps, data in zip(added, own, strict=True):
        if waits and any(slot >= 0 for slot, _ in deps):
            deps.append((width + len(streams), 0))
        found.append(tuple(dep for dep in dict.fromkeys(deps) if dep not in data))
    return tuple(found)
