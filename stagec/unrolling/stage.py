"""The tasks of one stage: rows of segments, and the node behind each argument of a row.

`sched.tasks` says which rows there are and in which order; what a row reads follows from the rolled program, as SSA through its
loops. A row names the node behind each argument by task, row and node, so that tasks can be placed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from stagec.analysis.dataflow import Dataflow, OpInstance, Path, behind_views
from stagec.analysis.expert_loads import Loads
from stagec.analysis.segments import Segment, path_of, segments_of, whole_number
from stagec.dialects import dist, sched, stg
from stagec.dialects.dist.stages import is_first_layer
from stagec.dialects.sched.tasks import NOWHERE, TASKS, Rows
from stagec.symbolic import Size

TAKEN = "taken "
"""With the path of a weight: the task of what other stages of the rank give."""
FOUND = "found "
"""With what is found: the task of what the stage before on the rank has found of its gradients."""

BUCKET = "bucket"
"""The scope of what is of many places."""
OWN = -1
"""The slot of a dependency on a node of the same row."""

Dep = tuple[int, int]
"""A slot of the row, or `OWN` and a node of it."""


class NodePlace(NamedTuple):
    """A node: in which task, which row of it, which node of the row."""

    task: str
    row: int
    node: int
    stage: int = -1
    """Which stage of the rank; -1: the one that it is in."""


@dataclass(frozen=True, eq=False)
class RowBody:
    """What rows run: the nodes of a segment, or the one collective that a bucket of reductions is."""

    name: str
    task: str
    ops: tuple[sched.NodeOp, ...]
    deps: tuple[tuple[Dep, ...], ...]
    """What each node depends on."""
    num_slots: int
    is_bucket: bool = False
    layer: int | None = None
    """The layer that it is of, where layers have other numbers."""

    @property
    def num_nodes(self) -> int:
        return len(self.deps)

    @property
    def nodes(self) -> tuple[sched.NodeOp, ...]:
        """The op of each node; of a bucket the first of its reductions."""
        return self.ops[:1] if self.is_bucket else self.ops

    def scope(self, node: int) -> str:
        """Where in the model a node is from."""
        return BUCKET if self.is_bucket else stg.scope_of(self.ops[node])


@dataclass
class Row:
    """One run of a body. `arguments` has the place behind each slot, or nothing."""

    body: int
    layer: int
    arguments: list[NodePlace | None]
    behind: tuple[str, int] | None = None
    """The task and the row behind which it is issued; nothing: it stands where it is."""
    repeats: tuple[stg.RepeatOp, ...] = ()
    """The repeats around it."""
    path: Path = ()
    """Which iteration of each."""


@dataclass
class Task:
    """Rows in issue order."""

    name: str
    rows: list[Row] = field(default_factory=list)


class StageLayout:
    """The tasks of a stage, unrolled."""

    def __init__(
        self, program: stg.ProgramOp, rows: Mapping[str, Rows], values: Mapping[str, int]
    ) -> None:
        self.program = program
        self.values = values
        self.loads = Loads.around(program)
        self.dataflow = Dataflow(values)
        self.bodies: list[RowBody] = []
        self.tasks: dict[str, Task] = {}
        self.places: dict[OpInstance, NodePlace] = {}
        self.handed_over: dict[tuple[str, int], NodePlace | None] = {}
        """What a stage on the same rank receives, by direction and number."""
        self.given: dict[str, NodePlace | None] = {}
        """What other stages of its rank are given by this one, by the task that stands for it there."""
        self.received: dict[tuple[str, int, int], int] = {}
        """The number of each received value, by direction, row and node."""
        self._segments = segments_of(program)
        self._known: dict[object, int] = {}
        self._layers: dict[tuple[int, ...], dict[str, list[int]]] = {}
        self._inputs: dict[int, tuple[SSAValue, ...]] = {}
        self._pending: list[tuple[Row, Sequence[SSAValue], Path]] = []
        for task, own in rows.items():
            self._add_task(task, own, rows)
        self._resolve()

    def layers(self, values: Mapping[str, int]) -> dict[str, list[int]]:
        """The layer of each row of each task, on a stage that may begin elsewhere in the model."""
        firsts = tuple(values[name] for name in sorted(values) if is_first_layer(name))
        if firsts not in self._layers:
            layer = Dataflow(values).layer
            self._layers[firsts] = {
                name: [
                    row.layer if row.layer < 0 else layer(row.repeats, row.path)
                    for row in task.rows
                ]
                for name, task in self.tasks.items()
            }
        return self._layers[firsts]

    def twins(self, task: str, unit: int, other: str) -> np.ndarray:
        """For each row of a task that gathers a unit, the row of another that gathers the same; -1 for none."""
        rows = self.gathered_units.get(other, {})
        found = np.full(len(self.tasks[task].rows), NOWHERE, np.int64)
        for (number, layer), row in self.gathered_units.get(task, {}).items():
            if number == unit:
                found[row] = rows.get((number, layer), NOWHERE)
        return found

    @cached_property
    def gathered_units(self) -> Mapping[str, Mapping[tuple[int, int], int]]:
        """For each task, the rows that gather units which are freed and gathered again, by the number of the unit and the layer."""
        found: dict[str, dict[tuple[int, int], int]] = {}
        for name, task in self.tasks.items():
            for number, row in enumerate(task.rows):
                unit = whole_number(self.bodies[row.body].ops[0], stg.UNIT, NOWHERE)
                if unit >= 0:
                    found.setdefault(name, {})[unit, row.layer] = number
        return found

    # Rows

    def _add_task(self, name: str, rows: Rows, everything: Mapping[str, Rows]) -> None:
        task = self.tasks[name] = Task(name)
        joins, numbers = rows.joins.tolist(), rows.segment.tolist()
        anchors = zip(rows.behind_task.tolist(), rows.behind_row.tolist(), strict=True)
        for at, (number, (behind_task, behind_row)) in enumerate(
            zip(numbers, anchors, strict=True)
        ):
            if joins[at]:
                continue
            behind = None
            if behind_task >= 0:
                other = TASKS[behind_task]
                behind = other, instance_of(everything[other], behind_row)
            segment, path = self._segments[number], path_of(rows, at)
            if whole_number(segment.first, "bucket_bytes"):
                stop = at + 1
                while stop < len(joins) and joins[stop]:
                    stop += 1
                self._add_bucket(task, rows, range(at, stop), behind)
            else:
                self._add_row(task, segment, path, behind)

    def _add_row(
        self, task: Task, segment: Segment, path: Path, behind: tuple[str, int] | None
    ) -> None:
        layer = self.dataflow.layer(segment.repeats, path)
        body = self._body(segment, layer)
        for position, op in enumerate(segment.ops):
            self.places[OpInstance(op, path)] = NodePlace(task.name, len(task.rows), position)
        row = Row(body, layer, [], behind, segment.repeats, path)
        task.rows.append(row)
        self._pending.append((row, self._inputs[segment.number], path))

    def _add_bucket(
        self, task: Task, rows: Rows, members: range, behind: tuple[str, int] | None
    ) -> None:
        """Reductions that are one collective, which reads what each of them reads."""
        ops = tuple(self._segments[int(rows.segment[at])].first for at in members)
        places = [path_of(rows, at) for at in members]
        sources = [OpInstance(*each) for each in zip(ops, places, strict=True)]
        row = Row(self._bucket_body(task.name, ops), -1, [], behind)
        for source in sources:
            self.places[source] = NodePlace(task.name, len(task.rows), 0)
            for value in source.op.operands:
                self._pending.append((row, [value], source.path))
        task.rows.append(row)

    # Bodies

    def _body(self, segment: Segment, layer: int) -> int:
        """The body of a segment: one for each layer where experts are not equally busy."""
        own = segment.number in self._inputs
        depends = self.loads.loads and any(
            self.loads.concern(*sizes_of_node(op)) for op in segment.ops
        )
        depends = depends or any(map(has_peers_by_layer, segment.ops))
        key = (segment.number, layer if depends else None)
        if key not in self._known:
            deps, inputs = self._dependencies(segment)
            if not own:
                self._inputs[segment.number] = inputs
            scope = stg.scope_of(segment.first)
            name = f"{scope or 'model'}.{stg.phase_of(segment.first)}"
            made = RowBody(name, segment.task, tuple(segment.ops), deps, len(inputs), False, key[1])
            self._known[key] = len(self.bodies)
            self.bodies.append(made)
        return self._known[key]

    def _bucket_body(self, task: str, ops: tuple[sched.NodeOp, ...]) -> int:
        key = (task, ops)
        if key not in self._known:
            num_slots = sum(len(op.operands) for op in ops)
            deps = tuple((slot, 0) for slot in range(num_slots))
            name = f"bucket.{stg.phase_of(ops[0])}"
            self._known[key] = len(self.bodies)
            self.bodies.append(RowBody(name, task, ops, (deps,), num_slots, is_bucket=True))
        return self._known[key]

    def _dependencies(
        self, segment: Segment
    ) -> tuple[tuple[tuple[Dep, ...], ...], tuple[SSAValue, ...]]:
        """What each node of a segment depends on, and the values from outside, which have a slot each."""
        position: dict[Operation | Block, int] = {op: i for i, op in enumerate(segment.ops)}
        slots: dict[SSAValue, int] = {}
        found: list[tuple[Dep, ...]] = []
        for op in segment.ops:
            deps: dict[Dep, None] = {}
            for operand in op.operands:
                inside = position.get(behind_views(operand))
                if inside is not None:
                    deps[OWN, inside] = None
                else:
                    deps[slots.setdefault(operand, len(slots)), 0] = None
            found.append(tuple(deps))
        return tuple(found), tuple(slots)

    # Arguments

    def _resolve(self) -> None:
        """Find the place behind each argument of each row, now that everything is placed."""
        for row, inputs, path in self._pending:
            row.arguments += [self.place_of(value, path) for value in inputs]
        for op in self.program.walk():
            if isinstance(op, sched.StageSendOp):
                key = (op.direction.data, op.number.value.data)
                self.handed_over[key] = self.place_of(op.value, ())
            elif isinstance(op, dist.GiveGradientOp):
                self.given[TAKEN + op.weight.data] = self.place_of(op.gradient, ())
            elif isinstance(op, dist.FoundBeforeOp):
                (use,) = op.found.uses
                self.given[FOUND + op.kind.data] = self.places[OpInstance(use.operation, ())]
        for source, place in self.places.items():
            if type(source.op) is sched.StageRecvOp:
                key = (source.op.direction.data, place.row, place.node)
                self.received[key] = source.op.number.value.data

    def place_of(self, value: SSAValue, path: Path) -> NodePlace | None:
        source = self.dataflow.source(value, path)
        return None if source is None else self.places.get(source) or elsewhere(source.op)


def elsewhere(op: Operation) -> NodePlace | None:
    """The place that stands for a node of another stage of the rank: its row says of which of those that give."""
    if isinstance(op, sched.TakenOp):
        return NodePlace(TAKEN + op.weight.data, op.number.value.data, 0)
    if isinstance(op, dist.FoundBeforeOp):
        return NodePlace(FOUND + op.kind.data, NOWHERE, 0)
    return None


def instance_of(rows: Rows, row: int) -> int:
    """Where a row of a table stands among those that run: what joins one before is none of its own."""
    return int((~rows.joins[: row + 1]).sum()) - 1


def has_peers_by_layer(op: Operation) -> bool:
    """Whether the other end of a transfer is elsewhere for other layers."""
    return type(op) in (sched.PoolSendOp, sched.PoolRecvOp) and "stages" in op.properties


def sizes_of_node(op: Operation) -> tuple[Size, ...]:
    """What the numbers of a node are made of."""
    if isinstance(op, sched.ComputeOp):
        return op.flops.data, op.reads.data, op.writes.data
    if isinstance(op, sched.CollectiveOp):
        return op.bytes_in.data, op.bytes_out.data
    if isinstance(op, sched.HostUpdateOp):
        return op.flops.data, op.num_bytes.data
    if isinstance(op, sched.PoolSendOp | sched.PoolRecvOp):
        return (op.num_bytes.data,)
    return ()
