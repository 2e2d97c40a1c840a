"""`--timeline`: a step against time, as a paper draws it, or as a file for ui.perfetto.dev. `--schedule`: its order."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from stagec.backend.files import write_whole
from stagec.backend.program import PooledTraces, RankClass
from stagec.cli.tables import folded, seconds, width
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.estimate.drawing import DrawnBar, runs
from stagec.estimate.intervals import union
from stagec.estimate.perfetto import perfetto_trace, perfetto_traces
from stagec.estimate.pools import HandOverTimes, PoolsEstimate
from stagec.estimate.step import Estimate, estimate
from stagec.estimate.tasks import tasks_of
from stagec.pictures.colours import colour
from stagec.pictures.scales import amount
from stagec.pipeline_schedule import pipeline_schedule, schedule_op, whole_schedule
from stagec.schedules import (
    Schedule,
    Timing,
    in_flight,
    picture,
    simulate,
    text,
)
from stagec.schedules.table import group_text

MOST_ACTIONS = 400
"""The most actions of a rank that are printed."""
MOST_COLUMNS = 60
"""The most columns of a picture that shows each unit of time."""
EVERY_RANK = "every rank"


def write_timeline(compiled: Compiled, path: str, quiet: bool) -> None:
    """The step as a trace of events. E0410 without the device's numbers, E0603 if the file cannot be written."""
    traces = compiled.trace_set
    found = estimate(compiled)
    about = {
        "model": traces.model,
        "plan": compiled.plan.name,
        "estimate": found.about,
        "step_time_us": round(found.step_time_us, 3),
        "mfu": round(found.mfu, 6),
    }
    data = perfetto_trace(traces, found.timeline, about)
    write_whole(path, data)
    if not quiet:
        sys.stdout.write(f"{path}: {step_text(found)} ({amount(len(data))}B written)\n")


def show_timeline(compiled: Compiled, note: str = "") -> None:
    """Draw a row for each pipeline rank, its tasks in time, stages in colours; in units where nothing says how long they take. `note` stands above."""
    schedule = None
    if schedule_op(compiled.module) is not None:
        schedule = pipeline_schedule(compiled.module)
    lines: list[Text] = []
    try:
        found = estimate(compiled)
    except CompileError as error:
        lines += unit_lines(whole_schedule(compiled.module)) if schedule is not None else []
        lines += [*wrapped(f"no times: {each.message}" for each in error.diagnostics)]
    else:
        lines += timed_lines(compiled, found, schedule)
    heading = wrapped([heading_of(whole_schedule(compiled.module))]) if schedule is not None else []
    print_lines([Text(""), *wrapped([note] if note else []), *heading, *lines])


def show_pools(pools: Mapping[str, Compiled], found: PoolsEstimate) -> None:
    """Draw all pools on one time axis, and between them when what they hand over is on its way."""
    rows: list[tuple[str, Sequence[DrawnBar]]] = []
    for name, each in pools.items():
        schedule = None
        if schedule_op(each.module) is not None:
            schedule = pipeline_schedule(each.module)
        labelled = timed_rows(each, found.pools[name], schedule)
        rows += [(f"{name}, {label}", bars) for label, bars in labelled]
        rows += [(f"{name} > {way.taker}", []) for way in found.ways if way.giver == name]
    column = found.end_us / columns_for(rows)
    ways = {f"{way.giver} > {way.taker}": way for way in found.ways}
    rows = [(name, bars_between(ways[name], column) if name in ways else b) for name, b in rows]
    print_lines([Text(""), *wrapped([scale_of(rows, found.end_us)]), *drawn(rows, found.end_us)])


def bars_between(way: HandOverTimes, column_us: float) -> list[DrawnBar]:
    """When messages travel; those that less than a column lies between are one bar, of a column at least."""
    spans = union(way.start_us, np.maximum(way.end_us, way.start_us + column_us)).tolist()
    return [DrawnBar(start, end, "", "-") for start, end in spans]


def pools_text(found: PoolsEstimate) -> list[str]:
    """When which pool is done, and what travels between them."""
    ends = [f"{name} {seconds(each.step_time_us / 1e6)}" for name, each in found.pools.items()]
    lines: list[str] = []
    if found.mfu is not None:
        took = seconds(found.end_us / 1e6)
        lines.append(f"a step of all pools takes {took}, {found.mfu:.1%} MFU of all devices")
    lines.append(f"on one time axis, from the start until a pool is done: {', '.join(ends)}")
    for way in found.ways:
        first, last = (seconds(at / 1e6) for at in (way.start_us.min(), way.end_us.max()))
        size = f"{amount(way.num_bytes)}B"
        lines.append(f"{way.giver} hands over {size} to {way.taker} from {first} to {last}")
    return lines


def write_pools_timeline(
    traces: PooledTraces, plan: str, found: PoolsEstimate, path: str, quiet: bool
) -> None:
    """All pools as one trace of events. E0603 if the file cannot be written."""
    about = {
        "model": traces.pools[0][1].model,
        "plan": plan,
        "estimate": next(iter(found.pools.values())).about,
        "end_us": {name: round(each.step_time_us, 3) for name, each in found.pools.items()},
    }
    parts = [(name, each, found.pools[name].timeline) for name, each in traces.pools]
    data = perfetto_traces(parts, about)
    write_whole(path, data)
    if not quiet:
        sys.stdout.write(f"{path}: {pools_text(found)[0]} ({amount(len(data))}B written)\n")


def show_schedule(compiled: Compiled) -> None:
    """List the order of each rank's tasks."""
    if schedule_op(compiled.module) is None:
        lines = plain_lines(compiled)
    else:
        own = pipeline_schedule(compiled.module)
        lines = schedule_lines(whole_schedule(compiled.module), own)
    print_lines([Text(""), *wrapped(lines)])


def print_lines(lines: Iterable[Text]) -> None:
    """With colours where the output is a terminal that has them."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line)


def wrapped(lines: Iterable[str]) -> list[Text]:
    """Further lines are indented below what follows the first colon, `rank 0: `."""
    found: list[Text] = []
    for line in lines:
        indent = " " * (line.index(": ") + 2 if line.startswith(("rank ", EVERY_RANK)) else 2)
        found += [Text(part) for part in folded(line, indent)]
    return found


def schedule_lines(schedule: Schedule, own: Schedule) -> list[str]:
    """What the schedule is, and the order of each rank: of a pool that trains, of its own."""
    lines = map(shortened, text(own).splitlines())
    return [heading_of(schedule), *lines]


def heading_of(schedule: Schedule) -> str:
    counts = (
        counted(schedule.num_ranks, "rank"),
        counted(schedule.num_stages, "stage"),
        counted(schedule.num_microbatches, "microbatch", "microbatches"),
    )
    line = f"schedule {schedule.name}: {', '.join(counts)}"
    if schedule.has_backward:
        peaks = in_flight(schedule).rank_peak.tolist()
        same = len(set(peaks)) == 1
        line += f"; in flight at most {peaks[0] if same else ' '.join(map(str, peaks))}"
        line += " on each" if same else ""
    return line


def counted(number: int, one: str, many: str = "") -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"


def shortened(line: str) -> str:
    """A rank's actions, but for those in the middle if there are very many."""
    words = line.split(" ")
    left_out = len(words) - MOST_ACTIONS
    if left_out <= 0:
        return line
    half = MOST_ACTIONS // 2
    return " ".join([*words[:half], f"... {left_out:,} more ...", *words[-half:]])


def plain_lines(compiled: Compiled) -> list[str]:
    """Without a pipeline: the same order on every rank."""
    first = compiled.trace_set.classes[0]
    nowhen = np.zeros(int(first.program.first_node[-1]))
    words = [task.label(False) for task in tasks_of(first, nowhen, nowhen, False)]
    return [shortened(" ".join([f"{EVERY_RANK}:", *words]))]


def unit_lines(schedule: Schedule) -> list[Text]:
    """The order against time, in units of the zero-bubble papers."""
    timing = simulate(schedule.compute_only())
    bubble = f"bubble {timing.bubble_fraction:.1%}"
    lines = wrapped([f"if F, I and W take 1 and B takes 2: {timing.makespan:g} in all, {bubble}"])
    with contextlib.suppress(ValueError):
        small = picture(schedule, widest=MOST_COLUMNS).splitlines()
        if max(map(len, small)) <= width():
            return [*lines, *map(Text, small)]
    rows = [
        (f"rank {rank}", actions_drawn(schedule.compute_only(), timing, rank))
        for rank in range(schedule.num_ranks)
    ]
    return [*lines, *drawn(rows, timing.makespan)]


def actions_drawn(schedule: Schedule, timing: Timing, rank: int) -> list[DrawnBar]:
    begin = int(schedule.starts[rank])
    bars: list[DrawnBar] = []
    for group in schedule.groups(rank):
        start, end = timing.start[begin], timing.end[begin]
        label = group_text(group, schedule)
        bars.append(DrawnBar(start, end, label, group[0].kind.symbol, group[0].stage))
        begin += len(group)
    return bars


def timed_lines(compiled: Compiled, found: Estimate, schedule: Schedule | None) -> list[Text]:
    """Each rank's tasks, as long as they are estimated to take."""
    rows = timed_rows(compiled, found, schedule)
    return [
        *wrapped([step_text(found), scale_of(rows, found.step_time_us)]),
        *drawn(rows, found.step_time_us),
    ]


def scale_of(rows: Rows, span_us: float) -> str:
    column = seconds(span_us / 1e6 / columns_for(rows))
    return f"a column is {column}, `.` is idle; `--schedule` lists the order"


def timed_rows(compiled: Compiled, found: Estimate, schedule: Schedule | None) -> Rows:
    """The tasks of each class, with their times."""
    rows: list[tuple[str, list[DrawnBar]]] = []
    with_stage = schedule is not None and schedule.stages_per_rank > 1
    labels = row_labels(compiled)
    for number, rank_class in enumerate(compiled.trace_set.classes):
        halves = schedule is not None and schedule.has_halves(coordinate(compiled, rank_class))
        tasks = tasks_of(rank_class, *found.timeline.of_class(number), halves)
        bars = [
            DrawnBar(t.start_us, t.end_us, t.label(with_stage), t.letter, t.stage) for t in tasks
        ]
        rows.append((labels[number], bars))
    return rows


def coordinate(compiled: Compiled, rank_class: RankClass) -> int:
    """Where a class is along the axis of the pipeline."""
    pipeline = compiled.plan.pipeline
    assert pipeline is not None
    (place,) = rank_class.where[pipeline.axis]
    return place


def row_labels(compiled: Compiled) -> list[str]:
    """`rank 0`, its place in the pipeline, where that says which class it is; else the class' name."""
    classes = compiled.trace_set.classes
    if compiled.plan.pipeline is None:
        return [EVERY_RANK] if len(classes) == 1 else [each.name for each in classes]
    places = [coordinate(compiled, each) for each in classes]
    if len(set(places)) == len(places):
        return [f"rank {place}" for place in places]
    return [each.name for each in classes]


Rows = Sequence[tuple[str, Sequence[DrawnBar]]]
"""The name of each, and its bars."""


def drawn(rows: Rows, span: float) -> list[Text]:
    label = max(len(name) for name, _ in rows) + 2
    return [
        Text.assemble(
            f"{name}: ".ljust(label),
            *((run.text, style(run.bar)) for run in runs(bars, span, columns_for(rows))),
        )
        for name, bars in rows
    ]


def style(bar: DrawnBar | None) -> str:
    """A stage is a colour; forward passes are dark letters on it, backward passes light ones."""
    if bar is None:
        return "dim"
    if bar.stage < 0:
        return "reverse"
    return f"{'black' if bar.letter == 'F' else 'bold white'} on {colour(bar.stage)}"


def columns_for(rows: Rows) -> int:
    """What a line has room for."""
    return max(20, width() - max(len(name) for name, _ in rows) - 2)


def step_text(found: Estimate) -> str:
    step = seconds(found.step_time_us / 1e6)
    return f"a step takes {step} at {found.mfu:.1%} MFU ({found.about})"
