"""Run a sweep: a table with a row for each plan that compiles and fits its device, and a column for each quantity that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stagec.analysis.sizes import dim_sizes
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic, in_all, refused, suggestion, told_by
from stagec.dialects.types import TIME_AXIS
from stagec.estimate.step import estimate
from stagec.explaining.job import NamedJob
from stagec.explaining.memory import QUANTITIES as MEMORY
from stagec.explaining.names import MICROBATCH
from stagec.explaining.quantities import Answer, ClassAnswer
from stagec.explaining.questions import ask
from stagec.frontend import CheckedModel
from stagec.idle_times import idle_exchanges
from stagec.sweeping.conditions import (
    Feasible,
    named_sizes,
    with_definitions,
)
from stagec.sweeping.idle_times import idle_in_all
from stagec.sweeping.peaks import EXACT
from stagec.sweeping.plans import (
    Followed,
    Point,
    SweepRequest,
    differs_in_sizes_alone,
    first_that_checks,
    first_that_compiles,
    without_limit,
)
from stagec.sweeping.step_times import StepTimes
from stagec.sweeping.structures import OF_PEAK, PEAKS, Begun, Structure
from stagec.symbolic import ZERO
from stagec.symbolic.columns import Columns
from stagec.symbolic.conditions import recording

UNTIL_MEMORY = "plan-memory"
"""The last pass that runs where only memory is asked for. After it, it is known when buffers are born and die; what else waits for what is not needed."""
PEAK = "memory.peak"
BUBBLE = "bubble"
STEP_TIME = "step_time"
"""The quantity that is the estimated time of a step, in seconds."""
RANKS = "ranks"
"""The quantity that is the number of ranks of a plan's mesh."""


@dataclass(frozen=True)
class SweepTable:
    """The result of a sweep."""

    columns: Mapping[str, np.ndarray]
    """`[row]` each: a column for each name that varies, then one for each quantity."""
    num_points: int
    """How many points the sweep had, with those that are no row."""
    reasons: Mapping[str, int]
    """Why points are no rows (a demand on sizes, or too little memory), and how many for each reason."""
    num_compiled: int = 0
    """How many compilations the sweep took, or would have taken without the programs that were kept."""
    idle: Sequence[Diagnostic] = ()
    """W0304: settings that change nothing in any plan of the sweep."""

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def in_words(self) -> list[str]:
        """Lines that say how many points are rows, and why the others are none."""
        reasons = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        left_out = [f"  {number:,}: {reason}" for reason, number in reasons]
        return [f"{self.num_rows:,} of {self.num_points:,} plans can be compiled", *left_out]

    def row(self, number: int) -> dict[str, int | float]:
        return {name: column[number].item() for name, column in self.columns.items()}

    def rows(self) -> list[dict[str, int | float]]:
        return [self.row(number) for number in range(self.num_rows)]


def sweep(request: SweepRequest) -> SweepTable:
    """Sweep a plan that is no plan of pools. The rows have the order of the grid. E0710 for a quantity that cannot be swept."""
    return Sweep(request).table()


@dataclass(frozen=True)
class FurtherColumns:
    """Columns that a caller adds to a sweep: numbers that follow from a structure and the sizes of its plans."""

    names: tuple[str, ...]
    of: Callable[[Structure, Columns, np.ndarray], Mapping[str, np.ndarray]]
    """Computes the columns, `[plan]` each, from a structure, the sizes of its plans, and the numbers of the sweep's points that these plans are."""


class Sweep:
    """A sweep of one plan, or of one pool of a plan of pools."""

    def __init__(
        self,
        request: SweepRequest,
        measure: FurtherColumns | None = None,
        *,
        is_known_good: bool = False,
        until: str | None = None,
        limit: int | None = None,
    ) -> None:
        """`is_known_good`: the request was checked before, so that no plan is compiled to check it, and `limit` says how many bytes of memory a rank may need.

        Otherwise the plan's device says that. `until` names the last pass to run, for a caller who needs no more; without it, that is found in what is asked.
        """
        self.request = request
        self.measure = measure
        self.until = until or (UNTIL_MEMORY if all(map(is_of_lives, request.quantities)) else None)
        self.verify = not is_known_good
        self.points = list(request.grid.points())
        self.quantities = request.quantities
        self.num_compiled = 0
        self.idle_in: list[Sequence[Diagnostic]] = []
        """What changes nothing in each program."""
        self.first: tuple[Point, Compiled] | None = None
        """The point and the plan that were compiled last for a structure: what is asked of that plan alone needs no second compilation."""
        if is_known_good:
            limited = first_that_checks(request, self.points)
            self.checked = without_limit(limited)
        else:
            base, base_point = first_that_compiles(request, self.points, self.until)
            self.checked = base.compiled.checked
            check_quantities(base, self.quantities)
            limited = request.checked_at(base_point, limited=True)
        self.limit = limit if is_known_good else limited.plan.device.memory
        self.microbatch = name_of_microbatch(self.checked)

    def table(self) -> SweepTable:
        """The table of the sweep: the plans that are left, with the names that vary and the quantities that were asked for."""
        sizes, values, found = self.columns()
        names = [*self.request.grid.names, RANKS, *self.quantities]
        table = {n: values[n] if n in values else sizes.names[self.varied(n)] for n in names}
        return SweepTable(
            {name: plain_numbers(column[found.left]) for name, column in table.items()},
            len(self.points),
            dict(found.reasons),
            self.num_compiled,
            self.idle,
        )

    def columns(self) -> tuple[Columns, dict[str, np.ndarray], Feasible]:
        """For every point: its sizes, its quantities by name (`[point]` each), and whether it is left as a plan."""
        count = len(self.points)
        columns = {
            name: np.array([point[name] for point in self.points], np.int64)
            for name in self.request.grid.values
        }
        found = Feasible(np.ones(count, bool))
        sizes = self.sizes(columns, count, found)
        values = self.values(sizes, found)
        if self.limit is not None:
            fits = values[PEAK] <= self.limit
            found.require(fits, "a rank needs more memory than its device has")
        return sizes, values, found

    @property
    def idle(self) -> list[Diagnostic]:
        return in_all(self.idle_in, told_by)

    def told_of(self, job: NamedJob, in_several: bool = False) -> list[Diagnostic]:
        """W0304: what changes nothing in a plan that was compiled. `in_several`: another of its structure has several microbatches."""
        compiled = job.compiled
        told = [*compiled.checked.warnings, *compiled.idle]
        if self.measure is None and self.until is None and not in_several:
            told += idle_exchanges(compiled, lambda: job.unrolled.trace_set)
        return [each for each in told if each.code == "W0304"]

    # Points

    def sizes(self, columns: dict[str, np.ndarray], count: int, found: Feasible) -> Columns:
        """The values of all dims, axes and varied settings at the points, formulas included. `columns` gives those that are listed, `[point]` each."""
        checked = self.checked
        formulas = self.request.grid.formulas
        if formulas:
            name = self.microbatch
            if name is not None and name not in self.request.grid.names:
                size = self.checked.plan.microbatch_size
                columns = {**columns, name: np.full(count, size, np.int64)}
            # A formula may use any name that does not follow from one.
            before = named_sizes(checked, columns, count, leave=set(formulas))
            for name, size in formulas.items():
                found.require(before.whole(size), f"`{name} = {size}` is not a whole number")
                found.require(before.number(size) >= 1, f"`{name}` is less than 1")
                columns = {**columns, name: np.maximum(before.number(size), 1)}
        return named_sizes(checked, columns, count)

    # Values

    def values(self, sizes: Columns, found: Feasible) -> dict[str, np.ndarray]:
        """The quantities by name, `[point]` each, with one compilation for each structure.

        A compilation notes what it asked of sizes; plans that answer all of that alike are the same program (`stagec.symbolic.verdict`).
        """
        further = self.measure.names if self.measure is not None else ()
        names = {*self.quantities, RANKS, *self.always}
        values = {name: np.zeros(sizes.count, object) for name in names}
        values |= {name: np.zeros(sizes.count) for name in further}
        waiting = np.flatnonzero(found.left)
        programs = self.request.programs_of(self.until)
        for program in [*programs]:
            waiting = self.follow(program, waiting, sizes, values, found)
        while len(waiting):
            programs.append(self.program_at(sizes, int(waiting[0])))
            waiting = self.follow(programs[-1], waiting, sizes, values, found, is_first=True)
        return values

    def program_at(self, sizes: Columns, row: int) -> Followed[Structure]:
        """The plan of one point, compiled."""
        plan, structure, message = self.checked.plan, None, ""
        with recording(self.settings) as asked:
            try:
                checked = self.request.checked_at(self.point(sizes, row))
                plan = checked.plan
                begun = Begun() if STEP_TIME in self.quantities else None
                seen = begun.see if begun is not None else None
                compiled = self.request.compiled_from(
                    lambda: checked, self.verify, self.until, seen
                )
                structure = Structure(NamedJob(compiled, rounded=True, sampled=True), begun)
                if begun is not None:
                    begun.compiled = compiled
                self.first = self.point(sizes, row), compiled
            except CompileError as error:
                message = error.diagnostics[0].message
        return Followed(plan, asked, structure, message)

    def follow(
        self,
        program: Followed[Structure],
        waiting: np.ndarray,
        sizes: Columns,
        values: dict[str, np.ndarray],
        found: Feasible,
        is_first: bool = False,
    ) -> np.ndarray:
        """Write the quantities of the points `waiting` that are the program into `values`; those that are not are left, and the result.

        With `is_first` it was made of the first of them, which is the program whatever it asked.
        """
        own = self.with_microbatch(select(sizes, waiting), program)
        told = program.verdict(own)
        for chosen, reason in told.refused:
            found.drop(waiting[chosen], reason)
        same = told.same.copy()
        if is_first:
            same[0] = bool(found.left[waiting[0]])
        rows = waiting[same]
        self.num_compiled += is_first or len(rows) > 0
        if program.made is None:
            found.drop(rows, program.message)
        elif len(rows):
            self.fill(values, rows, program.made, select(own, np.flatnonzero(same)), found)
        return waiting[found.left[waiting] & ~same]

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a plan that vary like sizes, and their names in conditions: the size of a microbatch, where the plan has one."""
        name = self.microbatch
        return {} if name is None else {MICROBATCH: name}

    def with_microbatch(self, sizes: Columns, program: Followed[Any]) -> Columns:
        """The sizes with that of microbatches in every row, unless the sweep varies it: what the formula of the plan makes of it, else what the plan has."""
        name = self.microbatch
        if name is None or name in self.request.grid.names:
            return sizes
        formula = program.asked.definitions.get(name)
        size = sizes.constant(program.plan.microbatch_size)
        if formula is not None and formula.names:
            # Rows where it is none have been refused, or will be.
            size = np.maximum(sizes.number(formula), 1)
        return Columns({**sizes.names, name: size}, sizes.count)

    def fill(
        self,
        values: dict[str, np.ndarray],
        rows: np.ndarray,
        structure: Structure,
        sizes: Columns,
        found: Feasible,
    ) -> None:
        """Write into `values` the quantities of plans of one structure. `rows` are their numbers among the points, `sizes` their sizes."""
        table = structure.job.compiled.checked.sizes
        axes = {name: table.axes[name].size for parts in table.copied.values() for name in parts}
        # The module's own definitions hold the microbatch that was compiled; here each plan has its own.
        dims = dim_sizes(structure.module)
        definitions = {**dims, TIME_AXIS: structure.names.num_microbatches}
        given = sizes
        if table.served:
            # A dim that `serve` sizes, and dims that follow from one, have another size in the module than in the text.
            made = {n for n in dims if n in table.served or n not in self.request.grid.names}
            left = {n: column for n, column in sizes.names.items() if n not in made}
            sizes = Columns(left, sizes.count)
        sizes = with_definitions(sizes, {**definitions, **axes})
        if differs_in_sizes_alone(structure.job):
            several = (sizes.number(structure.names.num_microbatches) > 1).any()
            told = self.told_of(structure.job, in_several=bool(several))
            self.idle_in.append(idle_in_all(structure, sizes, told))
            columns = self.evaluate(structure, sizes, given)
        elif self.measure is not None:
            # Whether each of them compiles turns out when its memory is computed.
            columns = {RANKS: ranks_of(structure.job, sizes)}
        else:
            names = sorted({*self.quantities, RANKS, *self.always})
            columns = self.one_by_one(given, names, rows, found)
        if self.measure is not None:
            columns = {**columns, **self.measure.of(structure, sizes, rows)}
        for name, column in columns.items():
            values[name][rows] = column
            if is_of_lives(name):
                found.drop(rows[column >= EXACT], "a rank needs 8 PiB of memory or more")

    @property
    def always(self) -> tuple[str, ...]:
        """The quantities that are computed whether asked for or not: the peak of memory, where there is a limit of memory."""
        return (PEAK,) if self.limit is not None else ()

    def evaluate(
        self, structure: Structure, sizes: Columns, given: Columns
    ) -> dict[str, np.ndarray]:
        """The quantities of plans of a structure by name, `[plan]` each. `sizes` are those of the module, `given` those that the text and the sweep give."""
        job = structure.job
        number = sizes.number(job.names.num_microbatches)
        found = {RANKS: ranks_of(job, sizes)}
        wanted = {*self.quantities, *self.always}
        buckets = job.compiled.plan.gradients.bucket_bytes is not None
        # Which gradients share a bucket depends on their sizes, so plans of one structure may have other buffers.
        of_lives = [] if buckets else [what for what in sorted(wanted) if is_of_lives(what)]
        if of_lives:
            found |= structure.memory(of_lives, sizes, number)
        found |= self.one_by_one(
            given, [w for w in sorted(wanted) if is_of_lives(w) and w not in found]
        )
        if STEP_TIME in wanted:
            fits = np.ones(sizes.count, bool)
            if self.limit is not None:
                fits = found[PEAK] <= self.limit
            rows = np.flatnonzero(fits)
            found[STEP_TIME] = np.full(sizes.count, np.nan)
            own = select(sizes, rows), select(given, rows)
            found[STEP_TIME][rows] = self.step_times(structure, *own) if len(rows) else ()
        for what in wanted - found.keys():
            if what == BUBBLE:
                found[what] = structure.bubble(sizes, number)
            else:
                found[what] = structure.highest(answer_of(job, what), sizes)
        return found

    def step_times(self, structure: Structure, sizes: Columns, given: Columns) -> np.ndarray:
        """`[plan]`: the time of a step in seconds. Plans that cannot be timed together are compiled one by one."""

        def compile_at(row: int, others: Mapping[str, int]) -> Begun:
            begun = Begun()
            point = {**self.point(given, row), **others}
            begun.compiled = self.request.compiled_at(point, until=self.until, seen=begun.see)
            return begun

        found = StepTimes(structure, sizes, compile_at, self.request.resumed).seconds()
        alone = np.flatnonzero(np.isnan(found))
        found[alone] = self.one_by_one(select(given, alone), [STEP_TIME])[STEP_TIME]
        return found

    def compiled_at(self, point: Point) -> Compiled:
        if self.first is not None and self.first[0] == point:
            return self.first[1]
        return self.request.compiled_at(point, until=self.until)

    def point(self, sizes: Columns, row: int) -> Point:
        """The values of the names that vary, in one row."""
        names = self.request.grid.names
        return {name: int(sizes.names[self.varied(name)][row]) for name in names}

    def varied(self, name: str) -> str:
        """The name of the size that varies with `name`: for a dim that a rule pads, that of its size before padding."""
        return self.checked.sizes.unpadded.get(name, name)

    def one_by_one(
        self,
        given: Columns,
        quantities: Sequence[str],
        rows: np.ndarray | None = None,
        left: Feasible | None = None,
    ) -> dict[str, np.ndarray]:
        """The quantities by name, `[plan]` each, with a compilation for each plan. Where `left` is given, a plan that does not compile is dropped from it.

        `rows` are the numbers of the plans in `left`.
        """
        found = {what: np.zeros(given.count, object) for what in quantities}
        for row in range(given.count if found else 0):
            self.num_compiled += 1
            try:
                job = NamedJob(self.compiled_at(self.point(given, row)))
            except CompileError as error:
                if rows is None or left is None:
                    raise
                left.drop(rows[row : row + 1], error.diagnostics[0].message)
                continue
            self.idle_in.append(self.told_of(job))
            for what, column in found.items():
                is_timed = what == STEP_TIME and not self.is_too_large(found, row)
                is_asked = is_timed or what != STEP_TIME
                column[row] = value_of_one_plan(job, what) if is_asked else np.nan
        return found

    def is_too_large(self, found: Mapping[str, np.ndarray], row: int) -> bool:
        """Whether a plan is known to need more memory than its ranks may have."""
        return self.limit is not None and PEAK in found and found[PEAK][row] > self.limit


def name_of_microbatch(checked: CheckedModel) -> str | None:
    """The name that the size of a microbatch has in conditions on sizes; None if the plan runs the whole batch at once."""
    if not checked.plan.microbatch_size:
        return None
    taken = {*checked.sizes.dims, *checked.sizes.axes}
    return MICROBATCH if MICROBATCH not in taken else f"plan.{MICROBATCH}"


def ranks_of(job: NamedJob, sizes: Columns) -> np.ndarray:
    """`[plan]`: the number of ranks, which is the product of the axes of the mesh."""
    found = sizes.constant(1)
    for axis in job.names.mesh:
        found = found * sizes.names[axis]
    return found


def answer_of(job: NamedJob, what: str) -> Answer:
    """The closed forms of a quantity. A structure that does not have what the quantity names (such as an axis) has none of it: the answer is zero."""
    try:
        return ask(job, what)
    except CompileError:
        nothing = ClassAnswer("all", {}, ZERO, 0, ())
        return Answer(what, "", (nothing,))


def plain_numbers(column: np.ndarray) -> np.ndarray:
    """The column as int64 or float64; integers that are too large for int64 stay Python's own."""
    if column.dtype != object or not len(column):
        return column.astype(np.int64) if column.dtype == object else column
    if any(isinstance(value, float) for value in column):
        return column.astype(float)
    return column.astype(np.int64) if max(map(abs, column)) < 2**63 else column


def value_of_one_plan(job: NamedJob, what: str) -> int | float:
    """A quantity of one compiled plan: its value on the rank that has most."""
    if what == STEP_TIME:
        return estimate(job.unrolled).step_time_us / 1e6
    if what == RANKS:
        return job.compiled.plan.num_ranks
    if what == PEAK:
        return max(each.peak_bytes for each in job.memory)
    if what == BUBBLE:
        return float(ask(job, what).worst.value)
    return int(answer_of(job, what).worst.value)


def select(sizes: Columns, rows: np.ndarray) -> Columns:
    """The sizes of some of the plans, in the order of `rows`."""
    return Columns({name: column[rows] for name, column in sizes.names.items()}, len(rows))


def is_of_lives(what: str) -> bool:
    """Whether a quantity of memory depends on when buffers are alive, so that it is no closed form."""
    return what in PEAKS or what.startswith(OF_PEAK)


SWEPT = ("flops", "bytes", "comm", "host", "params", "kv", BUBBLE)
"""The first words of quantities that can be swept, beside those of memory."""
STORED = tuple(name for name, (_, asked) in MEMORY.items() if isinstance(asked, tuple))
"""Kinds of memory that stay from step to step: `memory.KIND` can be swept."""


def check_quantities(job: NamedJob, quantities: Sequence[str]) -> None:
    """E0710 for a quantity that a sweep cannot compute for all plans of a structure."""
    for what in quantities:
        first, _, rest = what.partition(".")
        if what in (STEP_TIME, PEAK):
            # Every plan has them, and of many microbatches to ask for one would be to unroll all.
            continue
        if first in SWEPT or is_of_lives(what) or (first == "memory" and rest in STORED):
            ask(job, what)
            continue
        choices = [*SWEPT, *PEAKS, STEP_TIME, *(f"memory.{kind}" for kind in STORED)]
        help_ = suggestion(what, choices)
        message = f"`{what}` cannot be swept"
        raise refused("E0710", message, origin=f"explain {what}", help=help_)
