"""A sweep over a plan of several pools: each row has the numbers that a compilation of all pools would give.

Every pool is swept like a plan by itself, with columns of its own. Besides, the pools have to agree on what they hand over to each other. Two points of the
sweep have one structure if the plans of each pool have, and if the facts that pools state about each other (meshes, the place of layers, how much is handed
over) are the same. Which sequences of one pool go on in which other pool is decided for each point by itself, in numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy as np

from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic, refused, told_of_parts
from stagec.driver import Stops, compile_checked
from stagec.estimate.pools import estimate_pools
from stagec.estimate.step import estimate
from stagec.explaining.job import NamedJob
from stagec.explaining.names import MICROBATCH
from stagec.frontend import CheckedModel, Source
from stagec.frontend.checker import plan_of_pool, pools_in, sizes_of
from stagec.frontend.plans.merge import DOT
from stagec.pools import (
    Exchange,
    HandedCache,
    KnownPool,
    Pool,
    Said,
    known_pool,
    overrides_by_pool,
    plan_around,
    said_after_all,
    said_before_all,
    sized_dims,
)
from stagec.pools.towers import PoolKnown
from stagec.sweeping.conditions import Feasible, named_sizes
from stagec.sweeping.grid import Listed
from stagec.sweeping.plans import (
    MOST_TRIED,
    Followed,
    Point,
    Seen,
    SweepRequest,
    first_that_checks,
)
from stagec.sweeping.run import (
    PEAK,
    RANKS,
    STEP_TIME,
    Sweep,
    SweepTable,
    check_quantities,
    name_of_microbatch,
    plain_numbers,
    select,
)
from stagec.sweeping.structures import Structure
from stagec.sweeping.towers import PARTS_DISAGREE, agreeing
from stagec.symbolic.columns import Columns
from stagec.symbolic.conditions import recording

Result = TypeVar("Result")

NUMBER = "#"
"""The name of a column in the sweep of a pool: the number of the point in the sweep of all pools."""
AS_WRITTEN = -1
"""The number that stands for the plan as the file has it, at no point of the sweep."""
NONE = np.array([], np.int64)
DISAGREE = (
    "pools do not go on with what others leave, or it does not divide over their devices (E0423)"
)


def names_of_plan(source: Source, plan: str | None) -> list[str]:
    """The names that a sweep can vary: dims, axes of the mesh and `microbatch`; with pools, `decode.tp` is the `tp` of one pool and `tp` that of all."""
    pools = pools_in(source, plan)
    if not pools:
        return list(dict.fromkeys([*sizes_of(source, plan), MICROBATCH]))
    own = {pool: names_of_plan(source, plan_of_pool(source, plan, pool)) for pool in pools}
    every = [name for names in own.values() for name in names]
    return list(dict.fromkeys([*every, *(f"{pool}.{n}" for pool in pools for n in own[pool])]))


def table_of(request: SweepRequest) -> SweepTable:
    """Sweep a plan or a plan of pools; the rows have the order of the grid. E0422 for a single pool that has a part of the model only."""
    source, plan = request.source, request.plan
    pools = pools_in(source, plan)
    whole, _, pool = (plan or "").rpartition(DOT)
    if has_part(source, plan):
        message = f"the pool `{pool}` has a part of a model, which the pools of `{whole}` compute together"
        help_ = (
            f"sweep all of them, and ask about this one: `--plan {whole}`, and `{pool}.memory.peak`"
        )
        raise refused("E0422", message, origin=f"--plan {plan}", help=help_)
    return (PoolsSweep if pools else Sweep)(request).table()


def has_part(source: Source, plan: str | None) -> bool:
    """Whether a plan is a pool that computes a part of the model. A plan that does not compile without sizes of the sweep is taken to be none."""
    try:
        return plan_around(source, plan) is not None
    except CompileError:
        return False


def of_pool(pool: str, known: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The sizes of a pool that vary, each with the name in the grid that gives it. `decode.tp` comes before `tp`, which is for all pools that have one."""
    found = {name: name for name in names if name in known}
    for name in names:
        of, dot, rest = name.partition(".")
        if dot and of == pool and rest in known:
            found[rest] = name
    return found


@dataclass
class PoolsAt:
    """Checks and compiles the pools of a plan at the points of a sweep, which are known by number."""

    requests: Mapping[str, SweepRequest]
    """What is asked of each pool as if it were alone."""
    points: Sequence[Mapping[str, Point]] = ()
    """For each point, the sizes that it gives each pool. The last one gives none: it is the plan as the file has it."""

    def before(self, number: int) -> Said:
        """The ops that the module of each pool gets before its first pass, at one point (`said_before_all`)."""
        return said_before_all({pool: self.checked(number, pool) for pool in self.requests})

    def checked(self, number: int, pool: str) -> CheckedModel:
        """The model and the plan of a pool at one point."""
        return self.requests[pool].checked_at(self.points[number][pool])

    def known(self, number: int, before: Said, pool: str) -> KnownPool:
        """A pool at one point, compiled as far as the other pools have to know it."""
        return known_pool(pool, lambda: self.checked(number, pool), before[pool])

    def with_handed(
        self, number: int, before: Said, after: Said, pool: str, unroll: bool = False
    ) -> Compiled:
        """A pool at one point, compiled to the end, with the ops that say what it hands over and takes (`before` and `after`)."""
        return compile_checked(
            lambda: self.checked(number, pool),
            stops=Stops(unroll=unroll),
            load_pass=self.requests[pool].plug_ins.make_pass,
            handed=[op.clone() for op in (*before[pool], *after[pool])],
        )

    def compiled(
        self, number: int, pools: Sequence[str] = (), unroll: bool = False
    ) -> dict[str, Compiled]:
        """Some pools of a point, compiled to the end; all pools if `pools` is empty."""
        before = self.before(number)
        after = said_after_all([self.known(number, before, pool) for pool in self.requests])
        wanted = pools or tuple(self.requests)
        return {pool: self.with_handed(number, before, after, pool, unroll) for pool in wanted}


@dataclass(frozen=True)
class PoolRequest(SweepRequest):
    """What a sweep of pools asks of one pool. It is compiled together with the others, so a point has its number among the points of all pools (`NUMBER`)."""

    pool: str = ""
    pools: PoolsAt = field(default_factory=lambda: PoolsAt({}))

    def checked_at(self, point: Point, limited: bool = False) -> CheckedModel:
        return super().checked_at({n: v for n, v in point.items() if n != NUMBER}, limited)

    def compiled_at(
        self,
        point: Point,
        verify: bool = True,
        until: str | None = None,
        seen: Seen | None = None,
    ) -> Compiled:
        return self.pools.compiled(point[NUMBER], (self.pool,))[self.pool]


class PoolsProgram:
    """The pools of a plan at one point, compiled one after the other, each with what it asked of sizes. `CompileError` if they say nothing to each other."""

    def __init__(self, at: PoolsAt, number: int, parts: Mapping[str, Sweep]) -> None:
        self.at, self.number, self.parts = at, number, parts
        self.before = at.before(number)
        self.meshes = {pool: at.checked(number, pool).plan.mesh for pool in parts}

    @property
    def says_something(self) -> bool:
        """Whether pools have in their modules how many ranks the others have, along the pipeline and in all: pools that have parts of a model."""
        return any(self.before.values())

    @cached_property
    def known(self) -> list[Followed[KnownPool]]:
        """Each pool as far as the others have to know it, up to the first that does not compile."""
        return self.steps(lambda pool: self.at.known(self.number, self.before, pool))

    @cached_property
    def after(self) -> tuple[Said, str]:
        """What pools say of what they hand over; or nothing, and why they do not agree."""
        known = [each.made for each in self.known if each.made is not None]
        try:
            return said_after_all(known), ""
        except CompileError as error:
            return {}, error.diagnostics[0].message

    @cached_property
    def compiled(self) -> list[Followed[Structure]]:
        """Each pool compiled to the end, up to the first that does not compile."""

        def structure(pool: str) -> Structure:
            compiled = self.at.with_handed(self.number, self.before, self.after[0], pool)
            return Structure(NamedJob(compiled, rounded=True, sampled=True))

        return self.steps(structure)

    def steps(self, compile_pool: Callable[[str], Result]) -> list[Followed[Result]]:
        found: list[Followed[Result]] = []
        for pool, part in self.parts.items():
            plan, made, message = self.at.checked(self.number, pool).plan, None, ""
            with recording(part.settings) as asked:
                try:
                    made = compile_pool(pool)
                except CompileError as error:
                    message = error.diagnostics[0].message
            found.append(Followed(plan, asked, made, message))
            if made is None:
                break
        return found


class PoolsSweep:
    """A sweep of a plan of pools, made of a `Sweep` for each pool."""

    def __init__(self, request: SweepRequest) -> None:
        self.request = request
        source, plan = request.source, request.plan
        self.pools = pools_in(source, plan)
        self.num_compiled = 0
        plans = {pool: plan_of_pool(source, plan, pool) for pool in self.pools}
        said = overrides_by_pool(source, plan, self.pools, request.sizes)
        self.own = {
            pool: of_pool(pool, names_of_plan(source, plans[pool]), request.grid.names)
            for pool in self.pools
        }
        alone = {
            pool: replace(request, plan=plans[pool], sizes=said[pool], bases={}, programs=None)
            for pool in self.pools
        }
        points = list(request.grid.points())
        self.found = Feasible(np.ones(len(points), bool))
        self.columns = self.all_columns(alone, points)
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows()]
        at = [{p: self.point_of_pool(p, row) for p in self.pools} for row in rows]
        self.at = PoolsAt(alone, [*at, {pool: {} for pool in self.pools}])
        base = self.first_that_compiles()
        self.quantities = {pool: self.quantities_of(pool) for pool in self.pools}
        self.check_quantities(base)
        self.parts = {pool: self.part(pool, alone[pool]) for pool in self.pools}

    # Points

    def all_columns(
        self, alone: Mapping[str, SweepRequest], points: Sequence[Point]
    ) -> dict[str, np.ndarray]:
        """The values of all names that vary, `[point]` each. A formula may name sizes of any pool. E0710 for one that names a size that has no value."""
        grid, count = self.request.grid, len(points)
        found = {name: np.array([p[name] for p in points], np.int64) for name in grid.values}
        if not grid.formulas:
            return found
        names: dict[str, np.ndarray] = {}
        for pool in reversed(self.pools):
            own = {n: found[asked] for n, asked in self.own[pool].items() if asked in found}
            tried = [{}, *({n: int(c[i]) for n, c in own.items()} for i in range(count))]
            checked = first_that_checks(alone[pool], tried)
            microbatch = name_of_microbatch(checked)
            if microbatch is not None and microbatch not in own:
                size = checked.plan.microbatch_size
                own = {**own, microbatch: np.full(count, size, np.int64)}
            leave = {n for n, asked in self.own[pool].items() if asked in grid.formulas}
            sizes = named_sizes(checked, own, count, leave=leave).names
            names |= {**sizes, **{f"{pool}.{name}": column for name, column in sizes.items()}}
        columns = Columns({**names, **found}, count)
        for name, size in grid.formulas.items():
            if missing := sorted(size.names - columns.names.keys()):
                message = f"`{missing[0]}` has no size in this plan"
                help_ = "write the formula in names that have values"
                raise refused("E0710", message, origin=f"--sweep {name}={size}", help=help_)
            self.found.require(columns.whole(size), f"`{name} = {size}` is not a whole number")
            self.found.require(columns.number(size) >= 1, f"`{name}` is less than 1")
            found[name] = np.maximum(columns.number(size), 1)
        return found

    def rows(self) -> list[tuple[int, ...]]:
        """The points: a value for each name that varies."""
        return list(zip(*(column.tolist() for column in self.columns.values()), strict=True))

    def point_of_pool(self, pool: str, row: Mapping[str, int]) -> Point:
        """The sizes that a point gives one pool, in the names of that pool."""
        return {name: row[asked] for name, asked in self.own[pool].items()}

    def first_that_compiles(self) -> Mapping[str, NamedJob]:
        """The pools as the file has them, or else at the first point at which all compile. If none of `MOST_TRIED` does, the first error is raised."""
        known, first = self.request.bases, None
        if known.keys() >= {*self.pools}:
            return {pool: known[pool] for pool in self.pools}
        for number in [AS_WRITTEN, *range(min(MOST_TRIED, len(self.found.left)))]:
            try:
                found = {
                    pool: NamedJob(compiled, rounded=True)
                    for pool, compiled in self.at.compiled(number).items()
                }
                if number == AS_WRITTEN:
                    known.update(found)
                return found
            except CompileError as error:
                first = first or error
        assert first is not None
        raise first

    def part(self, pool: str, alone: SweepRequest) -> Sweep:
        """The sweep of one pool. Its columns are its own sizes at each point, and the point's number."""
        own = list(self.own[pool].values())
        columns = [self.columns[asked].tolist() for asked in own]
        rows = tuple(zip(*columns, range(len(self.found.left)), strict=True))
        request = PoolRequest(
            alone.source,
            alone.plan,
            alone.sizes,
            Listed((*self.own[pool], NUMBER), rows),
            self.quantities[pool],
            alone.adapt,
            alone.plug_ins,
            pool=pool,
            pools=self.at,
        )
        found = Sweep(request, is_known_good=True)
        found.limit = first_that_checks(request, found.points).plan.device.memory
        return found

    # What is asked

    def split(self, what: str) -> tuple[str, str]:
        """The pool that a quantity is asked of, and the quantity: `decode.flops` is (`decode`, `flops`). The pool is empty for the most of any pool."""
        of, dot, rest = what.partition(".")
        return (of, rest) if dot and of in self.pools else ("", what)

    def quantities_of(self, pool: str) -> tuple[str, ...]:
        """The quantities that the sweep of a pool computes. Times and ranks are left out, for they are computed of all pools together."""
        asked = [self.split(what) for what in self.request.quantities]
        own = [what for of, what in asked if of in ("", pool) and what not in (STEP_TIME, RANKS)]
        return tuple(dict.fromkeys(own))

    def check_quantities(self, base: Mapping[str, NamedJob]) -> None:
        """E0710 and E0715 for a quantity that the named pool does not have, or, where none is named, no pool."""
        for asked in self.request.quantities:
            of, what = self.split(asked)
            if what == RANKS:
                continue
            errors: list[CompileError] = []
            tried = [of] if of else self.pools
            for pool in tried:
                try:
                    check_quantities(base[pool], (what,))
                except CompileError as error:
                    errors.append(error)
            if len(errors) == len(tried):
                raise errors[0]

    # Values

    def table(self) -> SweepTable:
        """The table of the sweep: points at which all pools compile, agree and fit their devices."""
        count = len(self.found.left)
        sizes = {
            pool: part.sizes(
                {
                    n: np.array([p[n] for p in part.points], np.int64)
                    for n in part.request.grid.values
                },
                count,
                self.found,
            )
            for pool, part in self.parts.items()
        }
        values = {
            pool: {n: np.zeros(count, object) for n in (*part.quantities, RANKS, *part.always)}
            for pool, part in self.parts.items()
        }
        waiting = np.flatnonzero(self.found.left)
        programs = self.request.programs_of()
        for program in [*programs]:
            waiting = self.follow(program, waiting, sizes, values)
        while len(waiting):
            first = int(waiting[0])
            try:
                program = PoolsProgram(self.at, first, self.parts)
            except CompileError as error:
                self.num_compiled += 1
                self.found.drop(waiting[:1], error.diagnostics[0].message)
                waiting = waiting[1:]
                continue
            waiting = self.follow(program, waiting, sizes, values, first)
            if self.found.left[first]:
                programs.append(program)
        for pool, part in self.parts.items():
            if part.limit is not None:
                fits = values[pool][PEAK] <= part.limit
                reason = f"a rank of `{pool}` needs more memory than its device has"
                self.found.require(fits, reason)
        columns = {**self.columns, RANKS: sum(own[RANKS] for own in values.values())}
        columns |= self.times()
        for what in self.request.quantities:
            if what not in columns:
                columns[what] = self.most(what, values)
        left = self.found.left
        names = [*self.request.grid.names, RANKS, *self.request.quantities]
        return SweepTable(
            {name: plain_numbers(np.asarray(columns[name])[left]) for name in names},
            count,
            dict(self.found.reasons),
            self.num_compiled + sum(part.num_compiled for part in self.parts.values()),
            self.idle,
        )

    @property
    def idle(self) -> list[Diagnostic]:
        """Of settings of one pool what it says, of flags and of what is said for several what all of them say."""
        parts = self.parts.values()
        says = [part.checked.plan.says for part in parts]
        return [each for own in told_of_parts([p.idle for p in parts], says) for each in own]

    def most(self, what: str, values: Mapping[str, Mapping[str, np.ndarray]]) -> np.ndarray:
        """`[point]`: a quantity on the rank that has most of it, in the named pool or in any."""
        of, name = self.split(what)
        return np.max([values[pool][name] for pool in ([of] if of else self.pools)], axis=0)

    def times(self) -> dict[str, np.ndarray]:
        """The times that are asked for by name, `[point]` each, in seconds. `step_time` is the time until all pools are done; `POOL.step_time` is that of one
        iteration of a pool if all that it takes from others is there. Each point that is left is compiled by itself.
        """
        asked = {
            w: self.split(w)[0] for w in self.request.quantities if self.split(w)[1] == STEP_TIME
        }
        found = {what: np.zeros(len(self.found.left)) for what in asked}
        for number in np.flatnonzero(self.found.left).tolist() if asked else ():
            pools = self.at.compiled(number, unroll=True)
            for what, of in asked.items():
                end_us = estimate(pools[of]).step_time_us if of else estimate_pools(pools).end_us
                found[what][number] = end_us / 1e6
        return found

    def follow(
        self,
        program: PoolsProgram,
        waiting: np.ndarray,
        sizes: Mapping[str, Columns],
        values: Mapping[str, dict[str, np.ndarray]],
        first: int | None = None,
    ) -> np.ndarray:
        """Write the quantities of the points `waiting` at which the pools are the program into `values`, and drop those that fail as it does.

        The result is the points that are left to compile. `first` is the one that the program was made of, if it is among them.
        """
        rows = self.on_same_meshes(program, waiting, sizes) if program.says_something else waiting
        rows = self.followed(program.known, rows, sizes, first)
        if len(rows):
            rows = self.that_agree(program.known, rows, sizes, first)
        if len(rows):
            _, message = program.after
            if message:
                self.found.drop(rows, message)
                rows = NONE
        if len(rows):
            rows = self.followed(program.compiled, rows, sizes, first)
        self.num_compiled += first is not None or len(rows) > 0
        if len(rows):
            for (pool, part), each in zip(self.parts.items(), program.compiled, strict=True):
                assert each.made is not None
                own = part.with_microbatch(select(sizes[pool], rows), each)
                part.fill(values[pool], rows, each.made, own, self.found)
        return np.setdiff1d(waiting[self.found.left[waiting]], rows)

    def on_same_meshes(
        self, program: PoolsProgram, rows: np.ndarray, sizes: Mapping[str, Columns]
    ) -> np.ndarray:
        """The points `rows` at which each pool has the mesh that it has in the program."""
        same = np.ones(len(rows), bool)
        for pool, mesh in program.meshes.items():
            for axis, size in mesh.items():
                same &= np.asarray(sizes[pool].names[axis][rows] == size, bool)
        return rows[same]

    def that_agree(
        self,
        steps: Sequence[Followed[KnownPool]],
        rows: np.ndarray,
        sizes: Mapping[str, Columns],
        first: int | None,
    ) -> np.ndarray:
        """The points `rows` at which pools agree on what is handed over, and say the same of it as in the program. Points at which they disagree are dropped.

        None is left if `first`, of which the program was made, is one of those.
        """
        trained = [(each, each.made) for each in steps if isinstance(each.made, PoolKnown)]
        if trained:
            own = {
                pool.name: self.parts[pool.name].with_microbatch(
                    select(sizes[pool.name], rows), each
                )
                for each, pool in trained
            }
            agree = agreeing([pool for _, pool in trained], own)
            self.found.drop(rows[~agree], PARTS_DISAGREE)
            return self.with_first(rows[agree], first)
        serving = [each.made for each in steps if isinstance(each.made, Pool)]
        numbers = self.handed_over(serving, rows, sizes)
        agree = np.array([each is not None for each in numbers], bool)
        self.found.drop(rows[~agree], DISAGREE)
        rows = self.with_first(rows[agree], first)
        if not len(rows):
            return NONE
        moved = np.array([n for n in numbers if n is not None], object)
        return rows[self.holds_as_stated(Exchange(serving).handed(), moved, rows, sizes)]

    def with_first(self, rows: np.ndarray, first: int | None) -> np.ndarray:
        """The points, or none of them if the one of which the program was made is not among them: then it goes no further."""
        return rows if first is None or first in rows else NONE

    def followed(
        self,
        steps: Sequence[Followed[Result]],
        rows: np.ndarray,
        sizes: Mapping[str, Columns],
        first: int | None,
    ) -> np.ndarray:
        """The points `rows` at which the compilation of every pool goes as in the program (`stagec.symbolic.verdict`).

        Points that do not meet a demand on the way are dropped, and so are those that fail like the program, if it does.
        """
        for (pool, part), each in zip(self.parts.items(), steps, strict=False):
            if not len(rows):
                break
            told = each.verdict(part.with_microbatch(select(sizes[pool], rows), each))
            for chosen, reason in told.refused:
                self.found.drop(rows[chosen], reason)
            same = told.same | (rows == first) & self.found.left[rows]
            if each.made is None:
                self.found.drop(rows[same], each.message)
            rows = self.with_first(rows[same & self.found.left[rows]], first)
        return rows

    def handed_over(
        self, known: Sequence[Pool], rows: np.ndarray, sizes: Mapping[str, Columns]
    ) -> list[tuple[Fraction, ...] | None]:
        """For each of the points `rows`, how many elements of each cache go from pool to pool; None where the pools do not agree."""
        messages = Exchange(known).known
        dims = {
            pool.name: sorted({d for path in pool.caches for d in sized_dims(pool, path)})
            for pool in known
        }
        columns: list[np.ndarray] = []
        for pool in known:
            own = select(sizes[pool.name], rows)
            numbers = [n for each in pool.served for n in each.said.numbers]
            columns += [own.number(number.size) for number in numbers]
            columns += [own.names[name] for name in dims[pool.name]]
        seen: dict[tuple[int, ...], tuple[Fraction, ...] | None] = {}
        found: list[tuple[Fraction, ...] | None] = []
        for row in zip(*(column.tolist() for column in columns), strict=True):
            if row not in seen:
                given = iter(row)
                pools = [
                    replace(
                        pool,
                        served=tuple(
                            replace(e, count=next(given), new=next(given), context=next(given))
                            for e in pool.served
                        ),
                        sizes={name: next(given) for name in dims[pool.name]},
                    )
                    for pool in known
                ]
                try:
                    handed = Exchange(pools, messages).handed()
                    seen[row] = tuple(h.moving.evaluate(h.giver.sizes) for h in handed)
                except CompileError:
                    seen[row] = None
            found.append(seen[row])
        return found

    def holds_as_stated(
        self,
        handed: Sequence[HandedCache],
        moved: np.ndarray,
        rows: np.ndarray,
        sizes: Mapping[str, Columns],
    ) -> np.ndarray:
        """`[row]`: whether the closed forms by which both sides state how much is handed over give what is `moved`, `[row, cache]`, at each point."""
        same = np.ones(len(rows), bool)
        own = {pool: select(columns, rows) for pool, columns in sizes.items()}
        for number, each in enumerate(handed):
            for pool, size in ((each.giver.name, each.given), (each.taker.name, each.taken)):
                found = own[pool].ratio(size)
                same &= np.asarray(found.top == moved[:, number] * found.bottom, bool)
        return same
