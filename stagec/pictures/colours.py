"""Colours that most people can tell apart (Okabe and Ito 2008, "Color Universal Design"), and lighter ones of each."""

from __future__ import annotations

SERIES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#b8a900",
    "#7a5195",
    "#8c8c8c",
    "#004d66",
    "#99610a",
    "#66c2a5",
)


def colour(number: int) -> str:
    """The colour of the n-th series. Colours start again after the last."""
    return SERIES[number % len(SERIES)]


def shade(share: float) -> str:
    """White for 0, dark blue for 1: a colour of a heat map."""
    light, dark = (247, 251, 255), (8, 48, 107)
    mixed = (round(a + (b - a) * share) for a, b in zip(light, dark, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)
