"""One task laid out: rows of node templates, and where each value comes from.

A task is what the schedule moves as a unit: the forward pass of one microbatch through one virtual stage (`F`), its
backward pass (`B`, or its halves `I` and `W`), and what runs once per step, before (`pre`) or after (`step`) them.
Straight-line code is a segment, with a row for each time it runs; a row names the node behind each argument by task,
row and node, so that tasks can be placed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import zip_longest

from xdsl.ir import Block, Operation, SSAValue

from stagec.analysis.loads import Loads
from stagec.backend.lowering.dataflow import Dataflow, Path, Source, behind_views, is_node
from stagec.backend.lowering.rows import (
    TAKEN,
    TASK_OF_PHASE,
    TRANSFER_TASKS,
    Bucket,
    Place,
    Row,
    Run,
    Task,
    attribute,
    begins_run,
    halves,
    moves,
    stands_alone,
    transfer_task,
)
from stagec.backend.lowering.templates import (
    Owners,
    Templates,
    bucket_node,
    sizes_of_node,
    with_numbers,
)
from stagec.backend.program import Dep, Node, Segment
from stagec.dialects import dist, sched, stg


class Layout:
    """Tasks of one program."""

    def __init__(
        self,
        program: stg.ProgramOp,
        values: Mapping[str, int],
        split_backward: bool = False,
        owners: Owners | None = None,
    ) -> None:
        self.templates = Templates(values, owners or {})
        self.loads = Loads.around(program)
        self.loaded: dict[int, Templates] = {}
        self.layered: dict[int, tuple[list[Operation], int]] = {}
        """The segments that have numbers of a layer: their ops, and which."""
        self.like = self
        """Whose rows these are: those of a device with other loads of experts, or its own."""
        self.dataflow = Dataflow(values)
        self.split_backward = split_backward
        self.segments: list[Segment] = []
        self.tasks: dict[str, Task] = {}
        self.places: dict[Source, Place] = {}
        self._pending: list[tuple[Row, list[SSAValue], Path]] = []
        self.handed_over: dict[tuple[str, int], Place | None] = {}
        """What a stage on the same rank receives, by direction and number."""
        self.given: dict[str, Place | None] = {}
        """What this stage gives to others of its rank, by the path of the weight."""
        self.received: dict[tuple[str, int, int], int] = {}
        """The number of each received value, by direction, row and node."""
        self._sends = [op for op in program.walk() if isinstance(op, sched.StageSendOp)]
        self._gives = [op for op in program.body.block.ops if isinstance(op, dist.GiveGradientOp)]
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        self._runs: dict[tuple[int, str], list[Run | stg.RepeatOp]] = {}
        self._place_program(program)
        self._resolve()

    def from_layer(self, values: Mapping[str, int]) -> Layout:
        """The tasks of a stage of the same program whose layers begin elsewhere, and all of whose other numbers are the same."""
        assert not self.loads.loads, (
            "experts that are not equally busy have other numbers in each layer"
        )
        other = copy(self)
        other.templates = replace(self.templates, values=values)
        other.dataflow = replace(self.dataflow, values=values)
        layer = other.dataflow.layer
        other.tasks = {
            name: Task(name, [replace(r, layer=layer(r.repeats, r.path)) for r in task.rows])
            for name, task in self.tasks.items()
        }
        return other

    # Placing

    def _place_program(self, program: stg.ProgramOp) -> None:
        loop = next((op for op in program.body.block.ops if isinstance(op, stg.AccumulateOp)), None)
        if loop is not None:
            compute = ("F", "I", "W") if self.split_backward else ("F", "B")
            for task in (*compute, *TRANSFER_TASKS):
                self._place_ops(list(loop.body.block.ops), task, (), ())
                self._close_buckets(task)
        ops = list(program.body.block.ops)
        start = ops.index(loop) if loop is not None else 0
        before, after = ops[:start], [op for op in ops[start:] if op is not loop]
        self._place_ops(before, "pre", (), ())
        reduces = [op for op in after if stg.phase_of(op) == "grad_reduce"]
        self._place_ops(reduces, "step", (), ())
        self._close_buckets("step")
        self._place_ops([op for op in after if op not in reduces], "step", (), ())
        self._close_buckets("step")

    def task_of(self, op: Operation) -> str:
        if isinstance(op, sched.StageSendOp | sched.StageRecvOp):
            return transfer_task(op)
        task = TASK_OF_PHASE[stg.phase_of(op)]
        if task == "B" and self.split_backward:
            return "W" if stg.phase_of(op) in ("wgrad", "grad_reduce") else "I"
        return task

    def _place_ops(
        self, ops: Sequence[Operation], task: str, repeats: tuple[stg.RepeatOp, ...], path: Path
    ) -> None:
        self._place_runs(self._runs_of(ops, task, repeats), task, repeats, path)

    def _runs_of(
        self, ops: Iterable[Operation], task: str, repeats: tuple[stg.RepeatOp, ...]
    ) -> list[Run | stg.RepeatOp]:
        """The ops of a task as straight-line runs, and the repeats between them."""
        runs = list(self._straight_runs(ops, task, repeats))
        found: list[Run | stg.RepeatOp] = []
        for run, following in zip_longest(runs, runs[1:]):
            if isinstance(run, Run) and isinstance(following, stg.RepeatOp):
                found += halves(run, following)
            else:
                found.append(run)
        return found

    def _straight_runs(
        self, ops: Iterable[Operation], task: str, repeats: tuple[stg.RepeatOp, ...]
    ) -> Iterable[Run | stg.RepeatOp]:
        run = Run([], repeats)
        for op in ops:
            if run.ops and begins_run(op, run.ops[-1]):
                yield run
                run = Run([], repeats)
            if is_node(op) and (task in ("pre", "step") or self.task_of(op) == task):
                if stands_alone(op):
                    if run.ops:
                        yield run
                    yield Run([op], repeats, prefetch=attribute(op, "prefetch"))
                    run = Run([], repeats)
                else:
                    run.ops.append(op)
            elif isinstance(op, stg.RepeatOp) and self._has_task(op, task):
                if run.ops:
                    yield run
                yield op
                run = Run([], repeats)
        if run.ops:
            yield run

    def _has_task(self, repeat: stg.RepeatOp, task: str) -> bool:
        inside = (op for op in repeat.body.walk() if is_node(op))
        return task in ("pre", "step") or any(self.task_of(op) == task for op in inside)

    def _place_runs(
        self,
        runs: Sequence[Run | stg.RepeatOp],
        task: str,
        repeats: tuple[stg.RepeatOp, ...],
        path: Path,
    ) -> None:
        early = self._issued_early(runs, task, repeats)
        for position, run in enumerate(runs):
            if isinstance(run, stg.RepeatOp):
                self._place_repeat(run, task, repeats, path, early)
                continue
            following = runs[position + 1] if position + 1 < len(runs) else None
            if isinstance(following, stg.RepeatOp):
                # What the first layers need is gathered while this still runs.
                self._place_ahead(following, task, (*repeats, following), path, -1)
            if Source(run.ops[0], path) not in self.places:
                self._place_run(run, task, path)
            for gather in early.get((run.ops[0], 0), ()):
                self._place_run(gather, task, path)

    def _issued_early(
        self,
        runs: Sequence[Run | stg.RepeatOp],
        task: str,
        repeats: tuple[stg.RepeatOp, ...],
    ) -> dict[tuple[Operation, int], list[Run]]:
        """What units beside the layers need, by the unit that it is issued with: `prefetch` units before.

        A unit is a gather, in an iteration if it is in a repeat.
        """
        units: list[tuple[Operation, int]] = []
        early: dict[tuple[Operation, int], list[Run]] = {}
        for run in runs:
            if isinstance(run, stg.RepeatOp):
                gathers = self._gathers(run, task, (*repeats, run))
                units += [(g.ops[0], i) for i in range(self.dataflow.count(run)) for g in gathers]
            elif run.prefetch:
                if len(units) >= run.prefetch:
                    early.setdefault(units[-run.prefetch], []).append(run)
                units.append((run.ops[0], 0))
        return early

    def _place_repeat(
        self,
        repeat: stg.RepeatOp,
        task: str,
        repeats: tuple[stg.RepeatOp, ...],
        path: Path,
        early: Mapping[tuple[Operation, int], list[Run]],
    ) -> None:
        inner = (*repeats, repeat)
        runs = self._body_runs(repeat, task, inner)
        gathers = self._gathers(repeat, task, inner)
        for iteration in range(self.dataflow.count(repeat)):
            following: list[Run | stg.RepeatOp] = []
            for run in runs:
                if isinstance(run, Run) and run.prefetch:
                    self._place_runs(following, task, inner, (*path, iteration))
                    following = []
                    number = iteration * len(gathers) + gathers.index(run)
                    self._place_ahead(repeat, task, inner, path, number)
                    for gather in early.get((run.ops[0], iteration), ()):
                        self._place_run(gather, task, path)
                else:
                    following.append(run)
            self._place_runs(following, task, inner, (*path, iteration))

    def _gathers(
        self, repeat: stg.RepeatOp, task: str, repeats: tuple[stg.RepeatOp, ...]
    ) -> list[Run]:
        """The gathers of a layer's units that are issued ahead, in their order."""
        runs = self._body_runs(repeat, task, repeats)
        return [run for run in runs if isinstance(run, Run) and run.prefetch]

    def _body_runs(
        self, repeat: stg.RepeatOp, task: str, repeats: tuple[stg.RepeatOp, ...]
    ) -> list[Run | stg.RepeatOp]:
        key = (id(repeat), task)
        if key not in self._runs:
            self._runs[key] = self._runs_of(repeat.body.block.ops, task, repeats)
        return self._runs[key]

    def _place_ahead(
        self,
        repeat: stg.RepeatOp,
        task: str,
        repeats: tuple[stg.RepeatOp, ...],
        path: Path,
        number: int,
    ) -> None:
        """Issue what units need up to `prefetch` after one, numbered through all iterations; -1 precedes the repeat."""
        gathers = self._gathers(repeat, task, repeats)
        stop = number + 1 + max((gather.prefetch for gather in gathers), default=0)
        total = self.dataflow.count(repeat) * len(gathers)
        for each in range(max(0, number), min(stop, total)):
            gather, inner = gathers[each % len(gathers)], (*path, each // len(gathers))
            if each - number <= gather.prefetch and Source(gather.ops[0], inner) not in self.places:
                self._place_run(gather, task, inner)

    def _place_run(self, run: Run, task: str, path: Path) -> None:
        bucket = attribute(run.ops[0], "bucket_bytes")
        if bucket:
            self._fill_bucket(run, task, path)
            return
        if run.segment < 0:
            self._make_segment(run, task)
        layer = self.dataflow.layer(run.repeats, path)
        segment = self._segment_of(run, layer)
        rows = self.tasks.setdefault(task, Task(task)).rows
        for position, op in enumerate(run.ops):
            self.places[Source(op, path)] = Place(task, len(rows), position)
        lag = attribute(run.ops[0], "lag", -1)
        row = Row(segment, layer, [], lag, moves(run.ops[0]), run.repeats, path)
        rows.append(row)
        self._pending.append((row, run.inputs, path))

    # Buckets

    def _fill_bucket(self, run: Run, task: str, path: Path) -> None:
        """Put a reduction into the open bucket of its stream; one that is full is issued."""
        op, number = run.ops[0], self.templates.number
        assert isinstance(op, sched.CollectiveOp)
        key = (task, op.kind.data, op.stream.data)
        bucket = self._buckets.setdefault(key, Bucket(op))
        bucket.members.append(Source(op, path))
        bucket.num_bytes += max(number(op.bytes_in.data), number(op.bytes_out.data))
        if bucket.num_bytes >= bucket.limit:
            self._issue_bucket(key, task)

    def _issue_bucket(self, key: tuple[str, str, str], task: str) -> None:
        bucket = self._buckets[key]
        for other in self._buckets_before(bucket, task):
            self._issue_bucket(other, task)
        rows = self.tasks.setdefault(task, Task(task)).rows
        node, num_slots = bucket_node(bucket, self.templates)
        segment = Segment(f"bucket.{node.phase}", (node,), num_slots, task)
        if segment not in self.segments:
            self.segments.append(segment)
        row = Row(self.segments.index(segment), -1, [], -1, moves(bucket.first))
        for member in bucket.members:
            self.places[member] = Place(task, len(rows), 0)
            for value in member.op.operands:
                self._pending.append((row, [value], member.path))
        rows.append(row)
        self._buckets[key] = Bucket(bucket.first, is_first=False)

    def _buckets_before(self, bucket: Bucket, task: str) -> list[tuple[str, str, str]]:
        """The open buckets whose results a bucket reduces further: over other axes, in other amounts."""
        read = {
            self.dataflow.source(value, member.path)
            for member in bucket.members
            for value in member.op.operands
        }
        return [
            key
            for key, other in self._buckets.items()
            if key[0] == task and other is not bucket and not read.isdisjoint(other.members)
        ]

    def _close_buckets(self, task: str) -> None:
        for key in list(self._buckets):
            if key[0] == task and self._buckets[key].members:
                self._issue_bucket(key, task)

    # Dependencies

    def _segment_of(self, run: Run, layer: int) -> int:
        """The segment of a run: one for each layer where experts are not equally busy."""
        if not self.loads.loads or not any(
            self.loads.concern(*sizes_of_node(op)) for op in run.ops
        ):
            return run.segment
        if layer not in run.by_layer:
            run.by_layer[layer] = len(self.segments)
            self.layered[len(self.segments)] = run.ops, layer
            whole = self.segments[run.segment]
            self.segments.append(with_numbers(whole, run.ops, self.templates_of(layer)))
        return run.by_layer[layer]

    def templates_of(self, layer: int) -> Templates:
        """With the numbers that sizes have in a layer."""
        if layer not in self.loaded:
            values = self.templates.values
            own = {**values, **self.loads.sizes(layer, values)}
            self.loaded[layer] = Templates(own, self.templates.owners)
        return self.loaded[layer]

    def _make_segment(self, run: Run, task: str) -> None:
        """Node templates of a run. A value from outside gets a slot, one per value."""
        run.segment = len(self.segments)
        position: dict[Operation | Block, int] = {op: i for i, op in enumerate(run.ops)}
        slot_of: dict[SSAValue, int] = {}
        nodes: list[Node] = []
        for op in run.ops:
            deps: list[Dep] = []
            for operand in op.operands:
                inside = position.get(behind_views(operand))
                if inside is not None:
                    dep = Dep(-1, inside)
                else:
                    if operand not in slot_of:
                        slot_of[operand] = len(run.inputs)
                        run.inputs.append(operand)
                    dep = Dep(slot_of[operand], 0)
                if dep not in deps:
                    deps.append(dep)
            nodes.append(self.templates.node(op, tuple(deps)))
        scope = stg.scope_of(run.ops[0])
        name = f"{scope or 'model'}.{stg.phase_of(run.ops[0])}"
        self.segments.append(Segment(name, tuple(nodes), len(run.inputs), task))

    def _resolve(self) -> None:
        """Find the place behind each argument of each row, now that everything is placed."""
        for row, inputs, path in self._pending:
            row.arguments += [self.place_of(value, path) for value in inputs]
        for op in self._sends:
            key = (op.direction.data, op.number.value.data)
            self.handed_over[key] = self.place_of(op.value, ())
        for op in self._gives:
            self.given[op.weight.data] = self.place_of(op.gradient, ())
        for source, place in self.places.items():
            if isinstance(source.op, sched.StageRecvOp):
                key = (source.op.direction.data, place.row, place.node)
                self.received[key] = source.op.number.value.data

    def place_of(self, value: SSAValue, path: Path) -> Place | None:
        source = self.dataflow.source(value, path)
        if source is not None and isinstance(source.op, sched.TakenOp):
            return Place(TAKEN + source.op.weight.data, source.op.number.value.data, 0)
        return self.places.get(source) if source is not None else None
