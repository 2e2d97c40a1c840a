"""Write down what each rank runs: the rows of each kind of stage, and the order of tasks on a rank.

Before `build-programs`:

    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    stg.program "M" (%x : !t) {
      stg.accumulate over "mb" {
        %y = sched.compute "embed" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
        %z = stg.repeat "4" carry(%h = %y : !t) -> (!t) {
          %b = sched.compute "layer" (%h) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t) -> !t
          stg.yield %b : !t
        }
        %g = sched.compute "loss" (%z) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "bwd"} : (!t) -> !t
        stg.yield
      }
      stg.output
    }

After:

    ...
    }
    sched.tasks @model of "" layers {} {
      F = "0 (1@0+1)*4",
      B = "2"
    }
    sched.program @all runs [0 @model] order "(F:0.0+1 B:0.0+1)*2"
    sched.ranks "all" at {} run @all

A row is a segment in one iteration of the repeats around it: `1@3` is segment 1 in iteration 3. Rows stand in the order of the program;
passes that follow move them. Nothing of a row's data is written down: that is in the rolled program, as SSA. With a pipeline, tasks
come in the order of its schedule (`sched.schedule`, proved right by `stagec.schedules`), and each rank of it is a class; ranks
that differ in the numbers of sizes alone, as where experts are not equally busy, are classes that run the same program.

Where a stage frees parameters and gathers them again, a forward pass frees what it has used and a backward pass keeps it (FSDP2's `reshard_after_forward`, and
`set_reshard_after_backward(False)`, which PyTorch's stages say). So gathers stand before the passes that find nothing, and `gathered` says of each pass which
of them gathered what it reads.

A schedule that cannot be built, such as one that needs more microbatches, is E0409; one in which ranks would sum the gradients of tied weights in
different orders is E0613; a model without ops is E0219.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.coordinates import Coordinates, Others, axes_in, coordinate_classes
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.expert_loads import Loads, num_layers
from stagec.analysis.gathers import Units, found_gathered, gathered_units
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import dims_by_place, mesh_of, size_values, values_at
from stagec.analysis.task_rows import rows_of_tasks
from stagec.arrays import distinct
from stagec.diagnostics import CompileError, Diagnostic, refused, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.sched.tasks import (
    Order,
    StageOfRank,
)
from stagec.dialects.types import TIME_AXIS, StackType
from stagec.pipeline_schedule import SCHEDULE, num_together, pipeline_schedule, tasks_overlap
from stagec.rank_orders import first_shared, gathers_before, plain_order, rank_order, shared_weights
from stagec.rewriting import programs, programs_by_kind
from stagec.schedules import Schedule
from stagec.symbolic.conditions import unread

NAME = "build-programs"


@dataclass(frozen=True)
class BuildPrograms(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        stages = dist.stages_of(op)
        builder = ProgramBuilder(op, size_values(op))
        if stages is None:
            builder.build_alone()
        else:
            builder.build_pipeline(stages, pipeline_schedule(op))
        op.body.block.add_ops([*builder.tasks.values(), *builder.made.values(), *builder.ranks])


@dataclass
class ProgramBuilder:
    """Makes the ops of all ranks."""

    module: ModuleOp
    values: Mapping[str, int]
    tasks: dict[tuple[str, object], sched.TasksOp] = field(default_factory=dict)
    made: dict[tuple[str, object], sched.RankProgramOp] = field(default_factory=dict)
    units: dict[stg.ProgramOp, Units] = field(default_factory=dict)
    """What the tasks of each program gather."""
    ranks: list[sched.RanksOp] = field(default_factory=list)

    def build_alone(self) -> None:
        """Without a pipeline each microbatch goes forward, then backward, on every rank alike; or beside the next one."""
        (program,) = programs(self.module)
        for ranks in self.coordinates():
            tasks = self.tasks_of("", program, self.counted(program, ranks.values))
            count = unread(self.values)[TIME_AXIS]
            order = plain_order(count, tasks.rows.data, num_together(self.module, count))
            if not len(order):
                raise CompileError([no_work(program)])
            listed = (StageOfRank(tasks.sym_name.data, 0),)
            name = self.program("all", listed, order, [program])
            self.ranks.append(sched.RanksOp(ranks.name, tuple(ranks.where.items()), name))

    def build_pipeline(self, stages: dist.StagesOp, schedule: Schedule) -> None:
        """A class for each coordinate along the axis of the stages, of ranks that differ in nothing else."""
        axis, kinds = stages.axis.data, programs_by_kind(self.module)
        stage_programs = [kinds[stage.kind] for stage in stages.stages.data]
        tied = tied_ranks(schedule, stage_programs)
        first_tied = first_shared(stage_programs)
        orders = [
            [
                path
                for stage in sorted(schedule.stages_of(rank), key=first_tied.__getitem__)
                for path in shared_weights(stage_programs[stage])
            ]
            for rank in range(schedule.num_ranks)
        ]
        check_orders(self.module, orders)
        for ranks in self.coordinates():
            tasks = [
                self.tasks_of(
                    stage.kind,
                    kinds[stage.kind],
                    {
                        **dist.local_counts(stage.layers),
                        **self.counted(kinds[stage.kind], ranks.values),
                    },
                )
                for stage in stages.stages.data
            ]
            goes_back = any(each.rows.data.keys() & {"B", "I"} for each in tasks)
            if not schedule.has_backward and goes_back:
                raise CompileError([no_backward(self.module, schedule)])
            for rank in range(mesh_of(self.module)[axis]):
                own = schedule.stages_of(rank)
                listed = tuple(
                    StageOfRank(tasks[stage].sym_name.data, stage, tied[stage]) for stage in own
                )
                rows = [tasks[stage].rows.data for stage in own]
                own_programs = [kinds[stages.stages.data[s].kind] for s in own]
                gathered = list(map(gathers_before, own_programs))
                weights = [first_tied[stage] for stage in own]
                order = rank_order(schedule, rank, own, rows, gathered, weights)
                program = self.program(f"{axis}{rank}", listed, order, own_programs)
                name = " ".join([f"{axis}{rank}", *([ranks.name] if ranks.where else [])])
                where = ((axis, (rank,)), *ranks.where.items())
                self.ranks.append(sched.RanksOp(name, where, program))

    def coordinates(self) -> list[Coordinates]:
        """Ranks that share all numbers."""
        values, mesh = self.values, mesh_of(self.module)
        return coordinate_classes(programs(self.module), values, mesh, further_numbers(self.module))

    def counted(self, program: stg.ProgramOp, coordinates: Mapping[str, int]) -> dict[str, int]:
        """The coordinates of a rank that decide how often its repeats run, or how much its buckets hold."""
        if not coordinates:
            return {}
        ops = list(program.walk())
        names = {n for op in ops if isinstance(op, stg.RepeatOp) for n in op.count.data.names}
        if any(isinstance(op, sched.CollectiveOp) and op.bucket_bytes for op in ops):
            names |= {n for size in dims_by_place(self.module).values() for n in size.names}
        return {name: at for name, at in coordinates.items() if name in names}

    def program(
        self,
        name: str,
        stages: tuple[StageOfRank, ...],
        order: Order,
        programs: Sequence[stg.ProgramOp],
    ) -> str:
        """The symbol of a program, which classes that differ in numbers alone share; `programs` has that of each stage."""
        key = (name, stages)
        if key not in self.made:
            same = sum(other == name for other, _ in self.made)
            symbol = f"{name}_{same}" if same else name
            for each in programs:
                if each not in self.units:
                    self.units[each] = gathered_units(each)
            gathered = found_gathered(order, [self.units[each] for each in programs])
            self.made[key] = sched.RankProgramOp(symbol, stages, order, gathered)
        return self.made[key].sym_name.data

    def tasks_of(
        self, kind: str, program: stg.ProgramOp, counts: Mapping[str, int]
    ) -> sched.TasksOp:
        """The tasks of a kind of stage with so many layers, once for all stages that are like it."""
        key = (kind, tuple(counts.items()))
        if key not in self.tasks:
            name = kind or "model"
            if any(other == kind for other, _ in self.tasks):
                # Kinds are `middle` and `middle_2`: `middle_of_2` is a `middle` of two layers.
                name += "_of" + "".join(f"_{count}" for count in counts.values())
            firsts = {dist.first_layer(each): 0 for each in counts}
            # How often bodies run decides nothing but these rows, which a sweep makes for each plan anew.
            numbers = {**unread(self.values), **counts, **firsts}
            before = tasks_overlap(self.module)
            rows = rows_of_tasks(program, Dataflow(numbers), before=before)
            self.tasks[key] = sched.TasksOp(name, kind, counts, rows)
        return self.tasks[key]


def no_work(program: stg.ProgramOp) -> Diagnostic:
    """A model that returns what it reads: its trace would have no node."""
    return Diagnostic(
        "E0219",
        f"`{program.model.data}` computes nothing",
        span_of(program.location),
        help="compute something from its inputs, such as `return relu(x)`",
    )


def no_backward(module: ModuleOp, schedule: Schedule) -> Diagnostic:
    """A schedule of a user's own that leaves out what the loss is there for."""
    return Diagnostic(
        "E0409",
        f"the schedule `{schedule.name}` has no backward passes, and the model has a loss to train",
        dist.clause_span(module, *SCHEDULE),
        help="add a `B` for each `F`; `schedule = forward_only` evaluates a loss",
    )


def further_numbers(module: ModuleOp) -> Others | None:
    """What tells ranks apart whose experts are not equally busy, whose parts are not as large, or that serve other sequences."""
    found: list[Others] = []
    parts = dims_by_place(module)
    if parts:
        axes = {axis for size in parts.values() for axis in axes_in(size.names)}
        found.append(Others(axes, lambda here: tuple(values_at(parts, here).values())))
    loads, sequences = Loads.of(module), ModuleSequences.of(module)
    if loads.loads:
        layers = num_layers(module)
        found.append(Others(loads.axes, lambda here: loads.column(layers, here)))
    if sequences is not None and sequences.along:
        found.append(Others({*sequences.along}, lambda here: of_device(sequences, here)))
    if not found:
        return None
    axes = {axis for each in found for axis in each.axes}
    return Others(axes, lambda here: tuple(n for each in found for n in each.numbers(here)))


def of_device(sequences: ModuleSequences, values: Mapping[str, int]) -> tuple[object, ...]:
    """All numbers of a device, in all iterations."""
    columns = sequences.columns(sequences.device(values))
    return tuple(tuple(columns.names[name].tolist()) for name in sorted(sequences.names))


def tied_ranks(
    schedule: Schedule, stage_programs: Sequence[stg.ProgramOp]
) -> list[tuple[tuple[str, tuple[int, ...]], ...]]:
    """For each stage the weights whose gradients are reduced over ranks of several stages, and those ranks.

    One of a layer is that of its stage.
    """
    own = [
        tuple(int(rank) for rank in distinct(schedule.owner[stage]))
        for stage in range(len(stage_programs))
    ]
    shared: dict[str, set[int]] = {}
    for program, ranks in zip(stage_programs, own, strict=True):
        for op in program.body.block.ops:
            if isinstance(op, stg.WeightOp) and not isinstance(op.weight.type, StackType):
                shared.setdefault(op.path.data, set()).update(ranks)
    tied = {program: tied_weights(program) for program in dict.fromkeys(stage_programs)}
    return [
        tuple((path, tuple(sorted(shared.get(path, ranks)))) for path in tied[program])
        for program, ranks in zip(stage_programs, own, strict=True)
    ]


def check_orders(module: ModuleOp, orders: Iterable[Sequence[str]]) -> None:
    """E0613 for two weights that ranks would reduce in different orders: stages reduce theirs one after the other."""
    known: set[tuple[str, str]] = set()
    for order in orders:
        known |= set(combinations(order, 2))
    for one, other in sorted(known):
        if one < other and (other, one) in known:
            raise refused(
                "E0613",
                f"ranks would sum the gradients of `{one}` and `{other}` in different orders",
                dist.clause_span(module, *SCHEDULE),
                notes=[
                    "stages share these weights with several others, crosswise, and each rank has several stages"
                ],
                help="choose a schedule with one stage on each rank, or another number of `virtual_stages`",
            )


def tied_weights(program: stg.ProgramOp) -> list[str]:
    """The weights whose gradients are reduced over the ranks of several stages."""
    return [path for op in program.walk() if (path := stg.text(op, "tied"))]
