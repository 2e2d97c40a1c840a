"""A number of a text: what is written, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stagec.symbolic import Size


@dataclass(frozen=True)
class Quantity:
    """A number: the expression over named sizes, and what it comes to."""

    size: Size
    value: Fraction
