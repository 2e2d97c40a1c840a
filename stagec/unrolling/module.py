"""The ranks of a module: what each class runs, read off `sched.ranks`, `sched.program` and `sched.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.expert_loads import Loads
from stagec.analysis.sequences import ITERATION, ModuleSequences
from stagec.analysis.sizes import dims_by_place, size_values, values_at
from stagec.analysis.stated_sizes import wrong
from stagec.dialects import dist, sched, stg
from stagec.dialects.sched.tasks import StageOfRank, Where
from stagec.rewriting import programs, programs_by_kind
from stagec.symbolic import Size
from stagec.symbolic.conditions import unread
from stagec.unrolling.queues import QueueFinder
from stagec.unrolling.rank import Arrangement, Arrangements, RankRun, StageRun
from stagec.unrolling.stage import StageLayout, has_peers_by_layer


@dataclass
class Unrolled:
    """What is unrolled of a module. It holds while ops, rows and tasks stay as they are."""

    layouts: dict[object, StageLayout] = field(default_factory=dict)
    arrangements: Arrangements = field(default_factory=Arrangements)
    queues: QueueFinder = field(default_factory=QueueFinder)


class UnrollingContext(Context):
    """What passes of one compilation share."""

    def __init__(self) -> None:
        super().__init__()
        self.unrolled = Unrolled()

    def after(self, done: ModulePass) -> None:
        """Forget what a pass may have changed."""
        if not isinstance(done, KeepsRows):
            self.unrolled = Unrolled()


class KeepsRows:
    """A pass that changes nothing that rows are made of: see `made_of`. What it unrolls, the next one finds."""


OF_PROGRAMS = {"stages", "order", "gathered"}
"""Attributes of a rank's program that rows and their data follow from."""
OF_ROWS = {"memory"}
"""Attributes that rows of ops are given, and (`BESIDES`) ops that no row is made of."""
BESIDES = (dist.PassesOp, sched.StoredOp, sched.ArenaOp)


def made_of(module: ModuleOp) -> list[tuple[object, ...]]:
    """What rows are made of: ops, their operands and attributes, the tasks and order of each rank; of all but what is said of rows themselves."""
    found: list[tuple[object, ...]] = []
    for op in module.walk():
        if isinstance(op, BESIDES):
            continue
        said = {**op.properties, **op.attributes}
        names = said.keys()
        names = names & OF_PROGRAMS if isinstance(op, sched.RankProgramOp) else names - OF_ROWS
        found.append((op, *op.operands, *((name, said[name]) for name in sorted(names))))
    return found


def unrolled_in(ctx: Context) -> Unrolled:
    return ctx.unrolled if isinstance(ctx, UnrollingContext) else Unrolled()


def rank_runs(module: ModuleOp, unrolled: Unrolled | None = None) -> list[RankRun]:
    """What each rank class runs, in order. E0709 if nobody built programs of ranks."""
    runs = list(reader_of(module, unrolled).runs())
    if not runs:
        help_ = "run `build-programs`, and what follows it"
        raise wrong(next(iter(programs(module))), "no ranks run it", help_)
    return runs


def reader_of(module: ModuleOp, unrolled: Unrolled | None) -> ModuleReader:
    return (
        ModuleReader(module) if unrolled is None else ModuleReader(module, layouts=unrolled.layouts)
    )


def arranged_programs(
    module: ModuleOp, ctx: Context
) -> Iterator[tuple[sched.RankProgramOp, Callable[[], Arrangement]]]:
    """Each program of a module, and what arranges its rows."""
    unrolled = unrolled_in(ctx)
    for program, run in list(program_runs(module, unrolled)):
        yield program, lambda run=run: unrolled.arrangements.of(run)


def program_runs(
    module: ModuleOp, unrolled: Unrolled | None = None
) -> Iterator[tuple[sched.RankProgramOp, RankRun]]:
    """Each program of a module, with the first class that runs it."""
    seen: set[sched.RankProgramOp] = set()
    for run in reader_of(module, unrolled).runs():
        if run.program not in seen:
            seen.add(run.program)
            yield run.program, run


@dataclass
class ModuleReader:
    """Reads a module; stages that are alike are unrolled once."""

    module: ModuleOp
    iteration: Mapping[str, int] = field(default_factory=dict)
    """Which iteration of a series it is, by its name."""
    values: Mapping[str, int] = field(init=False)
    kinds: dict[str, stg.ProgramOp] = field(init=False)
    symbols: dict[str, Operation] = field(init=False)
    parts: Mapping[str, Size] = field(init=False)
    """Dims that are not of one size on all ranks."""
    sequences: ModuleSequences | None = field(init=False)
    stages: dist.StagesOp | None = field(init=False)
    layouts: dict[object, StageLayout] = field(default_factory=dict)
    _by_layer: dict[stg.ProgramOp, bool] = field(default_factory=dict)

    def at(self, iteration: int) -> list[RankRun]:
        """What each rank class runs in an iteration of a series."""
        self.iteration = {ITERATION: iteration}
        return list(self.runs())

    def __post_init__(self) -> None:
        # What is unrolled is read off tables that these sizes made: nothing more is decided by them.
        self.values = unread(size_values(self.module))
        self.parts = dims_by_place(self.module)
        self.sequences = ModuleSequences.of(self.module)
        self.kinds = programs_by_kind(self.module)
        ops = list(self.module.body.ops)
        named = (sched.TasksOp, sched.RankProgramOp)
        self.symbols = {op.sym_name.data: op for op in ops if isinstance(op, named)}
        self.stages = dist.stages_of(self.module)

    @property
    def axis(self) -> str:
        """The axis of the stages; empty without a pipeline."""
        return self.stages.axis.data if self.stages is not None else ""

    def runs(self) -> Iterator[RankRun]:
        for op in self.module.body.ops:
            if not isinstance(op, sched.RanksOp):
                continue
            program = self.symbols.get(op.program.data)
            if not isinstance(program, sched.RankProgramOp):
                raise wrong(op, f"there is no `sched.program @{op.program.data}`")
            values = {**self.values, **self.coordinates(op.at.data), **self.iteration}
            values |= values_at(self.parts, values)
            if self.sequences is not None:
                values |= self.sequences.sizes(values)
            stages = [self.stage_run(program, each, values) for each in program.stages.data]
            yield RankRun(op.class_name.data, dict(op.at.data), stages, program, self.axis)

    def coordinates(self, where: Where) -> dict[str, int]:
        """A rank's coordinates as names of sizes: those of the first of the class."""
        return {f"{axis}{SUFFIX}": at[0] for axis, at in where if axis != self.axis}

    def stage_run(
        self, program: sched.RankProgramOp, stage: StageOfRank, values: Mapping[str, int]
    ) -> StageRun:
        tasks = self.symbols.get(stage.tasks)
        if not isinstance(tasks, sched.TasksOp):
            raise wrong(program, f"there are no `sched.tasks @{stage.tasks}`")
        kind = self.kinds.get(tasks.kind.data)
        if kind is None:
            raise wrong(tasks, f"there is no `stg.program` of the kind `{tasks.kind.data}`")
        numbers = {**values, **tasks.counts, **self.first_layers(stage.number)}
        owners = {path: ((self.axis, at),) for path, at in stage.tied}
        where = tuple(self.first_layers(stage.number).items()) if self.by_layer(kind) else ()
        key = (tasks, stage.tied, where)

        def lay_out() -> StageLayout:
            if key not in self.layouts:
                self.layouts[key] = StageLayout(kind, tasks.rows.data, numbers)
            return self.layouts[key]

        parts = self.sequences.parts if self.sequences is not None else ()
        each = [part.values_in(at, numbers) for at, part in enumerate(parts)]
        return StageRun(kind, lay_out, numbers, stage.number, owners, tasks.rows.data, each)

    def by_layer(self, program: stg.ProgramOp) -> bool:
        """Whether each layer has other numbers, so that it makes a difference where layers begin."""
        if program not in self._by_layer:
            has_loads = bool(Loads.around(program).loads)
            self._by_layer[program] = has_loads or any(map(has_peers_by_layer, program.walk()))
        return self._by_layer[program]

    def first_layers(self, stage: int) -> dict[str, int]:
        """The number of a stage's first layer of each repeat, by name."""
        if self.stages is None:
            return {}
        listed = self.stages.stages.data
        return {
            dist.first_layer(dist.local_count(index)): sum(
                each.layers[index] for each in listed[:stage] if index < len(each.layers)
            )
            for index in range(len(listed[stage].layers))
        }
