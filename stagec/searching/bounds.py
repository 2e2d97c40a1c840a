"""What leaves points out before they are evaluated: bounds on their memory and on their times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stagec.searching.candidates import TOO_LARGE
from stagec.searching.coarse_times import LEAST, LEAST_AGAIN, LEAST_WHOLE
from stagec.searching.evaluation import HELD, Found, held_as
from stagec.searching.memory_bound import UNKNOWN, WHAT_IS_SAVED, Storage
from stagec.searching.questions import SearchStep
from stagec.searching.space import Point
from stagec.searching.texts import at_least, experts_of_data, in_turn

BOUND_OF_AGAIN = {"selective": LEAST_AGAIN, "full": LEAST_WHOLE}
"""Of what a plan that computes nothing again says of others, the bound of those that do."""
STORED = {"freeze", "offload", "optimizer", "precision"}
"""Clauses of all plans that say what is stored of parameters, and where."""
BESIDES = ("recompute", "zero")
"""What says how much a plan does besides what others do, too."""


class Bounds(SearchStep):
    """Of the points of one search."""

    def within_bounds(self) -> list[int]:
        """Points whose state might fit, were it split as far as their axes can."""
        points, limit = self.candidates.points, self.goal.memory
        if not STORED.isdisjoint(clause.split(maxsplit=1)[0] for clause in self.goal.clauses):
            limit = None
        kept = [n for n, p in enumerate(points) if limit is None or self.least(p) <= limit]
        self.outcome.num_bounded = len(points) - len(kept)
        if self.outcome.num_bounded:
            reason = "parameters and optimizer state alone need more memory than a device has"
            self.outcome.reasons[reason] += self.outcome.num_bounded
        return kept

    def least(self, point: Point) -> float:
        """Bytes of parameters, master weights and two moments on a rank, if every axis that may split them does."""
        tp, pp, ep, dp, cp = (int(point[name]) for name in ("tp", "pp", "ep", "dp", "cp"))
        ways = tp * pp * ep
        spread = dp * cp // int(point["replicas"]) // experts_of_data(point) if point["zero"] else 1
        wide = 4 if point["precision"] == "fp32" else 2
        state = 0 if point["offload"] in ("optimizer", "both") else 8 + (4 if wide == 2 else 0)
        if not self.goal.dims.is_training:
            state = 0
        weights = wide / (spread if point["zero"] == 3 else 1)
        return self.goal.dims.num_parameters / ways * (weights + state / spread)

    def bound(self, numbers: Sequence[int]) -> None:
        """How long each plan takes and what it holds at least: of a few structures, which do what all others do besides."""
        self.candidates.left = set(numbers)
        if not self.goal.rises:
            return
        points = self.candidates.chosen(numbers)
        rows: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, point in points.items():
            rows[tuple({**at_least(point), **own_turns(point)}.values())].append(number)
        same = {members[0]: members for members in rows.values()}
        done = 0
        storages = tuple(dict.fromkeys(map(storage_of, points.values())))
        tasks = self.questions.tasks(self.candidates.chosen(same), at_least)
        for found in self.questions.evaluated([replace(t, storages=storages) for t in tasks]):
            done += len(found.numbers)
            self.told("bounds", done, len(same))
            self.drop_refused(found, same)
            self.note_bounds(found, same)

    def note_bounds(self, found: Found, same: Mapping[int, Sequence[int]]) -> None:
        """What points take at least, and leave out those that need more memory than there is, by what is said of those that do no more."""
        candidates, names, limit = self.candidates, tuple(found.columns), self.goal.memory
        rows = zip(*found.columns.values(), strict=True)
        for number, row in zip(found.numbers, rows, strict=True):
            said: dict[str, float] = dict(zip(names, row, strict=True))
            for each in same[number]:
                point = candidates.points[each]
                held = said[held_as(storage_of(point))]
                candidates.known[each][HELD] = held
                if self.goal.is_timed:
                    candidates.known[each][LEAST] = said[bound_of(point, "none")]
                if each not in candidates.left:
                    continue
                if limit is not None and held > limit:
                    candidates.left.discard(each)
                    self.outcome.reasons[TOO_LARGE] += 1
                elif self.goal.is_timed and in_turn(point) == at_least(point):
                    # It does no more than what was evaluated: this is its outline.
                    candidates.known[each] |= said
                    self.outcome.num_outlined += 1

    def drop_refused(self, found: Found, same: Mapping[int, Sequence[int]]) -> None:
        """What is no plan without recomputation and with whole storage is none with them."""
        no_plan = [n for n, v in zip(found.numbers, found.columns[HELD], strict=True) if v != v]
        refused = [each for n in no_plan for each in same[n]]
        self.candidates.left -= set(refused)
        scale = len(refused) / max(len(no_plan), 1)
        for reason, number in found.reasons.items():
            self.outcome.reasons[reason] += round(number * scale)


def own_turns(point: Point) -> dict[str, int | str]:
    return {name: point[name] for name in ("schedule", "virtual_stages")}


def bound_of(point: Point, recompute: str) -> str:
    """The bound that holds for a point, of those of one that does no more and computes less again."""
    again = str(point["recompute"])
    return BOUND_OF_AGAIN.get(again, LEAST) if recompute == "none" else LEAST


def storage_of(point: Point) -> Storage:
    saves = WHAT_IS_SAVED.get(str(point["recompute"]), UNKNOWN)
    return Storage(int(point["zero"]), int(point["replicas"]), saves)


def behind(point: Point) -> Iterator[Point]:
    """Points of which a point does all that they do, and more: it computes something again, or reduces gradients for each microbatch."""
    if point["recompute"] != "none":
        yield {**point, "recompute": "none"}
    if point["recompute"] == "full":
        yield {**point, "recompute": "selective"}
    if point["zero"] == 2:
        yield {**point, "zero": 1}


def is_behind(further: Point, point: Point) -> bool:
    return any(all(each[name] == point[name] for name in BESIDES) for each in behind(further))
