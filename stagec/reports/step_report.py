"""`--report FILE.html`: one page on a plan, or several side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from stagec.backend.program import RankClass
from stagec.compiled import Compiled
from stagec.dialects.sched.actions import Compute
from stagec.estimate.costs import missing_numbers, why_unknown
from stagec.estimate.pools import PoolsEstimate
from stagec.estimate.series import Clock
from stagec.estimate.step import Estimate, batch_of, estimate_if_known
from stagec.memory import TITLES
from stagec.pictures.charts import Bar, ChartSeries, areas, bars, heat
from stagec.pictures.elements import element, escape
from stagec.pictures.page import chosen, page, table
from stagec.pictures.scales import BYTES, MICROSECONDS, digits, in_unit, size_of, unit_for
from stagec.reports.headline import Headline, headline
from stagec.reports.memory_charts import Scene, memory_section, place_in_model
from stagec.reports.plan_words import plan_in_words
from stagec.reports.step_timeline import pools_timeline, timeline_section
from stagec.reports.traffic import traffic
from stagec.step_count import ClassCount
from stagec.summary import summarize

MOST_MODULES = 14
MOST_ITERATIONS = 400
"""The most iterations of a series that are drawn."""
COUNTS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def report_page(jobs: Sequence[Compiled], times: Sequence[Estimate | None] = ()) -> str:
    """A page that needs nothing but itself, of less than a megabyte. What is estimated already may be given."""
    times = times or [estimate_if_known(job) for job in jobs]
    if len(jobs) > 1:
        return page_of_several(jobs, times, "Plans side by side")
    content, script = plan_sections(jobs[0], times[0], "step0", 1.0)
    name = title(jobs[0])
    return page(name, element("h1", escape(name)), content, script=script)


def pools_page(name: str, pools: Mapping[str, Compiled], found: PoolsEstimate | None = None) -> str:
    """Likewise of the pools of a plan: all on one time axis, where times are known, then each by itself."""
    between, script = "", ""
    if found is not None:
        drawn, script = pools_timeline(pools, found, "pools")
        note = "Each pool begins at 0, and what it takes from another is there when that one has sent it."
        if not found.joint:
            note += " Below, each is by itself, as if it were there from the start."
        between = "<h2>The pools in time</h2>" + element("p", note) + drawn
    model = next(iter(pools.values())).trace_set.model
    times = times_of_pools(pools, found)
    return page_of_several(list(pools.values()), times, f"{model}, plan {name}", between, script)


def times_of_pools(
    pools: Mapping[str, Compiled], found: PoolsEstimate | None
) -> list[Estimate | None]:
    """What is said of each pool: of one that trains its part of the step of all, of one that serves an iteration by itself."""
    joint = found.joint if found is not None else {}
    return [joint.get(name) or estimate_if_known(each) for name, each in pools.items()]


def page_of_several(
    jobs: Sequence[Compiled],
    times: Sequence[Estimate | None],
    heading: str,
    between: str = "",
    script: str = "",
) -> str:
    """What is compared, what is said of all, and then everything on each."""
    heads = [headline(job, time) for job, time in zip(jobs, times, strict=True)]
    parts = [element("h1", escape(heading)), side_by_side(jobs, heads), between]
    scripts = [script] if script else []
    for number, (job, time) in enumerate(zip(jobs, times, strict=True)):
        content, own = plan_sections(job, time, f"step{number}", 1 / len(jobs))
        parts.append(element("h1", escape(title(job))) + content)
        scripts.append(own)
    return page(heading, *parts, script="\n".join(scripts))


def title(job: Compiled) -> str:
    return f"{job.trace_set.model}, plan {job.plan.name}" if job.plan.name else job.trace_set.model


def plan_sections(
    job: Compiled, found: Estimate | None, name: str, detail: float
) -> tuple[str, str]:
    """Everything on one plan, and the script of its timeline."""
    head = headline(job, found)
    is_known = not missing_numbers(job.plan, job.trace_set.classes)
    parts = [figures(job, head)]
    parts += [
        "<h2>The plan</h2>",
        *(element("p", with_code(text)) for text in plan_in_words(job.plan)),
    ]
    script = ""
    is_series = job.num_iterations > 1
    parts.append(f"<h2>{'The iterations' if is_series else 'The step'} in time</h2>")
    if is_series and is_known:
        parts.append(series_section(job))
    elif found is not None:
        drawn, script = timeline_section(job, found, name, detail)
        parts += [share_bars(head), drawn]
    else:
        parts.append(
            element(
                "p",
                with_code(f"Times are not known: {why_unknown(job.plan, job.trace_set.classes)}."),
            )
        )
    timeline = found.timeline if found else None
    scene = Scene(job.memory, timeline, job.plan.device.capacity, detail)
    parts += ["<h2>Memory over time</h2>", memory_section(scene, f"{name}-memory")]
    parts += ["<h2>Traffic between ranks</h2>", traffic_section(job)]
    parts += ["<h2>Where FLOPs, bytes and time go</h2>", costs_section(job, found, name)]
    return "".join(parts), script


def with_code(text: str) -> str:
    """What stands in backquotes as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def figures(job: Compiled, head: Headline) -> str:
    """The numbers on top."""
    boxes = [("ranks", f"{job.trace_set.mesh.num_ranks:,}", "")]
    if job.num_iterations > 1:
        boxes.append(("iterations", f"{job.num_iterations:,}", ""))
        boxes.append(("new tokens", f"{head.tokens or 0:,}", ""))
    if head.step_us is not None and head.mfu is not None and head.per_s is not None:
        what = "tokens/s" if head.tokens else "samples/s"
        boxes += [
            ("step", in_unit(head.step_us, MICROSECONDS), ""),
            ("MFU", f"{head.mfu:.1%}", ""),
            (what, digits(head.per_s), ""),
        ]
    memory = in_unit(max(head.peak_bytes, head.timed_bytes or 0), BYTES)
    if head.capacity:
        memory += f" of {in_unit(head.capacity, BYTES)}"
    boxes.append(
        (
            "fits" if head.fits else "does not fit" if head.fits is False else "peak memory",
            memory,
            "bad" if head.fits is False else "",
        )
    )
    parameters = summarize(job.module, job.counts, job.plan.name).num_parameters
    unit, size = unit_for(parameters, (("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)))
    boxes.append(("parameters", f"{digits(parameters / size)} {unit}".strip(), ""))
    return element(
        "div",
        *(
            element(
                "div",
                element("b", escape(value)),
                element("span", escape(name)),
                class_=kind or None,
            )
            for name, value, kind in boxes
        ),
        class_="figures",
    )


def series_section(job: Compiled) -> str:
    """How long each iteration takes by itself, and what that makes of tokens in a second."""
    times = Clock(job).times_us()
    name, size = unit_for(float(times.max()), MICROSECONDS)
    chosen_ones = np.unique(
        np.linspace(0, len(times) - 1, min(MOST_ITERATIONS, len(times))).astype(int)
    )
    shown = ChartSeries("an iteration", times[chosen_ones] / size)
    edges = ("iteration", f"time ({name})")
    drawn = areas("Time of each iteration", chosen_ones.astype(float), [shown], edges)
    tokens = batch_of(job)[1] or 0
    total = float(times.sum())
    rate = digits(tokens / total * 1e6)
    text = f"One after the other they take {in_unit(total, MICROSECONDS)}: {rate} new tokens/s."
    return drawn + element("p", escape(text), class_="faint")


def share_bars(head: Headline) -> str:
    names = list(head.shares)
    row = Bar("the step", [100 * head.shares[name] for name in names], "100 %")
    note = element("p", with_code(f"Times: {head.about}."), class_="faint")
    whose = f" of {head.rank_class}, which computes longest" if head.rank_class else ""
    return bars(f"Time{whose}", "% of the step", names, [row]) + note


def traffic_section(job: Compiled) -> str:
    """A heat map, and a table by axes."""
    values, block = traffic(job)
    unit, size = unit_for(float(values.max(initial=0.0)), BYTES)
    names = [str(i * block) if block == 1 else f"{i * block}+" for i in range(len(values))]
    what = "ranks" if block == 1 else f"blocks of {block} consecutive ranks"
    rows = [
        [
            each.name,
            "+".join(t.axes) or "host",
            t.kind,
            f"{t.count:,}",
            in_unit(t.operand_bytes, BYTES),
            in_unit(t.result_bytes, BYTES),
        ]
        for each in summarize(job.module, job.counts).classes[:8]
        for t in each.traffic
    ]
    head = ("class", "over", "kind", "count", "before", "after")
    if not values.any():
        return "<p>Nothing is sent.</p>"
    drawn = heat(
        f"Bytes that {what} send each other in a step", names, values / size, ("from", "to"), unit
    )
    note = "Collectives are rings, exchanges direct: what a step hands on whatever runs it."
    return drawn + element("p", note, class_="faint") + table(head, rows, "One rank, one step")


def costs_section(job: Compiled, found: Estimate | None, name: str) -> str:
    """Three bar charts by module, of the class that computes most."""
    classes = job.trace_set.classes
    sums = [by_module(each) for each in job.counts]
    number = int(np.argmax([sum(s[0] for s in each.values()) for each in sums]))
    rank_class, totals = classes[number], sums[number]
    charts = [
        (
            "FLOPs",
            module_bars(
                f"FLOPs of one rank of {rank_class.name}",
                "FLOPs",
                {n: v[0] for n, v in totals.items()},
                COUNTS,
            ),
        ),
        (
            "bytes moved",
            module_bars(
                f"Memory traffic of one rank of {rank_class.name}",
                "",
                {n: v[1] for n, v in totals.items()},
                BYTES,
            ),
        ),
        (
            "bytes sent",
            module_bars(
                f"Communication of one rank of {rank_class.name}",
                "",
                {n: v[2] for n, v in totals.items()},
                BYTES,
            ),
        ),
    ]
    if found is not None:
        times = time_by_module(rank_class, *found.timeline.of_class(number))
        charts.insert(
            0,
            (
                "time",
                module_bars(
                    f"Computing time of one rank of {rank_class.name}", "", times, MICROSECONDS
                ),
            ),
        )
    return chosen(f"{name}-costs", charts)


def by_module(counted: ClassCount) -> dict[str, list[float]]:
    """FLOPs, bytes moved and bytes communicated by module, of one rank."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for each in counted.operations:
        totals, numbers = found[place_in_model(each.scope)], each.numbers
        if each.is_computation:
            totals[0] += float(each.runs) * numbers.flops
            totals[1] += float(each.runs) * (numbers.read + numbers.written)
        else:
            totals[2] += float(each.runs) * numbers.after
    return found


def time_by_module(rank_class: RankClass, starts: np.ndarray, ends: np.ndarray) -> dict[str, float]:
    """µs of computation."""
    program = rank_class.program
    found: dict[str, float] = defaultdict(float)
    for index, segment in enumerate(program.segments):
        first = program.first_node[np.flatnonzero(program.segment == index)]
        for i, node in enumerate(segment.nodes):
            if isinstance(node.action, Compute):
                found[place_in_model(node.scope)] += float(
                    (ends[first + i] - starts[first + i]).sum()
                )
    return found


def module_bars(
    name: str, unit: str, totals: dict[str, float], units: tuple[tuple[str, float], ...]
) -> str:
    order = sorted((n for n in totals if totals[n] > 0), key=lambda n: -totals[n])
    whole = sum(totals.values()) or 1.0
    rest = sum(totals[n] for n in order[MOST_MODULES:])
    shown = [(n, totals[n]) for n in order[:MOST_MODULES]] + ([("others", rest)] if rest else [])
    prefix, size = unit_for(max((v for _, v in shown), default=1.0), units)
    rows = [
        Bar(n, [v / size], f"{digits(v / size)} {prefix}{unit} ({v / whole:.1%})") for n, v in shown
    ]
    return bars(name, f"{prefix}{unit}", [name], rows)


def side_by_side(jobs: Sequence[Compiled], heads: Sequence[Headline]) -> str:
    """A table with a column for each plan, and charts of time and memory."""
    rows: list[list[str]] = comparison(jobs, heads)
    names = [title(job) for job in jobs]
    parts = [table(["", *names], rows)]
    kinds = list(dict.fromkeys(kind for head in heads for kind in head.kinds))
    kinds.sort(key=list(TITLES.values()).index)
    memory = [
        Bar(
            name,
            [head.kinds.get(kind, 0) / (1 << 30) for kind in kinds],
            size_of(head.peak_bytes),
        )
        for name, head in zip(names, heads, strict=True)
    ]
    parts.append(bars("Memory at the peak", "GiB", kinds, memory))
    timed = [(name, head) for name, head in zip(names, heads, strict=True) if head.step_us]
    if timed:
        shares = list(dict.fromkeys(part for _, head in timed for part in head.shares))
        unit, size = unit_for(max(head.step_us or 0 for _, head in timed), MICROSECONDS)
        rows_ = [
            Bar(
                name,
                [head.shares.get(part, 0.0) * (head.step_us or 0) / size for part in shares],
                in_unit(head.step_us or 0, MICROSECONDS),
            )
            for name, head in timed
        ]
        parts.append(bars("Time of a step", unit, shares, rows_))
    return "".join(parts)


def comparison(jobs: Sequence[Compiled], heads: Sequence[Headline]) -> list[list[str]]:
    """The lines of a table of plans: what is compared, then a cell for each."""
    lines: list[list[str]] = [["ranks", *(f"{job.trace_set.mesh.num_ranks:,}" for job in jobs)]]

    def cells(name: str, values: Sequence[str]) -> None:
        lines.append([name, *values])

    cells("step", [in_unit(h.step_us, MICROSECONDS) if h.step_us else "-" for h in heads])
    cells("MFU", [f"{h.mfu:.1%}" if h.mfu is not None else "-" for h in heads])
    cells("tokens or samples/s", [digits(h.per_s) if h.per_s else "-" for h in heads])
    cells("peak memory", [in_unit(h.peak_bytes, BYTES) for h in heads])
    if any((h.timed_bytes or 0) > h.peak_bytes for h in heads):
        timed = [in_unit(h.timed_bytes, BYTES) if h.timed_bytes else "-" for h in heads]
        cells("peak along the estimated time", timed)
    cells("fits", [{None: "-", True: "yes", False: "no"}[h.fits] for h in heads])
    if any(h.rank_class for h in heads):
        cells("time of the rank that computes longest", [h.rank_class or "any" for h in heads])
    shares = list(dict.fromkeys(part for head in heads for part in head.shares))
    for part in shares:
        cells(
            f"time: {part}", [f"{h.shares.get(part, 0.0):.1%}" if h.step_us else "-" for h in heads]
        )
    for kind in dict.fromkeys(kind for head in heads for kind in head.kinds):
        cells(f"memory: {kind}", [in_unit(h.kinds.get(kind, 0), BYTES) for h in heads])
    return lines
