"""The schedule that the IR of a pipelined program names, and where its stages are.

`sched.schedule` names it, `stagec.schedules` builds it. One that cannot be built, or is wrong, is E0409.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sizes import dim_sizes, module_of, size_values
from stagec.arrays import Ints
from stagec.diagnostics import CompileError, Diagnostic, Span, refused, span_of
from stagec.dialects import dist, sched
from stagec.dialects.op import first_op
from stagec.dialects.types import TIME_AXIS
from stagec.schedules import (
    CATALOGUE,
    InvalidSchedule,
    Placement,
    Schedule,
    ScheduleError,
    build,
    check_sizes,
    placement,
    placement_of,
    prove,
)
from stagec.schedules.custom import rows_of
from stagec.schedules.errors import DEADLOCKS
from stagec.schedules.table import FIRST_TRANSFER, columns
from stagec.symbolic import Size, conditions, constant, symbol
from stagec.trust import allowed, may_run

T = TypeVar("T")


def schedule_op(module: ModuleOp) -> sched.ScheduleOp | None:
    return first_op(module, sched.ScheduleOp)


def stage_placement(module: ModuleOp) -> Placement | None:
    """For each stage its ranks along the pipeline's axis; nothing if there is no schedule."""
    op = schedule_op(module)
    if op is None:
        return None
    name, p, v, m = arguments(module, op)
    if op.part is not None:
        return tuple((rank,) for rank in range(p))
    if name in CATALOGUE:
        return explained(op, lambda: placement(name, p, v, m))
    return explained(op, lambda: placement_of(own_schedule(op, name, p, v, m)))


def has_several_stages(module: ModuleOp) -> bool:
    """Whether a rank of the pipeline has several stages."""
    ranks = [rank for each in stage_placement(module) or () for rank in each]
    return len(set(ranks)) < len(ranks)


def pipeline_schedule(module: ModuleOp, microbatches: int | None = None) -> Schedule:
    """The schedule of a module that has one, proved right; of a part of a pipeline, what its ranks do of the whole. With another number of microbatches, if
    one is given.
    """
    op = schedule_op(module)
    assert op is not None

    name, p, v, own = arguments(module, op)
    m = own if microbatches is None else microbatches
    rule = transfers(op)
    if op.part is not None:
        first, total = op.part
        return explained(op, lambda: schedule_of_ranks(known(name, total, v, m, rule), first, p))
    if name in CATALOGUE:
        return explained(op, lambda: known(name, p, v, m, rule))
    return explained(op, lambda: proved(own_schedule(op, name, p, v, m)))


def is_part(module: ModuleOp) -> bool:
    """Whether the module's ranks have a part of a model that other pools have the rest of."""
    return any(isinstance(op, dist.TowersOp | dist.ExpertsOp) for op in module.body.ops)


def whole_schedule(module: ModuleOp) -> Schedule:
    """The schedule of all pools, where the module's ranks run a part of a pipeline; else its own."""
    op = schedule_op(module)
    if op is None or op.part is None:
        return pipeline_schedule(module)
    name, _, v, m = arguments(module, op)
    _, total = op.part
    return explained(op, lambda: known(name, total, v, m, transfers(op)))


WAITED_FOR = (sched.CollectiveOp, sched.PoolRecvOp)
"""What brings tokens to experts, or back."""


def overlaps_microbatches(module: ModuleOp) -> bool:
    """Whether a step without a pipeline runs each forward pass beside the backward pass of the microbatch before, or beside another where there
    is none, because tokens travel meanwhile.

    `combined_1f1b_schedule_for_no_pipelining` of Megatron-LM, with `--overlap-moe-expert-parallel-comm`; two microbatches of DeepSeek's prefill.
    """
    if schedule_op(module) is not None:
        return False
    waits = (op for op in module.walk() if isinstance(op, WAITED_FOR) and op.gives_way)
    values = size_values(module)
    several = symbol(TIME_AXIS)
    return (
        any(not op.serial for op in waits)
        and TIME_AXIS in values
        and conditions.compare(several, ">", 1, values)
    )


def num_together(module: ModuleOp, microbatches: int) -> int:
    """How many microbatches of some run beside each other in a step without a pipeline: all, where experts are on another pool."""
    if not overlaps_microbatches(module):
        return 1
    if any(isinstance(op, sched.PoolRecvOp) and op.gives_way for op in module.walk()):
        return microbatches
    return 2


def tasks_overlap(module: ModuleOp) -> bool:
    """Whether the order of a step has forward and backward passes that run beside each other."""
    if schedule_op(module) is None:
        return overlaps_microbatches(module)
    table = pipeline_schedule(module).table
    return bool((table.joined & (table.kind < FIRST_TRANSFER)).any())


def num_stages(module: ModuleOp) -> Size:
    """The number of stages of a module's schedule; 1 without a schedule.

    It is a plain number where it is no product of the ranks and the virtual stages of each.
    """
    op = schedule_op(module)
    if op is None:
        return constant(1)
    if is_in_a_row(op):
        return op.ranks.data * op.virtual_stages.value.data
    return constant(len(stage_placement(module) or [()]))


def is_in_a_row(op: sched.ScheduleOp) -> bool:
    """Whether stages go round the ranks: the first, the last, and any number of others that are alike."""
    name = op.schedule.data
    return name in CATALOGUE and CATALOGUE[name].placement == "loop"


def read_sizes(module: ModuleOp) -> None:
    """Note that the order of tasks decides what a stage runs, so that a plan with another schedule, or other sizes of it, is another program."""
    op = schedule_op(module)
    if op is not None:
        values = size_values(module)
        for size in (op.ranks.data, op.microbatches.data):
            conditions.read(size, size.evaluate(conditions.unread(values)))


def proved(schedule: Schedule) -> Schedule:
    prove(schedule)
    return schedule


@lru_cache(maxsize=16)
def known(name: str, p: int, v: int, m: int, rule: str | None) -> Schedule:
    """The schedules of the catalogue depend on nothing else."""
    return proved(build(name, p, v, m, transfers=rule))


def transfers(op: sched.ScheduleOp) -> str | None:
    """The rule that transfers follow in place of the schedule's own."""
    return op.transfers.data if op.transfers is not None else None


def own_schedule(op: sched.ScheduleOp, name: str, p: int, v: int, m: int) -> Schedule:
    """A table or a function of the user's: read and run once, unless the file changes. E0722 for code that may not run."""
    file, is_code, _ = name.rpartition(":")
    if is_code and not name.endswith(".csv") and not may_run(file):
        raise CompileError([unwanted_code(file, span_of(op.location))])
    try:
        status = os.stat(file if is_code else name)
    except (OSError, ValueError):
        return build(name, p, v, m)
    version = (status.st_ino, status.st_mtime_ns, status.st_size)
    return built(name, p, v, m, transfers(op), version)


@lru_cache(maxsize=16)
def built(
    name: str, p: int, v: int, m: int, rule: str | None, version: tuple[int, int, int]
) -> Schedule:
    return build(name, p, v, m, transfers=rule)


def schedule_of_ranks(schedule: Schedule, first: int, count: int) -> Schedule:
    """What some ranks in a row do, of a schedule with one stage on each rank: what crosses to the others stays."""
    begin, end = schedule.starts[first], schedule.starts[first + count]
    kind, stage, microbatch, joined = schedule.table.pick(np.arange(begin, end))
    table = columns(kind, stage - first, microbatch, joined)
    starts = schedule.starts[first : first + count + 1] - begin
    own = replace(schedule, num_ranks=count, num_stages=count, table=table, starts=starts)

    def of_own(events: Ints) -> Ints:
        here = (events[:, 0] >= first) & (events[:, 0] < first + count)
        return events[here] - np.array([first, first, 0])

    return own.with_parameters(of_own(schedule.reductions), of_own(schedule.gathers))


@dataclass(frozen=True)
class Runs:
    """Whether a schedule of the catalogue runs with so many ranks and microbatches (E0409)."""

    schedule: str
    virtual_stages: int
    transfers: str | None = None

    def __call__(self, ranks: Fraction, microbatches: Fraction) -> bool:
        sizes = int(ranks), self.virtual_stages, int(microbatches)
        try:
            check_sizes(self.schedule, *sizes)
            if self.transfers is not None:
                known(self.schedule, *sizes, self.transfers)
        except ScheduleError:
            return False
        return True


def arguments(module: ModuleOp, op: sched.ScheduleOp) -> tuple[str, int, int, int]:
    """Name, p, v and m."""
    name, virtual = op.schedule.data, op.virtual_stages.value.data
    values = size_values(module)
    if is_in_a_row(op):
        ranks = op.ranks.data.integer(conditions.unread(values))
        if not conditions.compare(op.ranks.data, ">", 2, values):
            conditions.read(op.ranks.data, ranks)
    else:
        ranks = op.ranks.data.integer(values)
    if name in CATALOGUE:
        # The placement of stages is that of any number of microbatches with which the schedule runs.
        reason = f"`{name}` does not run so few or so many microbatches"
        every = op.ranks.data if op.part is None else constant(op.part[1])
        numbers = (every, op.microbatches.data)
        runs = Runs(name, virtual, transfers(op))
        conditions.meets(runs, *numbers, values=values, reason=reason)
        values = conditions.unread(values)
    return name, ranks, virtual, op.microbatches.data.integer(values)


SCHEDULE = ("pipeline.given.schedule", "pipeline.span")
"""Where a plan names its schedule."""


OF_NUMBERS = ("too-few-microbatches", "uneven-rounds", "odd")
"""Reasons that speak of `m` microbatches and `p` ranks."""


def numbers_in_words(op: sched.ScheduleOp) -> str:
    """What `m` and `p` are, in sizes of the text and the plan."""
    sizes = dim_sizes(module_of(op))
    m, p = (each.data.substitute(sizes) for each in (op.microbatches, op.ranks))
    return (
        f"`m` is the number of microbatches, here `{m}`; `p` that of ranks of the pipeline, `{p}`"
    )


def explained(op: sched.ScheduleOp, make: Callable[[], T]) -> T:
    """What `make` gives; its `ScheduleError` as a diagnostic."""
    try:
        return make()
    except ScheduleError as error:
        notes = list(error.cycle) if isinstance(error, InvalidSchedule) else []
        if error.reason in OF_NUMBERS:
            notes.append(numbers_in_words(op))
        place, help_, name = dist.clause_span(op, *SCHEDULE), error.help, op.schedule.data
        secondary: list[tuple[Span, str]] = []
        if transfers(op) is not None and error.reason in DEADLOCKS:
            place = dist.clause_span(op, "pipeline.given.transfers", *SCHEDULE)
            help_ = "leave out `transfers`: in the order that it has without, ranks get through"
        elif name.endswith(".csv") and error.row is not None:
            line, _ = list(rows_of(name))[error.row]
            secondary = [(place, "the plan names it")] if place is not None else []
            place = Span.whole_line(name, line)
        raise refused(
            "E0409", error.message, place, secondary=secondary, notes=notes, help=help_
        ) from None


def unwanted_code(file: str, span: Span | None) -> Diagnostic:
    """E0722: a text names Python that nobody has allowed."""
    code, folder = allowed().of_code
    return Diagnostic(
        "E0722",
        f"the schedule is Python, of `{file}`, and would run with your rights",
        span,
        help=f"if you trust it, add `{code}`, or `{folder}` with its folder",
    )
