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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.coordinates import Coordinates, Others, axes_in, coordinate_classes
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.expert_loads import Loads, num_layers
from stagec.analysis.gathers import Units, found_gathered, gathered_units, pass_of, separated
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import dims_by_place, mesh_of, module_of, size_values, values_at
from stagec.arrays import Ints, distinct, widened
from stagec.diagnostics import CompileError, Diagnostic, refused, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.sched.tasks import (
    CLIP,
    COMPUTE_TASKS,
    NOWHERE,
    PASS_GATHERS,
    TASK_NUMBER,
    TASKS,
    TRANSFER_TASKS,
    Order,
    Rows,
    StageOfRank,
)
from stagec.dialects.types import TIME_AXIS, StackType
from stagec.pipeline_schedule import SCHEDULE, num_together, pipeline_schedule, tasks_overlap
from stagec.rewriting import programs, programs_by_kind
from stagec.schedules import Schedule
from stagec.schedules.table import FIRST_TRANSFER, ActionColumns, ActionKind
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
            rows = rows_of_tasks(program, Dataflow(numbers))
            self.tasks[key] = sched.TasksOp(name, kind, counts, rows)
        return self.tasks[key]


def gathers_before(program: stg.ProgramOp) -> bool:
    """Whether parameters that are freed later are gathered before the first microbatch."""
    tops = program.body.block.ops
    before = [op for op in tops if not isinstance(op, stg.AccumulateOp)]
    marks = [inner.properties for op in before for inner in op.walk()]
    return any(stg.UNIT in each and stg.EVICTED not in each for each in marks)


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


# Rows


def rows_of_tasks(program: stg.ProgramOp, flow: Dataflow) -> dict[str, Rows]:
    """The rows of each task in the order of the program; after the microbatches, reductions of gradients first."""
    found: dict[str, Rows] = {}
    ops = list(program.body.block.ops)
    loops = [op for op in ops if isinstance(op, stg.AccumulateOp)]
    before = tasks_overlap(module_of(program))
    for loop in loops[:1]:
        inside = list(loop.body.block.ops)
        for task in (*COMPUTE_TASKS, *TRANSFER_TASKS):
            found[task] = rows_of(inside, (task,), flow)
        for gathers in PASS_GATHERS:
            task = pass_of(gathers, [task for task, rows in found.items() if len(rows)])
            if task is not None:
                mixed = rows_of(inside, (task, gathers), flow)
                own = found[task].segment
                moved = set(mixed.segment.tolist()) - set(own.tolist())
                found[task], found[gathers] = separated(mixed, moved, task, before=before)
    outside = [op for op in ops if op not in loops[:1]]
    found["pre"] = rows_of(outside, ("pre",), flow)
    found["GATHER"] = rows_of(outside, ("GATHER",), flow)
    found["reduce"] = rows_of(outside, ("reduce",), flow)
    found["tied"] = rows_of(outside, ("tied",), flow)
    found[CLIP] = rows_of(outside, (CLIP,), flow)
    reductions = [op for op in outside if stg.phase_of(op) == "grad_reduce"]
    others = [op for op in outside if stg.phase_of(op) != "grad_reduce"]
    for task in ("norm", "step"):
        found[task] = rows_of([*reductions, *others], (task,), flow)
    return {task: rows for task, rows in found.items() if len(rows)}


def rows_of(ops: Iterable[Operation], tasks: Collection[str], flow: Dataflow) -> Rows:
    segment, path = unrolled(ops, tasks, flow)
    return Rows.of(segment, path)


def unrolled(ops: Iterable[Operation], tasks: Collection[str], flow: Dataflow) -> tuple[Ints, Ints]:
    """The segments of tasks in ops `[n]`, and the iterations of repeats `[n, depth]`, -1 beyond."""
    segments, paths = [np.zeros(0, np.int64)], [np.zeros((0, 0), np.int64)]
    last = -1
    for op in ops:
        if isinstance(op, sched.NodeOp):
            own = op.segment
            if own is not None and own.task in tasks and own.number != last:
                last = own.number
                segments.append(np.array([last]))
                paths.append(np.zeros((1, 0), np.int64))
        elif isinstance(op, stg.RepeatOp):
            segment, path = unrolled(op.body.block.ops, tasks, flow)
            count = flow.count(op) if len(segment) else 0
            iteration = np.repeat(np.arange(count), len(segment))
            segments.append(np.tile(segment, count))
            paths.append(
                np.concatenate([iteration[:, None], np.tile(path, (count, 1))], axis=1)
                if count
                else np.zeros((0, 0), np.int64)
            )
    depth = max(path.shape[1] for path in paths)
    filled = [widened(path, depth, NOWHERE) for path in paths]
    return np.concatenate(segments), np.concatenate(filled)


# Order


TASK_OF_KIND = {
    ActionKind.FORWARD: "F",
    ActionKind.BACKWARD: "B",
    ActionKind.BACKWARD_INPUT: "I",
    ActionKind.BACKWARD_WEIGHT: "W",
    ActionKind.SEND_FORWARD: "SEND_F",
    ActionKind.RECV_FORWARD: "RECV_F",
    ActionKind.SEND_BACKWARD: "SEND_B",
    ActionKind.RECV_BACKWARD: "RECV_B",
}


def plain_order(microbatches: int, rows: Collection[str], together: int = 1) -> Order:
    """Each microbatch forward, then backward: `F0 B0 F1 B1`; where passes of two overlap `F0 F1&B0 B1`, and without a backward pass `F0&F1 F2&F3`."""
    compute = np.array([TASK_NUMBER[task] for task in ("F", "B") if task in rows], np.int64)
    inside = np.tile(compute, microbatches)
    numbers = np.repeat(np.arange(microbatches), len(compute))
    joined = np.zeros_like(inside)
    if together > 1 and len(compute) == 2:
        # Each pair is the next microbatch's way forward, and this one's way back.
        pairs = [column[1:-1].reshape(-1, 2)[:, ::-1].ravel() for column in (inside, numbers)]
        inside[1:-1], numbers[1:-1] = pairs
        joined[2::2] = 1
    else:
        joined[numbers % together > 0] = 1
    none = np.zeros_like(inside)
    return once_around(inside, none, numbers, none, joined, [rows])


def once_around(
    task: Ints,
    stage: Ints,
    microbatch: Ints,
    shift: Ints,
    joined: Ints,
    rows: Sequence[Collection[str]],
    first_tied: Sequence[int] = (0,),
) -> Order:
    """Tasks of microbatches, between those that run once per step on each stage. `task` has the reductions of stages that a schedule places.

    What several ranks share is reduced before any stage begins its step, by the place of the first such weight of a stage among all
    (`first_tied`): the norm of all gradients is over other ranks, which have these weights in stages of other numbers. So Megatron-LM's
    `finalize_model_grads` reduces embeddings before its optimizer takes the norm. That goes from stage to stage, and the last one tells other ranks.
    """
    reduced = stage[task == TASK_NUMBER["reduce"]]

    def once(name: str, besides: Ints, stages: Iterable[int] = range(len(rows))) -> Ints:
        own = [i for i in stages if name in rows[i] and i not in besides]
        number, nowhere = TASK_NUMBER[name], NOWHERE
        return np.array([(number, i, nowhere, 0, 0) for i in own], np.int64).reshape(-1, 5)

    none = np.zeros(0, np.int64)
    placed = np.stack([task, stage, microbatch, shift, joined], axis=1)
    by_weight = sorted(range(len(rows)), key=first_tied.__getitem__)
    tied = once("tied", none, by_weight)
    parts = [once("pre", none), placed, once("reduce", reduced), tied]
    parts += [once("norm", none), once(CLIP, none)[-1:], once("step", none)]
    return Order.of_table(np.concatenate(parts))


def rank_order(
    schedule: Schedule,
    rank: int,
    stages: Sequence[int],
    rows: Sequence[Collection[str]],
    gathered: Sequence[bool],
    first_tied: Sequence[int],
) -> Order:
    """A rank's tasks, from its schedule, and those of each stage that run once; `rows` has the tasks of which stages have rows.

    `gathered` says of which stages all parameters are gathered before the first microbatch, and `first_tied` which weight that several
    ranks share is the first of each.

    Where some backward passes are two halves, all are.
    """
    in_turn = sends_first(schedule.row(rank))
    row = schedule.row(rank).pick(in_turn)
    peers = schedule.peer[schedule.starts[rank] : schedule.starts[rank + 1]][in_turn]
    numbers = np.array([TASK_NUMBER[TASK_OF_KIND[kind]] for kind in ActionKind])
    places = np.full(schedule.num_stages, NOWHERE)
    places[list(stages)] = np.arange(len(stages))
    task = numbers[row.kind]
    shift = np.where(peers >= 0, (peers - rank) % schedule.num_ranks, 0)
    columns = with_parameters(
        [task, places[row.stage], np.asarray(row.microbatch), shift, overlapping(row)],
        schedule,
        rank,
        places,
    )
    task = columns[0]
    if schedule.some_in_halves:
        times = np.where(task == TASK_NUMBER["B"], 2, 1)
        columns = [np.repeat(column, times) for column in columns]
        second = np.cumsum(times)[task == TASK_NUMBER["B"]] - 1
        columns[0][second - 1] = TASK_NUMBER["I"]
        columns[0][second] = TASK_NUMBER["W"]
    has = np.array([[task in own for task in TASKS] for own in rows])
    kept = has[columns[1], columns[0]]
    # Without the first of two that overlap, the second runs alone.
    group = np.cumsum(columns[4] == 0)[kept]
    columns = [column[kept] for column in columns]
    columns[4] = np.append(False, group[1:] == group[:-1])[: len(group)].astype(np.int64)
    task, place, microbatch, shift, joined = with_gathers(columns, rows, gathered)
    return once_around(task, place, microbatch, shift, joined, rows, first_tied)


def sends_first(row: ActionColumns) -> Ints:
    """The actions of a rank, with the sends of each batch before its receives, which may share a stream, and do not wait for each other."""
    receives = (row.kind == ActionKind.RECV_FORWARD) | (row.kind == ActionKind.RECV_BACKWARD)
    return np.lexsort((receives, np.cumsum(~row.joined)))


def overlapping(row: ActionColumns) -> Ints:
    """Which computation of a rank overlaps the one before it."""
    return (row.joined & (row.kind < FIRST_TRANSFER)).astype(np.int64)


def with_gathers(
    columns: Sequence[Ints], rows: Sequence[Collection[str]], gathered: Sequence[bool]
) -> list[Ints]:
    """A rank's tasks, with gathers before each pass whose stage has freed its parameters; `gathered` says which have them from the start.

    A forward pass frees what it has used; a backward pass keeps it: FSDP2's `reshard_after_forward`, and `set_reshard_after_backward(False)`,
    which PyTorch's stages say until they have run them all (`torch/distributed/pipelining/stage.py`).
    """
    passes: dict[tuple[int, int], tuple[int, bool]] = {}
    for place, own in enumerate(rows):
        for gathers in PASS_GATHERS:
            task = pass_of(gathers, own)
            if task is not None and not set(PASS_GATHERS).isdisjoint(own):
                number = TASK_NUMBER[gathers] if gathers in own else NOWHERE
                passes[TASK_NUMBER[task], place] = number, gathers == "GATHER_B"
    if not passes:
        return list(columns)
    there = list(gathered)
    inserted: list[tuple[int, tuple[int, int, int, int, int]]] = []
    table = np.stack(columns, axis=1)
    opens = 0
    for at, (task, place, microbatch, _, joined) in enumerate(table.tolist()):
        opens = opens if joined else at
        if (task, place) in passes:
            gathers, keeps = passes[task, place]
            if not there[place] and gathers >= 0:
                inserted.append((opens, (gathers, place, microbatch, 0, 0)))
            there[place] = keeps
        elif task == TASK_NUMBER["GATHER"]:
            there[place] = True
    before = [at for at, _ in inserted]
    lines = np.array([line for _, line in inserted], np.int64).reshape(-1, 5)
    return list(np.insert(table, before, lines, axis=0).T)


def with_parameters(
    columns: Sequence[Ints], schedule: Schedule, rank: int, places: Ints
) -> list[Ints]:
    """A rank's tasks, with the reductions of stages, and the gathers of whole stages, where the schedule places them."""
    if not len(schedule.reductions) and not len(schedule.gathers):
        return list(columns)
    table = np.stack(columns, axis=1)
    at = 2 * np.arange(len(table)) + 1
    for task, events in (("reduce", schedule.reductions), ("GATHER", schedule.gathers)):
        _, stage, position = events[events[:, 0] == rank].T
        # Of gathers, which of the stage's.
        number = [np.count_nonzero(stage[:i] == own) for i, own in enumerate(stage.tolist())]
        runs = np.array(number, np.int64) if task == "GATHER" else np.full(len(stage), NOWHERE)
        name = np.full(len(stage), TASK_NUMBER[task])
        none = np.zeros_like(stage)
        lines = np.stack([name, places[stage], runs, none, none], axis=1)
        table, at = np.concatenate([table, lines]), np.concatenate([at, 2 * position])
    return list(table[np.argsort(at, kind="stable")].T)


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


def first_shared(stage_programs: Sequence[stg.ProgramOp]) -> list[int]:
    """For each stage the place of the first weight that it reduces in its task `tied`, among those of all stages; 0 without one."""
    known = {program: shared_weights(program) for program in dict.fromkeys(stage_programs)}
    numbers: dict[str, int] = {}
    for path in (path for program in stage_programs for path in known[program]):
        numbers.setdefault(path, len(numbers))
    return [min((numbers[path] for path in known[each]), default=0) for each in stage_programs]


def shared_weights(program: stg.ProgramOp) -> list[str]:
    """The weights that a stage reduces in its task `tied`, in order, without those of its layers, which no other stage has."""
    ops = program.body.block.ops
    weights = [op for op in ops if isinstance(op, stg.WeightOp)]
    layered = {op.path.data for op in weights if isinstance(op.weight.type, StackType)}
    tied = [stg.text(op, "tied") for op in ops]
    return [path for path in tied if path and path not in layered]


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
