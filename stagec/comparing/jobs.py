"""What a compiled job costs, by kind, by module and by pass.

Every number is a sum over the count of the job's step, or of its plan of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagec.comparing.comparison import Comparison, Section, compare
from stagec.compiled import Compiled
from stagec.memory import TITLES, ClassPlan, Kind
from stagec.step_count import CountedOp
from stagec.summary import ClassSummary, Summary, summarize

STATIC_PASSES = {
    Kind.PARAMETERS: "lower",
    Kind.TRANSPOSED: "plan-memory",
    Kind.MASTER: "insert-optimizer",
    Kind.OPTIMIZER: "insert-optimizer",
}
"""What brings the memory that stays from step to step; parameters are in the model's text."""


@dataclass(frozen=True)
class ComparedJob:
    """One side of a comparison."""

    summary: Summary
    sections: Sequence[Section]


def job_of(compiled: Compiled) -> ComparedJob:
    """A compiled job, added up."""
    summary = summarize(compiled.module, compiled.counts, compiled.plan.name)
    ranks = summary.num_ranks
    worst = max(compiled.memory, key=lambda each: each.peak_bytes)
    step = step_section(summary, worst.peak_bytes)
    traffic = Section("communication, one step of the mean rank", ("over", "kind"), num_ranks=ranks)
    kinds = Section("memory of the rank that needs most, at its peak", ("what for",))
    by_module, by_pass = (
        Section(
            f"by {part}, one step of the mean rank; memory of the rank that needs most",
            (part,),
            num_ranks=ranks,
            per_job=frozenset({"memory"}),
        )
        for part in ("module", "pass")
    )
    for rank_class in compiled.counts:
        same = rank_class.num_ranks(summary.mesh)
        for each in rank_class.operations:
            times, nodes = each.runs * same, each.nodes * same
            if not each.is_computation:
                traffic.add(
                    (", ".join(each.axes) or "host", each.name),
                    count=nodes,
                    bytes_before=times * each.numbers.before,
                    bytes_after=times * each.numbers.after,
                )
            costs = {what: times * cost for what, cost in costs_of(each).items()}
            by_module.add((each.scope or summary.model,), **costs)
            by_pass.add((each.made_by,), nodes=nodes, **costs)
    for kind, module, made_by, num_bytes in memory_at_peak(worst):
        kinds.add((TITLES[kind],), bytes=num_bytes)
        by_module.add((module or summary.model,), memory=num_bytes)
        by_pass.add((made_by,), memory=num_bytes)
    return ComparedJob(summary, (step, traffic, kinds, by_module, by_pass))


def costs_of(each: CountedOp) -> dict[str, int]:
    """What one run of an op computes, moves and sends. A transfer is counted where it is sent."""
    numbers = each.numbers
    if each.is_computation:
        return {
            "matrix_FLOPs" if each.on_matrix_units else "other_FLOPs": numbers.flops,
            "bytes_moved": numbers.read + numbers.written,
        }
    return {"communication": numbers.before} if each.puts_in else {}


def step_section(summary: Summary, peak_bytes: int) -> Section:
    """The totals of the job, and the highest of any rank."""
    section = Section("one step", ("of",))
    section.add(("the job",), ranks=summary.num_ranks, parameters=summary.num_parameters)
    totals = [class_totals(each) for each in summary.classes]
    for what in totals[0]:
        whole = sum(
            each.num_ranks * total[what]
            for each, total in zip(summary.classes, totals, strict=True)
        )
        section.add(("the job",), **{what: whole})
    for what in totals[0]:
        section.add(("the rank with most",), **{what: max(total[what] for total in totals)})
    section.add(("the rank with most",), memory=peak_bytes)
    return section


def class_totals(each: ClassSummary) -> dict[str, int]:
    """Of one rank of a class."""
    return {
        "nodes": each.num_nodes,
        "matrix_FLOPs": each.matrix_flops,
        "other_FLOPs": each.other_flops,
        "bytes_moved": each.bytes_moved,
        "communication": sum(
            traffic.operand_bytes
            for traffic in each.traffic
            if traffic.axes and traffic.kind != "recv"
        ),
    }


def memory_at_peak(worst: ClassPlan) -> Iterator[tuple[Kind, str, str, int]]:
    """Kind, module, pass and bytes of each buffer when memory is highest, by kind."""
    found: list[tuple[Kind, str, str, int]] = []
    for row in worst.lives.alive_at(worst.peak.node).tolist():
        about = worst.about(row)
        kind = Kind(int(worst.lives.kind[row]))
        found.append((kind, about.scope, about.made_by, int(worst.lives.num_bytes[row])))
    for each in worst.stored:
        if each.kind in STATIC_PASSES:
            found.append((each.kind, each.scope, STATIC_PASSES[each.kind], each.num_bytes))
    yield from sorted(found, key=lambda one: one[0])


def compare_jobs(before: ComparedJob, after: ComparedJob) -> list[Comparison]:
    return [compare(a, b) for a, b in zip(before.sections, after.sections, strict=True)]
