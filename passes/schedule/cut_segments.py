"""Cut the ops of each task into segments: straight-line code that is issued together.

Before `cut-segments`:

    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    stg.program "M" (%x : !t) {
      stg.accumulate over "mb" {
        %y = sched.compute "up" (%x) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
        %z = sched.compute "down" (%y) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
        %g = sched.compute "down" (%z) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
        stg.yield
      }
      stg.output
    }

After:

    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    stg.program "M" (%x : !t) {
      stg.accumulate over "mb" {
        %y = sched.compute "up" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
        %z = sched.compute "down" (%y) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
        %g = sched.compute "down" (%z) flops "B" reads "B" writes "B" on "compute" in B.1 {phase = "bwd"} : (!t) -> !t
        stg.yield
      }
      stg.output
    }

A schedule moves whole tasks: the forward pass of a microbatch (`F`), its backward pass (`B`; `I` for its inputs and `W` for its
weights where a zero-bubble schedule has them apart, Qi et al. 2023, arXiv:2401.10241), transfers, and what runs once per step.
The first stage of a pipeline needs no gradient of its input; with `first_whole` it does nothing as `I` and everything as `W`, as PyTorch's
stages do (`backward_one_chunk` and `backward_weight_one_chunk` in `torch/distributed/pipelining/stage.py`).
Within a task order may still change, but only between segments. So a segment ends where something may be moved: before and behind a
repeat, a reduction of gradients, a gather that is prefetched, before what waits for an exchange (`gives_way`) if tasks of the schedule
overlap, and where the backward pass begins to read the parameters of a unit, whose successor is gathered then (FSDP2's pre-backward
hook, `torch/distributed/fsdp/_fully_shard/_fsdp_state.py`). Outside of layers it also ends behind what completes the gradient of a
weight. The gradients of a layer are reduced behind the layer: a row for each of its weights would make the order of a step ten times as
long, and changes what it takes by 0.2 %. It is not so where hosts wait for a gradient before they launch its reduction (`checked`).
It also ends behind an update in place, which what gathers parameters waits for (`chain-streams`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.communication import gathers_updated
from stagec.analysis.dataflow import behind_views, is_node
from stagec.analysis.segments import (
    TASK_OF_PHASE,
    is_of_stage,
    is_shared,
    transfer_task,
    whole_number,
)
from stagec.dialects import dist, sched, stg
from stagec.dialects.op import first_op
from stagec.dialects.sched.tasks import CLIP, ONCE, PASS_GATHERS, TRANSFER_TASKS
from stagec.pipeline_schedule import (
    has_several_stages,
    pipeline_schedule,
    schedule_op,
    tasks_overlap,
)
from stagec.rewriting import programs

NAME = "cut-segments"
BACKWARD = ("bwd", "wgrad")
EARLY = (True, False)
"""What `moves` says of a reduction that is issued while the backward pass goes on."""
AROUND = (*ONCE, "GATHER")
"""The tasks of what stands outside of the loop over microbatches."""


@dataclass(frozen=True)
class CutSegments(ModulePass):
    name = NAME

    first_whole: bool = False
    """Where backward passes are split, do that of the first stage whole, as `W`."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        halves, overlaps = has_halves(op), tasks_overlap(op)
        whole = kind_of_first_stage(op) if self.first_whole else None
        for program in programs(op):
            is_whole = stg.text(program, "kind") == whole
            Cutter(halves, overlaps, has_several_stages(op), is_whole).cut(program)


def kind_of_first_stage(module: ModuleOp) -> str | None:
    """The kind of the program that the first stage runs, in a pipeline of several."""
    kinds = dist.stage_kinds(module)
    return kinds[0] if len(kinds) > 1 else None


def has_halves(module: ModuleOp) -> bool:
    """Whether the schedule has the backward pass in two halves."""
    return schedule_op(module) is not None and pipeline_schedule(module).some_in_halves


Run = list[Operation]


@dataclass
class Cutter:
    """Numbers the segments of one program."""

    halves: bool
    overlaps: bool = False
    """Whether tasks overlap."""
    has_stages: bool = False
    """Whether a rank has several stages."""
    is_whole: bool = False
    """Whether the whole backward pass is in the half for weights."""
    reduces_early: bool = False
    """Whether gradients are reduced as they are complete, among other communication."""
    checks: bool = False
    """Whether hosts wait for gradients before they launch what reduces them."""
    count: int = field(default=0)

    def cut(self, program: stg.ProgramOp) -> None:
        self.checks = any("checked" in op.properties for op in program.walk())
        self.reduces_early = self.checks or reduces_early(program)
        loop = first_op(program, stg.AccumulateOp)
        if loop is not None:
            compute = ("F", "I", "W") if self.halves else ("F", "B")
            for task in (*PASS_GATHERS, *compute, *TRANSFER_TASKS):
                self.cut_ops(loop.body.block.ops, task)
        for task, ops in around_loop(program, has_stages=self.has_stages):
            self.cut_ops(ops, task)

    def cut_ops(self, ops: Iterable[Operation], task: str) -> None:
        runs = list(self.straight_runs(ops, task))
        for run, following in zip_longest(runs, runs[1:]):
            if isinstance(run, stg.RepeatOp):
                self.cut_ops(run.body.block.ops, task)
                continue
            parts = parts_before(run, following) if isinstance(following, stg.RepeatOp) else [run]
            for part in parts:
                segment = sched.SegmentAttr((task, self.count))
                self.count += 1
                for op in part:
                    op.properties["segment"] = segment

    def straight_runs(self, ops: Iterable[Operation], task: str) -> Iterator[Run | stg.RepeatOp]:
        """The ops of a task as straight-line runs, and the repeats between them."""
        run: Run = []
        awaited: set[Operation] = set()
        for op in ops:
            waits = waits_for(op, awaited)
            if run and (self.begins_run(op, run[-1]) or waits):
                yield run
                run = []
            if waits:
                awaited = set()
            if self.overlaps and self.is_of(op, task) and "gives_way" in op.properties:
                awaited.add(op)
            if is_node(op) and self.is_of(op, task):
                if stands_alone(op):
                    if run:
                        yield run
                    yield [op]
                    run = []
                else:
                    run.append(op)
                    if self.is_reduced_early(op) and completes_gradient(op):
                        yield run
                        run = []
            elif run and is_node(op) and stg.UNIT in op.properties:
                # What is before a gather is issued before it.
                yield run
                run = []
            elif isinstance(op, stg.RepeatOp):
                if not self.has_task(op, task) and any(map(is_node, op.body.walk())):
                    continue
                # What follows may read what precedes by way of a repeat that computes nothing.
                if run:
                    yield run
                if self.has_task(op, task):
                    yield op
                run = []
        if run:
            yield run

    def begins_run(self, op: Operation, last: Operation) -> bool:
        """Whether an op is not issued with the one before it: it reduces a gradient, or an FSDP unit begins or ends, where others may go first."""
        if op.properties.keys() & {stg.BEGINS_UNIT, stg.FOLLOWS_UNIT}:
            return True
        if not is_node(op):
            return False
        if leaves_device(op) != leaves_device(last):
            return True
        if gathers_updated(op) != gathers_updated(last):
            return True
        return moves(op) != moves(last) or (self.is_reduced_early(op) and moves(op) == EARLY)

    def is_reduced_early(self, op: Operation) -> bool:
        """Whether the gradients beside an op are reduced one by one: those of a layer are reduced together, behind it, unless hosts wait for each."""
        in_layer = isinstance(op.parent_op(), stg.RepeatOp)
        return self.reduces_early and (self.checks or not in_layer)

    def has_task(self, repeat: stg.RepeatOp, task: str) -> bool:
        if task in AROUND:
            return True
        return any(is_node(op) and self.is_of(op, task) for op in repeat.body.walk())

    def is_of(self, op: Operation, task: str) -> bool:
        return task in AROUND or self.task_of(op) == task

    def task_of(self, op: Operation) -> str:
        """The task that an op in the loop over microbatches belongs to."""
        crossing = transfer_task(op)
        if crossing is not None:
            return crossing
        task = TASK_OF_PHASE[stg.phase_of(op)]
        if is_of_gather(op):
            return f"GATHER_{task}"
        if task == "B" and self.halves:
            is_last = self.is_whole or stg.phase_of(op) in ("wgrad", "grad_reduce")
            return "W" if is_last else "I"
        return task


def is_of_gather(op: Operation) -> bool:
    """Whether an op gathers the parameters of a stage that a schedule frees, or brings from the host what nothing but such gathers reads."""
    if stg.UNIT in op.properties:
        return True
    readers = [use.operation for result in op.results for use in result.uses]
    comes = isinstance(op, sched.HostCopyOp | sched.ViewOp)
    return comes and bool(readers) and all(map(is_of_gather, readers))


def around_loop(
    program: stg.ProgramOp, *, has_stages: bool
) -> list[tuple[str, Sequence[Operation]]]:
    """What runs once per step, by task: before all microbatches; after them, reductions of gradients first.

    Where a rank has several stages, those of tied weights are a task of their own, before any stage's step, and so is what stages find of all gradients, with
    all that it reads; and what ranks tell each other of that.
    """
    ops = list(program.body.block.ops)
    loops = [number for number, op in enumerate(ops) if isinstance(op, stg.AccumulateOp)]
    start = loops[0] if loops else 0
    after = ops[start + len(loops[:1]) :]
    reductions = [op for op in after if stg.phase_of(op) == "grad_reduce"]
    waiting = waiting_for_tied(reductions)
    of_stages = [op for op in reductions if is_of_stage(op) and op not in waiting]
    own = [op for op in reductions if op not in of_stages]
    tied = behind_tied(own) if has_stages else []
    rest = [op for op in own if op not in tied]
    update = [op for op in after if op not in reductions]
    norm, clip = tells_norm(update)
    before, rest = (rest, []) if clip else ([], rest)
    evicted = [
        op for op in ops[:start] if any(stg.EVICTED in each.properties for each in op.walk())
    ]
    return [
        ("GATHER", evicted),
        ("pre", [op for op in ops[:start] if op not in evicted]),
        ("reduce", of_stages),
        ("tied", tied),
        ("norm", before),
        ("norm", norm),
        (CLIP, clip),
        ("step", rest),
        ("step", [op for op in update if op not in norm and op not in clip]),
    ]


def tells_norm(ops: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    """What finds out something of a stage's gradients that the next stage of its rank goes on from, with all that it reads; and what tells other ranks."""
    found = [
        op
        for op in ops
        if any(isinstance(operand.owner, dist.FoundBeforeOp) for operand in op.operands)
    ]
    read: set[Operation | Block] = set(found)
    for op in reversed(ops):
        if op in read:
            read |= {operand.owner for inner in op.walk() for operand in inner.operands}
    told: set[Operation | Block] = set(found)
    for op in ops:
        if isinstance(op, sched.CollectiveOp):
            told |= {op} if any(behind_views(operand) in told for operand in op.operands) else set()
    return [op for op in ops if op in read], [op for op in ops if op in told and op not in found]


def behind_tied(reductions: Sequence[Operation]) -> list[Operation]:
    """The ops that reduce weights which several stages share, and the ops whose results these read. A weight of a layer belongs to one stage."""
    found: set[Operation] = set()
    for op in reversed(reductions):
        readers = {use.operation for result in op.results for use in result.uses}
        if is_shared(op) or readers & found:
            found.add(op)
    return [op for op in reductions if op in found]


def waiting_for_tied(reductions: Sequence[Operation]) -> set[Operation]:
    """The ops that read what stages have summed, such as those of the unit that a shared table is in.

    They wait, as other stages may not have done their last backward pass.
    """
    sums = {op for op in reductions if is_shared(op)}
    found: set[Operation] = set()
    for op in reductions:
        if any(operand.owner in sums or operand.owner in found for operand in op.operands):
            found.add(op)
    return found


def reduces_early(program: stg.ProgramOp) -> bool:
    """Whether gradients are reduced as they are complete, while others are computed and communicated.

    Those of an FSDP unit are reduced together. Where no segment has communication among what it computes, in forward passes neither, a reduction waits for
    its gradient alone (`chain-streams`).
    """
    nodes = [op for op in program.body.walk() if is_node(op)]
    early = [op for op in nodes if moves(op) == EARLY and not leaves_device(op)]
    are_single = bool(early) and all(len(op.operands) == 1 for op in early)
    others = [op for op in nodes if not isinstance(op, sched.ComputeOp)]
    return are_single and any(
        stg.phase_of(op) in BACKWARD or (stg.phase_of(op) == "fwd" and not stands_alone(op))
        for op in others
    )


def completes_gradient(op: Operation) -> bool:
    """Whether the gradient of a weight is complete behind an op: it leaves the layer or the microbatch, or is reduced."""
    return stg.phase_of(op) == "wgrad" and any(map(leaves, op.results))


def leaves(value: SSAValue) -> bool:
    """Whether a value, or a view of it, is yielded, or its reduction begins."""
    for use in value.uses:
        reader = use.operation
        if isinstance(reader, stg.YieldOp) or stg.phase_of(reader) == "grad_reduce":
            return True
        if not is_node(reader) and any(map(leaves, reader.results)):
            return True
    return False


def waits_for(op: Operation, exchanges: Collection[Operation]) -> bool:
    """Whether the device computes something that reads the result of one of these; what forwards it, or sends it on, is on its way itself."""
    if not exchanges or not isinstance(op, sched.ComputeOp) or not op.computes:
        return False
    return any(behind_views(value) in exchanges for value in op.operands)


def moves(op: Operation) -> tuple[bool, bool]:
    """Whether an op reduces a gradient by itself, and whether it does so late."""
    alone = stg.phase_of(op) == "grad_reduce" and "tied" not in stg.marks(op)
    return alone, alone and "late" in stg.marks(op)


def leaves_device(op: Operation) -> bool:
    """Whether an op is of what a gradient does on its way to the host."""
    return stg.LEAVES in stg.marks(op)


def stands_alone(op: Operation) -> bool:
    """Whether an op is issued apart from its neighbours."""
    keys = ("prefetch", "lag", "bucket_bytes", "apart", "tied")
    return any(key in op.properties for key in keys)


def parts_before(run: Run, following: stg.RepeatOp) -> list[Run]:
    """A run before layers that prefetch, cut where it begins to read parameters of its own unit.

    The first layers' parameters are gathered as the backward pass of the unit before them begins, as FSDP2 does in the
    hook of that unit; the gradient of a loss comes before.
    """
    if not any(whole_number(op, "prefetch") for op in following.body.walk()):
        return [run]
    first = next((i for i, op in enumerate(run) if reads_gathered(op)), 0)
    return [run[:first], run[first:]] if first else [run]


def reads_gathered(op: Operation) -> bool:
    """Whether an operand is a parameter that was gathered for its unit."""
    for value in op.operands:
        owner = behind_views(value)
        if isinstance(owner, sched.CollectiveOp) and {"lag", "prefetch"} & stg.marks(owner).keys():
            return True
    return False
