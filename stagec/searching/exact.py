"""The search among plans that serve, whose memory and time are computed exactly, as a compilation gives them.

Where all sequences are alike and no ranks share positions of caches, plans that differ in sizes alone need one compilation, so all of them are evaluated.
Otherwise each plan has to be compiled by itself. Then plans that differ only in their number of sequences are tried with more and more sequences, at least
twice as many each time, until one needs too much memory or time; after that, the plans next to the best ones are compiled. A number with which there is no
plan, as where experts do not divide the tokens, says nothing of others: the next one is tried in its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from stagec.searching.candidates import TOO_LATE
from stagec.searching.coarse_times import STEP
from stagec.searching.questions import SearchStep
from stagec.searching.space import Point
from stagec.sweeping.run import PEAK, STEP_TIME

NOT_ASKED = "more sequences than with which a plan needs too much, or not beside the best"


class Exact(SearchStep):
    """The step of a search that evaluates all plans that serve."""

    def evaluate(self) -> None:
        """Evaluate plans until the best ones are known."""
        points = self.candidates.points
        together = [n for n, point in enumerate(points) if self.is_one_of_many(point)]
        self.ask(together)
        rows = [*by_sequences(self.candidates.chosen({*range(len(points))} - {*together}))]
        waiting = rows
        while waiting:
            self.ask(row[0] for row in waiting)
            waiting = [left for row in waiting if (left := self.left_of(row))]
        places = {number: (row, at) for row in rows for at, number in enumerate(row)}
        fresh = bool(rows)
        while fresh:
            best = [places[n] for n in self.candidates.ranked() if n in places]
            sides = [
                s for row, at in best[: self.goal.top] for s in (row[at + 1 :], row[:at][::-1])
            ]
            beside = dict.fromkeys(map(self.nearest, sides))
            fresh = [n for n in beside if n is not None and STEP not in self.candidates.known[n]]
            self.ask(fresh)
        self.outcome.num_not_asked = sum(STEP not in k for k in self.candidates.known)
        self.outcome.reasons[NOT_ASKED] += self.outcome.num_not_asked

    def is_one_of_many(self, point: Point) -> bool:
        """Whether plans that differ from this one in sizes alone need one compilation. They do not where the parts of ranks differ."""
        assert self.goal.iteration is not None
        return self.goal.iteration.is_alike and point["dcp"] == 1

    def ask(self, numbers: Iterable[int]) -> None:
        """Evaluate the points with these numbers, and note their time and memory."""
        candidates, outcome = self.candidates, self.outcome
        tasks = self.questions.tasks(candidates.chosen(numbers), None)
        for found in self.questions.evaluated([*tasks]):
            candidates.note(found)
            for number in found.numbers:
                step = candidates.known[number].pop(STEP_TIME)
                candidates.known[number][STEP] = step
                outcome.num_outlined += step == step
                outcome.reasons[TOO_LATE] += step > self.goal.within
            self.told("closed forms", outcome.num_outlined, len(candidates.points))

    def left_of(self, row: list[int]) -> list[int]:
        """What is to be tried of a row whose first plan was: nothing where that needs too much memory or time."""
        if self.is_no_plan(row[0]):
            return row[1:]
        if not self.candidates.known[row[0]][STEP] <= self.goal.within:
            return []
        enough = 2 * self.sequences(row[0])
        return [number for number in row if self.sequences(number) >= enough]

    def sequences(self, number: int) -> int:
        return int(self.candidates.points[number]["batch"])

    def nearest(self, side: list[int]) -> int | None:
        """The first number of one side of a row that is a plan, or was not asked yet."""
        return next((number for number in side if not self.is_no_plan(number)), None)

    def is_no_plan(self, number: int) -> bool:
        """Whether a point was asked and does not compile. Of one that needs too much memory it is known how much."""
        known = self.candidates.known[number]
        return PEAK in known and known[PEAK] != known[PEAK]


def by_sequences(points: Mapping[int, Point]) -> Iterable[list[int]]:
    """Rows of the numbers of plans that differ in their number of sequences alone, the fewest sequences first."""
    rows: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, point in points.items():
        rows[tuple(v for name, v in point.items() if name not in ("batch", "tokens"))].append(
            number
        )
    for row in rows.values():
        yield sorted(row, key=lambda number: int(points[number]["batch"]))
