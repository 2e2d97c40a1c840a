"""Find the best points by closed forms, round by round: the most promising structures are evaluated, until no other structure can have a better point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.searching.bounds import BESIDES, behind, bound_of, is_behind
from stagec.searching.candidates import Candidates
from stagec.searching.coarse_times import LEAST, STEP
from stagec.searching.model import ModelDims
from stagec.searching.proofs import Proofs
from stagec.searching.questions import SearchStep
from stagec.searching.space import Point
from stagec.searching.texts import in_turn, is_bucketed, text_key
from stagec.sweeping.run import PEAK

AT_A_TIME = 8
"""How many structures are evaluated at a time, the most promising first. What they say may leave out the structures behind them."""
PEAKS_AT_A_TIME = 32
"""How many points are asked for their peak of memory at a time, where memory alone decides."""
SLACK = 1.02
"""A structure that is compiled anyway has also those points evaluated that are worse than what is good enough, up to this factor. What is good enough rises
when some of the best points turn out not to fit, and then the structure need not be compiled again."""
TextKey = tuple[object, ...]
"""The key of a structure (`text_key`)."""


@dataclass
class Rounds(SearchStep):
    """The step of a search that finds the best points by closed forms."""

    proofs: Proofs

    def find_best(self) -> None:
        """Evaluate the most promising structures until the best points that fit are known, and no other point can be better."""
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
        """The same where memory alone decides: for the points that may hold least, first a better bound and then the peak, until all others hold more."""
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
        """The key of a point's structure."""
        return structure_of(self.candidates.points[number], self.goal.dims)

    def outline(self, numbers: Sequence[int]) -> list[int]:
        """Evaluate points in outline. Returns the numbers of those that are plans, whether they fit or not."""
        known, plans = self.candidates.known, list[int]()
        for found in self.answers(numbers, in_turn):
            self.outcome.num_outlined += len(found)
            plans += [number for number in found if known[number][STEP] > 0]
            self.refuse_large(found)
        return plans

    def peaks(self, numbers: Sequence[int]) -> None:
        """Find the peak of memory of some points: by closed forms, or by whole compilations of points that these do not cover."""
        points = self.candidates.points
        whole = [n for n in numbers if self.goal.dims.is_training and is_bucketed(points[n])]
        for found in self.answers(sorted({*numbers} - {*whole}), None):
            self.outcome.num_outlined += 0 if self.goal.is_timed else len(found)
            self.refuse_large(found)
        self.proofs.compile(whole)

    def answers(
        self, numbers: Sequence[int], structure: Callable[[Point, ModelDims], Point] | None
    ) -> Iterator[tuple[int, ...]]:
        """Ask about points, and note the answers. Each item has the numbers of the points of one answer."""
        tasks = self.questions.tasks(self.candidates.chosen(numbers), structure)
        for found in self.questions.evaluated(list(tasks)):
            self.candidates.note(found)
            yield found.numbers

    def refuse_large(self, numbers: Iterable[int]) -> None:
        """Refuse the points that are known not to fit."""
        for number in numbers:
            if not self.candidates.may_fit(number):
                self.candidates.refuse(number)

    def count_undecided(self) -> None:
        """Count the points that were not evaluated, or whose memory was not asked for."""
        candidates = self.candidates
        proposed = set(candidates.ranked()[: self.goal.top])
        for number in candidates.left - proposed:
            step = candidates.known[number].get(STEP)
            self.outcome.num_slower += step is None
            self.outcome.num_undecided += step is not None and step == step


def structure_of(point: Point, dims: ModelDims) -> TextKey:
    """The key of a point's structure: points with the same key are compiled together."""
    return text_key(in_turn(point, dims))


class Queue:
    """The points that were not evaluated yet, by structure, the most promising structures first."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.waiting: dict[TextKey, list[int]] = defaultdict(list)
        self.further: dict[object, list[int]] = defaultdict(list)
        """Groups of points that differ only in recomputation and storage (`BESIDES`), so that one may do all that another does, and more (`behind`)."""
        for number in candidates.left:
            if STEP in candidates.known[number]:
                continue
            point = candidates.points[number]
            self.waiting[self.structure(point)].append(number)
            self.further[self.alike(point)].append(number)
        self.least = {key: self.best_of(group) for key, group in self.waiting.items()}

    def structure(self, point: Point) -> TextKey:
        """The key of a point's structure."""
        return structure_of(point, self.candidates.goal.dims)

    def alike(self, point: Point) -> object:
        """The key of a point's group in `further`."""
        return tuple(value for name, value in point.items() if name not in BESIDES)

    def best_of(self, group: Sequence[int]) -> float:
        """The best value that a point of a group may have."""
        return min(map(self.candidates.value, group))

    def take(self, enough: float) -> list[int]:
        """Take out the points of the most promising structures that may be better than `enough`. A structure that does all that another one does, and more,
        waits for that one.
        """
        better = {key for key, least in self.least.items() if not least >= enough}
        in_order = sorted(filter(better.__contains__, self.least), key=self.least.__getitem__)
        now = [key for key in in_order if not any(self.first_of(key, better))][:AT_A_TIME]
        taken: list[int] = []
        for key in now:
            group = self.waiting.pop(key)
            chosen = [n for n in group if not self.candidates.value(n) >= enough * SLACK]
            taken += chosen
            # What is good enough may rise further when some of the best turn out not to fit.
            rest = sorted({*group} - {*chosen})
            del self.least[key]
            if rest:
                self.waiting[key], self.least[key] = rest, self.best_of(rest)
        return taken

    def first_of(self, key: TextKey, better: Collection[TextKey]) -> Iterator[bool]:
        """For each structure that does a part of what this one does, whether it is among those that may be `better` than what is enough, and so comes first."""
        point = self.candidates.points[self.waiting[key][0]]
        for less in behind(point):
            yield self.structure(less) in better

    def tighten(self, numbers: Iterable[int]) -> None:
        """Use what is known of these points as bounds for points that do more."""
        candidates = self.candidates
        changed: set[TextKey] = set()
        for number in numbers if candidates.goal.rises else ():
            point, known = candidates.points[number], candidates.known[number]
            for other in self.further[self.alike(point)]:
                further = candidates.points[other]
                if STEP in candidates.known[other] or not is_behind(further, point):
                    continue
                bound = known[bound_of(further, str(point["recompute"]))]
                if bound > candidates.known[other].get(LEAST, 0.0):
                    candidates.known[other][LEAST] = bound
                    changed.add(self.structure(further))
        for key in changed & self.least.keys():
            self.least[key] = self.best_of(self.waiting[key])
