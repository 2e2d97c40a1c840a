"""A search from the first bound to the last proof: bounds leave points out, closed forms find the best, and whole compilations prove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path

from stagec.backend.running_tasks import abandon
from stagec.searching.bounds import Bounds
from stagec.searching.cache import SearchCache
from stagec.searching.candidates import Candidates
from stagec.searching.exact import Exact
from stagec.searching.proofs import Proofs
from stagec.searching.questions import Questions
from stagec.searching.results import Goal, Outcome
from stagec.searching.rounds import Rounds
from stagec.searching.space import Space


class Search:
    """One search. `told(stage, done, of)` is called to tell the user of progress, `on_interrupt()` after Ctrl-C, where plans are known to be
    proved then. `cache` is a file with the answers of earlier searches.
    """

    def __init__(
        self,
        goal: Goal,
        spaces: Iterable[Space],
        executor: Executor,
        cache: Path | None = None,
        told: Callable[[str, int, int], None] | None = None,
        on_interrupt: Callable[[], object] = lambda: None,
    ) -> None:
        self.on_interrupt = on_interrupt
        known, told = SearchCache(cache, goal.beside), told or (lambda stage, done, of: None)
        self.candidates = Candidates(goal, spaces)
        self.questions = Questions(goal, executor, known)
        self.bounds = Bounds(self.candidates, self.questions, told)
        self.exact = Exact(self.candidates, self.questions, told)
        self.proofs = Proofs(self.candidates, self.questions, told)
        self.rounds = Rounds(self.candidates, self.questions, told, self.proofs)

    def run(self) -> Outcome:
        """Run the search. After Ctrl-C the best plans by what is known until then are proved."""
        candidates = self.candidates
        try:
            if candidates.goal.iteration is not None:
                self.exact.evaluate()
            else:
                self.bounds.bound(self.bounds.within_bounds())
                self.rounds.find_best()
        except KeyboardInterrupt:
            candidates.outcome.interrupted = True
            abandon(self.questions.executor)
        best = [n for n in candidates.ranked()[: candidates.wanted] if candidates.may_fit(n)]
        if candidates.outcome.interrupted and best:
            self.on_interrupt()
        self.proofs.prove(best)
        return candidates.outcome
