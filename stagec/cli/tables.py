"""A job's summary as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stagec.summary import ClassSummary, Summary, Traffic

WIDTH = 100
"""Columns where the output is no terminal."""

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def amount(number: int) -> str:
    """Four digits and a decimal prefix: 70,553,706,496 is `70.55 G`."""
    step = 0
    while step + 1 < len(PREFIXES) and number >= 1000 * 1000**step:
        step += 1
    if step == 0:
        return f"{number} "
    value = number / 1000**step
    digits = 4 - len(str(int(value)))
    if round(value, digits) >= 1000 and step + 1 < len(PREFIXES):
        step, value, digits = step + 1, value / 1000, 3
    return f"{value:.{max(digits, 0)}f} {PREFIXES[step]}"


def show(summary: Summary) -> None:
    """Print it to standard output."""
    parts = [heading(summary), text_of(compute_table(summary.classes))]
    if any(c.traffic for c in summary.classes):
        parts.append(text_of(traffic_table(summary.classes)))
    sys.stdout.write("\n".join(parts))


def text_of(table: Table) -> str:
    """The table as it is on this terminal, without spaces at the ends of lines."""
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False
    )
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def heading(summary: Summary) -> str:
    plan = f", plan {summary.plan}" if summary.plan else ""
    pairs = zip(summary.mesh.axes, summary.mesh.sizes, strict=True)
    axes = ", ".join(f"{axis} = {size}" for axis, size in pairs)
    ranks = "1 rank" if summary.num_ranks == 1 else f"{summary.num_ranks:,} ranks"
    mesh = f" ({axes})" if axes else ""
    return f"{summary.model}{plan}: {summary.num_parameters:,} parameters on {ranks}{mesh}\n"


def compute_table(classes: Iterable[ClassSummary]) -> Table:
    table = _table("one rank, one step")
    table.add_column("class", no_wrap=True)
    for title in ("ranks", "nodes", "parameters", "their bytes"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("matrix FLOPs", "other FLOPs", "bytes moved"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in classes:
        table.add_row(
            class_label(each.name, each.where),
            f"{each.num_ranks:,}",
            f"{each.num_nodes:,}",
            f"{each.parameters.count:,}",
            f"{amount(each.parameters.num_bytes)}B",
            amount(each.matrix_flops).strip(),
            amount(each.other_flops).strip(),
            f"{amount(each.bytes_moved)}B",
        )
    return table


def traffic_table(classes: Iterable[ClassSummary]) -> Table:
    """Classes with the same communication share their rows."""
    shared: dict[tuple[Traffic, ...], list[str]] = {}
    for each in classes:
        shared.setdefault(each.traffic, []).append(class_label(each.name, each.where))
    table = _table("communication of one rank, one step")
    table.add_column("class")
    table.add_column("over", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for title in ("count", "bytes before", "bytes after"):
        table.add_column(title, justify="right", no_wrap=True)
    for traffic, names in shared.items():
        label = ", ".join(names)
        for row in traffic:
            table.add_row(
                label,
                ", ".join(row.axes) or "host",
                row.kind,
                f"{row.count:,}",
                f"{amount(row.operand_bytes)}B",
                f"{amount(row.result_bytes)}B",
            )
            label = ""
    return table


def class_label(name: str, where: Mapping[str, tuple[int, ...]]) -> str:
    """A class by its name, or by where its ranks are if that is what it is named for."""
    places = ", ".join(f"{axis} {','.join(map(str, at))}" for axis, at in where.items())
    return name if not places or name in places else f"{name} ({places})"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
