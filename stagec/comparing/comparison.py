"""Amounts of two sides, side by side: what a diff says, before anyone prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Key = tuple[str, ...]

BYTES = frozenset(
    {"bytes", "bytes before", "bytes after", "bytes moved", "communication", "memory"}
)
"""Amounts that are bytes."""

ORDER = (
    *("ranks", "parameters", "nodes", "count", "matrix FLOPs", "other FLOPs", "FLOPs"),
    *("bytes", "bytes before", "bytes after", "bytes moved", "communication", "memory"),
)
"""The order of the amounts of a key; others follow."""


@dataclass
class Section:
    """Amounts of one side by key. All keys of a section have the same parts, named in `keys`."""

    title: str
    keys: Sequence[str]
    rows: dict[Key, dict[str, int]] = field(default_factory=dict)
    num_ranks: int = 1
    """Ranks that the amounts are the sum of; tables show the mean."""
    per_job: frozenset[str] = frozenset()
    """Amounts that are no such sum."""

    def add(self, key: Key, **amounts: int) -> None:
        """Add to what there is. Amounts are named as they are shown, with `_` for a space."""
        row = self.rows.setdefault(key, {})
        for name, amount in amounts.items():
            what = name.replace("_", " ")
            row[what] = row.get(what, 0) + amount


@dataclass(frozen=True)
class AmountChange:
    """One amount of one key on both sides; sums over `num_ranks` ranks."""

    key: Key
    what: str
    before: int
    after: int
    num_ranks: tuple[int, int] = (1, 1)

    @property
    def means(self) -> tuple[Fraction, Fraction]:
        return Fraction(self.before, self.num_ranks[0]), Fraction(self.after, self.num_ranks[1])

    @property
    def differs(self) -> bool:
        before, after = self.means
        return before != after


@dataclass(frozen=True)
class Comparison:
    """A section of each side. `changes` has every amount that is not 0 on both."""

    title: str
    keys: tuple[str, ...]
    changes: tuple[AmountChange, ...]

    @property
    def differing(self) -> list[AmountChange]:
        return [change for change in self.changes if change.differs]


def compare(before: Section, after: Section) -> Comparison:
    """Rows in the order of the first side, then what only the second has."""
    assert before.keys == after.keys
    changes: list[AmountChange] = []
    for key in dict.fromkeys([*before.rows, *after.rows]):
        old, new = before.rows.get(key, {}), after.rows.get(key, {})
        for what in sorted({*old, *new}, key=place):
            whole = what in before.per_job
            ranks = (1, 1) if whole else (before.num_ranks, after.num_ranks)
            change = AmountChange(key, what, old.get(what, 0), new.get(what, 0), ranks)
            if change.before or change.after:
                changes.append(change)
    return Comparison(before.title, tuple(before.keys), tuple(changes))


def place(what: str) -> tuple[int, str]:
    return (ORDER.index(what) if what in ORDER else len(ORDER)), what


def differ(comparisons: Iterable[Comparison]) -> bool:
    return any(each.differing for each in comparisons)
