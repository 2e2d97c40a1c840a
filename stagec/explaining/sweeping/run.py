"""`sweep`: a row per plan that can be compiled, with the quantities that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.diagnostics import CompileError, Diagnostic, did_you_mean, quoted
from stagec.driver import compile_program
from stagec.estimate import step_time
from stagec.explaining.job import Job
from stagec.explaining.questions import ask
from stagec.explaining.sweeping import conditions
from stagec.explaining.sweeping.peaks import EXACT
from stagec.explaining.sweeping.plans import (
    Point,
    Request,
    checked_at,
    compiled_at,
    first_that_compiles,
    is_plain,
)
from stagec.explaining.sweeping.structures import OF_PEAK, PEAKS, Structure
from stagec.explaining.sweeping.vectors import Columns
from stagec.pipelines import microbatch_size

PEAK = "memory.peak"
BUBBLE = "bubble"
STEP_TIME = "step_time"
"""Seconds, simulated for each plan by itself."""
RANKS = "ranks"
MOST_FAILURES = 5
"""Plans of one structure that may fail one after the other before it is given up."""


@dataclass(frozen=True)
class Table:
    """A column for each name that is varied, then one for each quantity."""

    columns: Mapping[str, np.ndarray]
    num_points: int
    reasons: Mapping[str, int]
    """Why points are no plans, and how many."""

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, number: int) -> dict[str, int | float]:
        return {name: column[number].item() for name, column in self.columns.items()}

    def rows(self) -> list[dict[str, int | float]]:
        return [self.row(number) for number in range(self.num_rows)]


def sweep(request: Request) -> Table:
    """Every plan of the grid, in its order."""
    return Sweep(request).table()


class Sweep:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.points = list(request.grid.points())
        base, self.base_point = first_that_compiles(request, self.points)
        self.base = Job(base, rounded=True)
        self.limit = checked_at(request, self.base_point, limited=True).plan.device.memory
        self.plain = is_plain(self.base)
        self.quantities = request.quantities
        check_quantities(self.base, self.quantities)

    def table(self) -> Table:
        count = len(self.points)
        columns = {
            name: np.array([point[name] for point in self.points], np.int64)
            for name in self.request.grid.values
        }
        found = conditions.Feasible(np.ones(count, bool))
        sizes = self.sizes(columns, count, found)
        if self.plain:
            conditions.compilation(self.base, set(self.request.grid.names), sizes, found)
        rows = np.flatnonzero(found.left)
        kept = select(sizes, rows)
        values, last = (self.fast if self.plain else self.slow)(kept)
        if self.limit is not None:
            fits = values[PEAK] <= self.limit
            last.require(fits, "a rank needs more memory than its device has")
        found.reasons.update(last.reasons)
        names = [*self.request.grid.names, RANKS, *self.quantities]
        table = {name: values[name] if name in values else kept.names[name] for name in names}
        return Table(
            {name: plain_numbers(column[last.left]) for name, column in table.items()},
            count,
            dict(found.reasons),
        )

    # Points

    def sizes(
        self, columns: dict[str, np.ndarray], count: int, found: conditions.Feasible
    ) -> Columns:
        """All names, those that follow from others too."""
        checked = self.base.compiled.checked
        name = self.base.names.microbatch
        if name is not None and name not in self.request.grid.names:
            size = microbatch_size(self.base.compiled.plan)
            columns[name] = np.full(count, size, np.int64)
        formulas = self.request.grid.formulas
        if formulas:
            # A formula may use any name that does not follow from one.
            before = conditions.named_sizes(checked, columns, count, leave=set(formulas))
            for name, size in formulas.items():
                found.require(before.whole(size), f"`{name} = {size}` is no whole number")
                columns[name] = np.maximum(before.number(size), 1)
                found.require(before.number(size) >= 1, f"`{name}` is less than 1")
        return conditions.named_sizes(checked, columns, count)

    # Values

    def fast(self, sizes: Columns) -> tuple[dict[str, np.ndarray], conditions.Feasible]:
        """One compilation for each structure."""
        left = conditions.Feasible(np.ones(sizes.count, bool))
        values = {
            name: np.zeros(sizes.count, object) for name in {*self.quantities, RANKS, *self.always}
        }
        groups = structure_keys(self.base, sizes)
        for key in range(int(groups.max(initial=-1)) + 1):
            rows = np.flatnonzero(groups == key)
            structure, rows = self.compiled(sizes, rows, left)
            if structure is None:
                continue
            own = select(sizes, rows)
            for name, column in self.evaluate(structure, own).items():
                values[name][rows] = column
                if is_of_lives(name):
                    fits = np.ones(sizes.count, bool)
                    fits[rows] = column < EXACT
                    left.require(fits, "a rank needs 8 PiB of memory or more")
        return values, left

    @property
    def always(self) -> tuple[str, ...]:
        return (PEAK,) if self.limit is not None else ()

    def evaluate(self, structure: Structure, sizes: Columns) -> dict[str, np.ndarray]:
        job = structure.job
        number = sizes.number(self.base.names.num_microbatches)
        found = {RANKS: conditions.ranks_of(job, sizes)}
        wanted = {*self.quantities, *self.always}
        buckets = job.compiled.plan.gradients.bucket_bytes is not None
        # Which gradients share a bucket depends on how large they are.
        of_lives = [] if buckets else [what for what in sorted(wanted) if is_of_lives(what)]
        if of_lives:
            found |= structure.memory(of_lives, sizes, number)
        each = [what for what in sorted(wanted) if what == STEP_TIME or is_of_lives(what)]
        found |= self.one_by_one(sizes, [what for what in each if what not in found])
        for what in wanted - found.keys():
            if what == BUBBLE:
                found[what] = structure.bubble(sizes, number)
            else:
                found[what] = structure.most(ask(job, what), sizes)
        return found

    def compiled(
        self, sizes: Columns, rows: np.ndarray, left: conditions.Feasible
    ) -> tuple[Structure | None, np.ndarray]:
        """A compiled plan of these rows. What does not compile, though it meets all conditions, is left out."""
        failures = 0
        for number, row in enumerate(rows.tolist()):
            try:
                job = Job(compiled_at(self.request, self.point(sizes, row)), rounded=True)
            except CompileError as error:
                failures += 1
                several = failures >= MOST_FAILURES
                gone = rows if several else rows[number : number + 1]
                drop(left, gone, error)
                if several:
                    return None, rows[:0]
                continue
            return Structure(job), rows[left.left[rows]]
        return None, rows[:0]

    def point(self, sizes: Columns, row: int) -> Point:
        return {name: int(sizes.names[name][row]) for name in self.request.grid.names}

    def slow(self, sizes: Columns) -> tuple[dict[str, np.ndarray], conditions.Feasible]:
        """Every plan for itself: what its program is depends on more than structure."""
        left = conditions.Feasible(np.ones(sizes.count, bool))
        values = {
            name: np.zeros(sizes.count, object) for name in {*self.quantities, RANKS, *self.always}
        }
        for row in range(sizes.count):
            try:
                job = Job(compiled_at(self.request, self.point(sizes, row)))
            except CompileError as error:
                drop(left, np.array([row]), error)
                continue
            for name in values:
                values[name][row] = exact(job, name)
        return values, left

    def one_by_one(self, sizes: Columns, quantities: Sequence[str]) -> dict[str, np.ndarray]:
        found = {what: np.zeros(sizes.count, object) for what in quantities}
        for row in range(sizes.count if found else 0):
            job = Job(compiled_at(self.request, self.point(sizes, row)))
            for what, column in found.items():
                column[row] = exact(job, what)
        return found


def plain_numbers(column: np.ndarray) -> np.ndarray:
    """Machine integers, or floats; sums that are too large for those stay what they are."""
    if column.dtype != object or not len(column):
        return column.astype(np.int64) if column.dtype == object else column
    if any(isinstance(value, float) for value in column):
        return column.astype(float)
    return column.astype(np.int64) if max(map(abs, column)) < 2**63 else column


def exact(job: Job, what: str) -> int | float:
    """A quantity of one compiled plan: of the rank that has most."""
    if what == STEP_TIME:
        return step_time(compile_program(job.compiled.checked))
    if what == RANKS:
        return job.compiled.plan.num_ranks
    if what == PEAK:
        return max(each.peak_bytes for each in job.memory)
    if what == BUBBLE:
        return float(ask(job, what).worst.value)
    return int(ask(job, what).worst.value)


def drop(left: conditions.Feasible, rows: np.ndarray, error: CompileError) -> None:
    holds = np.ones(len(left.left), bool)
    holds[rows] = False
    left.require(holds, error.diagnostics[0].message)


def select(sizes: Columns, rows: np.ndarray) -> Columns:
    return Columns({name: column[rows] for name, column in sizes.names.items()}, len(rows))


def structure_keys(job: Job, sizes: Columns) -> np.ndarray:
    """For each plan the number of its structure: which axes have more than one rank, which kinds of stages there are."""
    keys = [sizes.names[axis] > 1 for axis in job.names.mesh]
    pipeline = job.compiled.plan.pipeline
    if pipeline is not None:
        stages = sizes.number(job.names.num_stages)
        keys += [np.minimum(sizes.names[pipeline.axis], 3), np.minimum(stages, 3)]
        if not pipeline.layers:
            even = (sizes.names[pipeline.counts[0]] - pipeline.first - pipeline.last) // stages
            keys += [even > 0, even + pipeline.first > 0, even + pipeline.last > 0]
    if not keys:
        return np.zeros(sizes.count, np.int64)
    stacked = np.stack([np.asarray(key, np.int64) for key in keys], axis=1)
    return np.unique(stacked, axis=0, return_inverse=True)[1].ravel()


def is_of_lives(what: str) -> bool:
    """Whether a quantity depends on when buffers live."""
    return what in PEAKS or what.startswith(OF_PEAK)


SWEPT = ("flops", "bytes", "comm", "host", "params", BUBBLE)
STORED = ("parameters", "master", "optimizer", "gradients", "static")


def check_quantities(job: Job, quantities: Sequence[str]) -> None:
    """E0710 for what has no closed form that holds for all plans of a structure."""
    for what in quantities:
        first, _, rest = what.partition(".")
        if what == STEP_TIME:
            continue
        if first in SWEPT or is_of_lives(what) or (first == "memory" and rest in STORED):
            ask(job, what)
            continue
        choices = [*SWEPT, *PEAKS, STEP_TIME, *(f"memory.{kind}" for kind in STORED)]
        help_ = did_you_mean(what, choices) or f"there are {quoted(choices)}"
        message = f"`{what}` cannot be swept"
        raise CompileError([Diagnostic("E0710", message, origin=f"explain {what}", help=help_)])
