"""What ops of `sched` say of one another, which no op can verify by itself. A mistake is E0709, where it stands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from stagec.analysis.buffers import of_all_layers, owned, stored_by, summed_results
from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.expert_loads import Loads
from stagec.analysis.segments import Segment, segments_of, whole_number
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import mesh_of, size_values
from stagec.analysis.stated_sizes import sizes_of_type, wrong
from stagec.diagnostics import quoted
from stagec.dialects import dist, sched, stg
from stagec.dialects.attributes import sizes_in
from stagec.dialects.memory import Kind
from stagec.dialects.op import first_op
from stagec.dialects.sched.crossing import DIRECTIONS, StageRecv, StageSend
from stagec.dialects.sched.tasks import (
    CLIP,
    COMPUTE_TASKS,
    NOWHERE,
    ONCE,
    TASK_NUMBER,
    TASKS,
    StageOfRank,
    spell_task,
)
from stagec.dialects.types import TIME_AXIS, TensorType, tensor_of
from stagec.rewriting import programs, programs_by_kind
from stagec.symbolic import ZERO, Size
from stagec.symbolic.conditions import unread


def check_module(module: ModuleOp) -> None:
    """Check that programs of ranks are of what there is. For IR that was read, and for what passes of others leave."""
    listed = (sched.TasksOp, sched.RankProgramOp, sched.RanksOp)
    kinds, stages = programs_by_kind(module), dist.stages_of(module)
    names = numbers_of(module, [op for op in module.body.ops if isinstance(op, sched.TasksOp)])
    for program in kinds.values():
        check_sizes_known(program, names)
    if stages is not None:
        check_schedule(module, stages)
        check_crossings(stages, kinds)
    if not any(isinstance(op, listed) for op in module.body.ops):
        return
    segments = {kind: segments_of(program) for kind, program in kinds.items()}
    ops = list(module.body.ops)
    for program in kinds.values():
        check_units(program)
        check_freed_together(program)
        check_sums(program)
    for own in segments.values():
        check_segments(own)
    stored = [op for op in ops if isinstance(op, sched.StoredOp)]
    check_stored(stored, kinds, names)
    check_all_stored(stored, kinds)
    for op in ops:
        if isinstance(op, sched.TasksOp):
            if op.kind.data not in kinds:
                raise wrong(op, f"there is no `stg.program` of the kind `{op.kind.data}`")
            flow = Dataflow(numbers_at(module, op, names))
            check_rows(op, segments[op.kind.data], flow)
            check_all_run(op, segments[op.kind.data], flow)
            check_sizes(op, stored, flow.values)
        elif isinstance(op, sched.RankProgramOp):
            check_stages(op, ops, stages)
    classes = [op for op in ops if isinstance(op, sched.RanksOp)]
    if classes:
        check_classes(module, classes)
        check_places(module, classes)
        RankOrders.of(module, stages).check(classes)


def numbers_at(module: ModuleOp, tasks: sched.TasksOp, names: Collection[str]) -> dict[str, int]:
    """The numbers of sizes and of the layers of tasks; 1 for any other name that has a number on some rank."""
    return {**dict.fromkeys(names, 1), **unread(size_values(module)), **tasks.counts}


def numbers_of(module: ModuleOp, tasks: Sequence[sched.TasksOp]) -> set[str]:
    """The names that have a number on some rank."""
    stages = dist.stages_of(module)
    layers = dist.local_counts(stages.stages.data[0].layers) if stages is not None else ()
    counts = {*layers, *(name for op in tasks for name in op.counts)}
    firsts = {dist.first_layer(name) for name in counts}
    places = {f"{axis}{SUFFIX}" for axis in mesh_of(module)}
    loads = {name for load in Loads.of(module).loads for name in load.names}
    sequences = ModuleSequences.of(module)
    of_one = sequences.names_of_one if sequences is not None else ()
    return {*size_values(module), *counts, *firsts, *places, *loads, *of_one}


def check_sizes_known(program: stg.ProgramOp, names: Collection[str]) -> None:
    """Check that sizes of values and of properties are of names that have a number on some rank."""
    known: set[Size] = set()
    for op in program.walk():
        stated = (size for each in op.properties.values() for size in sizes_in(each))
        sizes = {*stated, *(size for each in op.results for size in sizes_of_type(each.type))}
        check_names(op, sizes - known, names)
        known |= sizes


def check_names(op: Operation, sizes: Iterable[Size], names: Collection[str]) -> None:
    """Check that what sizes are made of has numbers."""
    unknown = sorted({name for size in sizes for name in size.names}.difference(names))
    if unknown:
        raise wrong(op, f"the size `{unknown[0]}` has no number")


def check_schedule(module: ModuleOp, stages: dist.StagesOp) -> None:
    """Check that the ranks of the schedule are those of the mesh, and have the stages that the model is cut into."""
    op, mesh = first_op(module, sched.ScheduleOp), mesh_of(module)
    if stages.axis.data not in mesh:
        raise wrong(stages, f"the mesh has no axis `{stages.axis.data}`")
    if op is None:
        return
    ranks, along = op.ranks.data.evaluate(unread(size_values(module))), mesh[stages.axis.data]
    if ranks != along:
        raise wrong(op, f"it is of {ranks} ranks, and `{stages.axis.data}` has {along}")
    # Of schedules from both ends two ranks have each stage.
    if len(stages.stages.data) % ranks:
        message = f"{ranks} ranks do not share the {len(stages.stages.data)} of `dist.stages`"
        raise wrong(op, message)


def check_crossings(stages: dist.StagesOp, kinds: Mapping[str, stg.ProgramOp]) -> None:
    """Check that what one stage hands over is what the next one takes, and nothing else."""
    for stage in stages.stages.data:
        if stage.kind not in kinds:
            raise wrong(stages, f"there is no `stg.program` of the kind `{stage.kind}`")
    ends = {kind: crossings(program) for kind, program in kinds.items()}
    for one, other in dict.fromkeys(pairwise(stage.kind for stage in stages.stages.data)):
        for direction, giver, taker in zip(DIRECTIONS, (one, other), (other, one), strict=True):
            (given, _), (_, taken) = ends[giver], ends[taker]
            for ops, known, verb, kind in (
                (given, taken, "takes", taker),
                (taken, given, "gives", giver),
            ):
                for crossing, (op, of) in ops.items():
                    _, there = known.get(crossing, (op, None))
                    if crossing[0] == direction and there != of:
                        what = "nothing" if there is None else f"a {there}"
                        raise wrong(op, f"`{kind}` at the other end {verb} {what}")


Crossings = dict[tuple[str, int], tuple[Operation, TensorType]]
"""By direction and number: which op hands over or takes what."""


def crossings(program: stg.ProgramOp) -> tuple[Crossings, Crossings]:
    """What a stage gives to its neighbours, and what it takes from them."""
    given, taken = Crossings(), Crossings()
    for op in program.walk():
        if isinstance(op, StageSend):
            given[op.crossing] = (op, tensor_of(op.value.type))
        elif isinstance(op, StageRecv):
            taken[op.crossing] = (op, op.value_type)
    return given, taken


def check_units(program: stg.ProgramOp) -> None:
    """Check that gathers of one unit gather the same weights."""
    known: dict[int, set[SSAValue]] = {}
    for op in program.walk():
        number = whole_number(op, stg.UNIT, -1) if isinstance(op, sched.CollectiveOp) else -1
        if number >= 0:
            weights = set(map(of_all_layers, op.operands))
            if known.setdefault(number, weights) != weights:
                raise wrong(
                    op, f"it gathers other weights than the gather of unit {number} before it"
                )


def check_stored(
    stored: Sequence[sched.StoredOp], kinds: Mapping[str, stg.ProgramOp], names: Collection[str]
) -> None:
    """Check that what stays from step to step is said of programs that there are, and of what these have."""
    seen: set[str] = set()
    for op in stored:
        kind = op.kind.data
        if kind not in kinds or kind in seen:
            message = "is said twice" if kind in seen else "is of no `stg.program`"
            raise wrong(op, f"what `{kind}` stores {message}")
        seen.add(kind)
        known = owned(kinds[kind])
        rows: set[tuple[str, Kind]] = set()
        for row in op.rows.data:
            if not (row.is_of_program or row.path in known):
                raise wrong(op, f"there is no weight or cache `{row.path}`")
            check_names(op, [row.num_bytes], names)
            if (row.path, row.kind) in rows and not row.is_of_program:
                raise wrong(op, f'there are two rows `"{row.path}" {row.kind.name.lower()}`')
            rows.add((row.path, row.kind))


def check_all_stored(stored: Sequence[sched.StoredOp], kinds: Mapping[str, stg.ProgramOp]) -> None:
    """Check that of what a program has and updates it is said what stays."""
    said = {op.kind.data: op for op in stored}
    for kind, program in kinds.items():
        op = said.get(kind)
        if op is None and not any(sched.planned(inner) is not None for inner in program.walk()):
            continue
        rows = {(row.path, row.kind) for row in op.rows.data} if op is not None else set()
        for row in stored_by(program):
            if row.num_bytes != ZERO and (row.path, row.kind) not in rows:
                missing = f'there is no row `"{row.path}" {row.kind.name.lower()}`'
                where = f'`sched.stored of "{kind}"`'
                help_ = "run `plan-memory` again, or write the row down with 0 bytes"
                raise wrong(op or program, f"{missing} in {where}", help_)


def check_sizes(
    tasks: sched.TasksOp, stored: Sequence[sched.StoredOp], values: Mapping[str, int]
) -> None:
    """Check that what stays is not less than nothing."""
    for op in stored:
        for row in op.rows.data if op.kind.data == tasks.kind.data else ():
            if row.num_bytes.evaluate(values) < 0:
                message = f'`"{row.path}" {row.kind.name.lower()}` is less than no bytes'
                raise wrong(op, message)


def check_freed_together(program: stg.ProgramOp) -> None:
    """Check that what is freed with the last of some has a last. A last for which nothing waits, as a policy may leave it, frees nothing."""
    waiting: dict[int, Operation] = {}
    lasts: set[int] = set()
    for op in program.walk():
        plan = sched.planned(op)
        if plan is not None:
            until = [buffer.until for buffer in plan.buffers if buffer.until >= 0]
            waiting |= dict.fromkeys((*until, *(number for _, number in plan.keeps)), op)
            lasts.update(plan.lasts)
    for number, op in waiting.items():
        if number not in lasts:
            message = f"what is kept `until {number}` is never freed: no node says `last {number}`"
            raise wrong(op, message)


def check_sums(program: stg.ProgramOp) -> None:
    """Check that what is planned as a term of the sum over microbatches is one, and that the sum has the dtype that the loop gives it."""
    sums = summed_results(program)
    for op in program.walk():
        plan = sched.planned(op)
        for result, buffer in zip(op.results, plan.buffers, strict=True) if plan else ():
            wanted = sums.get(result, "")
            if buffer.total != wanted:
                planned = f"of a sum in `{buffer.total}`" if buffer.total else "no term of a sum"
                there = f"one of a sum in `{wanted}`" if wanted else "none of any sum"
                message = f"its result {result.index} is planned as {planned}, and `stg.accumulate` makes it {there}"
                raise wrong(op, message, "run `plan-memory` again")


def check_segments(segments: Mapping[int, Segment]) -> None:
    for segment in segments.values():
        places: dict[tuple[str, Block | None], None] = {}
        for op in segment.ops:
            assert op.segment is not None
            places[op.segment.task, op.parent_block()] = None
            if len(places) > 1:
                message = f"segment {segment.number} has ops of other tasks, or in other loops"
                raise wrong(op, message)


def check_rows(op: sched.TasksOp, segments: Mapping[int, Segment], flow: Dataflow) -> None:
    """Check that each row is a segment of its task, in an iteration that there is, once."""
    for task, rows in op.rows.data.items():
        seen: set[tuple[int, ...]] = set()
        for number, path in zip(rows.segment.tolist(), rows.path.tolist(), strict=True):
            at = tuple(each for each in path if each >= 0)
            segment = segments.get(number)
            if segment is None or segment.task != task:
                raise wrong(op, f"`{task}` has no segment {number}")
            counts = [flow.count(repeat) for repeat in segment.repeats]
            inside = len(at) == len(counts)
            if not inside or any(i >= count for i, count in zip(at, counts, strict=True)):
                raise wrong(op, f"segment {number} of `{task}` has no run {'.'.join(map(str, at))}")
            if (number, *at) in seen:
                raise wrong(op, f"segment {number} of `{task}` runs twice in one iteration")
            seen.add((number, *at))
        first = [int(n) for n in rows.segment.tolist()]
        for (before, number), joins in zip(pairwise(first), rows.joins[1:].tolist(), strict=True):
            ops = segments[before].first, segments[number].first
            if joins and not all(
                isinstance(each, sched.CollectiveOp) and each.bucket_bytes for each in ops
            ):
                raise wrong(op, f"segment {number} of `{task}` joins what is not a bucket")


def check_all_run(op: sched.TasksOp, segments: Mapping[int, Segment], flow: Dataflow) -> None:
    """Check that each segment has a row in each iteration of the repeats around it."""
    for segment in segments.values():
        counts = [flow.count(repeat) for repeat in segment.repeats]
        rows = op.rows.data.get(segment.task)
        here = np.flatnonzero(rows.segment == segment.number) if rows is not None else ()
        if len(here) < prod(counts):
            assert rows is not None or not len(here)
            paths = rows.path[here].tolist() if rows is not None else []
            seen = {tuple(each for each in path if each >= 0) for path in paths}
            missing = next(at for at in product(*map(range, counts)) if at not in seen)
            at = f"@{'.'.join(map(str, missing))}" if missing else ""
            first = segment.first
            message = f"`{segment.task}` of `@{op.sym_name.data}` has no row `{segment.number}{at}`: nobody issues this op"
            help_ = "add the row to `sched.tasks`, or take the op away with what reads it"
            raise wrong(first, message, help_)


def check_stages(
    op: sched.RankProgramOp, ops: Sequence[Operation], stages: dist.StagesOp | None
) -> None:
    kinds = [stage.kind for stage in stages.stages.data] if stages is not None else [""]
    known = {each.sym_name.data: each for each in ops if isinstance(each, sched.TasksOp)}
    for stage in op.stages.data:
        if stage.tasks not in known:
            raise wrong(op, f"there are no `sched.tasks @{stage.tasks}`")
        if stage.number >= len(kinds) or kinds[stage.number] != known[stage.tasks].kind.data:
            raise wrong(op, f"stage {stage.number} does not run `@{stage.tasks}`")
        layers = stages.stages.data[stage.number].layers if stages is not None else ()
        counts = known[stage.tasks].counts.items()
        own = {name: count for name, count in counts if not name.endswith(SUFFIX)}
        if own != dist.local_counts(layers):
            said = quoted([f"{name} = {n}" for name, n in dist.local_counts(layers).items()])
            message = f"stage {stage.number} has {said or 'no number of layers'}, and `@{stage.tasks}` says otherwise"
            raise wrong(known[stage.tasks], message)
    order = op.order.data
    for task, stage, microbatch in dict.fromkeys(map(tuple, order.table[:, :3].tolist())):
        if sched.TASKS[task] not in known[op.stages.data[stage].tasks].rows.data:
            name = f"{sched.TASKS[task]}:{stage}" + (f".{microbatch}" if microbatch >= 0 else "")
            raise wrong(op, f"`{name}` has no rows")


def check_classes(module: ModuleOp, classes: Sequence[sched.RanksOp]) -> None:
    """Check that every rank is in one class."""
    mesh = mesh_of(module)
    count, seen = 0, set[str]()
    for number, op in enumerate(classes):
        where = dict(op.at.data)
        for axis, at in where.items():
            if axis not in mesh or max(at) >= mesh[axis] or len(set(at)) != len(at):
                raise wrong(op, f"no such ranks: `{axis}` of the mesh has no {list(at)}")
        if op.class_name.data in seen:
            raise wrong(op, f"there are two classes `{op.class_name.data}`")
        seen.add(op.class_name.data)
        count += prod(len(where.get(axis, range(size))) for axis, size in mesh.items())
        for other in classes[:number]:
            both = dict(other.at.data)
            shared = where.keys() & both.keys()
            if all(set(where[axis]) & set(both[axis]) for axis in shared):
                raise wrong(op, f"ranks are in `{other.class_name.data}` too")
    if count != prod(mesh.values()):
        last = classes[-1] if classes else next(iter(programs(module)))
        raise wrong(last, "there are ranks in no class")


def check_places(module: ModuleOp, classes: Sequence[sched.RanksOp]) -> None:
    """Check that tasks in which a rank's place counts are of the place of the ranks that run them: of the first of a class."""
    ops = module.body.ops
    programs = {op.sym_name.data: op for op in ops if isinstance(op, sched.RankProgramOp)}
    tasks = {op.sym_name.data: op for op in ops if isinstance(op, sched.TasksOp)}
    for each in classes:
        program = programs.get(each.program.data)
        for stage in program.stages.data if program is not None else ():
            for name, number in tasks[stage.tasks].counts.items():
                axis = name.removesuffix(SUFFIX)
                places = dict(each.at.data).get(axis, (0,))
                if axis != name and number != places[0]:
                    message = f"ranks `{each.class_name.data}` are at {places[0]} of `{axis}`, and `@{stage.tasks}` says otherwise"
                    raise wrong(tasks[stage.tasks], message)


PARTNERS = {
    "SEND_F": ("RECV_F", 1),
    "RECV_F": ("SEND_F", -1),
    "SEND_B": ("RECV_B", -1),
    "RECV_B": ("SEND_B", 1),
}
"""For each transfer: what its other end is called, and how many stages further that is."""

Runs = Mapping[tuple[str, int], Mapping[int, int]]
"""By task and stage of the model: the microbatches in which it runs, each with how far its peer is."""


@dataclass
class RankOrders:
    """What ranks run, as far as they have to do with each other: along the axis of the stages."""

    tasks: Mapping[str, sched.TasksOp]
    axis: str
    """The axis of the stages; empty without a pipeline."""
    size: int
    """The size of the axis of the stages; 1 without a pipeline."""
    num_stages: int
    count: int
    """Microbatches."""
    is_part: bool
    """Whether these are the stages of a pool, before and behind which those of others stand."""
    at: dict[int, dict[sched.RankProgramOp, None]] = field(default_factory=dict)
    """What ranks at each coordinate of the axis run."""
    runs: dict[sched.RankProgramOp, Runs] = field(default_factory=dict)

    @staticmethod
    def of(module: ModuleOp, stages: dist.StagesOp | None) -> RankOrders:
        symbols: dict[str, Operation] = {}
        for op in module.body.ops:
            if isinstance(op, sched.TasksOp | sched.RankProgramOp):
                symbols[op.sym_name.data] = op
        axis = stages.axis.data if stages is not None else ""
        size = mesh_of(module).get(axis, 1)
        tasks = {name: op for name, op in symbols.items() if isinstance(op, sched.TasksOp)}
        count = unread(size_values(module)).get(TIME_AXIS, 1)
        is_part = first_op(module, dist.TowersOp) is not None
        number = len(stages.stages.data) if stages else 1
        found = RankOrders(tasks, axis, size, number, count, is_part)
        for each in module.body.ops:
            if isinstance(each, sched.RanksOp):
                program = symbols.get(each.program.data)
                if not isinstance(program, sched.RankProgramOp):
                    raise wrong(each, f"there is no `sched.program @{each.program.data}`")
                found.runs[program] = runs_of(program)
                for coordinate in dict(each.at.data).get(axis, range(size)):
                    found.at.setdefault(coordinate, {})[program] = None
        return found

    def check(self, classes: Sequence[sched.RanksOp]) -> None:
        """Check that ranks run all that stages have to do, each microbatch of a stage in one place, and that each transfer has its other end."""
        for program in self.runs:
            self.check_tasks(program)
        for stage in range(self.num_stages):
            self.check_stage(stage, classes)
        self.check_peers()
        for coordinate, programs_ in self.at.items():
            for program in programs_:
                for (task, stage), peers in self.runs[program].items():
                    if task in PARTNERS and not self.leaves(task, stage):
                        self.check_ends(program, task, stage, peers, coordinate)

    def leaves(self, task: str, stage: int) -> bool:
        """Whether a transfer goes to another pool, or comes from one."""
        further = PARTNERS[task][1]
        return self.is_part and not 0 <= stage + further < self.num_stages

    def passes(self, stage: StageOfRank) -> list[str]:
        """The tasks that compute, of a stage."""
        return [task for task in COMPUTE_TASKS if task in self.tasks[stage.tasks].rows.data]

    def check_tasks(self, program: sched.RankProgramOp) -> None:
        """Check that a rank runs all tasks of its stages: once what runs once, and in the same microbatches what computes and what takes in."""
        runs = self.runs[program]
        numbers = {each.number for each in program.stages.data}
        clips = [stage for task, stage in runs if task == CLIP]
        if len(clips) > 1:
            message = (
                f"`@{program.sym_name.data}` runs `{CLIP}` of several stages: one runs it for all"
            )
            raise wrong(program, message)
        for stage in program.stages.data:
            own = self.tasks[stage.tasks].rows.data
            passes = self.passes(stage)
            computed = {at for task in passes for at in runs.get((task, stage.number), ())}
            if computed and max(computed) >= self.count:
                message = f"there is no microbatch {max(computed)}: there are {self.count}, from 0"
                raise wrong(program, message)
            received = [
                task
                for task in ("RECV_F", "RECV_B")
                if task in own
                and not (
                    (task, stage.number) not in runs and stage.number + PARTNERS[task][1] in numbers
                )
            ]
            for task in (*passes, *received, *ONCE):
                wanted = {NOWHERE} if task in ONCE else computed
                if task == CLIP and clips:
                    continue
                missing = wanted.difference(runs.get((task, stage.number), ()))
                if task in own and missing:
                    name = task_name(program, task, stage.number, min(missing))
                    message = f"`@{program.sym_name.data}` does not run {name}, which has rows"
                    raise wrong(program, message)

    def check_stage(self, stage: int, classes: Sequence[sched.RanksOp]) -> None:
        """Check that a stage runs each microbatch at one coordinate."""
        places: dict[int, int] = {}
        passes: list[str] = []
        for coordinate, programs_ in self.at.items():
            seen: set[int] = set()
            for program in programs_:
                for each in program.stages.data:
                    if each.number == stage:
                        passes = self.passes(each)
                        seen |= {
                            at for p in passes[:1] for at in self.runs[program].get((p, stage), ())
                        }
            for microbatch in sorted(places.keys() & seen):
                both = f"{places[microbatch]} and at {coordinate} of `{self.axis}`"
                message = f"stage {stage} runs microbatch {microbatch} twice, on ranks at {both}"
                program = next(iter(programs_)).sym_name.data
                ranks = [each for each in classes if each.program.data == program]
                raise wrong(ranks[-1], message)
            places |= dict.fromkeys(seen, coordinate)
        missing = set(range(self.count)).difference(places)
        if missing and (passes or not self.is_listed(stage)):
            message = f"no rank runs stage {stage} in microbatch {min(missing)}"
            raise wrong(classes[-1], message)

    def is_listed(self, stage: int) -> bool:
        return any(each.number == stage for program in self.runs for each in program.stages.data)

    def check_peers(self) -> None:
        """Check that a transfer goes to another rank, and nothing else goes anywhere."""
        for program, runs in self.runs.items():
            for (task, stage), peers in runs.items():
                for microbatch, shift in peers.items():
                    is_transfer = task in PARTNERS and not self.leaves(task, stage)
                    if (0 < shift < self.size) if is_transfer else shift == 0:
                        continue
                    name = task_name(program, task, stage, microbatch)
                    program_name = f"`@{program.sym_name.data}`"
                    if task in PARTNERS:
                        known = f"1 to {self.size - 1}" if self.size > 2 else str(self.size - 1)
                        message = f"the peer of {name} of {program_name} is {known} further along `{self.axis}`, not {shift}"
                    else:
                        message = f"{name} of {program_name} is no transfer, and has a peer"
                    raise wrong(program, message)

    def check_ends(
        self,
        program: sched.RankProgramOp,
        task: str,
        stage: int,
        peers: Mapping[int, int],
        coordinate: int,
    ) -> None:
        """Check that transfers of a task go to other ranks, which run their other ends."""
        partner, further = PARTNERS[task]
        for microbatch, shift in peers.items():
            name = f"{task_name(program, task, stage, microbatch)} of `@{program.sym_name.data}`"
            there = self.at.get((coordinate + shift) % self.size, {})
            ends = [self.runs[other].get((partner, stage + further), {}) for other in there]
            if not any(each.get(microbatch) == self.size - shift for each in ends):
                names = quoted([f"@{other.sym_name.data}" for other in there])
                end = f"`{partner}` of stage {stage + further} in microbatch {microbatch}"
                back = f" with `>{self.size - shift}`"
                message = f"{name} has no other end: {names} does not run {end}{back}"
                raise wrong(program, message)


def runs_of(program: sched.RankProgramOp) -> Runs:
    stages = program.stages.data
    found: dict[tuple[str, int], dict[int, int]] = {}
    for task, stage, microbatch, shift, _ in program.order.data.table.tolist():
        found.setdefault((TASKS[task], stages[stage].number), {})[microbatch] = shift
    return found


def task_name(program: sched.RankProgramOp, task: str, stage: int, microbatch: int) -> str:
    """A task of a stage of the model, as the order of a rank would name it."""
    place = next(i for i, each in enumerate(program.stages.data) if each.number == stage)
    return f"`{spell_task([TASK_NUMBER[task], place, microbatch, 0, 0], [0] * 5)}`"
