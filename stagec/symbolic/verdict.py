"""Which sizes make the same program, and which cannot be compiled: by what one compilation asked of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stagec.symbolic.columns import Columns, Ratio, times
from stagec.symbolic.conditions import RELATIONS, Condition, Conditions


@dataclass(frozen=True)
class Verdict:
    """What a compilation tells of other plans."""

    same: np.ndarray
    """The plans that are the same program, or fail in the same way."""
    refused: tuple[tuple[np.ndarray, str], ...]
    """The plans that do not meet a demand on the way there, and which demand."""


def verdict(asked: Conditions, sizes: Columns, is_compiled: bool) -> Verdict:
    """Follow a compilation with the numbers of other plans, as far as they answer as it did."""
    sizes = Columns(sizes.names, sizes.count, asked.definitions)
    same = np.ones(sizes.count, bool)
    refused: list[tuple[np.ndarray, str]] = []
    for condition in asked.found:
        answer = answers(condition, sizes)
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


def answers(condition: Condition, sizes: Columns) -> np.ndarray | None:
    """The answer of each plan; nothing where a name has no number."""
    if not all(map(sizes.has, condition.sizes)):
        return None
    if condition.test == "whole":
        return sizes.whole(condition.sizes[0])
    numbers = [sizes.ratio(size) for size in condition.sizes]
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
