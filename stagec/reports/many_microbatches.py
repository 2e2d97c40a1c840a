"""What a summary shows of a step of very many microbatches, told by two of few (`stagec.estimate.few_microbatches`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stagec.advice import doubt
from stagec.compiled import Compiled
from stagec.diagnostics import Diagnostic
from stagec.estimate.breakdown import computing_us_of_classes, longest
from stagec.estimate.costs import missing_numbers
from stagec.estimate.few_microbatches import FewMicrobatches, told_by_few
from stagec.estimate.many_microbatches import ManyMicrobatches
from stagec.estimate.timeline import Timeline
from stagec.memory import TimedPeak
from stagec.reports.headline import Headline, headline
from stagec.summary import ClassSummary, Summary, Traffic, summarize


@dataclass(frozen=True)
class Brief:
    """What a summary shows of a step."""

    summary: Summary
    headline: Headline
    warnings: Sequence[Diagnostic]
    steps: FewMicrobatches
    timeline: Timeline | None
    """When the nodes of the longer of the two steps run, where that is known."""
    timed: Sequence[TimedPeak]
    """The peak of each rank class along the time of the whole step, where that is known."""


def brief(many: ManyMicrobatches, compile_with: Callable[[str, int], Compiled]) -> Brief | None:
    """A step of many microbatches, if few tell of it. `compile_with` compiles the plan with another size of the batch."""
    found = map(extended, told_by_few(many, compile_with))
    return next((each for each in found if each is not None), None)


def extended(steps: FewMicrobatches) -> Brief | None:
    """What the whole step comes to, if its times are known or nothing says how fast its device is."""
    few, more = steps.few, steps.more
    estimates = None
    if not missing_numbers(more.plan, more.trace_set.classes):
        estimates = steps.estimates()
        if estimates is None:
            return None
        one, other = (computing_us_of_classes(e.compiled.trace_set, e.timeline) for e in estimates)
        if len({longest(each) for each in (one, other, steps.grown(one, other))}) > 1:
            return None
    timed = steps.timed_peaks(estimates)
    if timed is None:
        return None
    heads = [
        headline(one, found, steps.num_many)
        for one, found in zip((few, more), estimates or (None, None), strict=True)
    ]
    return Brief(
        grown_summary(
            summarize(few.module, few.counts, few.plan.name),
            summarize(more.module, more.counts, more.plan.name),
            steps.times,
        ),
        grown_headline(heads[0], heads[1], steps.times),
        [*more.idle, *doubt(more, steps.memory, timed)],
        steps,
        estimates[1].timeline if estimates is not None else None,
        timed,
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
