"""`--memory`: what each rank class keeps, as tables and as a timeline of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.table import Table

from stagec.cli.tables import lines_of, plain_table, text_of
from stagec.dialects.memory import BEYOND, STORED
from stagec.memory import TITLES, BufferGroup, ClassPlan, Kind, TimedPeak
from stagec.memory.arena import Arena
from stagec.memory.downsampling import sample
from stagec.pictures.scales import (
    BYTES,
    MICROSECONDS,
    behind_the_point,
    in_unit,
    size_of,
    unit_for,
)

BARS = " ▁▂▃▄▅▆▇█"
TIMELINE_WIDTH = 64
MOST_PARTS = 10


def show_memory(
    classes: Sequence[ClassPlan],
    arenas: Mapping[str, Arena],
    timed: Sequence[TimedPeak],
    note: str = "",
) -> None:
    """Print it to standard output. `timed` has the peak of each class along the estimated time, where that is known. `note` says what of the step is drawn."""
    worst = max(classes, key=lambda each: each.peak_bytes)
    parts = [
        "",
        text_of(static_table(classes)),
        f"{lines_of(f'{worst.name} needs most at {worst.peak}', '  ')}{timed_text(classes, timed)}{arena_text(arenas.get(worst.name))}",
        text_of(peak_table(worst)),
        *([text_of(process_table(worst))] if worst.static.num_bytes[Kind.PROCESS] else []),
        text_of(places_table("by module", worst, lambda part: part.scope or "the model")),
        text_of(places_table("by source line", worst, lambda part: part.location or part.name)),
        text_of(parts_table(worst)),
        *(
            text_of(level_table(name, parts))
            for name, parts in (
                ("the host", {c.name: c.host_bytes for c in classes}),
                ("NVMe", {c.name: c.nvme_bytes for c in classes}),
            )
            if any(parts.values())
        ),
        *([lines_of(note)] if note else []),
        timeline_text(classes),
    ]
    sys.stdout.write("\n".join(parts))


def static_table(classes: Sequence[ClassPlan]) -> Table:
    """What stays on the device, by kind. Caches are shown where something is served; transposed weights, and what a process keeps, where a plan says so."""
    kinds = [k for k in STORED if k not in SOME or any(c.static.num_bytes[k] for c in classes)]
    most = max(each.peak_bytes for each in classes)
    name, unit = unit_for(most, BYTES[1:])
    behind = behind_the_point(most / unit)
    table = plain_table(f"memory of one rank, in {name}")
    table.add_column("class")
    for title in (
        *(SHORT.get(kind, TITLES[kind]) for kind in kinds),
        "saved per microbatch",
        "peak",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    shared: dict[tuple[int, ...], list[str]] = {}
    for each in classes:
        saved = sum(each.saved_bytes)
        kept = [each.static.num_bytes[k] for k in kinds]
        shared.setdefault((*kept, saved, each.peak_bytes), []).append(each.name)
    for numbers, names in shared.items():
        table.add_row(", ".join(names), *(f"{number / unit:,.{behind}f}" for number in numbers))
    return table


SOME = (Kind.TRANSPOSED, Kind.CACHE, Kind.PROCESS)
"""What few plans have."""

SHORT = {
    Kind.TRANSPOSED: "transposed",
    Kind.MASTER: "master",
    Kind.OPTIMIZER: "optimizer",
    Kind.PROCESS: "process",
}
"""Titles of columns, where those of kinds are too long."""


def process_table(worst: ClassPlan) -> Table:
    """What a process keeps beside tensors, term by term, largest first."""
    table = plain_table(f"kept by the process of {worst.name}")
    table.add_column("what for", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    terms = {row.path: row.num_bytes for row in worst.stored if row.kind == Kind.PROCESS}
    for name, size in sorted(terms.items(), key=lambda each: -each[1]):
        table.add_row(name, size_of(size))
    return table


def peak_table(worst: ClassPlan) -> Table:
    """By kind, when the class with the highest peak needs most."""
    table = plain_table("by kind")
    table.add_column("what for", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for kind, number in worst.at_peak().items():
        if number:
            table.add_row(TITLES[kind], size_of(number))
    return table


def places_table(title: str, worst: ClassPlan, place: Callable[[BufferGroup], str]) -> Table:
    """The places of the model with the largest share of the peak; what the others have together."""
    totals: dict[str, int] = {}
    for part in worst.parts_at_peak():
        totals[place(part)] = totals.get(place(part), 0) + part.num_bytes
    largest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    table = plain_table(title)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("where")
    for name, number in largest[:MOST_PARTS]:
        table.add_row(size_of(number), name)
    if len(largest) > MOST_PARTS:
        rest = sum(number for _, number in largest[MOST_PARTS:])
        table.add_row(size_of(rest), f"{len(largest) - MOST_PARTS} others")
    return table


def parts_table(worst: ClassPlan) -> Table:
    """The largest things in the memory of the class that has the highest peak."""
    table = plain_table("largest")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("what for", no_wrap=True)
    table.add_column("made by")
    for part in worst.parts_at_peak()[:MOST_PARTS]:
        table.add_row(size_of(part.num_bytes), TITLES[part.kind], part.place)
    return table


def level_table(level: str, kept: Mapping[str, Mapping[Kind, int]]) -> Table:
    """What each class keeps beyond the device; of what is stored for a while, the most at once."""
    table = plain_table(f"on {level}, for one rank")
    table.add_column("class")
    table.add_column("what for", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    shared: dict[tuple[tuple[Kind, int], ...], list[str]] = {}
    for class_name, sizes in kept.items():
        shared.setdefault(tuple(sizes.items()), []).append(class_name)
    for parts, names in shared.items():
        for number, (kind, num_bytes) in enumerate(parts):
            title = "for a while" if kind in BEYOND else TITLES[kind]
            table.add_row(", ".join(names) if not number else "", title, size_of(num_bytes))
    return table


def timed_text(classes: Sequence[ClassPlan], timed: Sequence[TimedPeak]) -> str:
    """The most at any time: communication that lags behind computation keeps its buffers."""
    if not timed:
        return ""
    number = max(range(len(timed)), key=lambda each: timed[each].num_bytes)
    most = timed[number]
    when = in_unit(most.time_us, MICROSECONDS)
    where = f"{classes[number].name}, {when} into the step, at {most.at}"
    return lines_of(f"along the estimated time: {size_of(most.num_bytes)} on {where}", "  ")


def arena_text(arena: Arena | None) -> str:
    """What all buffers but the static ones take where `place-buffers` puts them."""
    if arena is None:
        return ""
    wasted = size_of(arena.fragmentation_bytes)
    return (
        f"one arena for all that comes and goes: {size_of(arena.num_bytes)}, {wasted} of it gaps\n"
    )


def timeline_text(classes: Sequence[ClassPlan]) -> str:
    """A line per class: each character is the highest that memory was in that part of the step."""
    highest = max(each.peak_bytes for each in classes)
    width = max(len(each.name) for each in classes)
    lines = [f"one step, from 0 to {size_of(highest)}\n"]
    for each in classes:
        timeline = each.timeline()
        heights = timeline[sample(timeline, TIMELINE_WIDTH)]
        steps = np.ceil(heights * (len(BARS) - 1) / max(highest, 1)).astype(int)
        bars = "".join(BARS[step] for step in steps.tolist())
        lines.append(f"{each.name:<{width}}  {bars}\n")
    return "".join(lines)
