"""The frame of a chart: its title, its edges with round numbers on them, what is measured along each, a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stagec.pictures.elements import element, escape
from stagec.pictures.scales import Scale, digits

WIDTH, HEIGHT = 920, 360
LEFT, RIGHT, TOP, BOTTOM = 76, 20, 34, 52
LEGEND_LINE = 20


@dataclass
class Frame:
    """A chart in the making: what is drawn into it stands between its edges."""

    title: str
    across: str
    """What is measured along the lower edge, with its unit."""
    up: str
    """And along the left one."""
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    legend: Sequence[tuple[str, str]] = ()
    """Name and colour of each series."""
    width: int = WIDTH
    height: int = HEIGHT
    drawn: list[str] = field(default_factory=list)

    @property
    def x(self) -> Scale:
        return Scale(*self.x_range, LEFT, self.width - RIGHT)

    @property
    def y(self) -> Scale:
        return Scale(*self.y_range, self.height - BOTTOM, TOP)

    def add(self, markup: str) -> None:
        self.drawn.append(markup)

    def svg(self) -> str:
        rows = legend_rows(self.legend, self.width)
        height = self.height + LEGEND_LINE * len(rows)
        parts = [
            element("text", escape(self.title), x=LEFT, y=20, class_="title"),
            *self.lower_edge(),
            *self.left_edge(),
            *self.drawn,
            *legend_entries(rows, self.height),
        ]
        size = f"0 0 {self.width} {height}"
        label = escape(self.title)
        return element("svg", *parts, viewBox=size, role="img", aria_label=label, class_="chart")

    def lower_edge(self) -> list[str]:
        scale, low = self.x, self.height - BOTTOM
        parts = [element("line", x1=LEFT, y1=low, x2=self.width - RIGHT, y2=low, class_="edge")]
        for tick in scale.ticks(8):
            at = float(scale(tick))
            parts.append(element("line", x1=at, y1=low, x2=at, y2=low + 5, class_="edge"))
            text = {"x": at, "y": low + 18, "text_anchor": "middle"}
            parts.append(element("text", escape(digits(tick)), **text))
        middle = (LEFT + self.width - RIGHT) / 2
        parts.append(
            element("text", escape(self.across), x=middle, y=low + 38, text_anchor="middle")
        )
        return parts

    def left_edge(self) -> list[str]:
        scale = self.y
        parts: list[str] = []
        for tick in scale.ticks(6):
            at = float(scale(tick))
            parts.append(
                element("line", x1=LEFT, y1=at, x2=self.width - RIGHT, y2=at, class_="grid")
            )
            text = {"x": LEFT - 8, "y": at + 4, "text_anchor": "end"}
            parts.append(element("text", escape(digits(tick)), **text))
        middle = (TOP + self.height - BOTTOM) / 2
        turned = f"rotate(-90 16 {middle})"
        parts.append(
            element(
                "text",
                escape(self.up),
                x=16,
                y=middle,
                text_anchor="middle",
                transform=turned,
            )
        )
        return parts


def legend_rows(
    entries: Sequence[tuple[str, str]], width: int
) -> list[list[tuple[float, str, str]]]:
    """Where each entry stands, row by row."""
    rows: list[list[tuple[float, str, str]]] = []
    at = float(width)
    for name, colour in entries:
        wide = 32 + 7.2 * len(name)
        if at + wide > width - RIGHT:
            rows.append([])
            at = float(LEFT)
        rows[-1].append((at, name, colour))
        at += wide
    return rows


def legend_entries(rows: Sequence[Sequence[tuple[float, str, str]]], top: float) -> list[str]:
    parts: list[str] = []
    for number, row in enumerate(rows):
        y = top + LEGEND_LINE * number
        for x, name, colour in row:
            parts.append(element("rect", x=x, y=float(y), width=12, height=12, fill=colour))
            parts.append(element("text", escape(name), x=x + 17, y=float(y) + 10.5))
    return parts
