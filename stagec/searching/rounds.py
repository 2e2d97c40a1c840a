"""The best by closed forms, round by round: the most promising structures are asked for, until no other can have a better plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.searching.bounds import BESIDES, behind, bound_of, is_behind
from stagec.searching.candidates import Candidates
from stagec.searching.coarse_times import LEAST
from stagec.searching.proofs import Proofs
from stagec.searching.questions import SearchStep
from stagec.searching.space import Point
from stagec.searching.texts import in_turn, is_bucketed, text_key
from stagec.sweeping.run import PEAK

AT_A_TIME = 8
"""Structures that are asked for at a time, the most promising first: those that follow may be left out by what they say."""
PEAKS_AT_A_TIME = 32
"""Plans, where no time decides, and what they hold is asked at once."""
SLACK = 1.02
"""Of a structure that is compiled anyway, plans are evaluated that may be so much worse than what is enough, which rises when some of the best do not fit."""
TextKey = tuple[object, ...]
"""Of a structure: `text_key`."""


@dataclass
class Rounds(SearchStep):
    """Of one search."""

    proofs: Proofs

    def find_best(self) -> None:
        """The best that fit, by closed forms: of the structures the most promising first, until no other can have a better plan."""
        if not self.goal.is_timed:
            self.find_smallest()
            return
        candidates, queue = self.candidates, Queue(self.candidates)
        while True:
            best = candidates.ranked()[: candidates.wanted]
            enough = candidates.value(best[-1]) if len(best) == candidates.wanted else np.inf
            numbers = queue.take(enough)
            if numbers:
                queue.tighten(self.outline(numbers))
                self.told("closed forms", self.outcome.num_outlined, len(candidates.left))
                continue
            best = best[: self.goal.top]
            unknown = [n for n in best if PEAK not in candidates.known[n]]
            if not unknown:
                break
            self.peaks(unknown)
            self.told("memory, the fastest first", len(best) - len(unknown), len(best))
        self.count_undecided()

    def find_smallest(self) -> None:
        """Where only what plans hold decides: a bound by its own structure, then the peak, of those that may hold least, until all others hold more."""
        candidates, value = self.candidates, self.candidates.value
        waiting, bounded = {*candidates.left}, set[int]()
        while waiting:
            in_order = sorted(waiting, key=value)
            best = candidates.ranked()[: self.goal.top]
            if len(best) == self.goal.top and value(in_order[0]) >= value(best[-1]):
                break
            now = in_order[:PEAKS_AT_A_TIME]
            if fresh := {self.structure(n) for n in now if n not in bounded}:
                asked = [n for n in waiting - bounded if self.structure(n) in fresh]
                for found in self.answers(asked, in_turn):
                    self.refuse_large(found)
                bounded.update(asked)
            else:
                self.peaks(now)
                waiting.difference_update(now)
            waiting = {n for n in waiting if not candidates.is_refused(n)}
            self.told("closed forms", self.outcome.num_outlined, len(candidates.left))
        self.outcome.num_slower = len(waiting)

    def structure(self, number: int) -> TextKey:
        return structure_of(self.candidates.points[number])

    def outline(self, numbers: Sequence[int]) -> list[int]:
        """Those that are plans, whether they fit or not."""
        known, plans = self.candidates.known, list[int]()
        for found in self.answers(numbers, in_turn):
            self.outcome.num_outlined += len(found)
            plans += [number for number in found if known[number]["step"] > 0]
            self.refuse_large(found)
        return plans

    def peaks(self, numbers: Sequence[int]) -> None:
        """By closed forms, but for what these do not cover: that is compiled whole, as it would be in the end."""
        points = self.candidates.points
        whole = [n for n in numbers if self.goal.dims.is_training and is_bucketed(points[n])]
        for found in self.answers(sorted({*numbers} - {*whole}), None):
            self.outcome.num_outlined += 0 if self.goal.is_timed else len(found)
            self.refuse_large(found)
        self.proofs.compile(whole)

    def answers(
        self, numbers: Sequence[int], structure: Callable[[Point], Point] | None
    ) -> Iterator[tuple[int, ...]]:
        """Points of which more is known now."""
        tasks = self.questions.tasks(self.candidates.chosen(numbers), structure)
        for found in self.questions.evaluated(list(tasks)):
            self.candidates.note(found)
            yield found.numbers

    def refuse_large(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if not self.candidates.may_fit(number):
                self.candidates.refuse(number)

    def count_undecided(self) -> None:
        candidates = self.candidates
        proposed = set(candidates.ranked()[: self.goal.top])
        for number in candidates.left - proposed:
            step = candidates.known[number].get("step")
            self.outcome.num_slower += step is None
            self.outcome.num_undecided += step is not None and step == step


def structure_of(point: Point) -> TextKey:
    return text_key(in_turn(point))


class Queue:
    """The points that wait for their closed forms, by structure."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.waiting: dict[TextKey, list[int]] = defaultdict(list)
        self.further: dict[object, list[int]] = defaultdict(list)
        """Points that differ in what each does besides: see `behind`."""
        for number in candidates.left:
            if "step" in candidates.known[number]:
                continue
            point = candidates.points[number]
            self.waiting[structure_of(point)].append(number)
            self.further[self.alike(point)].append(number)
        self.least = {key: self.best_of(group) for key, group in self.waiting.items()}

    def alike(self, point: Point) -> object:
        return tuple(value for name, value in point.items() if name not in BESIDES)

    def best_of(self, group: Sequence[int]) -> float:
        return min(map(self.candidates.value, group))

    def take(self, enough: float) -> list[int]:
        """Points of the most promising structures that may be better than `enough`. Those that do what others do, and more, come behind them."""
        better = {key for key, least in self.least.items() if not least >= enough}
        in_order = sorted(filter(better.__contains__, self.least), key=self.least.__getitem__)
        now = [key for key in in_order if not any(self.first_of(key, better))][:AT_A_TIME]
        taken: list[int] = []
        for key in now:
            group = self.waiting.pop(key)
            chosen = [n for n in group if not self.candidates.value(n) >= enough * SLACK]
            taken += chosen
            # What is enough may be even more when some of the best turn out not to fit.
            rest = sorted({*group} - {*chosen})
            del self.least[key]
            if rest:
                self.waiting[key], self.least[key] = rest, self.best_of(rest)
        return taken

    def first_of(self, key: TextKey, better: Collection[TextKey]) -> Iterator[bool]:
        """Whether a structure does no more than what others that are better by their bounds do: for each of these."""
        point = self.candidates.points[self.waiting[key][0]]
        for less in behind(point):
            yield structure_of(less) in better

    def tighten(self, numbers: Iterable[int]) -> None:
        """What is known of plans is a bound for those that do more."""
        candidates = self.candidates
        changed: set[TextKey] = set()
        for number in numbers if candidates.goal.rises else ():
            point, known = candidates.points[number], candidates.known[number]
            for other in self.further[self.alike(point)]:
                further = candidates.points[other]
                if "step" in candidates.known[other] or not is_behind(further, point):
                    continue
                bound = known[bound_of(further, str(point["recompute"]))]
                if bound > candidates.known[other].get(LEAST, 0.0):
                    candidates.known[other][LEAST] = bound
                    changed.add(structure_of(further))
        for key in changed & self.least.keys():
            self.least[key] = self.best_of(self.waiting[key])
