"""The trace program of each rank class: what its `sched.program` says, unrolled and in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.coordinates import axes_in, sizes_stated
from stagec.analysis.kernels import Forms
from stagec.analysis.sequences import ITERATION, ModuleSequences
from stagec.analysis.sizes import dims_by_place, mesh_of
from stagec.arrays import Ints
from stagec.backend.lowering.control import Control, said_of, with_added
from stagec.backend.lowering.templates import StageTemplates
from stagec.backend.program import (
    Mesh,
    Node,
    RankClass,
    Series,
    TraceProgram,
    TraceSegment,
    TraceSet,
)
from stagec.dialects import sched, stg
from stagec.plans.in_ir import stated_plan
from stagec.rewriting import programs
from stagec.symbolic.columns import add
from stagec.unrolling.queues import QueueFinder
from stagec.unrolling.rank import Arrangement, Arrangements, RankBody, RankRun


@dataclass
class Unroller:
    """Unrolls the programs of ranks. Classes that run the same one differ in numbers alone."""

    arrangements: Arrangements = field(default_factory=Arrangements)
    queues: QueueFinder = field(default_factory=QueueFinder)
    forms: Forms = field(default_factory=dict)
    """The forms of the kernels of its ops."""
    _made: dict[sched.RankProgramOp, tuple[RankRun, TraceProgram]] = field(default_factory=dict)
    _segments: dict[object, TraceSegment] = field(default_factory=dict)
    _chained: dict[object, TraceSegment] = field(default_factory=dict)
    _controls: dict[sched.RankProgramOp, Control] = field(default_factory=dict)
    _named: dict[stg.ProgramOp, bool] = field(default_factory=dict)
    _sequences: dict[stg.ProgramOp, ModuleSequences | None] = field(default_factory=dict)

    def trace_set(self, module: ModuleOp, runs: Sequence[RankRun]) -> TraceSet:
        """The trace programs of every rank class."""
        mesh, name = Mesh.of(mesh_of(module)), programs(module)[0].model.data
        is_training = stated_plan(module).is_training
        return TraceSet(name, mesh, tuple(self.classes(runs)), is_training)

    def classes(self, runs: Sequence[RankRun]) -> Iterator[RankClass]:
        for run in runs:
            yield RankClass(run.name, run.where, self.program(run))

    def program(self, run: RankRun) -> TraceProgram:
        if run.program in self._made:
            first, program = self._made[run.program]
            if run is not first:
                program = self.with_numbers(run, first, program)
        else:
            program = self.unroll(run)
            self._made[run.program] = run, program
        return self.in_series(run, self._controls[run.program].applied(program))

    def in_series(self, run: RankRun, program: TraceProgram) -> TraceProgram:
        """With the numbers of all iterations, if the program is one of several."""
        sequences = self.sequences(run.stages[0].program)
        if sequences is None or not sequences.is_series or ITERATION in run.stages[0].values:
            return program
        columns = sequences.columns(sequences.device(run.stages[0].values))
        sums = {each for s in program.segments for n in s.nodes for each in n.sizes}
        numbers = {each: added([columns.number(size) for size in each]) for each in sums}
        return replace(program, series=Series(sequences.num_iterations, numbers))

    def sequences(self, program: stg.ProgramOp) -> ModuleSequences | None:
        if program not in self._sequences:
            self._sequences[program] = ModuleSequences.around(program)
        return self._sequences[program]

    def serve(self, sequences: ModuleSequences) -> None:
        """Other sequences from here on."""
        self._sequences = dict.fromkeys(self._sequences, sequences)

    def templates(self, run: RankRun) -> list[StageTemplates]:
        sequences = self.sequences(run.stages[0].program)
        return [StageTemplates(stage, run.axis, sequences, self.forms) for stage in run.stages]

    def node(self, run: RankRun, row: int, at: int) -> Node:
        """One node of a row, with the numbers that it has for a rank."""
        rank = self.arrangements.of(run)
        each = rank.bodies[int(rank.body[row])]
        return self.templates(run)[each.stage].segment(each).nodes[at]

    def unroll(self, run: RankRun) -> TraceProgram:
        """Give rows their positions, and each stream its order as control dependencies."""
        rank = self.arrangements.of(run)
        segments, number = self.segments(run, rank)
        queues = self.queues.of(rank)
        self._controls[run.program] = said_of(rank, queues)
        added = dict(zip(number.tolist(), queues.added, strict=False))
        chained: list[TraceSegment] = []
        width = queues.slots.shape[1]
        for at, segment in enumerate(segments):
            # Ranks whose rows wait for more have wider ones.
            key = (id(segment), added[at], width)
            if key not in self._chained:
                self._chained[key] = with_added(segment, added[at], width)
            chained.append(self._chained[key])
        order = rank.order
        stage = np.array([each.stage for each in run.stages], np.int32)[run.order.stage]
        microbatch = rank.column(run.order.microbatch)[order]
        return TraceProgram(
            segments=tuple(chained),
            segment=number[rank.body[order]].astype(np.int32),
            slots=queues.slots,
            layer=rank.layer(run.stages)[order].astype(np.int32),
            microbatch=microbatch.astype(np.int32),
            stage=rank.column(stage)[order].astype(np.int32),
            tag=self.tags(run, rank)[order].astype(np.int64),
        )

    def tags(self, run: RankRun, rank: Arrangement) -> Ints:
        """The tag of each row: its microbatch.

        The tag of a cache that is handed to another pool is its layer, which both ends know; messages of a layer keep their order.
        """
        microbatch = np.maximum(rank.column(run.order.microbatch), 0)
        between = [
            isinstance(op := each.body.nodes[0], sched.PoolSendOp | sched.PoolRecvOp)
            and op.apart is not None
            for each in rank.bodies
        ]
        if not any(between):
            return microbatch
        layer = np.maximum(rank.layer(run.stages), 0)
        return np.where(np.array(between)[rank.body], layer, microbatch)

    def segments(self, run: RankRun, rank: Arrangement) -> tuple[list[TraceSegment], Ints]:
        """The segments of a rank, and the number of each body's."""
        templates = self.templates(run)
        found: dict[int, int] = {}
        made: list[TraceSegment] = []
        numbers: list[int] = []
        for each in rank.bodies:
            segment = self.segment(each, templates[each.stage])
            if id(segment) not in found:
                found[id(segment)] = len(made)
                made.append(segment)
            numbers.append(found[id(segment)])
        return made, np.array(numbers or [0], np.int64)

    def segment(self, each: RankBody, templates: StageTemplates) -> TraceSegment:
        """The trace segment of a body, made once for all ranks that have the body with the same numbers."""
        stage = templates.stage
        crosses = (stage.stage, each.shift) if each.shift else ()
        key = (each.body, crosses, stage.coordinates, each.microbatch)
        if key not in self._segments:
            self._segments[key] = templates.segment(each)
        return self._segments[key]

    def with_numbers(self, run: RankRun, other: RankRun, program: TraceProgram) -> TraceProgram:
        """The program of a class of which another is known: that with the numbers of this."""
        rank = self.arrangements.of(run)
        _, number = self.segments(other, rank)
        templates = self.templates(run)
        made = list(program.segments)
        for each, at in zip(rank.bodies, number.tolist(), strict=False):
            stage = run.stages[each.stage]
            if each.body.layer is None and not self.names_coordinates(stage.program):
                continue
            own = templates[each.stage]
            nodes = zip(made[at].nodes, own.actions(each), own.sizes(each), strict=True)
            made[at] = replace(
                made[at],
                nodes=tuple(
                    n if n.action == a and n.sizes == s else replace(n, action=a, sizes=s)
                    for n, a, s in nodes
                ),
            )
        return replace(program, segments=tuple(made))

    def names_coordinates(self, program: stg.ProgramOp) -> bool:
        """Whether sizes depend on where a rank is, or on the iteration, besides by loads of experts."""
        if program not in self._named:
            module = program.parent_op()
            parts = dims_by_place(module) if isinstance(module, ModuleOp) else {}
            self._named[program] = self.sequences(program) is not None or any(
                axes_in(size.names) or not size.names.isdisjoint(parts)
                for size in sizes_stated(program)
            )
        return self._named[program]


def added(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The sums of what a node reads and writes, in each iteration."""
    total = columns[0]
    for column in columns[1:]:
        total = add(total, column)
    return total
