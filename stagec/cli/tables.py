"""A job's summary as tables."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import Protocol, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from stagec.pictures.scales import SECONDS, amount, in_unit
from stagec.reports.headline import Headline
from stagec.summary import ClassSummary, Summary

WIDTH = 80
"""Columns where the output is no terminal."""

Key = TypeVar("Key", bound=Hashable)


class Named(Protocol):
    """A rank class, whatever is said of it."""

    @property
    def name(self) -> str: ...


def seconds(number: float) -> str:
    """`4.18 s`, `41.8 ms`, `3.4 µs`."""
    return in_unit(number, SECONDS)


def show(summary: Summary, head: Headline) -> None:
    """Print it to standard output: what a step takes first."""
    lines = "".join(f"{part}\n" for line in head.lines() for part in folded(line, " " * 8))
    lines += "".join(f"{part}\n" for part in folded(padding(summary), " " * 8))
    number = summary.num_iterations
    when = "one step" if number == 1 else f"{number:,} iterations"
    parts = [heading(summary) + lines, text_of(compute_table(summary.classes, when))]
    if any(c.traffic for c in summary.classes):
        parts.append(text_of(traffic_table(summary.classes, when)))
    sys.stdout.write("\n".join(parts))


def width() -> int:
    """Columns of this terminal, or of what is read elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def folded(line: str, indent: str = "", margin: int = 0) -> list[str]:
    """A line of prose on as many as it needs here, behind a margin; further ones begin with `indent` too."""
    return textwrap.wrap(
        line,
        max(width(), margin + 24),
        initial_indent=" " * margin,
        subsequent_indent=" " * margin + indent,
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    )


def documentation(text: str, margin: int = 2) -> list[str]:
    """A docstring on this terminal: paragraphs of prose are folded, what is indented stands as it does there."""
    found: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if any(line.startswith(" ") for line in lines):
            found += [f"{' ' * margin}{line}".rstrip() for line in lines]
        else:
            # Items of a list begin on lines of their own.
            for item in re.split(r"\n(?=- )", paragraph):
                indent = "  " if item.startswith("- ") else ""
                found += folded(" ".join(item.splitlines()), indent, margin)
        found.append("")
    return found[:-1]


def lines_of(line: str, indent: str = "", margin: int = 0) -> str:
    """`folded`, as text. Spaces that put columns below one another are kept."""
    return "".join(f"{part}\n" for part in folded(line, indent, margin))


def text_of(table: Table) -> str:
    """The table as it is on this terminal, without spaces at the ends of lines.

    Where it is too wide, titles of columns take several lines first, then what may wrap does, then columns move together; numbers are never cut.
    """
    wanted = width()
    if sum(map(widest, table.columns)) + GAP * (len(table.columns) - 1) > wanted:
        for column in table.columns:
            if isinstance(column.header, str) and column.no_wrap:
                column.header = "\n".join(titles_in(column.header, room(column)))
    gaps = len(table.columns) - 1
    least = sum(map(narrowest, table.columns)) + GAP * gaps
    if least > wanted:
        table.padding = (0, 1, 0, 0)  # between two columns: this and the box's own
        least -= gaps
    console = Console(file=sys.stdout, width=max(wanted, least), highlight=False)
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


GAP = 3
"""Columns between those of a plain table."""
FOLDED = 16
"""Columns that words of a table have at least where they are taken apart."""


def plain_cells(column: Column) -> list[str]:
    return [each.plain if isinstance(each, Text) else str(each) for each in column.cells]


def room(column: Column) -> int:
    """The widest cell."""
    return max(
        (cell_len(line) for each in plain_cells(column) for line in each.split("\n")), default=0
    )


def widest(column: Column) -> int:
    return max(room(column), *map(cell_len, str(column.header).split("\n")))


def narrowest(column: Column) -> int:
    """Without a cut: the longest word where lines may wrap."""
    if column.no_wrap:
        return widest(column)
    words = [word for each in (*plain_cells(column), str(column.header)) for word in each.split()]
    longest = max(map(cell_len, words), default=0)
    return min(longest, FOLDED) if column.overflow == "fold" else longest


def titles_in(title: str, columns: int) -> list[str]:
    return textwrap.wrap(title, max(columns, 1), break_long_words=False) or [""]


def heading(summary: Summary) -> str:
    plan = f", plan {summary.plan}" if summary.plan else ""
    pairs = zip(summary.mesh.axes, summary.mesh.sizes, strict=True)
    axes = ", ".join(f"{axis} = {size}" for axis, size in pairs)
    ranks = "1 rank" if summary.num_ranks == 1 else f"{summary.num_ranks:,} ranks"
    mesh = f" ({axes})" if axes else ""
    line = f"{summary.model}{plan}: {summary.num_parameters:,} parameters on {ranks}{mesh}"
    return lines_of(line, " " * 8)


def padding(summary: Summary) -> str:
    """What rules pad, and what that adds to the parameters."""
    dims = [f"{p.dim} from {p.unpadded:,} to {p.size:,}" for p in summary.padded]
    if not dims:
        return ""
    added = f": {summary.num_padding:,} of the parameters" if summary.num_padding else ""
    return f"padded  {', '.join(dims)}{added}"


def compute_table(classes: Sequence[ClassSummary], when: str = "one step") -> Table:
    """A row per class; classes with the same numbers share one."""
    table = plain_table(f"one rank, {when}")
    table.add_column("class")
    for title in ("ranks", "nodes", "parameters", "their bytes"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("matrix FLOPs", "other FLOPs", "bytes moved"):
        table.add_column(title, justify="right", no_wrap=True)

    def numbers(each: ClassSummary) -> tuple[str, ...]:
        return (
            f"{each.num_nodes:,}",
            f"{each.parameters.count:,}",
            f"{amount(each.parameters.num_bytes)}B",
            amount(each.matrix_flops).strip(),
            amount(each.other_flops).strip(),
            f"{amount(each.bytes_moved)}B",
        )

    for row, members in grouped(classes, numbers).items():
        ranks = sum(classes[number].num_ranks for number in members)
        table.add_row(label(classes, members), f"{ranks:,}", *row)
    return table


def traffic_table(classes: Sequence[ClassSummary], when: str = "one step") -> Table:
    """The same for communication."""
    table = plain_table(f"communication of one rank, {when}")
    table.add_column("class")
    table.add_column("over", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for title in ("count", "bytes before", "bytes after"):
        table.add_column(title, justify="right", no_wrap=True)
    for traffic, members in grouped(classes, lambda each: each.traffic).items():
        name = label(classes, members)
        for row in traffic:
            table.add_row(
                name,
                ", ".join(row.axes) or "host",
                row.kind,
                f"{row.count:,}",
                f"{amount(row.operand_bytes)}B",
                f"{amount(row.result_bytes)}B",
            )
            name = ""
    return table


def grouped(
    classes: Sequence[ClassSummary], key: Callable[[ClassSummary], Key]
) -> dict[Key, list[int]]:
    """The numbers of the classes that are alike, in the order of the first of each."""
    found: dict[Key, list[int]] = {}
    for number, each in enumerate(classes):
        found.setdefault(key(each), []).append(number)
    return found


def label(classes: Sequence[Named], members: Sequence[int]) -> str:
    """`pp0, pp2-pp7`: three and more in a row by the first and the last."""
    parts: list[str] = []
    for _, run in groupby(enumerate(members), key=lambda pair: pair[1] - pair[0]):
        names = [classes[number].name for _, number in run]
        parts += [f"{names[0]}-{names[-1]}"] if len(names) > 2 else names
    return ", ".join(parts)


def plain_table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
