"""What a step of very many microbatches comes to, from two steps of few: in between, a rank repeats itself.

Two plans are compiled that differ in the number of microbatches alone. If the longer step is the shorter one with a block of
tasks put in, on each rank one that repeats the block before it, the same bytes alive, all of it later by one time on all ranks,
then a step of more microbatches has more such blocks: a node starts when the last of what it waits for ends, so that what
started from the same state but for a delay goes on with that delay. Amounts then grow by as much with each block, and memory
does not. Where that is not so, as under `gpipe`, whose backward passes all come after all forward passes, there is no answer
here, and the step is compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.advice import doubt
from stagec.analysis.sizes import mesh_of, size_values
from stagec.backend.program import Node, RankClass
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import stg
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.types import TIME_AXIS
from stagec.estimate import Estimate, estimate
from stagec.estimate.breakdown import computing_us_of_classes, longest
from stagec.estimate.costs import missing_numbers
from stagec.estimate.memory import timed_peaks
from stagec.estimate.repetition import SAME, RepeatedNodes, block_of, is_put_in, may_repeat, pairs
from stagec.memory import ClassPlan
from stagec.plans.clauses import Plan
from stagec.plans.in_ir import read_plan, stated_plan
from stagec.reports.headline import Headline, headline
from stagec.rewriting import programs
from stagec.summary import ClassSummary, Summary, Traffic, summarize

MOST_OPS = 2**20
"""Ops that microbatches run on the ranks of one pipeline: of more a summary is not compiled one by one."""

ONCE_IN_A_STEP = {"zeroed": "summed", "reduced": "summed", "updated": "transposed"}
"""Sizes of kernels that are a microbatch's part of another size, which a step does once (`stagec.analysis.kernels`)."""


class ManyMicrobatches(Exception):
    """A step of so many microbatches that few should tell of it."""

    def __init__(self, plan: Plan, number: int, ranks: int, batch: str, size: int) -> None:
        super().__init__(number)
        self.plan = plan
        self.number = number
        self.ranks = ranks
        """Along the axis of the stages."""
        self.batch = batch
        self.size = size
        """The size of the batch."""


@dataclass(frozen=True)
class Brief:
    """What a summary shows of a step."""

    summary: Summary
    headline: Headline
    warnings: Sequence[Diagnostic]
    few: Compiled
    """The step of few microbatches."""
    num_few: int
    num_many: int


def look(module: ModuleOp) -> None:
    """Raises `ManyMicrobatches` where few microbatches may tell of all of them. The microbatches are split."""
    stated = stated_plan(module)
    plan, sizes = read_plan(stated, mesh_of(module)), size_values(module)
    pipeline, number = plan.pipeline, sizes.get(TIME_AXIS, 1)
    ranks = mesh_of(module).get(pipeline.axis, 1) if pipeline is not None else 1
    num_ops = sum(
        num_run(op.body.block.ops, sizes)
        for program in programs(module)
        for op in program.walk()
        if isinstance(op, stg.AccumulateOp)
    )
    if num_ops * number > MOST_OPS and may_repeat(plan):
        raise ManyMicrobatches(plan, number, ranks, stated.batch_dim, sizes[stated.batch_dim])


def num_run(ops: Iterable[Operation], sizes: Mapping[str, int]) -> int:
    """How many ops these are, those of a layer once for each layer."""
    return sum(
        op.count.data.integer(sizes) * num_run(op.body.block.ops, sizes)
        if isinstance(op, stg.RepeatOp)
        else 1
        for op in ops
    )


def brief(many: ManyMicrobatches, compile_with: Callable[[str, int], Compiled]) -> Brief | None:
    """A step of many microbatches, if few tell of it. `compile_with` compiles the plan with another size of the batch."""
    for numbers in pairs(many.plan, many.ranks, many.number):
        made: list[Compiled] = []
        for number in numbers:
            size, rest = divmod(many.size * number, many.number)
            if rest:
                return None
            try:
                made.append(compile_with(many.batch, size))
            except CompileError:
                return None
            if size_values(made[-1].module).get(TIME_AXIS) != number:
                return None
        few, more = (with_parts_of(each, many.number) for each in made)
        found = extended(few, more, *numbers, many.number)
        if found is not None:
            return found
    return None


def with_parts_of(few: Compiled, microbatches: int) -> Compiled:
    """A step of few microbatches in which each does that part of what a step does once which one of so many microbatches does."""

    def kernel_of(kernel: Kernel) -> Kernel:
        sizes = dict(kernel.sizes)
        for part, whole in ONCE_IN_A_STEP.items():
            if sizes.get(part):
                sizes[part] = -(-sizes[whole] // microbatches)
        return replace(kernel, sizes=tuple(sizes.items()))

    def of_node(node: Node) -> Node:
        action = node.action
        if not isinstance(action, Compute) or action.kernel is None:
            return node
        return replace(node, action=replace(action, kernel=kernel_of(action.kernel)))

    def of_class(ranks: RankClass) -> RankClass:
        segments = (
            replace(each, nodes=tuple(map(of_node, each.nodes))) for each in ranks.program.segments
        )
        return replace(ranks, program=replace(ranks.program, segments=tuple(segments)))

    traces = few.trace_set
    return replace(few, traces=replace(traces, classes=tuple(map(of_class, traces.classes))))


def extended(
    few: Compiled, more: Compiled, number: int, next_number: int, microbatches: int
) -> Brief | None:
    """What the longer of two steps comes to with more of the blocks that it has and the shorter one has not."""
    times = (microbatches - next_number) // (next_number - number)
    classes = list(zip(few.trace_set.classes, more.trace_set.classes, strict=True))
    blocks: list[RepeatedNodes] = []
    for (a, b), one, other in zip(classes, few.memory, more.memory, strict=True):
        block = block_of(a.program, b.program)
        if block is None or one.peak_bytes != other.peak_bytes:
            return None
        if not is_put_in(one.timeline(), other.timeline(), block, 0):
            return None
        blocks.append(block)
    estimates: list[Estimate | None] = [None, None]
    if not missing_numbers(more.plan, more.trace_set.classes):
        one, other = (estimate(each) for each in (few, more))
        if not shifts_evenly(one, other, blocks):
            return None
        busy = [
            computing_us_of_classes(j.trace_set, e.timeline) for j, e in ((few, one), (more, other))
        ]
        if len({longest(each) for each in (*busy, busy[1] + times * (busy[1] - busy[0]))}) > 1:
            return None
        estimates = [one, other]
    added = (next_number - number) * times
    memory = [moved(own, block, added) for own, block in zip(more.memory, blocks, strict=True)]
    heads = [
        headline(one, found, microbatches)
        for one, found in zip((few, more), estimates, strict=True)
    ]
    if heads[0].timed_bytes != heads[1].timed_bytes:
        return None
    timed = timed_peaks(more, estimates[1].timeline if estimates[1] is not None else None)
    return Brief(
        grown_summary(
            summarize(few.module, few.counts, few.plan.name),
            summarize(more.module, more.counts, more.plan.name),
            times,
        ),
        grown_headline(
            heads[0],
            heads[1],
            times,
        ),
        [*more.idle, *doubt(more, memory, timed)],
        few,
        number,
        microbatches,
    )


def shifts_evenly(few: Estimate, more: Estimate, blocks: Sequence[RepeatedNodes]) -> bool:
    """Whether what a block puts in delays all ranks by the same time."""
    delay = more.step_time_us - few.step_time_us
    near = SAME * more.step_time_us
    return all(
        is_put_in(before, after, block, delay, near)
        for number, block in enumerate(blocks)
        for before, after in zip(
            few.timeline.of_class(number), more.timeline.of_class(number), strict=True
        )
    )


def grown_summary(few: Summary, more: Summary, times: int) -> Summary:
    classes = (grown_class(a, b, times) for a, b in zip(few.classes, more.classes, strict=True))
    return replace(more, classes=tuple(classes))


def grown_class(few: ClassSummary, more: ClassSummary, times: int) -> ClassSummary:
    def grown(before: int, after: int) -> int:
        return after + times * (after - before)

    known = {(each.axes, each.kind): each for each in few.traffic}

    def traffic(after: Traffic) -> Traffic:
        before = known.get((after.axes, after.kind), Traffic(after.axes, after.kind, 0, 0, 0))
        return replace(
            after,
            count=grown(before.count, after.count),
            operand_bytes=grown(before.operand_bytes, after.operand_bytes),
            result_bytes=grown(before.result_bytes, after.result_bytes),
        )

    return replace(
        more,
        num_nodes=grown(few.num_nodes, more.num_nodes),
        matrix_flops=grown(few.matrix_flops, more.matrix_flops),
        other_flops=grown(few.other_flops, more.other_flops),
        bytes_moved=grown(few.bytes_moved, more.bytes_moved),
        traffic=tuple(map(traffic, more.traffic)),
    )


def moved(own: ClassPlan, block: RepeatedNodes, added: int) -> ClassPlan:
    """A plan of memory whose peak says its microbatch in the whole step."""
    peak = own.peak
    if peak.node < block.stop or peak.microbatch < 0:
        return own
    return replace(own, peak=replace(peak, microbatch=peak.microbatch + added))


def grown_headline(few: Headline, more: Headline, times: int) -> Headline:
    """The headline of a step with more blocks of microbatches: times, tokens and products grow by what each block adds."""

    def grown(before: float, after: float) -> float:
        return after + times * (after - before)

    tokens = None
    if few.tokens is not None and more.tokens is not None:
        tokens = more.tokens + times * (more.tokens - few.tokens)
    found = replace(
        more, tokens=tokens, samples=more.samples + times * (more.samples - few.samples)
    )
    if few.step_us is None or more.step_us is None or few.mfu is None or more.mfu is None:
        return found
    step = grown(few.step_us, more.step_us)
    products = grown(few.mfu * few.step_us, more.mfu * more.step_us)
    names = dict.fromkeys([*more.shares, *few.shares])
    parts = {
        name: grown(few.shares.get(name, 0) * few.step_us, more.shares.get(name, 0) * more.step_us)
        for name in names
    }
    total = sum(parts.values())
    shares = {name: part / total for name, part in parts.items()}
    return replace(found, step_us=step, period_us=step, mfu=products / step, shares=shares)
