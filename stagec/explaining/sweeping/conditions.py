"""Which plans of a sweep are the same program, and which cannot be compiled: by what one compilation asked of sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from stagec.explaining.sweeping.vectors import Columns, Ratio, times
from stagec.frontend import CheckedModel
from stagec.symbolic import Size
from stagec.symbolic.conditions import RELATIONS, Condition, Conditions


@dataclass
class Feasible:
    """The plans that are left, and how many were dropped for each reason."""

    left: np.ndarray
    reasons: Counter[str] = field(default_factory=Counter)

    def require(self, holds: np.ndarray, reason: str) -> None:
        dropped = self.left & ~np.asarray(holds, bool)
        number = int(dropped.sum())
        if number:
            self.reasons[reason] += number
            self.left = self.left & ~dropped

    def drop(self, rows: np.ndarray, reason: str) -> None:
        holds = np.ones(len(self.left), bool)
        holds[rows] = False
        self.require(holds, reason)


@dataclass(frozen=True)
class Verdict:
    """What a compilation tells of other plans."""

    same: np.ndarray
    """Those that are the same program, or fail in the same way."""
    refused: tuple[tuple[np.ndarray, str], ...]
    """Those that do not meet a demand on the way there, and which."""


def verdict(asked: Conditions, sizes: Columns, is_compiled: bool) -> Verdict:
    """Follow a compilation with the numbers of other plans, as far as they answer as it did."""
    same = np.ones(sizes.count, bool)
    refused: list[tuple[np.ndarray, str]] = []
    for condition in asked.found:
        answer = answers(condition, sizes, asked.definitions)
        if answer is None:
            # Of names that these plans have not: then each is compiled.
            return Verdict(np.zeros(sizes.count, bool), tuple(refused))
        if condition.is_demand and (condition.holds or not is_compiled):
            failing = same & ~answer
            if failing.any():
                refused.append((failing, condition.reason))
            if not condition.holds:
                return Verdict(np.zeros(sizes.count, bool), tuple(refused))
        same &= answer == condition.holds
    return Verdict(same, tuple(refused))


def answers(
    condition: Condition, sizes: Columns, definitions: Mapping[str, Size]
) -> np.ndarray | None:
    """The answer of each plan; nothing where a name has no number."""
    asked = [written_out(size, definitions, sizes.names) for size in condition.sizes]
    if any(not size.names <= sizes.names.keys() for size in asked):
        return None
    if condition.test == "whole":
        return sizes.whole(asked[0])
    numbers = [sizes.ratio(size) for size in asked]
    if isinstance(condition.test, str):
        left, right = numbers
        relation = RELATIONS[condition.test]
        a, b = times(left.top, right.bottom), times(right.top, left.bottom)
        return np.asarray(relation(a, b), bool)
    return each_distinct(condition, numbers)


def each_distinct(condition: Condition, numbers: list[Ratio]) -> np.ndarray:
    """A question of its own, asked once for plans that have the same numbers."""
    assert not isinstance(condition.test, str)
    columns = [column.tolist() for each in numbers for column in (each.top, each.bottom)]
    known: dict[tuple[int, ...], bool] = {}
    found: list[bool] = []
    for row in zip(*columns, strict=True):
        if row not in known:
            pairs = zip(row[::2], row[1::2], strict=True)
            known[row] = condition.test(*(Fraction(top, bottom) for top, bottom in pairs))
        found.append(known[row])
    return np.array(found, bool)


def written_out(size: Size, definitions: Mapping[str, Size], known: Collection[str]) -> Size:
    """A size without the names that the compiler made."""
    while made := {n: definitions[n] for n in size.names if n not in known and n in definitions}:
        size = size.substitute(made)
    return size


def with_definitions(sizes: Columns, definitions: Mapping[str, Size]) -> Columns:
    """The same plans, with numbers for the names that the compiler made."""
    made: dict[str, np.ndarray] = {}
    for name in definitions:
        size = written_out(definitions[name], definitions, sizes.names)
        if name not in sizes.names and size.names <= sizes.names.keys():
            made[name] = sizes.number(size)
    return Columns({**sizes.names, **made}, sizes.count)


def named_sizes(
    checked: CheckedModel,
    columns: Mapping[str, np.ndarray],
    count: int,
    leave: Collection[str] = (),
) -> Columns:
    """The values of all names; those that are varied are given. A fraction is rounded up: compilation refuses it.

    Of a dim that a rule pads, what is given is the size that the text has.
    """
    table = checked.sizes
    columns = {table.unpadded.get(name, name): column for name, column in columns.items()}
    leave = {table.unpadded.get(name, name) for name in leave}
    found = Columns(dict(columns), count)
    pending = {
        name: entry.size
        for entries in (table.dims, table.axes)
        for name, entry in entries.items()
        if name not in columns and name not in leave
    }
    while True:
        for name, parts in table.products.items():
            if name not in found.names and all(part in found.names for part in parts):
                product = found.constant(1)
                for part in parts:
                    product = times(product, found.names[part])
                found.names = {**found.names, name: product}
        ready = [n for n, size in pending.items() if size.names <= found.names.keys()]
        if not ready:
            return found
        for name in ready:
            found.names = {**found.names, name: found.number(pending.pop(name))}
