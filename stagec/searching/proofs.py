"""The proof of a search: the best plans by closed forms are compiled whole, and so are further ones that might be among the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.backend.running_tasks import abandon
from stagec.pictures.charts import front
from stagec.searching.candidates import FURTHER, TOO_LATE
from stagec.searching.coarse_times import STEP
from stagec.searching.evaluation import HELD, NO_MEMORY
from stagec.searching.questions import SearchStep
from stagec.searching.results import Proved, in_order, least_ratio
from stagec.searching.whole_plans import WholeAnswer
from stagec.sweeping.run import PEAK

PROVED_AT_A_TIME = 2
"""How many plans are compiled at a time, once as many as are wanted were compiled."""


@dataclass
class Proofs(SearchStep):
    """The step of a search that compiles plans whole."""

    answers: dict[int, WholeAnswer] = field(default_factory=dict)
    """The results of the plans that were compiled whole, by the number of the point."""

    def prove(self, ranked: Sequence[int]) -> None:
        """Compile the best of the points `ranked`, as many as are wanted, and then others that may be better by their lower bounds: a few of them, and all
        that would be better if their outlines were as far off as the worst one so far.
        """
        found: list[Proved] = []
        waiting = list(ranked)
        try:
            while waiting:
                missing = self.goal.top - len(found)
                if missing <= 0:
                    found.sort(key=in_order)
                    last = found[self.goal.top - 1].value
                    waiting = [n for n in waiting if self.candidates.bound(n) < last]
                    if len(self.answers) >= self.goal.top + FURTHER:
                        ratio = least_ratio(found)
                        waiting = [n for n in waiting if self.candidates.would_be(n, ratio) < last]
                now = waiting[: missing if missing > 0 else PROVED_AT_A_TIME]
                waiting = waiting[len(now) :]
                found += self.compiled(now, len(waiting))
            found.sort(key=in_order)
            if not self.outcome.interrupted:
                self.test(found)
                self.outcome.compiled = list(found)
                if self.goal.wants_front:
                    self.outcome.compiled += self.compiled(self.on_front(found))
        except KeyboardInterrupt:
            self.outcome.interrupted = True
            abandon(self.questions.executor)
            found.sort(key=in_order)
        self.outcome.proved = found[: self.goal.top]
        self.outcome.compiled = self.outcome.compiled or found
        if found and not self.outcome.interrupted:
            self.judge(found)

    def compiled(self, numbers: Sequence[int], waiting: int = 0) -> list[Proved]:
        """The points with these numbers that fit, compiled whole. `waiting` is the number of further ones, for the report of progress."""
        self.compile([n for n in numbers if self.candidates.may_fit(n)], waiting)
        good = (n for n in numbers if n in self.answers and not self.candidates.is_refused(n))
        return [self.proved(n) for n in good]

    def compile(self, numbers: Iterable[int], waiting: int = 0) -> None:
        """Compile points that were not compiled before. Afterwards it is known what they need, and whether they are plans at all."""
        proofs = [
            self.questions.whole(n, self.plan(n), False) for n in numbers if n not in self.answers
        ]
        for answer in self.questions.compiled_whole(proofs):
            self.answers[answer.number] = answer
            self.told("whole compilations", len(self.answers), len(self.answers) + waiting)
            self.note(answer)

    def on_front(self, found: Sequence[Proved]) -> list[int]:
        """The numbers of further points on the front of time and memory: no other point, by what is known, is both faster and smaller. The fastest come first;
        there are at most as many as are wanted.
        """
        candidates, compiled = self.candidates, {id(each.point) for each in found}
        numbers = [n for n in candidates.ranked() if candidates.may_fit(n)]
        known = [candidates.known[n] for n in numbers]
        pairs = [(each[STEP], each.get(PEAK, each[HELD])) for each in known]
        chosen = [i for i in front(pairs) if id(candidates.points[numbers[i]]) not in compiled]
        chosen.sort(key=lambda i: pairs[i])
        return [numbers[i] for i in chosen[: self.goal.top]]

    def judge(self, found: Sequence[Proved]) -> None:
        """Note how many of the best plans are certain to be the best by the lower bounds of all others; and, for the others, how far off their outlines would
        have to be for one of them to be better.
        """
        candidates, outcome, best = self.candidates, self.outcome, found[0].value
        last = found[: self.goal.top][-1].value
        others = [
            n
            for n in candidates.left - self.answers.keys()
            if not candidates.is_refused(n) and candidates.bound(n) < last
        ]
        least = min(map(candidates.bound, others), default=np.inf)
        outcome.num_sure = sum(each.value <= least for each in found[: self.goal.top])
        rivals = [candidates.value(n) for n in others if candidates.bound(n) < best]
        outcome.num_rivals = len(rivals)
        if rivals and best > 0 and self.goal.rises:
            outcome.nearest = best / min(rivals)
            outcome.least_ratio = least_ratio(found)

    def test(self, found: list[Proved]) -> None:
        """Estimate the best plans again on devices with twice of one number each."""
        proofs = [
            self.questions.whole(n, each.text, True)
            for n, each in enumerate(found[: self.goal.tested])
        ]
        for answer in self.questions.compiled_whole(proofs):
            found[answer.number] = replace(found[answer.number], with_twice=answer.with_twice)

    def plan(self, number: int) -> str:
        """The text of a point's plan."""
        return self.questions.plan(self.candidates.points[number])

    def note(self, answer: WholeAnswer) -> None:
        """Note the result of a compilation, and where it differs from what closed forms said."""
        candidates, outcome = self.candidates, self.outcome
        point, known = candidates.points[answer.number], candidates.known[answer.number]
        if answer.error:
            if answer.lacks_memory:
                outcome.reasons[NO_MEMORY] += 1
            else:
                outcome.mismatches.append(f"{answer.error}: {point}")
            known[STEP] = float("nan")
            return
        if PEAK in known and answer.peak_bytes != int(known[PEAK]):
            said = f"{int(known[PEAK]):,} B by closed forms, {answer.peak_bytes:,} B compiled"
            outcome.mismatches.append(f"memory.peak is {said}: {point}")
        known[PEAK] = float(answer.peak_bytes)
        if not candidates.may_fit(answer.number):
            candidates.refuse(answer.number)
        elif answer.step_time > self.goal.within:
            outcome.reasons[TOO_LATE] += 1
            known[STEP] = float("nan")

    def proved(self, number: int) -> Proved:
        """A point that was compiled, as a result of the search."""
        answer = self.answers[number]
        point, known = self.candidates.points[number], self.candidates.known[number]
        return Proved(
            point=point,
            text=self.plan(number),
            step_time=answer.step_time,
            peak_bytes=answer.peak_bytes,
            # A plan that was asked for its memory alone has none.
            rough_step=known.get(STEP, answer.step_time),
            parts=answer.parts,
            idle=answer.idle,
            value=self.goal.value(point, answer.step_time, float(answer.peak_bytes)),
        )
