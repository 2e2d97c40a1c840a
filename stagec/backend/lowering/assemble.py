"""The tasks of one rank class in the order of its schedule, as a `TraceProgram`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.backend.lowering.layout import Layout, Task
from stagec.backend.program import Compute, Dep, Node, Segment, TraceProgram
from stagec.dialects import stg

Ints = np.ndarray


@dataclass(frozen=True)
class Chunk:
    """The part of a model that one virtual stage runs, and the numbers of its sizes."""

    program: stg.ProgramOp
    values: Mapping[str, int]
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """One task in the order: of which chunk, and for which microbatch (-1: once per step)."""

    task: str
    chunk: int
    microbatch: int


@dataclass
class Packed:
    """A task's rows as arrays. `source_task[i, k]` is an index into `tasks`, or -1."""

    segment: Ints
    layer: Ints
    lag: Ints
    early: Ints
    source_task: Ints
    source_row: Ints
    source_node: Ints
    tasks: tuple[str, ...]


def trace_program(chunks: Sequence[Chunk], order: Sequence[Slot]) -> TraceProgram:
    """Unroll tasks in `order`. Each task appears once per chunk and microbatch at most."""
    split = any(slot.task in ("I", "W") for slot in order)
    layouts = [Layout(c.program, c.values, split) for c in chunks]
    segments: list[Segment] = []
    offsets: list[int] = []
    for layout in layouts:
        offsets.append(len(segments))
        segments += layout.segments
    packed = {
        (chunk, name): pack(task, offsets[chunk])
        for chunk, layout in enumerate(layouts)
        for name, task in layout.tasks.items()
    }
    present = [slot for slot in order if (slot.chunk, slot.task) in packed]
    bases: dict[Slot, int] = {}
    total = 0
    for slot in present:
        bases[slot] = total
        total += len(packed[slot.chunk, slot.task].segment)
    width = max((p.source_task.shape[1] for p in packed.values()), default=0)
    rows = Rows.empty(total, width)
    last = max((s.microbatch for s in present), default=-1)
    for slot in present:
        rows.fill(slot, packed[slot.chunk, slot.task], bases, last, chunks[slot.chunk].stage)
    return finish(segments, rows)


def pack(task: Task, first_segment: int) -> Packed:
    names = sorted({a.task for r in task.rows for a in r.arguments if a is not None})
    width = max((len(r.arguments) for r in task.rows), default=0)
    shape = (len(task.rows), width)
    source_task = np.full(shape, -1, np.int64)
    source_row = np.zeros(shape, np.int64)
    source_node = np.zeros(shape, np.int64)
    index = {name: i for i, name in enumerate(names)}
    for i, row in enumerate(task.rows):
        for k, place in enumerate(row.arguments):
            if place is not None:
                source_task[i, k] = index[place.task]
                source_row[i, k] = place.row
                source_node[i, k] = place.node
    return Packed(
        np.array([r.segment + first_segment for r in task.rows], np.int32),
        np.array([r.layer for r in task.rows], np.int32),
        np.array([r.lag for r in task.rows], np.int32),
        np.array([r.early for r in task.rows], np.int32),
        source_task,
        source_row,
        source_node,
        tuple(names),
    )


@dataclass
class Rows:
    """All rows of a rank. An argument is a row and a node in it, until rows have positions."""

    segment: Ints
    layer: Ints
    lag: Ints
    early: Ints
    microbatch: Ints
    stage: Ints
    source_row: Ints
    source_node: Ints

    @staticmethod
    def empty(total: int, width: int) -> Rows:
        def column(fill: int = -1) -> Ints:
            return np.full(total, fill, np.int32)

        return Rows(
            column(0),
            column(),
            column(),
            column(0),
            column(),
            column(),
            np.full((total, width), -1, np.int64),
            np.zeros((total, width), np.int64),
        )

    def fill(
        self, slot: Slot, packed: Packed, bases: Mapping[Slot, int], last: int, stage: int
    ) -> None:
        """Write the rows of one task."""
        start = bases[slot]
        here = slice(start, start + len(packed.segment))
        self.segment[here] = packed.segment
        self.layer[here] = packed.layer
        self.lag[here] = packed.lag
        self.early[here] = packed.early
        self.microbatch[here] = slot.microbatch
        self.stage[here] = stage
        width = packed.source_task.shape[1]
        sources = np.array(
            [bases.get(source_slot(slot, name, last), -1) for name in packed.tasks] + [-1],
            np.int64,
        )
        base = sources[packed.source_task]
        known = (packed.source_task >= 0) & (base >= 0)
        self.source_row[here, :width] = np.where(known, base + packed.source_row, -1)
        self.source_node[here, :width] = packed.source_node


def source_slot(reader: Slot, task: str, last: int) -> Slot:
    """Which run of a task a reader means: of its own microbatch; of the last one from outside the loop."""
    if task in ("pre", "step"):
        return Slot(task, reader.chunk, -1)
    microbatch = reader.microbatch if reader.microbatch >= 0 else last
    return Slot(task, reader.chunk, microbatch)


def finish(segments: Sequence[Segment], rows: Rows) -> TraceProgram:
    """Give rows their positions, and each stream its order as control dependencies."""
    order = issue_order(rows)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    segment = rows.segment[order]
    lengths = np.array([len(s.nodes) for s in segments] or [0], np.int64)
    first = np.concatenate([[0], np.cumsum(lengths[segment])])
    source_row, source_node = rows.source_row[order], rows.source_node[order]
    slots = np.where(source_row >= 0, first[place[source_row]] + source_node, -1).astype(np.int64)
    chained, extra = chain_streams(segments, segment, first, slots.shape[1], rows.lag[order])
    return TraceProgram(
        segments=tuple(chained),
        segment=segment,
        slots=np.concatenate([slots, extra], axis=1),
        layer=rows.layer[order],
        microbatch=rows.microbatch[order],
        stage=rows.stage[order],
        tag=np.maximum(rows.microbatch[order], 0).astype(np.int64),
    )


def issue_order(rows: Rows) -> Ints:
    """Rows in issue order: a gradient's reduction right after the row that completes the gradient.

    Reductions keep their order among themselves, so that every rank of a group issues the same.
    """
    position = np.arange(len(rows.segment), dtype=np.int64)
    movable = np.flatnonzero(rows.early)
    latest = 0
    for row in movable:
        sources = rows.source_row[row]
        known = sources[sources >= 0]
        ready = max((int(position[s]) for s in known), default=latest)
        latest = max(latest, ready)
        position[row] = min(latest, position[row])
    tie = np.zeros(len(position), np.int64)
    tie[movable] = 1 + np.arange(len(movable))
    return np.lexsort((tie, position))


def chain_streams(
    segments: Sequence[Segment], segment: Ints, first: Ints, width: int, lag: Ints
) -> tuple[list[Segment], Ints]:
    """Let each node follow the one before it on its stream.

    Within a segment that is a node of its own; the first of a segment follows the last node that
    the stream had in an earlier row, which is one more slot per stream. A gather of parameters depends on no
    computation: its last slot keeps it from being issued before its time.
    """
    streams = sorted({n.stream for s in segments for n in s.nodes})
    extra = np.full((len(segment), len(streams) + 1), -1, np.int64)
    for k, stream in enumerate(streams):
        before = ends_before(segments, segment, first, lambda n, stream=stream: n.stream == stream)
        extra[:, k] = before
    compute = ends_before(segments, segment, first, lambda n: isinstance(n.action, Compute))
    gathers = np.flatnonzero(lag >= 0)
    for i, row in enumerate(gathers):
        early = gathers[max(0, i - int(lag[row]))]
        extra[row, -1] = compute[early]
    hoisted = [i for i, s in enumerate(segments) if is_gather(s)]
    chained = [chain_segment(s, streams, width, i in hoisted) for i, s in enumerate(segments)]
    return chained, extra


def is_gather(segment: Segment) -> bool:
    """Whether a segment is a gather of parameters, which nothing computed holds back."""
    return len(segment.nodes) == 1 and segment.nodes[0].op == "all_gather"


def ends_before(
    segments: Sequence[Segment], segment: Ints, first: Ints, belongs: Callable[[Node], bool]
) -> Ints:
    """For each row, the last node of an earlier row that belongs; -1 for none."""
    ends = [max((i for i, n in enumerate(s.nodes) if belongs(n)), default=-1) for s in segments]
    end = np.array(ends or [-1], np.int64)[segment]
    position = np.where(end >= 0, first[:-1] + end, -1)
    return np.concatenate([[-1], np.maximum.accumulate(position)[:-1]])


def chain_segment(segment: Segment, streams: Sequence[str], width: int, is_gather: bool) -> Segment:
    previous: dict[str, int] = {}
    nodes = []
    for i, node in enumerate(segment.nodes):
        before = previous.get(node.stream)
        if before is None:
            dep = Dep(width + streams.index(node.stream), 0)
        else:
            dep = Dep(-1, before)
        previous[node.stream] = i
        if dep not in node.data_deps:
            node = replace(node, ctrl_deps=(*node.ctrl_deps, dep))
        if is_gather:
            node = replace(node, ctrl_deps=(*node.ctrl_deps, Dep(width + len(streams), 0)))
        nodes.append(node)
    return Segment(segment.name, tuple(nodes), width + len(streams) + 1)
