"""The points (possible plans) of a search, and what is known of each of them so far."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stagec.searching.coarse_times import LEAST, STEP
from stagec.searching.evaluation import HELD, Found
from stagec.searching.results import Goal, Outcome
from stagec.searching.serving_space import serving_points
from stagec.searching.space import Point, Space, points
from stagec.sweeping.run import PEAK

FURTHER = 6
"""How many plans beyond those that are wanted are compiled whole, if their bounds leave it open whether they are better. Further ones are compiled only if
they might be better judging by how far the outlines of compiled plans were off."""
TOO_LARGE = "a rank needs more memory than its device has"
STATE_TOO_LARGE = "parameters and optimizer state alone need more memory than a device has"
TOO_LATE = "a step takes longer than it may"
ROUGHLY = 1.1
"""The outline of a step's time may be this many times the limit on the time, since outlines are rough."""


class Candidates:
    """The points of a search and the numbers that are known of each (`known`, by name). `outcome` counts why points are left out."""

    def __init__(self, goal: Goal, spaces: Iterable[Space]) -> None:
        self.goal = goal
        self.outcome = Outcome()
        self.points: list[dict[str, int | str]] = []
        for devices, space in zip(goal.devices, spaces, strict=True):
            if goal.iteration is None:
                self.points += points(space, goal.dims, devices, goal.batch)
            else:
                self.points += serving_points(space, goal.dims, devices, goal.iteration)
            self.outcome.reasons.update(space.left_out)
            self.outcome.untried.update(space.untried)
        self.outcome.num_points = len(self.points)
        self.known: list[dict[str, float]] = [{} for _ in self.points]
        self.left: set[int] = set()
        """The numbers of the points that no bound on memory has left out."""

    @property
    def wanted(self) -> int:
        """How many plans the rounds look for. Where times decide, these are more than the user wants, as outlines may rank plans a little differently."""
        return self.goal.top + (max(self.goal.top, FURTHER) if self.goal.is_timed else 0)

    @property
    def evaluated(self) -> str:
        """The name of the number that decides which plans are best: a point that has it was evaluated."""
        return STEP if self.goal.is_timed else PEAK

    def chosen(self, numbers: Iterable[int]) -> dict[int, Point]:
        """The points with these numbers."""
        return {number: self.points[number] for number in numbers}

    def note(self, found: Found) -> None:
        for name, column in found.columns.items():
            for number, value in zip(found.numbers, column, strict=True):
                known = self.known[number]
                # What its own structure holds at least, or one that does less and that it is stored as.
                known[name] = max(value, known.get(HELD, 0.0)) if name == HELD else value
        self.outcome.reasons.update(found.reasons)

    def value(self, number: int) -> float:
        """What is minimised, by what is known of a point so far: not more than its real value, if that is only bounded yet."""
        known = self.known[number]
        if not self.goal.rises and self.evaluated not in known:
            return -np.inf
        return self.would_be(number, 1.0)

    def ranked(self) -> list[int]:
        """The numbers of the points that were evaluated and not refused, the best by what is known first."""
        known = enumerate(self.known)
        found = [n for n, k in known if k.get(self.evaluated, 0.0) > 0 and not self.is_refused(n)]
        return sorted((n for n in found if self.value(n) < np.inf), key=self.value)

    def may_fit(self, number: int) -> bool:
        """Whether what is known of a point's memory does not exceed the limit."""
        known = self.known[number]
        needs = known.get(PEAK, known.get(HELD, np.nan))
        return needs == needs and (self.goal.memory is None or needs <= self.goal.memory)

    def refuse(self, number: int) -> None:
        """Refuse a point that needs too much memory, and count that if it is a plan at all."""
        known = self.known[number]
        if known.get(STEP, np.nan) == known.get(STEP, np.nan):
            self.outcome.reasons[TOO_LARGE] += 1
        known[STEP] = float("nan")

    def is_refused(self, number: int) -> bool:
        """Whether a point turned out to be no plan, or not to fit."""
        step = self.known[number].get(STEP, 0.0)
        return step != step

    def bound(self, number: int) -> float:
        """A lower bound on what is minimised, for one point."""
        known = self.known[number]
        if not self.goal.rises:
            return -np.inf
        least = known.get(LEAST, known.get(STEP, 0.0))
        if least > self.goal.within:
            return np.inf
        return self.goal.value(self.points[number], least, known.get(PEAK, known.get(HELD, 0.0)))

    def would_be(self, number: int, ratio: float) -> float:
        """What is minimised, if a plan takes `ratio` times as long as its outline says, or as a bound on it if it has no outline."""
        known = self.known[number]
        step = known.get(STEP, known.get(LEAST, 0.0)) * ratio
        if step > self.goal.within * (ROUGHLY if self.goal.iteration is None else 1):
            return np.inf
        return self.goal.value(self.points[number], step, known.get(PEAK, known.get(HELD, 0.0)))
