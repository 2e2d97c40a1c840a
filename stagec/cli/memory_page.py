"""`--memory FILE.html`: the timeline by kind as a page that needs nothing but itself."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagec.backend.files import disk_error
from stagec.diagnostics import CompileError, Diagnostic
from stagec.memory import TITLES, ClassPlan
from stagec.memory.limit import GIB, gib
from stagec.memory.samples import sample

MOST_POINTS = 1500


def write_page(classes: Sequence[ClassPlan], title: str, path: str) -> None:
    """One chart, with a menu of the rank classes. E0712 without plotly, E0603 if the file cannot be written."""
    figure = figure_of(classes, title)
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, div_id="memory")
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise disk_error(error, path) from None


def figure_of(classes: Sequence[ClassPlan], title: str) -> Any:
    """A stack of areas per class, of which one is seen."""
    plot = plotly()
    figure = plot.Figure()
    owners: list[int] = []
    for number, each in enumerate(classes):
        for area in areas(each):
            figure.add_trace(plot.Scatter(**area, visible=number == 0))
            owners.append(number)
    buttons = [
        {
            "label": f"{each.name}: {gib(each.peak_bytes)}",
            "method": "update",
            "args": [{"visible": [owner == number for owner in owners]}],
        }
        for number, each in enumerate(classes)
    ]
    figure.update_layout(
        title=title,
        xaxis_title="node, in issue order",
        yaxis_title="GiB",
        hovermode="x unified",
        updatemenus=[{"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.12}],
    )
    return figure


def areas(each: ClassPlan) -> list[dict[str, Any]]:
    """The series of each kind, as what plotly draws."""
    positions = sample(each.timeline(), MOST_POINTS)
    return [
        {
            "name": TITLES[kind],
            "x": positions.tolist(),
            "y": (series[positions] / GIB).tolist(),
            "stackgroup": "memory",
            "mode": "lines",
            "line": {"width": 0.5, "shape": "hv"},
            "hovertemplate": "%{y:.3f} GiB",
        }
        for kind, series in each.timeline_by_kind().items()
    ]


def plotly(flag: str = "--memory", page: str = "a page of memory") -> Any:
    try:
        return importlib.import_module("plotly.graph_objects")
    except ImportError as error:
        raise CompileError(
            [
                Diagnostic(
                    "E0712",
                    f"{page} is drawn by plotly, which is not installed",
                    origin=flag,
                    help="`pip install 'stagec[plot]'`",
                )
            ]
        ) from error
