"""The plans of a sweep as points: what one quantity costs in another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stagec.pictures.charts import Point, front, points
from stagec.pictures.page import page, table
from stagec.pictures.scales import DECIMAL_BYTES, SECONDS, digits, unit_for

Row = Mapping[str, int | float | str]
"""Numbers, and words that tell plans apart."""

IN_BYTES = ("memory", "comm", "bytes", "host")
COUNTS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("", 1.0))
MOST_LISTED = 200
MOST_POINTS = 3000
"""More are thinned out, but for the best: a page stays small, and a cloud looks the same."""


def plans_page(
    title: str, rows: Sequence[Row], pair: tuple[str, str], asked: Sequence[str], about: str = ""
) -> str:
    """A page with a chart of two quantities, what is to be said `about` them, and the plans that no other beats in both."""
    across, up = pair
    best = front([(float(row[across]), float(row[up])) for row in rows])
    shown = thinned(rows, best)
    units = {name: unit_of(name, [float(row[name]) for row in rows]) for name in pair}
    data = [
        Point(
            float(row[across]) / units[across][1],
            float(row[up]) / units[up][1],
            ", ".join(f"{name} = {said(name, row[name])}" for name in row),
            number in best,
        )
        for number, row in shown
    ]
    edges = (edge(across, units[across][0]), edge(up, units[up][0]))
    chart = points(f"{title}: {up} against {across}", edges, data, "no plan is better in both")
    columns = list(dict.fromkeys([*(rows[0] if rows else ()), *asked]))
    listed = sorted(best, key=lambda number: float(rows[number][across]))[:MOST_LISTED]
    lines = [[said(name, rows[number][name]) for name in columns] for number in listed]
    thin = f" {len(shown):,} of them are drawn." if len(shown) < len(rows) else ""
    return page(
        title,
        f"<h1>{len(rows):,} plans</h1>",
        f'<p class="faint">Each point is a plan; its numbers appear under the pointer.{thin} {about}</p>',
        chart,
        table(columns, lines, "No plan is better in both"),
    )


def thinned(rows: Sequence[Row], best: Collection[int]) -> list[tuple[int, Row]]:
    step = max(1, -(-len(rows) // MOST_POINTS))
    return [(i, row) for i, row in enumerate(rows) if i in best or i % step == 0]


def unit_of(name: str, values: Sequence[float]) -> tuple[str, float]:
    """A unit in which the largest of these is a number one can read."""
    largest = max(values, default=0.0)
    if name == "step_time":
        return unit_for(largest, SECONDS)
    if name.endswith(".count"):
        return ("", 1.0)
    if name.partition(".")[0] in IN_BYTES:
        return unit_for(largest, DECIMAL_BYTES)
    if name.partition(".")[0] == "flops":
        prefix, size = unit_for(largest, COUNTS)
        return f"{prefix}FLOPs", size
    return ("", 1.0)


def edge(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def said(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    unit, size = unit_of(name, [float(value)])
    return f"{digits(float(value) / size)} {unit}".rstrip()
