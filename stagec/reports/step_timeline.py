"""A step in time, by rank class: the tasks of the schedule, communication by axes, what of it computation does not hide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagec.compiled import Compiled
from stagec.estimate.intervals import Intervals, at_most, difference, overlap, union
from stagec.estimate.pools import PoolsEstimate
from stagec.estimate.step import Estimate
from stagec.estimate.tasks import TaskSpan, tasks_of
from stagec.pictures.colours import colour
from stagec.pictures.elements import element, escape
from stagec.pictures.page import resource
from stagec.pictures.scales import MICROSECONDS, Scale, digits, unit_for
from stagec.pipeline_schedule import pipeline_schedule, schedule_op
from stagec.reports.headline import COMPUTE, stream_spans

MOST_CLASSES = 24
MOST_SPANS = 6_000
"""Stretches of communication in a page, of all classes."""
ALL_BUT = 0.99
"""From this share on a bar is drawn as busy all the time."""
MOST_TASKS = 6_000
"""Tasks of all classes in a page."""
LETTERS = {"F": "#0072b2", "B": "#009e73", "I": "#009e73", "W": "#56b4e9", "step": "#b8a900"}
NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "backward, for inputs",
    "W": "backward, for weights",
    "step": "once in a step",
}
EXPOSED = "#d55e00"


@dataclass(frozen=True)
class TaskRow:
    """A task on a rank of a class."""

    name: str
    task: TaskSpan

    @property
    def values(self) -> tuple[Any, ...]:
        """The class, the task's letter, its stage and microbatch (-1: none), and when it is, in µs."""
        task = self.task
        return (self.name, task.letter, task.stage, task.microbatch, task.start_us, task.end_us)


def task_rows(compiled: Compiled, found: Estimate) -> list[TaskRow]:
    """The tasks of all classes, in order."""
    rows: list[TaskRow] = []
    for number, rank_class in enumerate(compiled.trace_set.classes):
        times = found.timeline.of_class(number)
        tasks = tasks_of(rank_class, *times, has_halves(compiled, number))
        rows += [TaskRow(rank_class.name, task) for task in tasks]
    return rows


def has_halves(compiled: Compiled, number: int) -> bool:
    """Whether the backward pass of a class is two tasks, one for inputs and one for weights."""
    pipeline = compiled.plan.pipeline
    if pipeline is None or schedule_op(compiled.module) is None:
        return False
    (place,) = compiled.trace_set.classes[number].where[pipeline.axis]
    return pipeline_schedule(compiled.module).has_halves(place)


def picture(rows: Sequence[TaskRow], step_us: float) -> str:
    """A picture that does not move, for notebooks: a row per class."""
    names = list(dict.fromkeys(row.name for row in rows))[:MOST_CLASSES]
    left, width, high = 90.0, 920, 22
    name, size = unit_for(step_us, MICROSECONDS)
    scale = Scale(0.0, step_us, left, width - 20.0)
    parts: list[str] = []
    for i, each in enumerate(names):
        y = 10.0 + high * i
        parts.append(element("text", escape(each), x=left - 8, y=y + 13, text_anchor="end"))
        parts.append(
            element("rect", x=left, y=y, width=width - 20 - left, height=high - 4, fill="#f0f1f3")
        )
    for row in rows:
        if row.name not in names:
            continue
        task, y = row.task, 10.0 + high * names.index(row.name)
        x, end = scale(task.start_us), scale(task.end_us)
        hover = element(
            "title", escape(f"{task.label(True)}: {digits(task.end_us - task.start_us)} µs")
        )
        parts.append(
            element(
                "rect",
                hover,
                x=float(x),
                y=y,
                width=max(float(end - x), 0.3),
                height=high - 4,
                fill=LETTERS[task.letter],
                stroke="#fff",
                stroke_width=0.3,
            )
        )
    low = 14.0 + high * len(names)
    for tick in Scale(0.0, step_us / size, left, width - 20.0).ticks(8):
        x = float(scale(tick * size))
        parts.append(
            element("text", escape(f"{digits(tick)} {name}"), x=x, y=low + 12, text_anchor="middle")
        )
    letters = [letter for letter in LETTERS if any(row.task.letter == letter for row in rows)]
    for i, letter in enumerate(letters):
        x = left + 190.0 * i
        parts.append(element("rect", x=x, y=low + 22, width=12, height=12, fill=LETTERS[letter]))
        parts.append(element("text", escape(NAMES[letter]), x=x + 17, y=low + 32))
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width} {int(low + 44)}",
        class_="chart",
        role="img",
        aria_label="a step in time",
    )


def timeline_section(
    compiled: Compiled, found: Estimate, name: str, detail: float = 1.0
) -> tuple[str, str]:
    """A timeline that can be zoomed: markup, and the script that draws it."""
    shades = Shades()
    groups = groups_of(compiled, found, detail, shades)
    return canvas(name, found.step_time_us, groups, shades)


def pools_timeline(
    pools: Mapping[str, Compiled], found: PoolsEstimate, name: str
) -> tuple[str, str]:
    """Likewise, of several pools on one time axis, with what travels between them."""
    shades = Shades()
    groups: list[dict[str, Any]] = []
    for pool, each in pools.items():
        own = groups_of(each, found.pools[pool], 1 / len(pools), shades)
        groups += [{**group, "name": f"{pool} {group['name']}"} for group in own]
    lines: list[dict[str, Any]] = []
    for way in found.ways:
        what = f"{way.giver} to {way.taker}"
        shade = shades.number(f"way {what}", colour(5 + 4 * len(lines)), f"handed over, {what}")
        spans, most = union(way.start_us, way.end_us), MOST_SPANS // len(found.ways)
        lines.append({"name": what, "bars": bars_of(spans, most, shade, what)})
    return canvas(name, found.end_us, [*groups, {"name": "between pools", "rows": lines}], shades)


def canvas(
    name: str, span_us: float, groups: list[dict[str, Any]], shades: Shades
) -> tuple[str, str]:
    """Markup, and the script that draws rows of bars: start and end in µs, the number of a colour, a label."""
    data: dict[str, Any] = {
        "span": rounded(span_us),
        "palette": shades.palette,
        "legend": [*shades.legend, ("nothing runs: a bubble", "#e9ebee")],
        "groups": groups,
    }
    keys = "".join(
        element("span", element("i", style=f"background:{colour_}"), escape(text))
        for text, colour_ in data["legend"]
    )
    markup = (
        element("p", keys, class_="keys")
        + element("canvas", id=f"{name}-canvas", tabindex="0")
        + element(
            "p",
            "Turn the wheel to zoom, drag to move, double-click to see all.",
            id=f"{name}-told",
            class_="told faint",
        )
    )
    written = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    return markup, f"{resource('timeline.js')}\ndrawTimeline({json.dumps(name)}, {written});"


@dataclass
class Shades:
    """The colours of a timeline, by number, and what they say."""

    names: dict[str, int] = field(default_factory=dict)
    palette: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)

    def number(self, name: str, shade: str, text: str) -> int:
        if name not in self.names:
            self.names[name] = len(self.palette)
            self.palette.append(shade)
            self.legend.append((text, shade))
        return self.names[name]


def groups_of(
    compiled: Compiled, found: Estimate, detail: float, shades: Shades
) -> list[dict[str, Any]]:
    """Rows of bars for each rank class."""
    classes = compiled.trace_set.classes
    shown = range(min(len(classes), MOST_CLASSES))
    rows = task_rows(compiled, found)
    with_stage = len({row.task.stage for row in rows if row.task.stage >= 0}) > len(classes)
    groups: list[dict[str, Any]] = []
    room = round(MOST_TASKS * detail) // max(len(shown), 1)
    for number in shown:
        rank_class = classes[number]
        starts, ends = found.timeline.of_class(number)
        tasks = [row.task for row in rows if row.name == rank_class.name]
        bars = [
            [
                rounded(task.start_us),
                rounded(task.end_us),
                shades.number(task.letter, LETTERS[task.letter], NAMES[task.letter]),
                task.label(with_stage),
            ]
            for task in tasks[:room]
        ]
        lines: list[dict[str, Any]] = [{"name": "tasks", "bars": bars}]
        spans = stream_spans(rank_class, starts, ends)
        most = max(20, round(MOST_SPANS * detail) // max(len(shown) * (len(spans) + 1), 1))
        busy = spans.pop(COMPUTE, np.zeros((0, 2)))
        for i, name in enumerate(sorted(spans)):
            shade = shades.number(f"comm {name}", colour(3 + 4 * i), f"communication over {name}")
            lines.append({"name": name, "bars": bars_of(spans[name], most, shade, name)})
        if spans:
            everything = union(*np.concatenate([*spans.values()]).T)
            exposed = difference(everything, busy)
            shade = shades.number(
                "exposed", EXPOSED, "communication that computation does not hide"
            )
            lines.append({"name": "exposed", "bars": bars_of(exposed, most, shade, "exposed")})
        groups.append({"name": rank_class.name, "rows": lines})
    return groups


def bars_of(spans: Intervals, most: int, shade: int, label: str) -> list[list[Any]]:
    """At most so many bars. One that stands for several stretches says what share of it they are, and is drawn paler."""
    few = at_most(spans, most)
    found: list[list[Any]] = []
    shares = overlap(spans, *few.T) / (few[:, 1] - few[:, 0])
    for (start, end), share in zip(few.tolist(), shares.tolist(), strict=True):
        bar = [rounded(start), rounded(end), shade, label]
        found.append(bar if share > ALL_BUT else [*bar, round(share, 2)])
    return found


def rounded(time_us: float) -> float:
    """The time rounded to a hundredth of a µs."""
    return round(time_us, 2)
