"""Charts: a stack of areas over time, points of plans, bars, and a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stagec.arrays import Floats
from stagec.pictures.axes import (
    BOTTOM,
    LEFT,
    LEGEND_LINE,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    legend_entries,
    legend_rows,
)
from stagec.pictures.colours import colour, shade
from stagec.pictures.elements import element, escape, number
from stagec.pictures.scales import digits

MOST_NAMES = 40
"""Rows or columns of a heat map that are named."""


@dataclass(frozen=True)
class ChartSeries:
    """A kind of thing, and how much of it there is at each place of a chart."""

    name: str
    values: Floats
    colour: str = ""


@dataclass(frozen=True)
class Marker:
    """A line across a chart, with what it means."""

    value: float
    text: str


def areas(
    title: str,
    x: Floats,
    series: Sequence[ChartSeries],
    edges: tuple[str, str],
    marks: Sequence[Marker] = (),
    limits: Sequence[Marker] = (),
) -> str:
    """Areas one on the other, each a stair: values hold from one x to the next. `marks` stand upright, `limits` lie."""
    total = np.sum([each.values for each in series], axis=0) if series else np.zeros(len(x))
    room = 1.14 if marks else 1.05  # what a mark says stands above the areas
    highest = max([float(total.max(initial=0.0)), *(limit.value for limit in limits)]) * room or 1.0
    coloured = [(each.name, each.colour or colour(i)) for i, each in enumerate(series)]
    span = (float(x[0]), float(x[-1])) if len(x) else (0.0, 1.0)
    frame = Frame(title, *edges, span, (0.0, highest), coloured)
    below = np.zeros(len(x))
    for each, (name, fill) in zip(series, coloured, strict=True):
        above = below + each.values
        outline = [*stairs(frame, x, above), *reversed(stairs(frame, x, below))]
        hover = element(
            "title", escape(f"{name}: at most {digits(float(each.values.max(initial=0)))}")
        )
        frame.add(element("polygon", hover, points=" ".join(outline), fill=fill))
        below = above
    for mark in marks:
        at = float(frame.x(mark.value))
        frame.add(element("line", x1=at, y1=TOP, x2=at, y2=frame.height - BOTTOM, class_="mark"))
        right = at > frame.width / 2
        frame.add(
            element(
                "text",
                escape(mark.text),
                x=at - 5 if right else at + 5,
                y=TOP + 12,
                text_anchor="end" if right else "start",
            )
        )
    for limit in limits:
        at = float(frame.y(limit.value))
        frame.add(element("line", x1=LEFT, y1=at, x2=frame.width - RIGHT, y2=at, class_="limit"))
        frame.add(element("text", escape(limit.text), x=LEFT + 6, y=at - 5))
    return frame.svg()


def stairs(frame: Frame, x: Floats, y: Floats) -> list[str]:
    """`12.5,80`: corners of a line that goes right, then up or down; those in the middle of a level stretch left out."""
    if not len(x):
        return []
    keep = np.concatenate([[True], np.diff(y) != 0])
    keep[-1] = True
    xs, ys = x[keep].tolist(), y[keep].tolist()
    points = [(xs[0], ys[0])]
    for (_, before), (right, after) in pairwise(zip(xs, ys, strict=True)):
        points += [(right, before), (right, after)]
    return [f"{number(frame.x(a))},{number(frame.y(b))}" for a, b in points]


@dataclass(frozen=True)
class Point:
    """One plan of many: where it is, and what is said of it."""

    x: float
    y: float
    text: str
    marked: bool = False


def points(
    title: str, edges: tuple[str, str], data: Sequence[Point], note: str = "", equal: str = ""
) -> str:
    """A point each. The marked ones, which are the best, are joined.

    With `equal`, which says what the points are, there is the line of equal coordinates instead.
    """
    xs, ys = [each.x for each in data] or [0.0], [each.y for each in data] or [0.0]
    best = sorted((each for each in data if each.marked), key=lambda each: each.x)
    legend = [(equal or "plans", colour(0))] + ([(note, colour(5))] if best else [])
    frame = Frame(title, *edges, spread(xs), spread(ys), legend)
    line_points = [(b.x, b.y) for b in best]
    if equal:
        line_points = [(end, end) for end in (max(min(xs), min(ys)), min(max(xs), max(ys)))]
    if len(line_points) > 1:
        line = " ".join(f"{number(frame.x(x))},{number(frame.y(y))}" for x, y in line_points)
        frame.add(element("polyline", points=line, fill="none", stroke=colour(5)))
    for each in sorted(data, key=lambda each: each.marked):
        frame.add(
            element(
                "circle",
                element("title", escape(each.text)),
                cx=float(frame.x(each.x)),
                cy=float(frame.y(each.y)),
                r=4.5,
                fill=colour(5) if each.marked else colour(0),
                fill_opacity=0.75,
            )
        )
    return frame.svg()


def spread(values: Sequence[float]) -> tuple[float, float]:
    """A range with some room at its ends; from 0 where the values are far from each other."""
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (0.0 if 0 <= low < 0.3 * high else low - room, high + room)


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: its parts, in the order of the legend, and what stands behind it."""

    name: str
    parts: Sequence[float]
    text: str


def bars(title: str, across: str, legend: Sequence[str], rows: Sequence[Bar]) -> str:
    """A bar each, one below the other, its parts side by side."""
    longest = max((sum(row.parts) for row in rows), default=0.0) or 1.0
    name_width = min(330, 20 + int(6.8 * max((len(row.name) for row in rows), default=1)))
    height = 24 * len(rows) + 64
    scale_end = WIDTH - 150
    coloured = [(name, colour(i)) for i, name in enumerate(legend)] if len(legend) > 1 else []
    parts = [element("text", escape(title), x=8, y=20, class_="title")]
    parts.append(element("text", escape(across), x=name_width, y=40, class_="faint"))
    for i, row in enumerate(rows):
        y = 50.0 + 24 * i
        shown = row.name if len(row.name) < 48 else f"{row.name[:46]}…"
        parts.append(element("text", escape(shown), x=name_width - 8, y=y + 13, text_anchor="end"))
        at = float(name_width)
        for k, part in enumerate(row.parts):
            wide = (scale_end - name_width) * part / longest
            parts.append(
                element("rect", x=at, y=y, width=max(wide, 0.0), height=17, fill=colour(k))
            )
            at += wide
        parts.append(element("text", escape(row.text), x=at + 6, y=y + 13))
    rows_of_legend = legend_rows(coloured, WIDTH)
    parts += legend_entries(rows_of_legend, float(height - 8))
    size = f"0 0 {WIDTH} {height + LEGEND_LINE * len(rows_of_legend)}"
    label = escape(title)
    return element("svg", *parts, viewBox=size, role="img", aria_label=label, class_="chart")


def heat(
    title: str, names: Sequence[str], values: Floats, edges: tuple[str, str], unit: str
) -> str:
    """A square for each row and column, dark where the value is large: [n, n]."""
    count = len(values)
    side = max(3.0, min(26.0, 620.0 / max(count, 1)))
    # The names of columns are turned by 60 degrees, and stand below both lines of the title.
    left, top = 110.0, 58.0 + 5.6 * max(map(len, names), default=0)
    largest = float(values.max(initial=0.0)) or 1.0
    parts = [
        element("text", escape(title), x=8, y=20, class_="title"),
        element("text", escape(f"{edges[1]} →"), x=left, y=40),
        element("text", escape(f"{edges[0]} ↓"), x=8, y=top + 10),
    ]
    for row, column in np.argwhere(values > 0).tolist():
        value = float(values[row, column])
        text = f"{names[row]} → {names[column]}: {digits(value)} {unit}"
        parts.append(
            element(
                "rect",
                element("title", escape(text)),
                x=left + column * side,
                y=top + row * side,
                width=side,
                height=side,
                fill=shade(0.15 + 0.85 * value / largest),
            )
        )
    end = count * side
    parts.append(element("rect", x=left, y=top, width=end, height=end, fill="none", class_="edge"))
    step = max(1, -(-count // MOST_NAMES), round(16 / side))
    for i in range(0, count, step):
        at = top + (i + 0.5) * side + 4
        parts.append(element("text", escape(names[i]), x=left - 6, y=at, text_anchor="end"))
        x = left + (i + 0.5) * side
        turned = f"rotate(-60 {number(x)} {number(top - 6)})"
        parts.append(element("text", escape(names[i]), x=x, y=top - 6, transform=turned))
    legend_x = left + end + 30
    for i in range(11):
        fill = shade(0.15 + 0.085 * (10 - i)) if i < 10 else "#fff"
        parts.append(element("rect", x=legend_x, y=top + 16.0 * i, width=16, height=16, fill=fill))
    parts.append(element("text", escape(f"{digits(largest)} {unit}"), x=legend_x + 22, y=top + 12))
    parts.append(element("text", "0", x=legend_x + 22, y=top + 172))
    size = f"0 0 {WIDTH} {number(top + max(end, 180) + 20)}"
    label = escape(title)
    return element("svg", *parts, viewBox=size, role="img", aria_label=label, class_="chart")


def front(pairs: Sequence[tuple[float, float]]) -> set[int]:
    """The numbers of the pairs of which none is smaller in one and not larger in the other."""
    kept: set[int] = set()
    lowest: float | None = None
    for i in sorted(range(len(pairs)), key=pairs.__getitem__):
        if lowest is None or pairs[i][1] < lowest:
            lowest = pairs[i][1]
            kept.add(i)
    return kept
