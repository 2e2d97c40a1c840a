"""A step of very many microbatches as two steps of few say that it is: in between, a rank repeats itself.

Two plans are compiled that differ in the number of microbatches alone. Three things are shown of them:

- The order of tasks of the whole step is that of the longer one with its last block put in again and again, on each rank (`goes_on`). So the step needs as
  much memory as the longer one.
- The nodes of the longer step are those of the shorter one with a block put in that repeats the block before it, and need as much memory.
- All times are those of the shorter step, in the block and behind it later by one time on all ranks.

Then a step of more microbatches has more such blocks: a node starts when the last of what it waits for ends, so that what started from the same state but for
a delay goes on with that delay. Amounts and times grow by as much with each block, and memory does not. Where that is not so, as under `gpipe`, whose
backward passes all come after all forward passes, there is no answer here, and the step is compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.gathers import found_gathered, gathered_units
from stagec.analysis.sizes import mesh_of, size_values
from stagec.arrays import Floats
from stagec.backend.program import Node, RankClass
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.dialects import dist, sched
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.sched.tasks import Order, StageOfRank
from stagec.dialects.types import TIME_AXIS
from stagec.estimate.graph import PieceGraph, build_graph
from stagec.estimate.interference import lost_by_class, slowdown, takes_units
from stagec.estimate.many_microbatches import ManyMicrobatches
from stagec.estimate.prices import Prices
from stagec.estimate.repetition import (
    SAME,
    RepeatedNodes,
    fewest,
    goes_on,
    in_whole_step,
    is_put_in,
    pairs,
    repeated_nodes,
    timed_pairs,
)
from stagec.estimate.step import Estimate
from stagec.estimate.timeline import Timeline, simulate_graph
from stagec.memory import ClassPlan, Moment, TimedPeak
from stagec.passes.schedule.interleave_tasks import interleave
from stagec.pipeline_schedule import num_together, pipeline_schedule
from stagec.plans.clauses import Plan
from stagec.rank_orders import (
    first_shared,
    gathers_before,
    plain_order,
    rank_order,
)
from stagec.rewriting import programs_by_kind
from stagec.unrolling.rank import Arrangement, RankRun, StageRun, arrange

ONCE_IN_A_STEP = {
    "zeroed": "summed",
    "reduced": "summed",
    "updated": "transposed",
    "new": "elements",
    "filled": "regathered",
    "wide_filled": "wide",
}
"""Sizes of kernels that are a microbatch's part of another size, which a step does once (`stagec.analysis.kernels`)."""
OF_A_STEP = ("sent", "places")
"""Sizes of kernels that are those of all microbatches."""
OF_ALL = (*ONCE_IN_A_STEP, *OF_A_STEP)
"""Sizes that are others in a step of fewer microbatches."""

T = TypeVar("T", int, float, Floats)


@dataclass(frozen=True)
class FewMicrobatches:
    """A step of many microbatches, told by two of few that repeat themselves."""

    few: Compiled
    more: Compiled
    num_few: int
    num_more: int
    num_many: int
    """How many microbatches each has, and the whole step."""
    blocks: Sequence[RepeatedNodes]
    """For each rank class, the nodes that the longer of the two has and the shorter one has not."""
    orders: Sequence[Order]
    """The order of tasks of each rank class in the whole step."""

    def grown(self, before: T, after: T) -> T:
        """A number of the whole step, given those of the two."""
        return after + self.times * (after - before)

    @property
    def times(self) -> int:
        """How many more blocks the whole step has."""
        return (self.num_many - self.num_more) // (self.num_more - self.num_few)

    def moved(self, number: int, moment: Moment) -> Moment:
        """A moment of the longer step on a rank of a class, with the microbatch that has it in the whole step."""
        return of_whole_step(moment, self.more.memory[number].arrangement, self.orders[number])

    @cached_property
    def memory(self) -> list[ClassPlan]:
        """The memory of each rank class, drawn over the longer of the two steps."""
        plans = enumerate(self.more.memory)
        return [replace(own, peak=self.moved(number, own.peak)) for number, own in plans]

    @cached_property
    def graphs(self) -> tuple[PieceGraph, PieceGraph]:
        traces = [each.trace_set for each in (self.few, self.more)]
        launches = Prices.of(traces[1], self.more.plan).host_launch_us > 0
        few, more = (build_graph(each, launches=launches) for each in traces)
        return few, more

    def estimates(self, plan: Plan | None = None) -> tuple[Estimate, Estimate] | None:
        """The two steps as parts of the whole one, whose computation is slowed by communication beside it as that of the whole step is
        (`stagec.estimate.interference`). None where they do not show how long that takes. `plan` may have another device.
        """
        plan = plan or self.more.plan
        steps = [
            (each, Prices.of(each.trace_set, plan), graph)
            for each, graph in zip((self.few, self.more), self.graphs, strict=True)
        ]
        found = [simulate_graph(graph, each.trace_set, prices) for each, prices, graph in steps]
        if not self.shifts_evenly(*found):
            return None
        if takes_units(plan.device):
            spent = [
                lost_by_class(graph, prices, timeline)
                for (_, prices, graph), timeline in zip(steps, found, strict=True)
            ]
            factors = slowdown(*(self.grown(a, b) for a, b in zip(*spent, strict=True)))
            if (factors != 1).any():
                found = [simulate_graph(graph, e.trace_set, p, factors) for e, p, graph in steps]
                if not self.shifts_evenly(*found):
                    return None
        one, other = (
            Estimate(timeline, each, prices)
            for timeline, (each, prices, _) in zip(found, steps, strict=True)
        )
        return one, other

    def shifts_evenly(self, few: Timeline, more: Timeline) -> bool:
        """Whether what a block puts in delays all ranks by the same time."""
        delay = more.makespan_us - few.makespan_us
        near = SAME * more.makespan_us
        return all(
            is_put_in(before, after, block, delay, near)
            for number, block in enumerate(self.blocks)
            for before, after in zip(few.of_class(number), more.of_class(number), strict=True)
        )

    def timed_peaks(self, estimates: tuple[Estimate, Estimate] | None) -> list[TimedPeak] | None:
        """The peak of each rank class along the time of the whole step; empty where that is not known, and None if the two steps do not agree on it."""
        if estimates is None:
            return []
        one, other = (each.timed_peaks for each in estimates)
        if [each.num_bytes for each in one] != [each.num_bytes for each in other]:
            return None
        few_us, more_us = (each.step_time_us for each in estimates)
        later_us = self.times * (more_us - few_us)
        return [
            replace(
                each,
                time_us=each.time_us + later_us * (each.at.node >= self.blocks[number].stop),
                at=self.moved(number, each.at),
            )
            for number, each in enumerate(other)
        ]


def told_by_few(
    many: ManyMicrobatches, compile_with: Callable[[str, int], Compiled]
) -> Iterator[FewMicrobatches]:
    """The pairs of steps of few microbatches that tell of one of many, the shortest first. `compile_with` compiles the plan with another size of the batch."""

    def compile_few(number: int) -> Compiled | None:
        size, rest = divmod(many.size * number, many.number)
        if rest:
            return None
        try:
            made = compile_with(many.batch, size)
        except CompileError:
            return None
        if size_values(made.module).get(TIME_AXIS) != number:
            return None
        return with_sizes_of(made, number, many.number)

    shown: Compiled | None = None
    for numbers in timed_pairs(many.plan, many.ranks, many.number):
        if shown is not None and not orders_that_go_on(shown, *numbers, many.number):
            continue
        few = shown = compile_few(numbers[0])
        if few is None:
            return
        orders = orders_that_go_on(few, *numbers, many.number)
        if not orders:
            continue
        more = compile_few(numbers[1])
        if more is None:
            return
        blocks = blocks_of(few, more)
        if blocks is not None:
            yield FewMicrobatches(few, more, *numbers, many.number, blocks, orders)


def orders_that_go_on(compiled: Compiled, few: int, more: int, many: int) -> Sequence[Order]:
    """The order of tasks of each rank class of a compiled plan in a step of `many` microbatches; empty if one is not that of `more` which goes on."""
    try:
        module, runs = compiled.module, compiled.runs
        orders = [orders_of_ranks(module, runs, number) for number in (few, more, many)]
    except CompileError:
        return []
    return orders[-1] if all(goes_on(*each) for each in zip(*orders, strict=True)) else []


def blocks_of(few: Compiled, more: Compiled) -> list[RepeatedNodes] | None:
    """For each rank class, the nodes that only the longer of two steps has, if they repeat those before them and need no more memory."""
    found: list[RepeatedNodes] = []
    classes = zip(few.trace_set.classes, more.trace_set.classes, strict=True)
    for (a, b), one, other in zip(classes, few.memory, more.memory, strict=True):
        same = a.program.segments == b.program.segments
        block = repeated_nodes(a.program, b.program) if same else None
        if block is None or one.peak_bytes != other.peak_bytes:
            return None
        found.append(block)
    return found


def of_whole_step(moment: Moment, arrangement: Arrangement, many: Order) -> Moment:
    """A moment of a step that shows all situations of one of many microbatches, with the microbatch that has it there."""
    if moment.microbatch < 0:
        return moment
    task, _ = arrangement.task_at(arrangement.node_at(moment.node)[0])
    microbatch = many.microbatch[in_whole_step(task, arrangement.run.order, many)]
    return replace(moment, microbatch=int(microbatch))


def with_few_microbatches(
    module: ModuleOp, plan: Plan, runs: Sequence[RankRun]
) -> Sequence[RankRun]:
    """What rank classes run in a step of few microbatches that needs as much memory as theirs, if there is one. Nothing is compiled: sizes stay as they are."""
    number = size_values(module).get(TIME_AXIS, 1)
    ranks = mesh_of(module).get(plan.pipeline.axis, 1) if plan.pipeline is not None else 1
    if not any(pairs(plan, ranks, number)) or any(
        s.in_microbatches for r in runs for s in r.stages
    ):
        return runs
    orders = cache(lambda number: orders_of_ranks(module, runs, number))
    listed = zip(orders(number), runs, strict=True)
    if not all(np.array_equal(order.table, run.order.table) for order, run in listed):
        return runs
    few = fewest(plan, ranks, number, orders)
    if few == number:
        return runs
    return [
        replace(in_order(run.stages, run.axis, order), name=run.name, where=run.where)
        for run, order in zip(runs, orders(few), strict=True)
    ]


def in_order(stages: Sequence[StageRun], axis: str, order: Order) -> RankRun:
    """What a rank with these stages runs in an order of tasks."""
    listed = tuple(StageOfRank("", stage.stage) for stage in stages)
    gathered = found_gathered(order, [gathered_units(each.program) for each in stages])
    program = sched.RankProgramOp("rank", listed, order, gathered)
    found = RankRun("", {}, stages, program, axis)
    interleave(program, lambda: arrange(found))
    return found


def orders_of_ranks(
    module: ModuleOp, runs: Sequence[RankRun], microbatches: int
) -> Sequence[Order]:
    """The order of tasks of each rank class in a step of so many microbatches."""
    stages, kinds = dist.stages_of(module), programs_by_kind(module)
    if stages is None:
        together = num_together(module, microbatches)
        return [plain_order(microbatches, run.stages[0].rows, together) for run in runs]
    every = [kinds[stage.kind] for stage in stages.stages.data]
    schedule, first_tied = pipeline_schedule(module, microbatches), first_shared(every)
    found: list[Order] = []
    for run in runs:
        (rank,) = run.where[run.axis]
        own = [stage.stage for stage in run.stages]
        rows = [stage.rows for stage in run.stages]
        gathers = [gathers_before(every[stage]) for stage in own]
        tied = [first_tied[stage] for stage in own]
        found.append(rank_order(schedule, rank, own, rows, gathers, tied))
    return found


def with_sizes_of(few: Compiled, number: int, microbatches: int) -> Compiled:
    """A step of a few microbatches, `number` of them, whose kernels have the sizes that they have where there are `microbatches`: each does that part of what a
    step does once which one of so many does.
    """

    def kernel_of(kernel: Kernel) -> Kernel:
        sizes = dict(kernel.sizes)
        if sizes.keys().isdisjoint(OF_ALL):
            return kernel
        for part, whole in ONCE_IN_A_STEP.items():
            if sizes.get(part):
                sizes[part] = -(-sizes[whole] // microbatches)
        for name in sizes.keys() & {*OF_A_STEP}:
            sizes[name] = sizes[name] * microbatches // number
        return replace(kernel, sizes=tuple(sizes.items()))

    def of_node(node: Node) -> Node:
        action = node.action
        if not isinstance(action, Compute) or action.kernel is None:
            return node
        kernel = kernel_of(action.kernel)
        if kernel is action.kernel:
            return node
        return replace(node, action=replace(action, kernel=kernel))

    def of_class(ranks: RankClass) -> RankClass:
        segments = (
            replace(each, nodes=tuple(map(of_node, each.nodes))) for each in ranks.program.segments
        )
        return replace(ranks, program=replace(ranks.program, segments=tuple(segments)))

    traces = few.trace_set
    return replace(few, traces=replace(traces, classes=tuple(map(of_class, traces.classes))))
