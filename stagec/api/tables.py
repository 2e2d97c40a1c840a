"""Tables of plain values: dictionaries of columns, which pandas and polars take as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from stagec.pictures.elements import element, escape
from stagec.pictures.page import resource, table as html_table
from stagec.sweeping.run import SweepTable

MOST_SHOWN = 60
"""Rows of a table that are printed."""


class Table(dict[str, list[Any]]):
    """Columns of equal length, by name. Numbers are whole: bytes, FLOPs, counts; times are floats in seconds or µs, as named.

    `pandas.DataFrame(table)` and `polars.DataFrame(table)` work, and so does iterating over `table.rows()`.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], title: str = "") -> None:
        super().__init__({name: list(column) for name, column in columns.items()})
        self.title = title

    @staticmethod
    def of_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Table:
        """From rows of values in the order of the names."""
        found = [list(row) for row in rows]
        return Table({name: [row[i] for row in found] for i, name in enumerate(names)}, title)

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.values()), []))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row by the names of its columns."""
        for number in range(self.num_rows):
            yield {name: column[number] for name, column in self.items()}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; pandas has to be installed."""
        return import_module("pandas").DataFrame(dict(self))

    def to_polars(self) -> Any:
        """A `polars.DataFrame`; polars has to be installed."""
        return import_module("polars").DataFrame(dict(self))

    def __repr__(self) -> str:
        head = list(self)
        lines = [[said(v) for v in row.values()] for row in self.shown()]
        widths = (
            [max(map(len, column)) for column in zip(head, *lines, strict=True)] if head else []
        )
        parts = [self.title] if self.title else []
        for line in (head, *lines):
            cells = [
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            parts.append("  ".join(cells).rstrip())
        return "\n".join([*parts, *self.left_out()])

    def _repr_html_(self) -> str:
        lines = [[said(v) for v in row.values()] for row in self.shown()]
        rest = "".join(element("p", escape(text)) for text in self.left_out())
        return framed(html_table(list(self), lines, self.title) + rest)

    def shown(self) -> list[dict[str, Any]]:
        return [row for row, _ in zip(self.rows(), range(MOST_SHOWN), strict=False)]

    def left_out(self) -> list[str]:
        rest = self.num_rows - MOST_SHOWN
        return [f"... {rest:,} more rows"] if rest > 0 else []


def said(value: object) -> str:
    """`1,339,131,904`, `0.1344`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def framed(content: str) -> str:
    """A picture or a table of a notebook, with its style, which holds for it alone."""
    style = resource("page.css").replace("body {", ".stagec {").replace(":root {", ".stagec-root {")
    rules = "\n".join(
        line if line.startswith((".stagec", "}")) else f".stagec {line}"
        for line in style.splitlines()
        if line.strip()
    )
    return element("div", element("style", rules), content, class_="stagec")


class SweptTable(Table):
    """The plans of a sweep. It prints how many there are, and why the others do not compile, as the command does."""

    def __init__(self, found: SweepTable) -> None:
        columns = {name: column.tolist() for name, column in found.columns.items()}
        super().__init__(columns, "one step; of the rank that has most")
        self.num_plans = found.num_points
        """How many plans were asked for."""
        self.infeasible = dict(found.reasons)
        """Why plans are no rows, and how many for each reason."""
        self._in_words = found.in_words()

    def left_out(self) -> list[str]:
        return [*super().left_out(), *self._in_words]
