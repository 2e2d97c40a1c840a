"""The search: bounds, closed forms, the best by them, and their proof by whole compilations."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np

from stagec.backend.executors import run_tasks
from stagec.backend.files import disk_error
from stagec.backend.program import Compute
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.driver import compile_program
from stagec.estimate import Timeline, estimate
from stagec.estimate.graph import build_graph
from stagec.frontend import check, parse_text
from stagec.pictures.charts import front
from stagec.pictures.scales import DECIMAL_BYTES, SECONDS, in_unit
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import loaded
from stagec.reading import read_whole_text
from stagec.searching.forms import (
    HELD,
    NAME,
    TIMES,
    FormsTask,
    Found,
    evaluate,
    held_as,
)
from stagec.searching.held import Storage
from stagec.searching.model import ModelDims
from stagec.searching.outline import LEAST, LEAST_AGAIN, LEAST_WHOLE
from stagec.searching.sensitivity import with_twice
from stagec.searching.space import Point, Space, points
from stagec.searching.texts import at_least, in_turn, plan_text, sizes_of, text_key, turns_of
from stagec.sweeping.run import PEAK

AT_A_TIME = 8
"""Structures that are asked for at a time, the most promising first: those that follow may be left out by what they say."""
SLACK = 1.1
"""Of a structure that is compiled anyway, plans are evaluated that may be so much worse than what is enough, which rises when some of the best do not fit."""
PROVED_AT_A_TIME = 2
Structure = tuple[object, ...]
"""Of a text: `text_key`."""
MARGIN = 2
"""So many times as many plans as are wanted are known in outline, and may be compiled whole, as the outline may rank them a little otherwise."""
BOUND_OF_AGAIN = {"selective": LEAST_AGAIN, "full": LEAST_WHOLE}
"""Of what a plan that computes nothing again says of others, the bound of those that do."""
TOO_LARGE = "a rank needs more memory than its device has"


@dataclass(frozen=True)
class Goal:
    """What is searched for."""

    file: str
    text: str
    """Of the model's file."""
    dims: ModelDims
    devices: tuple[int, ...]
    batch: int
    clauses: tuple[str, ...]
    """Of every plan: the device, and what else is said."""
    memory: int | None
    """Bytes that a plan may take at most, the margin taken off; nothing for no limit."""
    value: Callable[[dict[str, float]], float]
    """What is minimised, of `step_time`, `ranks` and `memory.peak`."""
    top: int = 10
    overrides: tuple[tuple[str, str], ...] = ()
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""
    beside: str = ""
    """What answers depend on besides the text: the files that it imports, plug-ins, what is known of the device."""
    wants_front: bool = False
    """Whether plans are compiled, too, of which none is faster and needs less memory."""
    tested: int = 0
    """Of so many of the best it is asked what they would take on other devices."""
    rises: bool = True
    """Whether that is no less where each of these is no less: then bounds leave out what cannot be among the best."""


@dataclass(frozen=True)
class Proved:
    """A plan that was compiled whole."""

    point: Point
    text: str
    step_time: float
    """Seconds, estimated node by node."""
    peak_bytes: int
    outline: dict[str, float]
    compute: float
    """Seconds that the rank which computes longest does so."""
    exposed: float
    """Seconds of the step in which it does nothing else but communicate, or waits."""
    value: float
    with_twice: Mapping[str, float] = field(default_factory=dict)
    """Seconds on a device with twice of one number, where that was asked."""

    @property
    def num_ranks(self) -> int:
        return int(self.point["devices"])


@dataclass
class Outcome:
    """What a search found."""

    proved: list[Proved] = field(default_factory=list)
    """The best first."""
    num_points: int = 0
    num_bounded: int = 0
    """Left out by a bound on their memory, without a compilation."""
    num_outlined: int = 0
    """Evaluated by closed forms."""
    num_refused: int = 0
    """That do not compile, or do not fit."""
    num_slower: int = 0
    """Slower by a lower bound than all that were to be compiled, so never evaluated."""
    num_undecided: int = 0
    """Slower in outline than all that were to be compiled, so their memory was never asked for."""
    num_sure: int = 0
    """Of those that were proved, the first so many: `Search.num_sure`."""
    reasons: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    """Where a compilation said otherwise than its closed forms. There are none."""
    interrupted: bool = False
    compiled: list[Proved] = field(default_factory=list)
    """All that were compiled whole and fit; those too of which none is faster and needs less memory, if that was asked."""


class Search:
    """One search. `told(stage, done, of)` hears of progress."""

    def __init__(
        self,
        goal: Goal,
        spaces: Iterable[Space],
        executor: Executor,
        cache: Path | None = None,
        told: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.goal = goal
        self.executor = executor
        self.cache = Cache(cache, goal.beside)
        self.told = told or (lambda stage, done, of: None)
        self.outcome = Outcome()
        self.points: list[dict[str, int | str]] = []
        for devices, space in zip(goal.devices, spaces, strict=True):
            self.points += points(space, goal.dims, devices, goal.batch)
            self.outcome.reasons.update(space.left_out)
        self.outcome.num_points = len(self.points)
        self.known: list[dict[str, float]] = [{} for _ in self.points]
        self.left: set[int] = set()
        """Points that no bound on memory leaves out."""
        self.num_compiled = 0

    def run(self) -> Outcome:
        """Ctrl-C leads to the best of what is known until then."""
        try:
            self.bound(self.within_bounds())
            self.find_best()
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        self.prove([n for n in self.ranked()[: self.wanted] if self.may_fit(n)])
        return self.outcome

    # Bounds

    def within_bounds(self) -> list[int]:
        """Points whose state might fit, were it split as far as their axes can."""
        limit = self.goal.memory
        kept = [n for n, p in enumerate(self.points) if limit is None or self.least(p) <= limit]
        self.outcome.num_bounded = len(self.points) - len(kept)
        if self.outcome.num_bounded:
            reason = "parameters and optimizer state alone need more memory than a device has"
            self.outcome.reasons[reason] += self.outcome.num_bounded
        return kept

    def least(self, point: Point) -> float:
        """Bytes of parameters, master weights and two moments on a rank, if every axis that may split them does."""
        tp, pp, ep, dp, cp = (int(point[name]) for name in ("tp", "pp", "ep", "dp", "cp"))
        ways = tp * pp * ep
        spread = dp * cp // int(point["replicas"]) // ep if point["zero"] else 1
        wide = 4 if point["precision"] == "fp32" else 2
        state = 0 if point["offload"] in ("optimizer", "both") else 8 + (4 if wide == 2 else 0)
        if not self.goal.dims.is_training:
            state = 0
        weights = wide / (spread if point["zero"] == 3 else 1)
        return self.goal.dims.num_parameters / ways * (weights + state / max(spread, 1))

    # Closed forms

    def bound(self, numbers: Sequence[int]) -> None:
        """How long each plan takes at least: of a few structures, which do what all others do besides."""
        self.left = set(numbers)
        if not self.goal.rises:
            return
        rows: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number in numbers:
            point = {**at_least(self.points[number]), **self.own_turns(number)}
            rows[tuple(point.values())].append(number)
        same = {members[0]: members for members in rows.values()}
        done = 0
        storages = tuple(dict.fromkeys(storage_of(self.points[n]) for n in numbers))
        tasks = [replace(t, storages=storages) for t in self.tasks(list(same), at_least)]
        for found in self.evaluated(tasks):
            done += len(found.numbers)
            self.told("bounds", done, len(same))
            self.drop_refused(found, same)
            self.note_bounds(found, same)

    def note_bounds(self, found: Found, same: Mapping[int, Sequence[int]]) -> None:
        """What points take at least, and leave out those that need more memory than there is, by what is said of those that do no more."""
        names = tuple(found.columns)
        limit = self.goal.memory
        rows = zip(*found.columns.values(), strict=True)
        for number, row in zip(found.numbers, rows, strict=True):
            said: dict[str, float] = dict(zip(names, row, strict=True))
            for each in same[number]:
                point = self.points[each]
                self.known[each][LEAST] = said[bound_of(point, "none")]
                if each not in self.left:
                    continue
                if limit is not None and said[held_as(storage_of(point))] > limit:
                    self.left.discard(each)
                    self.outcome.num_refused += 1
                    self.outcome.reasons[TOO_LARGE] += 1
                elif in_turn(point) == at_least(point):
                    # It does no more than what was evaluated: this is its outline.
                    self.known[each] |= said
                    self.outcome.num_outlined += 1

    def own_turns(self, number: int) -> dict[str, int | str]:
        point = self.points[number]
        return {name: point[name] for name in ("schedule", "virtual_stages")}

    def drop_refused(self, found: Found, same: Mapping[int, Sequence[int]]) -> None:
        """What is no plan without recomputation and with whole storage is none with them."""
        no_plan = [n for n, v in zip(found.numbers, found.columns[LEAST], strict=True) if v != v]
        refused = [each for n in no_plan for each in same[n]]
        self.left -= set(refused)
        self.outcome.num_refused += len(refused)
        scale = len(refused) / max(len(no_plan), 1)
        for reason, number in found.reasons.items():
            self.outcome.reasons[reason] += round(number * scale)

    def find_best(self) -> None:
        """The best that fit, by closed forms: of the structures the most promising first, until no other can have a better plan."""
        queue = Queue(self)
        while True:
            best = self.ranked()[: self.wanted]
            enough = self.value(best[-1]) if len(best) == self.wanted else np.inf
            numbers = queue.take(enough)
            if numbers:
                queue.tighten(self.outline(numbers))
                self.told("closed forms", self.outcome.num_outlined, len(self.left))
                continue
            best = best[: self.goal.top]
            unknown = [n for n in best if PEAK not in self.known[n]]
            if not unknown:
                break
            self.peaks(unknown)
            self.told("memory, the fastest first", len(best) - len(unknown), len(best))
        self.count_undecided()

    def outline(self, numbers: Sequence[int]) -> list[int]:
        """Those that are plans, whether they fit or not."""
        plans: list[int] = []
        for found in self.evaluated(list(self.tasks(numbers, in_turn))):
            self.outcome.num_outlined += len(found.numbers)
            self.note(found)
            for number in found.numbers:
                if self.known[number]["step"] > 0:
                    plans.append(number)
                if not self.may_fit(number):
                    self.refuse(number)
        return plans

    def peaks(self, numbers: Sequence[int]) -> None:
        for found in self.evaluated(list(self.tasks(numbers, None))):
            self.note(found)
            for number in found.numbers:
                if not self.may_fit(number):
                    self.refuse(number)

    def refuse(self, number: int) -> None:
        """It needs too much memory, if it is a plan at all."""
        known = self.known[number]
        if known.get("step", np.nan) == known.get("step", np.nan):
            self.outcome.num_refused += 1
            self.outcome.reasons[TOO_LARGE] += 1
        known["step"] = float("nan")

    def count_undecided(self) -> None:
        proposed = set(self.ranked()[: self.goal.top])
        for number in self.left - proposed:
            step = self.known[number].get("step")
            self.outcome.num_slower += step is None
            self.outcome.num_undecided += step is not None and step == step

    def evaluated(self, tasks: Sequence[FormsTask]) -> Iterator[Found]:
        waiting: list[FormsTask] = []
        for task in tasks:
            found = self.cache.get(task)
            if found is None:
                waiting.append(task)
            else:
                yield found
        # The largest first, so that none is left alone in the end.
        waiting.sort(key=lambda task: -len(task.rows))
        for task, found in run_tasks(self.executor, answered, waiting):
            self.cache.put(task, found)
            yield found

    def tasks(
        self, numbers: Sequence[int], structure: Callable[[Point], Point] | None
    ) -> Iterator[FormsTask]:
        """Points that share a text, together: their own, to know their memory, or that of a `structure` that says as much of their times."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        shown = {n: structure(self.points[n]) if structure else self.points[n] for n in numbers}
        for number, point in shown.items():
            groups[text_key(point)].append(number)
        for group in groups.values():
            # What is compiled for all is the plan with the fewest passes.
            group.sort(key=lambda n: self.num_passes(shown[n]))
            first = shown[group[0]]
            is_pipeline = structure is not None and first["pp"] != 1
            sizes = [sizes_of(shown[n]) for n in group]
            yield FormsTask(
                self.goal.file,
                self.goal.text,
                tuple(sizes[0]),
                tuple(tuple(each.values()) for each in sizes),
                tuple(group),
                structure is None,
                self.goal.overrides,
                tuple(turns_of(self.points[n]) for n in group) if is_pipeline else (),
                self.plan(NAME, first),
                self.goal.plug_ins,
            )

    def num_passes(self, point: Point) -> int:
        """Of microbatches through ranks."""
        microbatches = self.goal.batch // int(point["dp"]) // int(point["microbatch"])
        return int(point["pp"]) * int(point["virtual_stages"]) * microbatches

    def plan(self, name: str, point: Point) -> str:
        goal = self.goal
        return plan_text(name, point, goal.dims, goal.batch, goal.clauses)

    def note(self, found: Found) -> None:
        for name, column in found.columns.items():
            for number, value in zip(found.numbers, column, strict=True):
                self.known[number][name] = value
        self.outcome.reasons.update(found.reasons)

    # The best of them

    @property
    def wanted(self) -> int:
        """Plans that may be compiled whole."""
        return self.goal.top * MARGIN

    def value(self, number: int) -> float:
        """What is known of it: no more than it is."""
        known = self.known[number]
        if not self.goal.rises and "step" not in known:
            return -np.inf
        return self.goal.value(
            {
                "step_time": known.get("step", known.get(LEAST, 0.0)),
                "ranks": float(self.points[number]["devices"]),
                PEAK: known.get(PEAK, known.get(HELD, 0.0)),
            }
        )

    def ranked(self) -> list[int]:
        """Points that may be plans, the best in outline first."""
        found = [n for n, known in enumerate(self.known) if known.get("step", np.nan) > 0]
        return sorted(found, key=self.value)

    def may_fit(self, number: int) -> bool:
        known = self.known[number]
        needs = known.get(PEAK, known.get(HELD, np.nan))
        return needs == needs and (self.goal.memory is None or needs <= self.goal.memory)

    # Proof

    def prove(self, ranked: Sequence[int]) -> None:
        """As many as are wanted, and of those behind them the ones that would be among these if their outline were as far off as that of any before."""
        found: list[Proved] = []
        waiting = list(ranked)
        tested = set(ranked[: self.goal.tested])
        try:
            while waiting:
                missing = self.goal.top - len(found)
                if missing <= 0:
                    found.sort(key=in_order)
                    ratio, last = least_ratio(found), found[self.goal.top - 1].value
                    waiting = [n for n in waiting if self.would_be(n, ratio) < last]
                now = waiting[: missing if missing > 0 else PROVED_AT_A_TIME]
                waiting = waiting[len(now) :]
                found += self.compiled(now, tested, len(waiting))
            found.sort(key=in_order)
            if not self.outcome.interrupted:
                self.test(found)
                self.outcome.compiled = list(found)
                if self.goal.wants_front:
                    self.outcome.compiled += self.compiled(self.on_front(found), set(), 0)
        except KeyboardInterrupt:
            self.outcome.interrupted = True
            found.sort(key=in_order)
        self.outcome.proved = found[: self.goal.top]
        self.outcome.compiled = self.outcome.compiled or found
        if found and not self.outcome.interrupted:
            self.outcome.num_sure = self.num_sure(found)

    def compiled(
        self, numbers: Sequence[int], tested: Collection[int], waiting: int
    ) -> list[Proved]:
        """Those that fit, compiled whole; so many more are `waiting`."""
        found: list[Proved] = []
        proofs = [self.proof(n, n in tested) for n in numbers if self.may_fit(n)]
        for each in run_tasks(self.executor, compiled_whole, proofs):
            self.num_compiled += 1
            self.told("whole compilations", self.num_compiled, self.num_compiled + waiting)
            made = self.judged(each)
            if made is not None:
                found.append(made)
        return found

    def on_front(self, found: Sequence[Proved]) -> list[int]:
        """Further plans of which none that was evaluated is faster and needs less memory, as far as is known: as many as are wanted, the fastest first."""
        compiled = {id(each.point) for each in found}
        numbers = [n for n in self.ranked() if self.may_fit(n)]
        known = [self.known[n] for n in numbers]
        pairs = [(each["step"], each.get(PEAK, each[HELD])) for each in known]
        chosen = [i for i in front(pairs) if id(self.points[numbers[i]]) not in compiled]
        chosen.sort(key=lambda i: pairs[i])
        return [numbers[i] for i in chosen[: self.goal.top]]

    def num_sure(self, found: Sequence[Proved]) -> int:
        """So many of the best no other plan is better than, were its outline as far off as that of any that was compiled."""
        if not self.goal.rises:
            return 0
        ratio, compiled = least_ratio(found), {id(each.point) for each in found}
        others = (n for n in self.left if id(self.points[n]) not in compiled)
        least = min(
            (self.would_be(n, ratio) for n in others if not self.is_refused(n)), default=np.inf
        )
        return sum(each.value <= least for each in found[: self.goal.top])

    def is_refused(self, number: int) -> bool:
        """Whether it turned out to be no plan, or not to fit."""
        step = self.known[number].get("step", 0.0)
        return step != step

    def proof(self, number: int, wants_twice: bool) -> WholePlan:
        plan = self.plan(NAME, self.points[number])
        goal = self.goal
        text = f"{goal.text}\n{plan}"
        return WholePlan(goal.file, text, number, goal.overrides, wants_twice, goal.plug_ins)

    def test(self, found: list[Proved]) -> None:
        """On other devices, those of the best of which nobody expected that they are."""
        unknown = {
            n: each for n, each in enumerate(found[: self.goal.tested]) if not each.with_twice
        }
        goal = self.goal
        proofs = [
            WholePlan(
                goal.file, f"{goal.text}\n{each.text}", n, goal.overrides, True, goal.plug_ins
            )
            for n, each in unknown.items()
        ]
        for answer in run_tasks(self.executor, compiled_whole, proofs):
            found[answer.number] = replace(found[answer.number], with_twice=answer.with_twice)

    def would_be(self, number: int, ratio: float) -> float:
        """What is minimised, of a plan that takes so many times as long as its outline, or a bound on that."""
        known = self.known[number]
        step = known.get("step", known.get(LEAST, 0.0))
        names = {"step_time": step * ratio, PEAK: known.get(PEAK, known.get(HELD, 0.0))}
        return self.goal.value({**names, "ranks": float(self.points[number]["devices"])})

    def judged(self, proof: WholeAnswer) -> Proved | None:
        point, known = self.points[proof.number], self.known[proof.number]
        if proof.error:
            self.outcome.mismatches.append(f"{proof.error}: {point}")
            return None
        if PEAK in known and proof.peak_bytes != int(known[PEAK]):
            said = f"{int(known[PEAK]):,} B by closed forms, {proof.peak_bytes:,} B compiled"
            self.outcome.mismatches.append(f"memory.peak is {said}: {point}")
        known[PEAK] = float(proof.peak_bytes)
        if not self.may_fit(proof.number):
            self.refuse(proof.number)
            return None
        names = {"step_time": proof.step_time, "ranks": float(point["devices"])}
        return Proved(
            point=point,
            text=self.plan(NAME, point),
            step_time=proof.step_time,
            peak_bytes=proof.peak_bytes,
            outline={name: known[name] for name in TIMES},
            compute=proof.compute,
            exposed=proof.step_time - proof.compute,
            value=self.goal.value({**names, PEAK: float(proof.peak_bytes)}),
            with_twice=proof.with_twice,
        )


class Queue:
    """The points that wait for their closed forms, by structure."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.waiting: dict[Structure, list[int]] = defaultdict(list)
        self.further: dict[object, list[int]] = defaultdict(list)
        """Points that differ in what each does besides: see `behind`."""
        for number in search.left:
            if "step" in search.known[number]:
                continue
            point = search.points[number]
            self.waiting[self.structure(point)].append(number)
            self.further[self.alike(point)].append(number)
        self.least = {key: self.best_of(group) for key, group in self.waiting.items()}

    def structure(self, point: Point) -> Structure:
        return text_key(in_turn(point))

    def alike(self, point: Point) -> object:
        return tuple(value for name, value in point.items() if name not in BESIDES)

    def best_of(self, group: Sequence[int]) -> float:
        return min(map(self.search.value, group))

    def take(self, enough: float) -> list[int]:
        """Points of the most promising structures that may be better than `enough`. Those that do what others do, and more, come behind them."""
        better = {key for key, least in self.least.items() if not least >= enough}
        in_order = sorted(filter(better.__contains__, self.least), key=self.least.__getitem__)
        now = [key for key in in_order if not any(self.first_of(key, better))][:AT_A_TIME]
        taken: list[int] = []
        for key in now:
            group = self.waiting.pop(key)
            chosen = [n for n in group if not self.search.value(n) >= enough * SLACK]
            taken += chosen
            # What is enough may be even more when some of the best turn out not to fit.
            rest = sorted({*group} - {*chosen})
            del self.least[key]
            if rest:
                self.waiting[key], self.least[key] = rest, self.best_of(rest)
        return taken

    def first_of(self, key: Structure, better: Collection[Structure]) -> Iterator[bool]:
        """Whether a structure does no more than what others that are better by their bounds do: for each of these."""
        point = self.search.points[self.waiting[key][0]]
        for less in behind(point):
            yield self.structure(less) in better

    def tighten(self, numbers: Iterable[int]) -> None:
        """What is known of plans is a bound for those that do more."""
        search = self.search
        changed: set[Structure] = set()
        for number in numbers if search.goal.rises else ():
            point, known = search.points[number], search.known[number]
            for other in self.further[self.alike(point)]:
                further = search.points[other]
                if "step" in search.known[other] or not is_behind(further, point):
                    continue
                bound = known[bound_of(further, str(point["recompute"]))]
                if bound > search.known[other].get(LEAST, 0.0):
                    search.known[other][LEAST] = bound
                    changed.add(self.structure(further))
        for key in changed & self.least.keys():
            self.least[key] = self.best_of(self.waiting[key])


BESIDES = ("recompute", "zero")
"""What says how much a plan does besides what others do, too."""


def bound_of(point: Point, recompute: str) -> str:
    """The bound that holds for a point, of those of one that does no more and computes less again."""
    again = str(point["recompute"])
    return BOUND_OF_AGAIN.get(again, LEAST) if recompute == "none" else LEAST


def storage_of(point: Point) -> Storage:
    return Storage(int(point["zero"]), int(point["replicas"]), point["recompute"] == "none")


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


def least_ratio(found: Sequence[Proved]) -> float:
    """The least that a plan takes, in times of its outline."""
    return min(each.step_time / each.outline["step"] for each in found)


def in_order(each: Proved) -> tuple[float, int, str]:
    """Of two that are as good, the one that needs less memory; whoever was answered first."""
    return each.value, each.peak_bytes, each.text


PARTS_IN_WORDS = (
    ("compute", "computation"),
    ("exposed", "exposed communication"),
    ("idle", "bubble"),
)


def compare(one: Proved, other: Proved) -> str:
    """Why one plan is better than another, in words: what of a step is less, and what is more."""
    scale = [each.step_time / max(each.outline["step"], 1e-12) for each in (one, other)]
    less: list[str] = []
    more: list[str] = []
    for name, title in PARTS_IN_WORDS:
        change = one.outline[name] * scale[0] - other.outline[name] * scale[1]
        if abs(change) >= 0.001 * other.step_time:
            said = f"{in_unit(abs(change), SECONDS)} {'less' if change < 0 else 'more'} {title}"
            (less if change < 0 else more).append(said)
    found = ", ".join(less)
    if more:
        found = f"{found}, for {', '.join(more)}" if found else ", ".join(more)
    memory = one.peak_bytes - other.peak_bytes
    if abs(memory) >= 0.02 * max(other.peak_bytes, 1):
        size = f"{in_unit(abs(memory), DECIMAL_BYTES)} {'less' if memory < 0 else 'more'} memory"
        found = f"{found}; {size}" if found else size
    return found or "the same but for a thousandth"


def answered(task: FormsTask) -> tuple[FormsTask, Found]:
    """Results come in any order: each with its task."""
    return task, evaluate(task)


@dataclass(frozen=True)
class WholePlan:
    """A plan to compile whole."""

    file: str
    text: str
    number: int
    overrides: tuple[tuple[str, str], ...] = ()
    """Of `--set`."""
    wants_twice: bool = False
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""


@dataclass(frozen=True)
class WholeAnswer:
    """What a whole compilation says."""

    number: int
    step_time: float = 0.0
    peak_bytes: int = 0
    compute: float = 0.0
    with_twice: Mapping[str, float] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    """Why it is no plan."""

    @property
    def error(self) -> str:
        return self.diagnostics[0].message if self.diagnostics else ""


def compiled_whole(proof: WholePlan) -> WholeAnswer:
    """Compile a plan to its trace programs, follow a step of all ranks, and plan its memory."""
    try:
        with mistakes_of_plug_ins():
            known = loaded(proof.plug_ins)
            source, sizes = parse_text(proof.text, proof.file), dict(proof.overrides)
            checked = check(source, NAME, sizes, known.functions)
            plan = replace(checked.plan, device=replace(checked.plan.device, memory=None))
            compiled = compile_program(replace(checked, plan=plan), load_pass=known.make_pass)
            graph = build_graph(compiled.trace_set) if proof.wants_twice else None
            found = estimate(compiled, graph=graph)
    except CompileError as error:
        return WholeAnswer(proof.number, diagnostics=tuple(error.diagnostics))
    return WholeAnswer(
        proof.number,
        found.step_time_us / 1e6,
        max(each.peak_bytes for each in compiled.memory),
        computing(compiled, found.timeline),
        with_twice(compiled, graph) if graph is not None else {},
    )


def computing(compiled: Compiled, timeline: Timeline) -> float:
    """Seconds that the rank which computes longest does so."""
    longest = 0.0
    for number, rank_class in enumerate(compiled.trace_set.classes):
        start, end = timeline.of_class(number)
        program = rank_class.program
        first = program.first_node
        total = 0.0
        for index, segment in enumerate(program.segments):
            rows = np.flatnonzero(program.segment == index)
            for at, node in enumerate(segment.nodes):
                if isinstance(node.action, Compute) and len(rows):
                    total += float((end - start)[first[rows] + at].sum())
        longest = max(longest, total)
    return longest / 1e6


# What is known already

MOST_CACHE_BYTES = 1 << 30
BEGIN = '{"key": '
"""Of each line."""


class Cache:
    """Answers of earlier searches, a line each; one that was interrupted goes on from there.

    A line says what it is about (`key`) and its own CRC-32 (`crc`): one that was cut off or changed is no answer.
    """

    def __init__(self, path: Path | None, beside: str = "") -> None:
        self.path = path
        self.lines: dict[str, Found] = {}
        self.about = "" if path is None else f"{version()}\n{beside}"
        self.ends_in_line = True
        if path is not None and path.exists():
            try:
                text = read_whole_text(path, MOST_CACHE_BYTES)
            except OSError as error:
                raise no_cache(path, str(error.strerror)) from None
            # The first line may have been cut off anywhere.
            if text[: len(BEGIN)] != BEGIN[: len(text)]:
                raise no_cache(path, "it is no cache of a search")
            self.ends_in_line = not text or text.endswith("\n")
            for line in text.splitlines():
                self.read(line)
        if path is not None:
            self.append("")

    def append(self, text: str) -> None:
        """E0603 where the disk takes nothing."""
        assert self.path is not None
        try:
            with self.path.open("a") as file:
                file.write(text)
        except OSError as error:
            raise disk_error(error, str(self.path)) from None

    def read(self, line: str) -> None:
        try:
            said = json.loads(line)
            if said.pop("crc") != crc_of(said):
                return
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return
        columns = {
            name: [float("nan") if v is None else v for v in column]
            for name, column in said["columns"].items()
        }
        self.lines[said["key"]] = Found((), columns, said["reasons"])

    def key(self, task: FormsTask) -> str:
        said = json.dumps(
            [
                task.text,
                task.plan,
                task.names,
                task.rows,
                task.wants_memory,
                task.overrides,
                [(each.schedule, each.virtual_stages) for each in task.turns],
            ]
        )
        return hashlib.sha256(f"{self.about}\n{said}".encode()).hexdigest()

    def get(self, task: FormsTask) -> Found | None:
        if self.path is None:
            return None
        found = self.lines.get(self.key(task))
        return None if found is None else replace(found, numbers=task.numbers)

    def put(self, task: FormsTask, found: Found) -> None:
        if self.path is None:
            return
        columns = {
            name: [None if v != v else v for v in column] for name, column in found.columns.items()
        }
        said = {"key": self.key(task), "columns": columns, "reasons": found.reasons}
        begin = "" if self.ends_in_line else "\n"
        self.append(f"{begin}{json.dumps({**said, 'crc': crc_of(said)})}\n")
        self.ends_in_line = True


def no_cache(path: Path, why: str) -> CompileError:
    message = f"cannot read `{path}`: {why}"
    return CompileError([Diagnostic("E0701", message, origin=f"--cache {path}")])


def crc_of(said: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def version() -> str:
    """What answers depend on besides their questions: the compiler."""
    return f"{installed('stagec')} {newest_source()}"


def newest_source() -> str:
    """When the compiler's files were changed last."""
    root = Path(__file__).parents[1]
    # Two of its folders are links in a source tree, which `rglob` does not follow.
    folders = (root, root / "passes", root / "grammar")
    files = (path for folder in folders for path in folder.resolve().rglob("*.*"))
    kinds = (".py", ".lark", ".toml")
    return str(max(os.stat(path).st_mtime_ns for path in files if path.suffix in kinds))
