"""The search: bounds, closed forms, the best by them, and their proof by whole compilations."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np

from stagec.backend.executors import run_tasks
from stagec.backend.program import Compute
from stagec.diagnostics import CompileError, Diagnostic
from stagec.driver import Compiled, compile_program
from stagec.estimate import Timeline, estimate
from stagec.explaining.sweeping.run import PEAK
from stagec.frontend import check, parse_text
from stagec.reading import read_whole_text
from stagec.searching.forms import NAME, TIMES, FormsTask, Found, evaluate
from stagec.searching.model import ModelDims
from stagec.searching.space import Point, Space, points
from stagec.searching.texts import plan_text, sizes_of, text_key

BATCH_OF_PEAKS = 64
"""Points whose memory is asked for at a time, the fastest first."""
MARGIN = 3
"""So many times as many plans as are wanted are compiled whole, as the outline may rank them a little otherwise."""


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
    num_undecided: int = 0
    """Slower in outline than all that were proved, so their memory was never asked for."""
    reasons: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    """Where a compilation said otherwise than its closed forms. There are none."""
    interrupted: bool = False
    all: list[tuple[Point, dict[str, float]]] = field(default_factory=list)
    """What is known of all points that may be plans."""


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
        self.cache = Cache(cache)
        self.told = told or (lambda stage, done, of: None)
        self.outcome = Outcome()
        self.points: list[dict[str, int | str]] = []
        for devices, space in zip(goal.devices, spaces, strict=True):
            self.points += points(space, goal.dims, devices, goal.batch)
            self.outcome.reasons.update(space.left_out)
        self.outcome.num_points = len(self.points)
        self.known: list[dict[str, float]] = [{} for _ in self.points]

    def run(self) -> Outcome:
        """Ctrl-C leads to the best of what is known until then."""
        try:
            self.outline_all(self.within_bounds())
            ranked = self.peaks(self.ranked())
        except KeyboardInterrupt:
            self.outcome.interrupted = True
            ranked = [n for n in self.ranked() if self.fits(n)]
        self.prove(ranked)
        self.outcome.all = [
            (point, known)
            for point, known in zip(self.points, self.known, strict=True)
            if known.get("step", np.nan) == known.get("step", np.nan) and known
        ]
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

    def outline_all(self, numbers: Sequence[int]) -> None:
        done = 0
        for found in self.evaluated(numbers, wants_memory=False):
            done += len(found.numbers)
            self.told("closed forms", done, len(numbers))
            self.note(found)
        limit = self.goal.memory
        self.outcome.num_outlined = done
        if limit is None:
            return
        for known in self.known:
            if known.get("stored", 0) > limit:
                known["step"] = float("nan")
                self.outcome.reasons["a rank needs more memory than its device has"] += 1

    def evaluated(self, numbers: Sequence[int], wants_memory: bool) -> Iterator[Found]:
        tasks = list(self.tasks(numbers, wants_memory))
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

    def tasks(self, numbers: Sequence[int], wants_memory: bool) -> Iterator[FormsTask]:
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number in numbers:
            point = self.points[number]
            groups[(*text_key(point), point["devices"])].append(number)
        for group in groups.values():
            first = self.points[group[0]]
            names = tuple(sizes_of(first))
            rows = tuple(tuple(sizes_of(self.points[n])[k] for k in names) for n in group)
            text = f"{self.goal.text}\n{self.plan(NAME, first)}"
            yield FormsTask(
                self.goal.file, text, names, rows, tuple(group), wants_memory, self.goal.overrides
            )

    def plan(self, name: str, point: Point) -> str:
        goal = self.goal
        return plan_text(name, point, goal.dims, goal.batch, goal.clauses)

    def note(self, found: Found) -> None:
        for name, column in found.columns.items():
            for number, value in zip(found.numbers, column, strict=True):
                self.known[number][name] = value
        self.outcome.reasons.update(found.reasons)

    # The best of them

    def value(self, number: int) -> float:
        known = self.known[number]
        return self.goal.value(
            {
                "step_time": known.get("step", float("nan")),
                "ranks": float(self.points[number]["devices"]),
                PEAK: known.get(PEAK, known.get("stored", 0.0)),
            }
        )

    def ranked(self) -> list[int]:
        """Points that may be plans, the best in outline first."""
        left = [n for n, known in enumerate(self.known) if known.get("step", np.nan) > 0]
        return sorted(left, key=self.value)

    def fits(self, number: int) -> bool:
        peak = self.known[number].get(PEAK, float("nan"))
        return peak == peak and (self.goal.memory is None or peak <= self.goal.memory)

    def peaks(self, ranked: Sequence[int]) -> list[int]:
        """The first that fit, as many as are to be compiled."""
        wanted, found = self.goal.top * MARGIN, list[int]()
        at = 0
        while at < len(ranked) and len(found) < wanted:
            now = ranked[at : at + BATCH_OF_PEAKS]
            for answer in self.evaluated(now, wants_memory=True):
                self.note(answer)
            found += [n for n in now if self.fits(n)]
            small = [n for n in now if not self.fits(n) and self.known[n].get(PEAK, 0) > 0]
            self.outcome.reasons["a rank needs more memory than its device has"] += len(small)
            at += len(now)
            self.told("memory, the fastest first", len(found), wanted)
        self.outcome.num_undecided = len(ranked) - at if at < len(ranked) else 0
        return sorted(found, key=self.value)

    # Proof

    def prove(self, ranked: Sequence[int]) -> None:
        chosen = list(ranked[: self.goal.top * MARGIN])
        proofs = [
            Proof(
                self.goal.file,
                f"{self.goal.text}\n{self.plan(NAME, self.points[n])}",
                n,
                self.goal.overrides,
            )
            for n in chosen
        ]
        found: list[Proved] = []
        try:
            for done, each in enumerate(run_tasks(self.executor, compiled_whole, proofs), 1):
                self.told("whole compilations", done, len(chosen))
                made = self.judged(each)
                if made is not None:
                    found.append(made)
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        found.sort(key=lambda each: each.value)
        self.outcome.proved = found[: self.goal.top]

    def judged(self, proof: WholeAnswer) -> Proved | None:
        point, known = self.points[proof.number], self.known[proof.number]
        if proof.error:
            self.outcome.mismatches.append(f"{proof.error}: {point}")
            return None
        if proof.peak_bytes != int(known[PEAK]):
            said = f"{int(known[PEAK]):,} B by closed forms, {proof.peak_bytes:,} B compiled"
            self.outcome.mismatches.append(f"memory.peak is {said}: {point}")
        if self.goal.memory is not None and proof.peak_bytes > self.goal.memory:
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
        )


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
            said = f"{in_words(abs(change))} {'less' if change < 0 else 'more'} {title}"
            (less if change < 0 else more).append(said)
    found = ", ".join(less)
    if more:
        found = f"{found}, for {', '.join(more)}" if found else ", ".join(more)
    memory = one.peak_bytes - other.peak_bytes
    if abs(memory) >= 0.02 * max(other.peak_bytes, 1):
        size = f"{bytes_in_words(abs(memory))} {'less' if memory < 0 else 'more'} memory"
        found = f"{found}; {size}" if found else size
    return found or "the same but for a thousandth"


def in_words(seconds: float) -> str:
    """`1.2 s`, `35 ms`, `8.1 µs`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} µs"


def bytes_in_words(number: int) -> str:
    """`1.2 GB`, `35 MB`, `8.1 kB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1000:.3g} kB"


def answered(task: FormsTask) -> tuple[FormsTask, Found]:
    """Results come in any order: each with its task."""
    return task, evaluate(task)


@dataclass(frozen=True)
class Proof:
    """A plan to compile whole."""

    file: str
    text: str
    number: int
    overrides: tuple[tuple[str, str], ...] = ()
    """Of `--set`."""


@dataclass(frozen=True)
class WholeAnswer:
    """What a whole compilation says."""

    number: int
    step_time: float = 0.0
    peak_bytes: int = 0
    compute: float = 0.0
    diagnostics: tuple[Diagnostic, ...] = ()
    """Why it is no plan."""

    @property
    def error(self) -> str:
        return self.diagnostics[0].message if self.diagnostics else ""


def compiled_whole(proof: Proof) -> WholeAnswer:
    """Compile a plan to its trace programs, follow a step of all ranks, and plan its memory."""
    try:
        checked = check(parse_text(proof.text, proof.file), NAME, dict(proof.overrides))
        plan = replace(checked.plan, device=replace(checked.plan.device, memory=None))
        compiled = compile_program(replace(checked, plan=plan))
        found = estimate(compiled)
    except CompileError as error:
        return WholeAnswer(proof.number, diagnostics=tuple(error.diagnostics))
    return WholeAnswer(
        proof.number,
        found.step_time_us / 1e6,
        max(each.peak_bytes for each in compiled.memory),
        computing(compiled, found.timeline),
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


class Cache:
    """Answers of earlier searches, a line each; one that was interrupted goes on from there."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: dict[str, Found] = {}
        if path is not None and path.exists():
            try:
                text = read_whole_text(path, MOST_CACHE_BYTES)
            except OSError as error:
                message = f"cannot read `{path}`: {error.strerror}"
                raise CompileError(
                    [Diagnostic("E0701", message, origin=f"--cache {path}")]
                ) from None
            for line in text.splitlines():
                try:
                    said = json.loads(line)
                    columns = {
                        name: [float("nan") if v is None else v for v in column]
                        for name, column in said["columns"].items()
                    }
                    self.lines[said["key"]] = Found((), columns, said["reasons"])
                except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
                    continue  # A line that was cut off.

    def key(self, task: FormsTask) -> str:
        said = json.dumps([task.text, task.names, task.rows, task.wants_memory, task.overrides])
        return hashlib.sha256(f"{version()}\n{said}".encode()).hexdigest()

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
        with self.path.open("a") as file:
            file.write(json.dumps(said) + "\n")


def version() -> str:
    """What answers depend on besides their questions: the compiler."""
    return f"{installed('stagec')} {newest_source()}"


def newest_source() -> str:
    """When the compiler's files were changed last."""
    root = Path(__file__).parents[1]
    return str(max(os.stat(path).st_mtime_ns for path in root.rglob("*.py")))
