"""Memory over time, by kind and by module, and what it consists of when it is most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.estimate.timeline import Timeline
from stagec.memory import TITLES, ClassPlan, Kind
from stagec.memory.downsampling import sample
from stagec.pictures.charts import Bar, ChartSeries, Marker, areas, bars
from stagec.pictures.elements import element, escape
from stagec.pictures.page import chosen, page
from stagec.pictures.scales import MICROSECONDS, size_of, unit_for

MOST_POINTS = 240
MOST_MODULES = 9
MOST_CLASSES = 4
"""With charts of their own: those that need most."""
MUCH_ROOM = 2
"""A device with more than so many times the peak is not drawn: the curve would be flat."""
GIB = 1 << 30
EVERYWHERE = "the model"
"""What belongs to no module."""


@dataclass(frozen=True)
class Scene:
    """The memory of the classes of a job, and when its nodes start, where the plan says how fast the device is."""

    classes: Sequence[ClassPlan]
    timeline: Timeline | None
    capacity: int | None
    """Bytes of the device."""
    detail: float = 1.0
    """Less than 1 where several plans share a page."""

    def largest(self) -> list[int]:
        """The classes that need most, at most `MOST_CLASSES` of them, in their own order."""
        order = sorted(range(len(self.classes)), key=lambda i: -self.classes[i].peak_bytes)
        return sorted(order[:MOST_CLASSES])


def memory_page(scene: Scene, title: str) -> str:
    """A page with the memory of a job."""
    return page(title, element("h1", escape(title)), memory_section(scene))


def memory_page_of_pools(scenes: Mapping[str, Scene], title: str) -> str:
    """Likewise of a job of several pools: one below the other, on one time axis."""
    parts = [
        element("h2", escape(f"Pool {name}")) + memory_section(scene, f"memory-{name}")
        for name, scene in scenes.items()
    ]
    return page(title, element("h1", escape(title)), *parts)


def memory_section(scene: Scene, name: str = "memory") -> str:
    """Charts of each class, of which one is seen, and what they show."""
    shown = scene.largest()
    choices = [(label(scene.classes[i]), class_charts(scene, i)) for i in shown]
    left_out = len(scene.classes) - len(shown)
    others = f" {left_out} more classes need less, and are left out." if left_out else ""
    when = (
        "when each node is issued, by the estimate of <code>--timeline</code>"
        if scene.timeline is not None
        else "nodes in the order in which they are issued (the plan does not say how fast its device is, so there are no times)"
    )
    has = f" The device has {scene.capacity / GIB:.0f} GiB." if scene.capacity else ""
    note = f'<p class="faint">Across: {when}. The dashed line is the peak.{has}{others}</p>'
    return chosen(name, choices) + note


def label(each: ClassPlan) -> str:
    return f"{each.name}: {size_of(each.peak_bytes)}"


def class_charts(scene: Scene, number: int) -> str:
    each = scene.classes[number]
    at, across, peak = moments(scene, number)
    chosen_nodes = sample(each.timeline(), max(20, round(MOST_POINTS * scene.detail)))
    x = at[chosen_nodes]
    near = scene.capacity is not None and scene.capacity < MUCH_ROOM * each.peak_bytes
    limits = [Marker((scene.capacity or 0) / GIB, "what the device has")] if near else []
    marks = [Marker(peak, f"{size_of(each.peak_bytes)} at {each.peak}")]
    by_kind = [
        ChartSeries(TITLES[kind], series[chosen_nodes] / GIB)
        for kind, series in each.timeline_by_kind().items()
    ]
    by_module = [
        ChartSeries(name, series[chosen_nodes] / GIB)
        for name, series in timeline_by_module(each).items()
    ]
    edges = (across, "memory of one rank (GiB)")
    return (
        areas(f"Memory of {each.name} by kind", x, by_kind, edges, marks, limits)
        + areas(f"Memory of {each.name} by module", x, by_module, edges, marks, limits)
        + peak_bars(each)
    )


def moments(scene: Scene, number: int) -> tuple[np.ndarray, str, float]:
    """Where each node of a class stands on the lower edge, what is measured there, and where the peak is.

    A node is issued when all before it are: what waits for communication does not move its memory to a later place.
    """
    each = scene.classes[number]
    if scene.timeline is None:
        return np.arange(each.lives.num_nodes), "node, in issue order", float(each.peak.node)
    starts, _ = scene.timeline.of_class(number)
    name, size = unit_for(scene.timeline.makespan_us, MICROSECONDS)
    issued = np.maximum.accumulate(starts) / size
    return issued, f"time in the step ({name})", float(issued[each.peak.node])


def timeline_by_module(each: ClassPlan) -> dict[str, np.ndarray]:
    """Bytes alive at each node by the module that makes them; the smaller ones together."""
    lives = each.lives
    names: list[str] = []
    group = np.zeros(len(lives), np.int64)
    for number, table in enumerate(each.tables):
        scopes = [place_in_model(about.scope) for about in table.abouts]
        names += [scope for scope in dict.fromkeys(scopes) if scope not in names]
        index = np.array([names.index(scope) for scope in scopes], np.int64)
        rows = np.flatnonzero(lives.stage == number)
        if len(rows):
            group[rows] = index[table.about[lives.value[rows]]]
    found = {
        name: lives.live_bytes(np.flatnonzero(group == i)).astype(np.int64)
        for i, name in enumerate(names)
    }
    for stored in each.always:
        name = place_in_model(stored.scope)
        series = found.get(name, np.zeros(lives.num_nodes, np.int64))
        found[name] = series + stored.num_bytes
    order = sorted(found, key=lambda name: -int(found[name].max(initial=0)))
    kept = {name: found[name] for name in order[:MOST_MODULES] if found[name].any()}
    rest = [found[name] for name in order[MOST_MODULES:]]
    total = np.sum(rest, axis=0) if rest else np.zeros(1)
    return kept | ({f"{len(rest)} others": total} if total.any() else {})


def place_in_model(scope: str) -> str:
    """A place in the model: `Block.Attention`."""
    return scope or EVERYWHERE


def peak_bars(each: ClassPlan) -> str:
    """What there is when it is most: the largest places, each with what it keeps there."""
    totals: dict[tuple[str, Kind], int] = {}
    for part in each.parts_at_peak():
        key = (place_in_model(part.scope), part.kind)
        totals[key] = totals.get(key, 0) + part.num_bytes
    kinds = [kind for kind in Kind if any(k == kind for _, k in totals)]
    sums = {name: sum(size for (n, _), size in totals.items() if n == name) for name, _ in totals}
    largest = sorted(sums, key=lambda name: -sums[name])[:MOST_MODULES]
    rows = [
        Bar(
            name,
            [totals.get((name, kind), 0) / GIB for kind in kinds],
            size_of(sums[name]),
        )
        for name in largest
    ]
    return bars("At the peak, by module", "GiB", [TITLES[kind] for kind in kinds], rows)
