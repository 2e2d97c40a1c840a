"""Series of iterations of pools, one job: each pool has a file of its own, and says which of its sequences come from which iteration of another.

A *handover* is what one iteration of a pool hands to one of another: the caches of all sequences whose prompts it completes and that go on
there. Its messages are in both, with the same tags. Iterations that have as many handovers, from and to the same pools, are one program; how much each is
of is a column (`dist.handed_numbers`).

Where devices have sequences of their own each hands over, and takes, an equal share of it, in whole elements: rows do not say which device of
the one pool hands to which of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec import symbolic
from stagec.analysis.sequences import OtherPrograms
from stagec.compiled import CompiledPoolSeries, CompiledSeries, Handover, told_once
from stagec.diagnostics import location_of
from stagec.dialects import dist, stg
from stagec.dialects.dist.sequences import Kind
from stagec.dialects.types import bytes_of
from stagec.frontend import CheckedModel, Source, check
from stagec.frontend.checker import plan_of_pool, pools_in
from stagec.frontend.plans.iterations import Iterations
from stagec.pass_manager import Stops
from stagec.plans.clauses import Plan
from stagec.plugins import Registry, registry
from stagec.pools import (
    CompiledPools,
    Exchange,
    Pool,
    computed_by,
    overrides_by_pool,
    roles_of,
    said_of,
    serving_pool,
    sized_dims,
)
from stagec.pools.towers import wrong
from stagec.series import MOST_PROGRAMS, compile_series, too_many
from stagec.symbolic import ONE, Size

GIVES, TAKES = "gives", "takes"

MOST_AT_ONCE = 256
"""Handovers of one iteration."""


@dataclass(frozen=True)
class HandedHere:
    """Handovers of iterations of a pool: in each the same number from, and to, each other pool."""

    ways: tuple[tuple[str, str, int], ...]
    """For each, whether it gives or takes, the other pool, and in how many microbatches that is."""
    numbers: tuple[int, ...]
    """For each, which one of the job it is."""


@dataclass
class SeriesJob:
    """The pools of a plan, and what they hand over."""

    exchange: Exchange
    handovers: Sequence[Handover]
    iterations: Mapping[str, Iterations]
    microbatches: Mapping[str, np.ndarray]
    """The microbatches of each iteration of each pool."""
    firsts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.firsts, first = {}, 0
        for pool in self.exchange.pools:
            self.firsts[pool.name] = first
            first += pool.num_ranks
        self.total = first

    @cached_property
    def here(self) -> dict[str, list[HandedHere]]:
        """For each pool and each iteration: what it takes, and what it gives."""
        found: dict[str, list[list[tuple[tuple[str, str, int], int]]]] = {
            name: [[] for _ in each.rows] for name, each in self.iterations.items()
        }
        several = self.microbatches
        for number, each in enumerate(self.handovers):
            gives = GIVES, each.taker, int(several[each.taker][each.taken])
            takes = TAKES, each.giver, int(several[each.giver][each.given])
            found[each.giver][each.given].append((gives, number))
            found[each.taker][each.taken].append((takes, number))
        return {
            name: [
                HandedHere(
                    tuple(way for way, _ in sorted(own)),
                    tuple(number for _, number in sorted(own)),
                )
                for own in rows
            ]
            for name, rows in found.items()
        }

    def handed(self, name: str) -> np.ndarray:
        own = self.here[name]
        found = np.zeros((max(len(each.numbers) for each in own), len(own)), np.int64)
        for at, each in enumerate(own):
            found[: len(each.numbers), at] = each.numbers
        return found

    def ops(self, name: str, some: Iterations) -> list[Operation]:
        """What the module of some iterations of a pool is to say of others."""
        first = int(self.microbatches[name][some.numbers[0]])
        pool = replace(self.exchange.named(name), microbatches=first)
        op = dist.PoolOp(name, self.firsts[name], self.firsts[name] + pool.num_ranks, self.total)
        if pool.checked.plan.span is not None:
            op.location = location_of(pool.checked.plan.span)
        found: list[Operation] = [op]
        own = [self.here[name][number] for number in some.numbers]
        numbers: dict[str, list[int]] = {}
        for place, (kind, other_name, microbatches) in enumerate(own[0].ways):
            other = replace(self.exchange.named(other_name), microbatches=microbatches)
            ways = (pool, other) if kind == GIVES else (other, pool)
            handed = [self.handovers[each.numbers[place]] for each in own]
            for number, path in enumerate(pool.caches):
                moving = self.moving(*ways, path, place, handed, numbers)
                channel = place * len(pool.caches) + number
                said = dist.GivesOp if kind == GIVES else dist.TakesOp
                first = self.firsts[other_name]
                found.append(said_of(said, path, other, first, moving, channel))
        if numbers:
            found.append(dist.HandedNumbersOp(numbers))
            for each, column in numbers.items():
                found.append(stg.DimOp(each, symbolic.constant(column[0])))
        return found

    def moving(
        self,
        giver: Pool,
        taker: Pool,
        path: str,
        place: int,
        handed: Sequence[Handover],
        numbers: dict[str, list[int]],
    ) -> Size:
        """Elements of a layer that are handed over, in the name of a column."""
        holds = giver.caches[path].holds
        of_one = symbolic.product(map(symbolic.symbol, sized_dims(giver, path)))
        assert giver.checked.batch is not None
        name = f"handed.{place}.sequences"
        column = [each.count for each in handed]
        for dim, window in giver.checked.batch.roles.positions.items():
            if stg.stored(dim) in holds.names:
                most = None if window is None else int(window.value)
                name = f"handed.{place}" if most is None else f"handed.{place}.{most}"
                column = [each.number(most) for each in handed]
        # A message has whole elements.
        share = self.exchange.of_one(giver, taker, path).num_bytes / bytes_of(ONE, holds.dtype)
        parts = (of_one * share).evaluate(giver.sizes).denominator
        name += f".by{parts}" if parts > 1 else ""
        numbers[name] = [-(-number // parts) * parts for number in column]
        return of_one * symbolic.symbol(name)


def compile_series_of_pools(
    source: Source,
    plan: str | None,
    overrides: Mapping[str, str],
    iterations: Mapping[str, Iterations],
    *,
    known: Registry | None = None,
    stops: Callable[[str], Stops] = lambda pool: Stops(),
    seen: Callable[[Sequence[tuple[CheckedModel, ModuleOp]]], object] = lambda pools: None,
    adapt: Callable[[Plan], Plan] = lambda plan: plan,
) -> CompiledPoolSeries:
    """Compile the series of each pool of a plan. `seen` is told of all pools, each as of its first iteration.

    E0421 where a file takes what the other does not have, E0423 where one cannot hand over what another takes.
    """
    known = known or registry()
    names = pools_in(source, plan)
    own = overrides_by_pool(source, plan, names, overrides)

    def checked(pool: str, some: Iterations) -> CheckedModel:
        found = check(source, plan_of_pool(source, plan, pool), own[pool], known.functions, some)
        return found.adapted(adapt)

    def first(pool: str) -> CheckedModel:
        return checked(pool, iterations[pool].only([0]))

    models = [first(name) for name in names]
    seen([(model, computed_by(model, [])) for model in models])
    pools = [serving_pool(name, lambda name=name: first(name)) for name in names]
    handovers = list(handovers_of(pools, iterations))
    exchange = Exchange(pools)
    check_exchange(exchange, handovers)
    microbatches = {pool.name: microbatches_of(pool, iterations[pool.name]) for pool in pools}
    job = SeriesJob(exchange, handovers, iterations, microbatches)
    found = {
        name: compile_series(
            lambda some, name=name: checked(name, some),
            iterations[name],
            kinds=[each.ways for each in job.here[name]],
            handed=lambda some, name=name: job.ops(name, some),
            stops=stops(name),
            load_pass=known.make_pass,
        )
        for name in names
    }
    firsts = told_once([found[name].first for name in names])
    found = {
        name: replace(found[name], parts=[first, *found[name].parts[1:]])
        for name, first in zip(names, firsts, strict=True)
    }
    handed = {name: job.handed(name) for name in names}
    channels = len(pools[0].caches)
    whole = pools[0].checked.plan.name.rpartition(".")[0]
    return CompiledPoolSeries(whole, found, handovers, handed, channels)


def compile_series_of_parts(
    make: Callable[[Iterations], CompiledPools], iterations: Iterations
) -> CompiledPoolSeries:
    """A series of pools that compute parts of each iteration: of each program that some of them are, `make` compiles all pools."""
    parts: list[CompiledPools] = []
    which = np.full(len(iterations.rows), -1, np.int64)
    while (left := np.flatnonzero(which < 0)).size:
        if len(parts) == MOST_PROGRAMS:
            raise too_many(iterations, int(left[0]))
        compiled = None
        while compiled is None:
            try:
                compiled = make(iterations.only(left.tolist()))
            except OtherPrograms as others:
                left = left[others.same]
        which[left] = len(parts)
        parts.append(compiled)
    found = {
        name: CompiledSeries(told_once([part.pools[name] for part in parts]), which)
        for name in parts[0].pools
    }
    none = np.zeros((0, len(which)), np.int64)
    return CompiledPoolSeries(parts[0].name, found, [], dict.fromkeys(found, none), 0)


def check_exchange(exchange: Exchange, handovers: Sequence[Handover]) -> None:
    """E0423 where pools keep other things of a sequence, or wait for each other."""
    ways = dict.fromkeys((each.giver, each.taker) for each in handovers)
    exchange.check_order(ways)
    for one, other in ((exchange.named(g), exchange.named(t)) for g, t in ways):
        exchange.check_caches(one, other)
        for path in one.caches:
            exchange.check_positions(one, other, path)
            holds = one.caches[path].holds
            positions = {stg.stored(name) for name in roles_of(one)}
            if not positions & set(holds.names) and stg.SEQUENCES not in holds.names:
                message = f"`{path}` has no dim of positions, and sequences of a series are not rows of their own"
                raise wrong(message, one.span, "keep what requests have as a state, or by position")


def microbatches_of(pool: Pool, iterations: Iterations) -> np.ndarray:
    """In how many microbatches each iteration is."""
    batch = pool.checked.batch
    assert batch is not None
    assert batch.sums is not None
    dealt = iterations.dealt(batch.sums.sequences.num_devices)
    return np.minimum(dealt.most_microbatches(batch.serve.split), batch.serve.microbatches)


def handovers_of(pools: Sequence[Pool], iterations: Mapping[str, Iterations]) -> Iterator[Handover]:
    """All handovers, those of a taker in the order of its iterations. E0421 for what no iteration has."""
    for taker in pools:
        file = iterations[taker.name]
        if not file.taken:
            continue
        giver = giver_of(taker, file)
        theirs = iterations[giver]
        left = [counted(row, ended=True) for row in theirs.rows]
        for at, taken in file.taken.items():
            line = file.lines[at]
            decoded = counted(file.rows[at], ended=False)
            by_giver: dict[int, list[tuple[int, int]]] = {}
            for count, positions, number in taken:
                if number >= len(theirs.rows):
                    message = f"there is no iteration {number} of `{giver}`"
                    help_ = f"`{theirs.path}` has {len(theirs.rows):,}, from 0 on"
                    raise file.wrong(line, message, help_)
                if left[number][positions] < count:
                    message = f"iteration {number} of `{giver}` leaves {left[number][positions]} sequences of {positions} positions, and {count} are taken"
                    help_ = f"what it completes is in `{theirs.path}`, line {theirs.lines[number]}"
                    raise file.wrong(line, message, help_)
                if decoded[positions] < count:
                    message = f"{count} sequences of {positions} positions are taken, and the iteration goes on with {decoded[positions]}"
                    help_ = f"write `{count}@{positions}` under `decode` in the same line"
                    raise file.wrong(line, message, help_)
                left[number][positions] -= count
                decoded[positions] -= count
                by_giver.setdefault(number, []).append((count, positions))
            if len(by_giver) > MOST_AT_ONCE:
                message = f"an iteration goes on with what {len(by_giver)} of `{giver}` complete"
                raise file.wrong(line, message, f"take from {MOST_AT_ONCE} at most")
            for number, sequences in sorted(by_giver.items()):
                yield Handover(giver, number, taker.name, at, tuple(sequences))


def giver_of(taker: Pool, file: Iterations) -> str:
    """The pool that the plan of another names. E0421 for none, or several."""
    sources = list(dict.fromkeys(each.said.source for each in taker.served if each.said.source))
    if len(sources) == 1:
        return sources[0]
    message = f"the plan of `{taker.name}` says no pool that sequences come from"
    help_ = "write `decode 4 at 2048 from prefill` in its `serve`"
    if sources:
        message = f"the plan of `{taker.name}` says {len(sources)} pools that sequences come from"
        help_ = "in a series they come from one"
    raise file.wrong(file.lines[min(file.taken)], message, help_)


def counted(row: Sequence[Sequence[Kind]], ended: bool) -> Counter[int]:
    """Sequences of an iteration on all devices, by the positions that they have before it, or when it has `ended`."""
    found: Counter[int] = Counter()
    for device in row:
        for count, new, before, _ in device:
            found[before + ended * new] += count
    return found
