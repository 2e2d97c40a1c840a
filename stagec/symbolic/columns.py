"""Sizes under many values of their names at once, exactly: `int64` where products stay below 2**62, Python's integers where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stagec.symbolic.algebra import OpaqueCall, Size

Column = np.ndarray
"""One number per plan; `int64`, or objects that are integers."""

LIMIT = 2.0**62


@dataclass(frozen=True)
class Ratio:
    """A number per plan, as a fraction."""

    top: Column
    bottom: Column


@dataclass
class Columns:
    """The values of names in some plans, and the sizes that were evaluated of them."""

    names: Mapping[str, Column]
    count: int
    definitions: Mapping[str, Size] = field(default_factory=dict)
    """What further names stand for. They may be divided by, as a size can only be by a product."""
    _ratios: dict[Size, Ratio] = field(default_factory=dict)
    _numbers: dict[Size, Column] = field(default_factory=dict)

    def ratio(self, size: Size) -> Ratio:
        """The exact number of each plan."""
        if size not in self._ratios:
            self._ratios[size] = self._sum(size)
        return self._ratios[size]

    def whole(self, size: Size) -> np.ndarray:
        """For each plan, whether the size is a whole number."""
        found = self.ratio(size)
        return np.asarray(found.top % found.bottom == 0, bool)

    def number(self, size: Size) -> Column:
        """Rounded up: a fraction of an operation counts as a whole one."""
        if size not in self._numbers:
            found = self.ratio(size)
            self._numbers[size] = -(-found.top // found.bottom)
        return self._numbers[size]

    def has(self, size: Size) -> bool:
        """Whether all its names have values."""
        return all(
            name in self.names or (name in self.definitions and self.has(self.definitions[name]))
            for name in size.names
        )

    def constant(self, value: int) -> Column:
        return np.full(self.count, value, np.int64 if abs(value) < LIMIT else object)

    def _sum(self, size: Size) -> Ratio:
        terms = [self._term(monomial, coefficient) for monomial, coefficient in size.terms]
        if not terms:
            return Ratio(self.constant(0), self.constant(1))
        if len(terms) == 1:
            return terms[0]
        if all(np.all(term.top % term.bottom == 0) for term in terms):
            total = terms[0].top // terms[0].bottom
            for term in terms[1:]:
                total = add(total, term.top // term.bottom)
            return Ratio(total, self.constant(1))
        total = terms[0]
        for term in terms[1:]:
            top = add(times(total.top, term.bottom), times(term.top, total.bottom))
            total = Ratio(top, times(total.bottom, term.bottom))
        return total

    def _term(self, monomial: Sequence, coefficient) -> Ratio:
        top, bottom = self.constant(coefficient.numerator), self.constant(coefficient.denominator)
        for atom, exponent in monomial:
            base = self._atom(atom)
            if exponent < 0:
                base = Ratio(base.bottom, base.top)
            for _ in range(abs(exponent)):
                top, bottom = times(top, base.top), times(bottom, base.bottom)
        return Ratio(top, bottom)

    def _atom(self, atom: str | OpaqueCall) -> Ratio:
        if isinstance(atom, str):
            if atom not in self.names:
                return self.ratio(self.definitions[atom])
            return Ratio(self.names[atom], self.constant(1))
        arguments = [self.ratio(argument) for argument in atom.arguments]
        first = arguments[0]
        if atom.function in ("max", "min"):
            for other in arguments[1:]:
                left, right = times(first.top, other.bottom), times(other.top, first.bottom)
                wanted = left >= right if atom.function == "max" else left <= right
                first = Ratio(
                    np.where(wanted, first.top, other.top),
                    np.where(wanted, first.bottom, other.bottom),
                )
            return first
        other = arguments[1]
        top, bottom = times(first.top, other.bottom), times(first.bottom, other.top)
        if atom.function == "ceildiv":
            return Ratio(-(-top // bottom), self.constant(1))
        if atom.function == "floordiv":
            return Ratio(top // bottom, self.constant(1))
        whole = top // bottom
        shared = times(first.bottom, other.bottom)
        rest = add(times(first.top, other.bottom), -times(whole, times(other.top, first.bottom)))
        return Ratio(rest, shared)


def largest(column: Column) -> float:
    if not len(column):
        return 0.0
    if column.dtype == object:
        return float(max(abs(x) for x in column))
    return float(np.abs(column).max())


def times(left: Column, right: Column) -> Column:
    """The exact product."""
    if left.dtype == object or right.dtype == object or largest(left) * largest(right) >= LIMIT:
        return reduced(left.astype(object) * right.astype(object))
    return left * right


def add(left: Column, right: Column) -> Column:
    """The exact sum."""
    if left.dtype == object or right.dtype == object or largest(left) + largest(right) >= LIMIT:
        return reduced(left.astype(object) + right.astype(object))
    return left + right


def reduced(column: Column) -> Column:
    """Machine integers again where all fit."""
    return column.astype(np.int64) if largest(column) < LIMIT else column
