"""The tasks of one rank class in the order of its schedule, as a `TraceProgram`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.backend.lowering.layout import Layout
from stagec.backend.lowering.loaded import LoadedClasses
from stagec.backend.lowering.one_order import Orders, with_one_order
from stagec.backend.lowering.rows import AFTER_BACKWARD, TAKEN, TRANSFER_TASKS, Place, Row
from stagec.backend.lowering.streams import IssuedRows, chain_streams, receives
from stagec.backend.lowering.templates import Owners
from stagec.backend.program import Segment, TraceProgram, Transfer
from stagec.dialects import stg
from stagec.dialects.stages import is_first_layer

Ints = np.ndarray


@dataclass(frozen=True)
class Chunk:
    """The part of a model that one virtual stage runs, and the numbers of its sizes."""

    program: stg.ProgramOp
    values: Mapping[str, int]
    stage: int = 0
    owners: Owners = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slot:
    """One task in the order: of which chunk, and for which microbatch (-1: once per step).

    `shift` says how far along the axis of stages the peer of a transfer is.
    """

    task: str
    chunk: int
    microbatch: int
    shift: int = 0


@dataclass
class Packed:
    """A task's rows as arrays. `source_task[i, k]` is an index into `tasks`, or -1."""

    segment: Ints
    layer: Ints
    lag: Ints
    moves: Ints
    source_task: Ints
    source_row: Ints
    source_node: Ints
    tasks: tuple[tuple[str, int], ...]
    """Task and chunk."""


class Assembler:
    """Puts the tasks of ranks in order. Stages that differ in nothing but their first layer are laid out once for all rank classes."""

    def __init__(self, axis: str = "") -> None:
        self.axis = axis
        self._layouts: dict[object, Layout] = {}
        self._anywhere: dict[object, Layout] = {}
        """A layout for all stages of a kind, wherever their layers begin."""
        self._chained: dict[object, Segment] = {}
        self._orders: dict[object, Orders] = {}
        self._loaded = LoadedClasses()

    def layout(self, chunk: Chunk, split: bool) -> Layout:
        numbers, owners = frozenset(chunk.values.items()), frozenset(chunk.owners.items())
        kind = (id(chunk.program), owners, split)
        key = (kind, numbers)
        if key not in self._layouts:
            counts = frozenset(each for each in numbers if not is_first_layer(each[0]))
            known = self._anywhere.get((kind, counts))
            if known is None or known.loads.loads:
                made = self._loaded.layout(chunk.program, chunk.values, split, chunk.owners)
                self._anywhere[kind, counts] = self._layouts[key] = made
            else:
                self._layouts[key] = known.from_layer(chunk.values)
        return self._layouts[key]

    def program(self, chunks: Sequence[Chunk], order: Sequence[Slot]) -> TraceProgram:
        """Unroll tasks in `order`. Each task appears once per chunk and microbatch at most."""
        arrangement = self.arrange(chunks, order)
        program = self._loaded.finished(
            shape_of(arrangement.layouts, chunks, order),
            arrangement,
            lambda: finish(arrangement, self._chained),
        )
        may_move = arrangement.rows.lag[arrangement.order] >= 0
        return with_one_order(program, may_move, self._orders)

    def arrange(self, chunks: Sequence[Chunk], order: Sequence[Slot]) -> Arrangement:
        """Lay all tasks out as rows, and give those their places in issue order."""
        split = any(slot.task in ("I", "W") for slot in order)
        layouts = [self.layout(chunk, split) for chunk in chunks]
        shape = shape_of(layouts, chunks, order)
        return self._loaded.arranged(shape, layouts, lambda: self.place(layouts, chunks, order))

    def place(
        self, layouts: Sequence[Layout], chunks: Sequence[Chunk], order: Sequence[Slot]
    ) -> Arrangement:
        """Give the rows of all tasks their places."""
        segments: list[Segment] = []
        first_of: dict[int, int] = {}
        for layout in layouts:
            # Layouts that differ in the numbers of their layers share these.
            if id(layout.segments) not in first_of:
                first_of[id(layout.segments)] = len(segments)
                segments += layout.segments
        offsets = [first_of[id(layout.segments)] for layout in layouts]
        neighbours = local_neighbours(chunks, order)
        packed: dict[tuple[int, str, int], Packed] = {}
        present: list[Slot] = []
        for slot in order:
            task = layouts[slot.chunk].tasks.get(slot.task)
            if task is None:
                continue
            present.append(slot)
            key = (slot.chunk, slot.task, slot.shift)
            if key not in packed:
                rows = [handed_over(row, slot.chunk, neighbours, layouts) for row in task.rows]
                made = pack(rows, slot.chunk, offsets[slot.chunk])
                if slot.task in TRANSFER_TASKS:
                    self.direct(made, segments, slot, chunks[slot.chunk].stage)
                packed[key] = made
        bases: dict[tuple[str, int, int], int] = {}
        total = 0
        for slot in present:
            bases[slot.task, slot.chunk, slot.microbatch] = total
            total += len(packed[slot.chunk, slot.task, slot.shift].segment)
        width = max((p.source_task.shape[1] for p in packed.values()), default=0)
        rows_of_rank = Rows.empty(total, width)
        last = {(slot.task, slot.chunk): slot.microbatch for slot in present}
        for slot in present:
            made = packed[slot.chunk, slot.task, slot.shift]
            rows_of_rank.fill(slot, made, bases, last, chunks[slot.chunk].stage)
        return arranged(layouts, neighbours, bases, segments, rows_of_rank)

    def direct(self, packed: Packed, segments: list[Segment], slot: Slot, stage: int) -> None:
        """Give the transfers of a stage their peer, and the channel that both ends know."""
        boundary = stage if slot.task in ("SEND_F", "RECV_B") else stage - 1
        direction = slot.task.endswith("_B")
        for position, old in enumerate(packed.segment):
            nodes = []
            for node in segments[old].nodes:
                action = node.action
                assert isinstance(action, Transfer)
                channel = (2 * boundary + direction) * MAX_CROSSING + action.channel
                action = replace(action, axes=(self.axis,), shift=slot.shift, channel=channel)
                nodes.append(replace(node, action=action, phase="p2p"))
            segments.append(replace(segments[old], nodes=tuple(nodes)))
            packed.segment[position] = len(segments) - 1


def shape_of(layouts: Sequence[Layout], chunks: Sequence[Chunk], order: Sequence[Slot]) -> Hashable:
    """What the rows of a rank depend on."""
    stages = tuple(chunk.stage for chunk in chunks)
    return tuple(id(layout.like) for layout in layouts), stages, tuple(order)


MAX_CROSSING = 64
"""Values that may cross one stage boundary in one direction; a channel numbers boundary, direction and value."""


def local_neighbours(chunks: Sequence[Chunk], order: Sequence[Slot]) -> dict[tuple[str, int], int]:
    """For a chunk that receives nothing in a direction: the chunk of the same rank that it continues."""
    received = {(slot.task, slot.chunk) for slot in order}
    by_stage = {chunk.stage: position for position, chunk in enumerate(chunks)}
    found: dict[tuple[str, int], int] = {}
    for position, chunk in enumerate(chunks):
        for task, step in (("RECV_F", -1), ("RECV_B", 1)):
            other = by_stage.get(chunk.stage + step)
            if other is not None and (task, position) not in received:
                found[task, position] = other
    return found


def handed_over(
    row: Row, chunk: int, neighbours: Mapping[tuple[str, int], int], layouts: Sequence[Layout]
) -> Row:
    """A row whose arguments come straight from the neighbouring stage, where that is on the same rank."""
    arguments: list[Place | None] = []
    for place in row.arguments:
        if place is not None and place.task.startswith(TAKEN):
            arguments.append(given(place, chunk, layouts))
            continue
        other = neighbours.get((place.task, chunk)) if place is not None else None
        if place is None or other is None:
            arguments.append(place)
            continue
        direction = "forward" if place.task == "RECV_F" else "backward"
        number = layouts[chunk].received[direction, place.row, place.node]
        source = layouts[other].handed_over[direction, number]
        arguments.append(replace(source, chunk=other) if source is not None else None)
    return replace(row, arguments=arguments)


def given(place: Place, chunk: int, layouts: Sequence[Layout]) -> Place | None:
    """The node behind a gradient that another stage of the rank gives."""
    weight = place.task.removeprefix(TAKEN)
    givers = [i for i, other in enumerate(layouts) if i != chunk and weight in other.given]
    source = layouts[givers[place.row]].given[weight]
    return replace(source, chunk=givers[place.row]) if source is not None else None


def pack(rows: Sequence[Row], chunk: int, first_segment: int) -> Packed:
    def key(place: Place) -> tuple[str, int]:
        return place.task, chunk if place.chunk < 0 else place.chunk

    names = sorted({key(a) for r in rows for a in r.arguments if a is not None})
    width = max((len(r.arguments) for r in rows), default=0)
    shape = (len(rows), width)
    source_task = np.full(shape, -1, np.int64)
    source_row = np.zeros(shape, np.int64)
    source_node = np.zeros(shape, np.int64)
    index = {name: i for i, name in enumerate(names)}
    for i, row in enumerate(rows):
        for k, place in enumerate(row.arguments):
            if place is not None:
                source_task[i, k] = index[key(place)]
                source_row[i, k] = place.row
                source_node[i, k] = place.node
    return Packed(
        np.array([r.segment + first_segment for r in rows], np.int32),
        np.array([r.layer for r in rows], np.int32),
        np.array([r.lag for r in rows], np.int32),
        np.array([r.moves for r in rows], np.int32),
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
    moves: Ints
    microbatch: Ints
    stage: Ints
    source_row: Ints
    source_node: Ints
    backward_end: dict[int, int] = field(default_factory=dict)
    """The last row of the last backward pass of each stage."""

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
        self,
        slot: Slot,
        packed: Packed,
        bases: Mapping[tuple[str, int, int], int],
        last: Mapping[tuple[str, int], int],
        stage: int,
    ) -> None:
        """Write the rows of one task."""
        start = bases[slot.task, slot.chunk, slot.microbatch]
        here = slice(start, start + len(packed.segment))
        self.segment[here] = packed.segment
        self.layer[here] = packed.layer
        self.lag[here] = packed.lag
        self.moves[here] = packed.moves
        if slot.task in ("B", "I", "W"):
            self.backward_end[stage] = start + len(packed.segment) - 1
        self.microbatch[here] = slot.microbatch
        self.stage[here] = stage
        width = packed.source_task.shape[1]
        sources = np.array(
            [bases.get(source_key(slot, *task, last), -1) for task in packed.tasks] + [-1],
            np.int64,
        )
        base = sources[packed.source_task]
        known = (packed.source_task >= 0) & (base >= 0)
        self.source_row[here, :width] = np.where(known, base + packed.source_row, -1)
        self.source_node[here, :width] = packed.source_node


def source_key(
    reader: Slot, task: str, chunk: int, last: Mapping[tuple[str, int], int]
) -> tuple[str, int, int]:
    """Which run of a task a reader means: of its own microbatch; of the last one from outside the loop."""
    if task in ("pre", "step"):
        return task, chunk, -1
    outside = reader.microbatch < 0
    return task, chunk, last.get((task, chunk), -1) if outside else reader.microbatch


@dataclass
class Arrangement:
    """All tasks of a rank as rows, and where each is in issue order."""

    layouts: Sequence[Layout]
    """Of each chunk."""
    neighbours: Mapping[tuple[str, int], int]
    """For a chunk that receives nothing in a direction: the chunk of the rank that it continues."""
    bases: Mapping[tuple[str, int, int], int]
    """The first row of each task, by task, chunk and microbatch."""
    segments: Sequence[Segment]
    rows: Rows
    order: Ints
    """Rows in issue order."""
    place: Ints
    """Each row's position in issue order."""
    first: Ints
    """The first node of each position; one more has the total."""


def arranged(
    layouts: Sequence[Layout],
    neighbours: Mapping[tuple[str, int], int],
    bases: Mapping[tuple[str, int, int], int],
    segments: Sequence[Segment],
    rows: Rows,
) -> Arrangement:
    order = issue_order(rows)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    lengths = np.array([len(s.nodes) for s in segments] or [0], np.int64)
    first = np.concatenate([[0], np.cumsum(lengths[rows.segment[order]])])
    return Arrangement(layouts, neighbours, bases, segments, rows, order, place, first)


def finish(arrangement: Arrangement, known: dict[object, Segment]) -> TraceProgram:
    """Give rows their positions, and each stream its order as control dependencies. `known` segments are chained already."""
    segments, rows, order = arrangement.segments, arrangement.rows, arrangement.order
    place, first = arrangement.place, arrangement.first
    segment = rows.segment[order]
    source_row, source_node = rows.source_row[order], rows.source_node[order]
    slots = np.where(source_row >= 0, first[place[source_row]] + source_node, -1).astype(np.int64)
    arrives = np.array([receives(s) for s in segments] or [False])
    issued = IssuedRows(
        segment,
        first[:-1],
        rows.lag[order],
        rows.moves[order],
        is_free=np.all(slots < 0, axis=1),
        is_received=np.any((source_row >= 0) & arrives[rows.segment[source_row]], axis=1),
    )
    chained, extra = chain_streams(segments, issued, slots.shape[1], known)
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

    Reductions of a stage keep their order among themselves.
    """
    position = np.arange(len(rows.segment), dtype=np.int64)
    movable = np.flatnonzero(rows.moves)
    latest: dict[int, int] = {}
    for row in movable:
        stage = int(rows.stage[row])
        sources = rows.source_row[row]
        ready = max((int(position[s]) for s in sources[sources >= 0]), default=0)
        if rows.moves[row] == AFTER_BACKWARD:
            ready = max(ready, rows.backward_end.get(stage, int(row)))
        latest[stage] = max(latest.get(stage, 0), ready)
        position[row] = min(latest[stage], position[row])
    tie = np.zeros(len(position), np.int64)
    tie[movable] = 1 + np.arange(len(movable))
    return np.lexsort((tie, position))
