"""The search among plans that serve: memory and time of each are found as a compilation would say them.

Where sequences are alike, plans that differ in sizes are one compilation, and all of them are asked for. Else each plan is compiled: of plans that
differ in their number of sequences some are, with more and more sequences until one needs too much, and then those beside the best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stagec.searching.candidates import TOO_LATE
from stagec.searching.questions import SearchStep
from stagec.searching.serving_space import STEPS
from stagec.searching.space import Point
from stagec.sweeping.run import STEP_TIME

NOT_ASKED = "more sequences than with which a plan needs too much, or not beside the best"


class Exact(SearchStep):
    """Of one search."""

    def evaluate(self) -> None:
        numbers = range(len(self.candidates.points))
        assert self.goal.iteration is not None
        if self.goal.iteration.is_alike:
            self.ask(numbers)
            return
        rows = [*by_sequences(self.candidates.points)]
        waiting = [row[::STEPS] for row in rows]
        while waiting:
            self.ask(row[0] for row in waiting)
            waiting = [row[1:] for row in waiting if row[1:] and self.is_good(row[0])]
        places = {number: (row, at) for row in rows for at, number in enumerate(row)}
        fresh = True
        while fresh:
            best = (places[n] for n in self.candidates.ranked()[: self.goal.top])
            beside = {n for row, at in best for n in row[max(at - 1, 0) : at + 2]}
            fresh = [n for n in beside if "step" not in self.candidates.known[n]]
            self.ask(fresh)
        self.outcome.reasons[NOT_ASKED] += sum("step" not in k for k in self.candidates.known)

    def ask(self, numbers: Iterable[int]) -> None:
        candidates, outcome = self.candidates, self.outcome
        tasks = self.questions.tasks(candidates.chosen(numbers), None)
        for found in self.questions.evaluated([*tasks]):
            candidates.note(found)
            for number in found.numbers:
                step = candidates.known[number].pop(STEP_TIME)
                candidates.known[number]["step"] = step
                outcome.num_outlined += step == step
                outcome.reasons[TOO_LATE] += step > self.goal.within
            self.told("closed forms", outcome.num_outlined, len(candidates.points))

    def is_good(self, number: int) -> bool:
        return self.candidates.known[number]["step"] <= self.goal.within


def by_sequences(points: Sequence[Point]) -> Iterable[list[int]]:
    """Plans that differ in nothing else, the fewest sequences first."""
    rows: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, point in enumerate(points):
        rows[tuple(v for name, v in point.items() if name not in ("batch", "tokens"))].append(
            number
        )
    for row in rows.values():
        yield sorted(row, key=lambda number: int(points[number]["batch"]))
