"""What a compiled job costs, by kind, by module and by pass.

Every number is a sum over the count of the job's step, or of its plan of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagec.comparing.comparison import Comparison, Section, compare
from stagec.compiled import Compiled
from stagec.memory import TITLES, ClassPlan, Kind
from stagec.pipeline_schedule import is_part
from stagec.step_count import CountedOp
from stagec.summary import ClassSummary, Summary, summarize

STATIC_PASSES = {
    Kind.PARAMETERS: "lower",
    Kind.GRADIENTS: "plan-memory",
    Kind.TRANSPOSED: "plan-memory",
    Kind.MASTER: "insert-optimizer",
    Kind.OPTIMIZER: "insert-optimizer",
    Kind.CACHE: "lower",
    Kind.PROCESS: "plan-memory",
}
"""What brings the memory that stays from step to step; parameters and caches are in the model's text, and of gradients it is what pads their buffers."""

WITH_MOST = ("the rank with most",)
"""The row of a job's totals that is of no sum."""


@dataclass(frozen=True)
class ComparedJob:
    """One side of a comparison."""

    summary: Summary
    sections: Sequence[Section]
    is_part: bool = False
    """Whether it is a pool that trains a part of the model."""


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
    sections = (step, traffic, kinds, by_module, by_pass)
    return ComparedJob(summary, sections, is_part(compiled.module))


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
        section.add(WITH_MOST, **{what: max(total[what] for total in totals)})
    section.add(WITH_MOST, memory=peak_bytes)
    return section


def class_totals(each: ClassSummary) -> dict[str, int]:
    """The totals of one rank of a class."""
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
    for each in worst.always:
        found.append((each.kind, each.scope, STATIC_PASSES[each.kind], each.num_bytes))
    yield from sorted(found, key=lambda one: one[0])


def compare_jobs(before: ComparedJob, after: ComparedJob) -> list[Comparison]:
    return [compare(a, b) for a, b in zip(before.sections, after.sections, strict=True)]


def compare_pools(
    before: Mapping[str, ComparedJob], after: Mapping[str, ComparedJob]
) -> list[Comparison]:
    """Each pool with the one of its name, or with nothing. Where one side is a single mesh, all pools of the other together."""
    if len(before) == 1 or len(after) == 1:
        return compare_jobs(joined(list(before.values())), joined(list(after.values())))
    found: list[Comparison] = []
    for name in dict.fromkeys([*before, *after]):
        known = before.get(name) or after[name]
        sides = (jobs[name] if name in jobs else without_rows(known) for jobs in (before, after))
        found += [
            replace(each, title=f"pool `{name}`: {each.title}") for each in compare_jobs(*sides)
        ]
    return found


def without_rows(job: ComparedJob) -> ComparedJob:
    """The same sections, with nothing in them."""
    return replace(job, sections=tuple(replace(each, rows={}) for each in job.sections))


def joined(jobs: Sequence[ComparedJob]) -> ComparedJob:
    """Pools as one job: what ranks do is added up, and of a rank that has most it is what the one with most has."""
    if len(jobs) == 1:
        return jobs[0]
    worst = max(jobs, key=lambda job: job.sections[0].rows[WITH_MOST]["memory"])
    steps, traffic, _, by_module, by_pass = zip(*(job.sections for job in jobs), strict=True)
    number = jobs.index(worst)
    return ComparedJob(
        worst.summary,
        (
            joined_steps(steps, worst.is_part),
            added(traffic, number),
            worst.sections[2],
            added(by_module, number),
            added(by_pass, number),
        ),
    )


def joined_steps(sections: Sequence[Section], are_parts: bool) -> Section:
    """The totals of pools, which have the same parameters unless they have parts of the model."""
    found = Section(sections[0].title, sections[0].keys)
    for key in sections[0].rows:
        for what in sections[0].rows[key]:
            amounts = [each.rows[key][what] for each in sections]
            is_most = key == WITH_MOST or (what == "parameters" and not are_parts)
            found.add(key, **{what: max(amounts) if is_most else sum(amounts)})
    return found


def added(sections: Sequence[Section], worst: int) -> Section:
    """The rows of all; what is of one rank is of that in the section of this number."""
    found = replace(sections[0], rows={}, num_ranks=sum(each.num_ranks for each in sections))
    for number, section in enumerate(sections):
        for key, row in section.rows.items():
            own = {
                what: n for what, n in row.items() if number == worst or what not in found.per_job
            }
            found.add(key, **own)
    return found
