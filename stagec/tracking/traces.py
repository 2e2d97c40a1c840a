"""with_tensors(): a program whose nodes say which tensors they read and write, still rolled.

ASTRA-sim's `LocalMemUsageTracker` wants every name written once, and never read before. What stays from step to step is
written by a node of its own, `resident`, which precedes all others and costs next to nothing; the last node reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.analysis.node_waits import Waiting
from stagec.arrays import Bools, Ints, places_of_each
from stagec.backend.issue_order import IssueOrder, SegmentOrders
from stagec.backend.program import (
    SAME_LAYER,
    Dep,
    Node,
    RankClass,
    TraceProgram,
    TraceSegment,
    TraceTensor,
)
from stagec.dialects.sched.actions import Compute
from stagec.memory.plan import ClassPlan
from stagec.tracking.releases import with_releases
from stagec.tracking.tensors import ON_ENTRY, TensorTable, tensor_table

MOST_SLOTS = 32
"""An instance that reads what more nodes wrote names them by absolute ids: an optimizer's step, which runs once."""

RESIDENT_BYTES = 1 << 16
"""What `resident` moves. ASTRA-sim counts whole nanoseconds and aborts when the first node takes none, which this does on
no device with less than 65 TB/s; 20 ns on an H100.
"""


def with_tensors(rank_class: RankClass, plan: ClassPlan) -> RankClass:
    """The class with tracked tensors, those of its memory plan."""
    table = tensor_table(plan)
    tracker = Tracker(rank_class.program, table, reads_early(rank_class, table))
    return replace(rank_class, program=tracker.program())


def reads_early(rank_class: RankClass, table: TensorTable) -> Bools:
    """`[read]`: the node may run before the tensor's writer. It reads nothing of it: the plan frees the tensor with it, as hosts issue nodes."""
    order = IssueOrder(rank_class, SegmentOrders())
    writer = table.writer[table.read_tensor]
    found = writer != ON_ENTRY
    node, writer = order.number[table.read_node], order.number[writer]
    # Who waits for a higher number waits for ever.
    found &= (order.queue[node] != order.queue[writer]) & (writer < node)
    asked = np.flatnonzero(found)
    nodes, place = np.unique(node[asked], return_inverse=True)
    streams = places_of_each(order.queue)
    row = {int(order.queue[on[0]]): number for number, on in enumerate(streams)}
    done = Waiting(order.queue, order.owner, order.dep).last_done(streams, nodes)
    rows = np.array([row[queue] for queue in order.queue[writer[asked]].tolist()], np.int64)
    found[asked] = done[rows, place.reshape(-1)] < writer[asked]
    return found


@dataclass(frozen=True)
class Lists:
    """What each node of an instance reads and writes."""

    inputs: tuple[tuple[TraceTensor, ...], ...]
    outputs: tuple[tuple[TraceTensor, ...], ...]


class Tracker:
    def __init__(self, program: TraceProgram, table: TensorTable, is_early: Bools) -> None:
        """`is_early`, `[read]`: which reads are of nodes that may run before the writer."""
        early, of = table.read_node[is_early], table.writer[table.read_tensor[is_early]]
        unread = table.writer[table.unread]
        nodes, writers = np.concatenate([unread, early]), np.concatenate([unread, of])
        released = with_releases(program, nodes, writers)
        self.old = program = released.program
        self.table: TensorTable = table.released(is_early, released.position)
        self.first = program.first_node
        self.width = program.slots.shape[1]
        self.reads = grouped(self.table.read_node, self.table.read_tensor, int(self.first[-1]))
        written = np.flatnonzero(self.table.writer != ON_ENTRY)
        self.writes = grouped(self.table.writer[written], written, int(self.first[-1]))
        self.output = np.zeros(len(self.table.label), np.int64)
        for tensors in self.writes:
            self.output[tensors] = np.arange(len(tensors))

    def program(self) -> TraceProgram:
        """Segments that differ in what their instances read are told apart; slots name the writers."""
        old = self.old
        segments: dict[tuple[int, Lists], int] = {}
        slots = np.full((len(old.segment), self.width + 1 + MOST_SLOTS), -1, np.int64)
        slots[:, : self.width] = np.where(old.slots >= 0, old.slots + 1, -1)
        slots[self.begins(), self.width] = 0
        segment = np.empty(len(old.segment), np.int32)
        for i, number in enumerate(old.segment.tolist()):
            lists, writers = self.lists(i, len(old.segments[number].nodes))
            segment[i] = segments.setdefault((number, lists), len(segments))
            slots[i, self.width + 1 : self.width + 1 + len(writers)] = writers
        made = [self.tracked(old.segments[number], lists) for number, lists in segments]
        return TraceProgram(
            segments=(self.resident(), *made),
            segment=np.concatenate([[0], segment + 1]).astype(np.int32),
            slots=np.concatenate([np.full((1, slots.shape[1]), -1), slots]),
            layer=before(-1, old.layer),
            microbatch=before(-1, old.microbatch),
            stage=before(-1, old.stage),
            tag=before(0, old.tag),
            ahead=None if old.ahead is None else before(0, old.ahead),
        )

    def resident(self) -> TraceSegment:
        """The node that writes what stays."""
        stays = np.flatnonzero(self.table.writer == ON_ENTRY).tolist()
        outputs = tuple(self.static(tensor, -1) for tensor in stays)
        node = Node(
            "resident",
            "init",
            "",
            Compute(0, RESIDENT_BYTES),
            "compute",
            made_by="track-memory",
            inputs=(),
            outputs=outputs,
        )
        return TraceSegment("resident", (node,), 0, "pre")

    def begins(self) -> Ints:
        """The instances with a node that waits for no other."""
        old = self.old
        free = [free_nodes(segment, self.width) for segment in old.segments]
        masks = [np.array(mask).reshape(-1, self.width) for mask in free]
        return np.array(
            [
                bool(((old.slots[i] < 0) | ~masks[s]).all(axis=1).any())
                for i, s in enumerate(old.segment.tolist())
            ]
        )

    def tracked(self, segment: TraceSegment, lists: Lists) -> TraceSegment:
        first = Dep(self.width, 0)
        nodes = [
            replace(
                node,
                inputs=inputs,
                outputs=outputs,
                ctrl_deps=node.ctrl_deps if inner(node) else (*node.ctrl_deps, first),
            )
            for node, inputs, outputs in zip(
                segment.nodes, lists.inputs, lists.outputs, strict=True
            )
        ]
        return replace(segment, nodes=tuple(nodes), num_slots=self.width + 1 + MOST_SLOTS)

    def lists(self, instance: int, count: int) -> tuple[Lists, list[int]]:
        """The tensors of an instance's nodes, and the writers behind its slots."""
        start = int(self.first[instance])
        nodes = range(start, start + count)
        layer = int(self.old.layer[instance])
        writer = self.table.writer
        far = dict.fromkeys(
            w for n in nodes for w in writer[self.reads[n]].tolist() if 0 <= w < start
        )
        by_slot = len(far) <= MOST_SLOTS
        slot_of = {w: self.width + 1 + k for k, w in enumerate(far)} if by_slot else {}

        def read(tensor: int) -> TraceTensor:
            position = int(writer[tensor])
            if position == ON_ENTRY:
                return self.static(tensor, layer)
            if position >= start:
                return self.tensor(tensor, Dep(-1, position - start))
            slot = slot_of.get(position)
            # Numbers count the node that precedes all others.
            number = int(self.old.numbers(np.array(position))) + 1
            return self.tensor(tensor, number if slot is None else Dep(slot, 0))

        inputs = tuple(tuple(read(t) for t in self.reads[n].tolist()) for n in nodes)
        outputs = tuple(
            tuple(self.tensor(t, Dep(-1, n - start)) for t in self.writes[n].tolist())
            for n in nodes
        )
        return Lists(inputs, outputs), [w + 1 for w in slot_of]

    def tensor(self, tensor: int, writer: Dep | int) -> TraceTensor:
        table = self.table
        size = int(table.num_bytes[tensor])
        return TraceTensor(table.label[tensor], size, writer, int(self.output[tensor]))

    def static(self, tensor: int, layer: int) -> TraceTensor:
        """What stays, for a node in a layer."""
        own = self.table.layer[tensor]
        named = SAME_LAYER if own == layer >= 0 else own
        return TraceTensor(self.table.label[tensor], int(self.table.num_bytes[tensor]), layer=named)


def before(value: int, column: Ints) -> Ints:
    return np.concatenate([np.array([value], column.dtype), column])


def grouped(key: Ints, values: Ints, count: int) -> Sequence[Ints]:
    """The values of each key from 0 to `count`, ascending."""
    order = np.lexsort((values, key))
    return np.split(values[order], np.cumsum(np.bincount(key, minlength=count))[:-1])


def inner(node: Node) -> bool:
    """Whether a node follows another of its segment."""
    return any(dep.slot < 0 for dep in (*node.data_deps, *node.ctrl_deps))


def free_nodes(segment: TraceSegment, width: int) -> list[list[bool]]:
    """For each node that follows none of its segment: the slots that it waits for."""
    found: list[list[bool]] = []
    for node in segment.nodes:
        if not inner(node):
            slots = {dep.slot for dep in (*node.data_deps, *node.ctrl_deps)}
            found.append([k in slots for k in range(width)])
    return found
