"""One task laid out: rows of node templates, and where each value comes from.

A task is what the schedule moves as a unit: the forward pass of one microbatch through one virtual stage (`F`), its
backward pass (`B`, or its halves `I` and `W`), and what runs once per step, before (`pre`) or after (`step`) them.
Straight-line code is a segment, with a row for each time it runs; a row names the node behind each argument by task,
row and node, so that tasks can be placed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Block, Operation, SSAValue

from stagec.backend.lowering.dataflow import Dataflow, Path, Source, is_node
from stagec.backend.program import Action, Collective, Compute, Dep, Node, Segment
from stagec.dialects import sched, stg
from stagec.symbolic import Size

TASK_OF_PHASE = {
    "fwd": "F",
    "recompute": "B",
    "bwd": "B",
    "wgrad": "B",
    "grad_reduce": "step",
    "optim": "step",
}
"""The task that ops of a phase belong to when the backward pass is one piece."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node: in which task, which row of it, which node of the row."""

    task: str
    row: int
    node: int


@dataclass
class Row:
    """One run of a segment. `arguments` has the place behind each slot, or nothing."""

    segment: int
    layer: int
    arguments: list[Place | None]


@dataclass
class Task:
    """Rows in issue order."""

    name: str
    rows: list[Row] = field(default_factory=list)


@dataclass
class Run:
    """Straight-line ops that become one segment, and the repeats around them."""

    ops: list[Operation]
    repeats: tuple[stg.RepeatOp, ...]
    inputs: list[SSAValue] = field(default_factory=list)
    """The values behind the segment's slots, in order."""
    input_slots: dict[tuple[Operation, int], int] = field(default_factory=dict)
    segment: int = -1


class Layout:
    """Tasks of one program."""

    def __init__(
        self,
        program: stg.ProgramOp,
        values: Mapping[str, int],
        split_backward: bool = False,
    ) -> None:
        self.values = values
        self.dataflow = Dataflow(values)
        self.split_backward = split_backward
        self.segments: list[Segment] = []
        self.tasks: dict[str, Task] = {}
        self.places: dict[Source, Place] = {}
        self._numbers: dict[Size, int] = {}
        self._pending: list[tuple[Row, Run, Path]] = []
        self._runs: dict[tuple[int, str], list[Run | stg.RepeatOp]] = {}
        self._place_program(program)
        self._resolve()

    # Placing

    def _place_program(self, program: stg.ProgramOp) -> None:
        loop = next((op for op in program.body.block.ops if isinstance(op, stg.AccumulateOp)), None)
        if loop is not None:
            for task in ("F", "I", "W") if self.split_backward else ("F", "B"):
                self._place_block(loop.body.block, task, (), ())
        before: list[Operation] = []
        after: list[Operation] = []
        target = before if loop is not None else after
        for op in program.body.block.ops:
            if op is loop:
                target = after
            else:
                target.append(op)
        self._place_ops(before, "pre", (), ())
        self._place_ops(after, "step", (), ())

    def task_of(self, op: Operation) -> str:
        task = TASK_OF_PHASE[stg.phase_of(op)]
        if task == "B" and self.split_backward:
            return "W" if stg.phase_of(op) == "wgrad" else "I"
        return task

    def _place_block(
        self, block: Block, task: str, repeats: tuple[stg.RepeatOp, ...], path: Path
    ) -> None:
        key = (id(block), task)
        if key not in self._runs:
            self._runs[key] = list(self._runs_of(block.ops, task, repeats))
        self._place_runs(self._runs[key], task, repeats, path)

    def _place_ops(
        self, ops: Sequence[Operation], task: str, repeats: tuple[stg.RepeatOp, ...], path: Path
    ) -> None:
        self._place_runs(list(self._runs_of(ops, task, repeats)), task, repeats, path)

    def _runs_of(
        self, ops: Iterable[Operation], task: str, repeats: tuple[stg.RepeatOp, ...]
    ) -> Iterable[Run | stg.RepeatOp]:
        """The ops of a task as straight-line runs, and the repeats between them."""
        run = Run([], repeats)
        for op in ops:
            if is_node(op) and (task in ("pre", "step") or self.task_of(op) == task):
                run.ops.append(op)
            elif isinstance(op, stg.RepeatOp) and self._has_task(op, task):
                if run.ops:
                    yield run
                yield op
                run = Run([], repeats)
        if run.ops:
            yield run

    def _has_task(self, repeat: stg.RepeatOp, task: str) -> bool:
        if task in ("pre", "step"):
            return True
        return any(is_node(op) and self.task_of(op) == task for op in repeat.body.walk())

    def _place_runs(
        self,
        runs: Sequence[Run | stg.RepeatOp],
        task: str,
        repeats: tuple[stg.RepeatOp, ...],
        path: Path,
    ) -> None:
        for run in runs:
            if isinstance(run, stg.RepeatOp):
                for iteration in range(self.dataflow.count(run)):
                    self._place_block(run.body.block, task, (*repeats, run), (*path, iteration))
            else:
                self._place_run(run, task, path)

    def _place_run(self, run: Run, task: str, path: Path) -> None:
        if run.segment < 0:
            self._make_segment(run)
        rows = self.tasks.setdefault(task, Task(task)).rows
        for position, op in enumerate(run.ops):
            self.places[Source(op, path)] = Place(task, len(rows), position)
        row = Row(run.segment, self.dataflow.layer(run.repeats, path), [])
        rows.append(row)
        self._pending.append((row, run, path))

    # Dependencies

    def _make_segment(self, run: Run) -> None:
        """Node templates of a run. A value from outside gets a slot, one per value."""
        run.segment = len(self.segments)
        position = {op: i for i, op in enumerate(run.ops)}
        slot_of: dict[SSAValue, int] = {}
        nodes: list[Node] = []
        for op in run.ops:
            deps: list[Dep] = []
            for operand in op.operands:
                inside = self._inside(operand, position)
                if inside is not None:
                    dep = Dep(-1, inside)
                else:
                    if operand not in slot_of:
                        slot_of[operand] = len(run.inputs)
                        run.inputs.append(operand)
                    dep = Dep(slot_of[operand], 0)
                if dep not in deps:
                    deps.append(dep)
            nodes.append(self._node(op, tuple(deps)))
        scope = stg.scope_of(run.ops[0])
        name = f"{scope or 'model'}.{stg.phase_of(run.ops[0])}"
        self.segments.append(Segment(name, tuple(nodes), len(run.inputs)))

    def _inside(self, value: SSAValue, position: Mapping[Operation, int]) -> int | None:
        """The position in this run of the node that makes a value, through views."""
        op = value.owner
        while isinstance(op, sched.ViewOp):
            op = op.operand.owner
        return position.get(op) if isinstance(op, Operation) else None

    def _resolve(self) -> None:
        """Find the place behind each argument of each row, now that everything is placed."""
        for row, run, path in self._pending:
            for value in run.inputs:
                source = self.dataflow.source(value, path)
                row.arguments.append(self.places.get(source) if source is not None else None)

    # Templates

    def _node(self, op: Operation, deps: tuple[Dep, ...]) -> Node:
        location = op.location
        assert isinstance(op, sched.NODES)
        return Node(
            op=sched.node_name(op),
            phase=stg.phase_of(op),
            scope=stg.scope_of(op),
            action=self._action(op),
            stream=op.stream.data,
            data_deps=deps,
            location=(
                f"{location.filename.data}:{location.line.data}:{location.column.data}"
                if isinstance(location, FileLineColLoc)
                else ""
            ),
            made_by=stg.text(op, "made_by"),
        )

    def _action(self, op: Operation) -> Action:
        if isinstance(op, sched.ComputeOp):
            moved = self.number(op.reads.data) + self.number(op.writes.data)
            return Compute(self.number(op.flops.data), moved)
        assert isinstance(op, sched.CollectiveOp)
        return Collective(
            op.kind.data,
            op.axes.data,
            self.number(op.bytes_in.data),
            self.number(op.bytes_out.data),
            op.dtype.data,
        )

    def number(self, size: Size) -> int:
        """The number of a size; a fraction of an operation counts as a whole one."""
        if size not in self._numbers:
            exact = size.evaluate(self.values)
            self._numbers[size] = -(-exact.numerator // exact.denominator)
        return self._numbers[size]
