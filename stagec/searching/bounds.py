"""Lower bounds on the memory and the time of points, which leave points out before they are evaluated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stagec.dialects.types import bytes_per_element
from stagec.searching.candidates import STATE_TOO_LARGE, TOO_LARGE
from stagec.searching.coarse_times import (
    CORE_ATTENTION,
    LAYERS,
    LEAST,
    NOTHING,
    SOMETHING,
    bound_name,
)
from stagec.searching.evaluation import HELD, Found, held_as
from stagec.searching.memory_bound import UNKNOWN, WHAT_IS_SAVED, Storage
from stagec.searching.questions import SearchStep
from stagec.searching.space import Point, whole_experts, word_of
from stagec.searching.texts import at_least, in_turn

AGAIN = {"none": NOTHING, "selective": CORE_ATTENTION, "full": LAYERS}
"""For a choice of recomputation, what it surely computes again. All bounds are evaluated for a plan without recomputation, and hold for the others."""
STORED = {"freeze", "offload", "optimizer", "precision"}
"""Clauses that decide which state of the parameters is stored, and where. If the user gives one, the simplest bound on memory does not hold."""
BESIDES = ("recompute", "zero")
"""The names in which two points may differ while one of them does all that the other does, and more."""


class Bounds(SearchStep):
    """The step of a search that leaves points out by bounds."""

    def within_bounds(self) -> list[int]:
        """The numbers of the points whose state might fit, if it were split as far as their axes can split it."""
        points, limit = self.candidates.points, self.goal.memory
        if not STORED.isdisjoint(map(word_of, self.goal.clauses)):
            limit = None
        kept = [n for n, p in enumerate(points) if limit is None or self.least(p) <= limit]
        self.outcome.num_bounded = len(points) - len(kept)
        if self.outcome.num_bounded:
            self.outcome.reasons[STATE_TOO_LARGE] += self.outcome.num_bounded
        return kept

    def least(self, point: Point) -> float:
        """The bytes of parameters, master weights and two moments on a rank, if every axis that may split them does.

        Weights whose dtype the text gives need no master copy.
        """
        dims = self.goal.dims
        tp, pp, ep, dp, cp = (int(point[name]) for name in ("tp", "pp", "ep", "dp", "cp"))
        spread = (
            dp * cp * whole_experts(point) // int(point["replicas"]) // ep if point["zero"] else 1
        )
        wide = 4 if point["precision"] == "fp32" else 2
        own = dims.own_parameters.items()
        plain = dims.num_parameters - sum(number for _, number in own)
        weights = wide * plain + sum(bytes_per_element(dtype) * number for dtype, number in own)
        state = 8 * dims.num_parameters + (4 * plain if wide == 2 else 0)
        if not dims.is_training or point["offload"] in ("optimizer", "both"):
            state = 0
        return (weights / (spread if point["zero"] == 3 else 1) + state / spread) / (tp * pp * ep)

    def bound(self, numbers: Sequence[int]) -> None:
        """Find a lower bound on the time and on the memory of each of these points, and leave out those that do not fit.

        Only a few structures are evaluated for that: those without recomputation and split storage, which do no more than any other (`at_least`).
        """
        self.candidates.left = set(numbers)
        if not self.goal.rises:
            return
        points = self.candidates.chosen(numbers)
        rows: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, point in points.items():
            rows[tuple({**self.least_of(point), **own_turns(point)}.values())].append(number)
        same = {members[0]: members for members in rows.values()}
        done = 0
        self.told("bounds", done, len(same))
        storages = tuple(dict.fromkeys(map(storage_of, points.values())))
        tasks = self.questions.tasks(self.candidates.chosen(same), at_least)
        for found in self.questions.evaluated([replace(t, storages=storages) for t in tasks]):
            done += len(found.numbers)
            self.told("bounds", done, len(same))
            self.drop_refused(found, same)
            self.note_bounds(found, same)

    def note_bounds(self, found: Found, same: Mapping[int, Sequence[int]]) -> None:
        """Note the bounds that an answer gives for all points of its structures, and leave out those that need more memory than there is.

        `same` has, for each point that was evaluated, the points whose bounds it gives.
        """
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
                elif self.goal.is_timed and self.is_least(point):
                    # It does no more than what was evaluated: this is its outline.
                    candidates.known[each] |= said
                    self.outcome.num_outlined += 1

    def least_of(self, point: Point) -> Point:
        """The point that does no more than this one (`at_least`)."""
        return at_least(point, self.goal.dims)

    def is_least(self, point: Point) -> bool:
        """Whether a point does no more than that one itself."""
        return in_turn(point, self.goal.dims) == self.least_of(point)

    def drop_refused(self, found: Found, same: Mapping[int, Sequence[int]]) -> None:
        """Leave out points that are no plan even without recomputation and with whole storage: they are none with recomputation or split storage either."""
        no_plan = [n for n, v in zip(found.numbers, found.columns[HELD], strict=True) if v != v]
        refused = [each for n in no_plan for each in same[n]]
        self.candidates.left -= set(refused)
        scale = len(refused) / max(len(no_plan), 1)
        for reason, number in found.reasons.items():
            self.outcome.reasons[reason] += round(number * scale)


def own_turns(point: Point) -> dict[str, int | str]:
    """How a point runs its pipeline."""
    return {name: point[name] for name in ("schedule", "virtual_stages")}


def bound_of(point: Point, recompute: str) -> str:
    """The name of the bound on a point's time, among those of a point that does no more and has this choice of `recompute`."""
    own = str(point["recompute"])
    again = AGAIN.get(own, SOMETHING) if recompute == "none" else SOMETHING
    if own == recompute:
        again = NOTHING
    return bound_name(again, adds_shards=int(point["zero"]) >= 2)


def storage_of(point: Point) -> Storage:
    """How a point stores its state."""
    saves = WHAT_IS_SAVED.get(str(point["recompute"]), UNKNOWN)
    return Storage(int(point["zero"]), int(point["replicas"]), saves)


def behind(point: Point) -> Iterator[Point]:
    """The points that do only a part of what this one does: it also computes something again, or reduces gradients for each microbatch."""
    if point["recompute"] != "none":
        yield {**point, "recompute": "none"}
    if point["recompute"] == "full":
        yield {**point, "recompute": "selective"}
    if point["zero"] == 2:
        yield {**point, "zero": 1}


def is_behind(further: Point, point: Point) -> bool:
    """Whether `further` does all that `point` does and more, if they differ in `BESIDES` alone."""
    return any(all(each[name] == point[name] for name in BESIDES) for each in behind(further))
