"""Comparisons as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from rich.text import Text

from stagec.cli.tables import plain_table, text_of
from stagec.comparing.comparison import BYTES, AmountChange, Comparison
from stagec.diagnostics import printable
from stagec.pictures.scales import amount

MOST_ROWS = 60
"""Rows of a table; more are counted."""

EXACT_BELOW = 100_000
"""Counts below are shown in full."""


def sections_text(comparisons: Iterable[Comparison], show_all: bool) -> str:
    """A table for each section with a difference, or for each if all are wanted."""
    texts = [
        section_text(each, show_all)
        for each in comparisons
        if each.differing or (show_all and each.changes)
    ]
    return "\n".join(texts)


def section_text(comparison: Comparison, show_all: bool) -> str:
    """One row per amount: what it was, what it is, and the change."""
    changes = list(comparison.changes) if show_all else comparison.differing
    table = plain_table("")
    table.title = None  # a table's own title is broken to the width of the table
    for key in comparison.keys:
        table.add_column(key, overflow="fold")
    table.add_column("what", no_wrap=True)
    for title in ("A", "B", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    last: tuple[str, ...] = ()
    for change in changes[:MOST_ROWS]:
        key = change.key if change.key != last else ("",) * len(change.key)
        last = change.key
        before, after = change.means
        shown = [shown_amount(change.what, each) for each in (before, after)]
        # Names are the traces': no markup, and nothing that moves a cursor.
        parts = [Text(printable(part)) for part in key]
        table.add_row(*parts, change.what, *shown, change_text(change))
    lines = f"{comparison.title}\n{text_of(table)}"
    if len(changes) > MOST_ROWS:
        lines += f"{len(changes) - MOST_ROWS:,} more rows; `--format json` lists them\n"
    return lines


def shown_amount(what: str, number: Fraction) -> str:
    """Bytes with a unit; counts in full if they are small."""
    whole = round(number)
    if what in BYTES:
        return f"{amount(whole)}B"
    if number.denominator != 1 and number < 1000:
        return f"{float(number):.4g}"
    return f"{whole:,}" if whole < EXACT_BELOW else amount(whole).strip()


def change_text(change: AmountChange) -> str:
    """`+ 12.5 %`, `x 4`, `new` or `gone`; a change too small for that in full."""
    before, after = change.means
    if before == after:
        return ""
    if not before:
        return "new"
    if not after:
        return "gone"
    ratio = after / before
    if ratio >= 2 or ratio <= Fraction(1, 2):
        factor = ratio if ratio >= 2 else 1 / ratio
        return f"{'x' if ratio >= 2 else '/'} {float(factor):.4g}"
    percent = float(abs(ratio - 1) * 100)
    sign = "+" if ratio > 1 else "-"
    if percent < 0.01:
        return f"{sign} {shown_amount(change.what, abs(after - before))}"
    return f"{sign} {percent:.3g} %"


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Every amount, equal or not, as exact sums over `ranks` ranks."""
    return {
        "title": comparison.title,
        "rows": [
            {
                **dict(zip(comparison.keys, change.key, strict=True)),
                "what": change.what,
                "a": change.before,
                "b": change.after,
                "ranks": list(change.num_ranks),
                "differs": change.differs,
            }
            for change in comparison.changes
        ],
    }
