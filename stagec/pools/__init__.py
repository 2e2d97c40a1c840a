"""Pools: parts of one job that each run a plan of their own, and hand state of requests to each other.

    compiled = compile_pools(parse_file("model.stg"), "disaggregated", {})
    encode_traces(compiled.traces)

Each pool is compiled like a plan by itself. What one has to know of the other is how its devices hold each cache: that is
read off the IR of both, as far as it does not depend on what is handed over, and said in both (`dist.gives`, `dist.takes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec import symbolic
from stagec.analysis.handing_over import Messages, PoolSide, messages, not_dividing
from stagec.analysis.sizes import mesh_of, module_of, size_values
from stagec.backend.program import PooledTraces, TraceSet
from stagec.compiled import Compiled, told_once
from stagec.diagnostics import Span, location_of, quoted
from stagec.dialects import dist, stg
from stagec.dialects.types import TIME_AXIS, StackType, TensorType, tensor_of
from stagec.driver import compile_checked
from stagec.frontend import CheckedModel, Source, check, lower
from stagec.frontend.checker import plan_of_pool, pools_in, sizes_of
from stagec.frontend.plans.iterations import Iterations
from stagec.frontend.plans.merge import DOT
from stagec.pass_manager import PassLoader, Stops
from stagec.pipeline_schedule import stage_placement
from stagec.pipelines import make
from stagec.plans.clauses import Plan, Sequences
from stagec.plugins import Registry, registry
from stagec.pools.towers import (
    PoolKnown,
    all_of,
    experts_said_before,
    said_after,
    said_before,
    wrong,
)
from stagec.rewriting import programs, programs_by_kind
from stagec.symbolic import ONE, ZERO, Size, conditions

KNOWN_AFTER = "insert-collectives"
"""The pass after which nothing changes any more of how devices hold caches."""


@dataclass(frozen=True)
class CompiledPools:
    """A model under a plan of several pools."""

    name: str
    """The name of the plan."""
    pools: Mapping[str, Compiled]

    @property
    def traces(self) -> PooledTraces:
        return self.pooled(lambda compiled: compiled.trace_set)

    def pooled(self, of: Callable[[Compiled], TraceSet]) -> PooledTraces:
        """The traces of all pools as one job."""
        return PooledTraces(tuple((name, of(each)) for name, each in self.pools.items()))

    @property
    def plans(self) -> Mapping[str, Plan]:
        return {name: each.plan for name, each in self.pools.items()}

    @property
    def first(self) -> Compiled:
        return next(iter(self.pools.values()))

    @property
    def sources(self) -> Mapping[str, str]:
        return {path: text for each in self.pools.values() for path, text in each.sources.items()}


def compile_pools(
    source: Source,
    plan: str | None,
    overrides: Mapping[str, str],
    *,
    known: Registry | None = None,
    stops: Callable[[str], Stops] = lambda pool: Stops(),
    load_pass: PassLoader | None = None,
    seen: Callable[[Sequence[tuple[CheckedModel, ModuleOp]]], object] | None = None,
    adapt: Callable[[Plan], Plan] = lambda plan: plan,
    iterations: Iterations | None = None,
) -> CompiledPools:
    """Compile each pool of a plan. E0423 where one cannot hand over what another takes.

    `overrides` are those of `--set`: of all pools that have the name, or of one, as `prefill.tp`. `iterations` are those of pools that compute each together.
    `seen` is told of all pools, each with what it computes of the model, before any of them is compiled.
    """
    known = known or registry()
    names = pools_in(source, plan)
    own = overrides_by_pool(source, plan, names, overrides)

    served: dict[str, Iterations] = {}

    def checked(pool: str) -> CheckedModel:
        name = plan_of_pool(source, plan, pool)
        found = check(source, name, own[pool], known.functions, served.get(pool))
        return found.adapted(adapt)

    first = {name: checked(name) for name in names}
    for name, each in list(first.items()):
        if each.part == "attention":
            if iterations is not None:
                served[name] = iterations
                first[name] = checked(name)
            served |= all_of(first, iterations)
            first |= {other: checked(other) for other in served if other != name}
    before = said_before_all(first)
    if seen is not None:
        seen([(first[name], computed_by(first[name], before[name])) for name in names])
    after = said_after_all(
        [known_pool(name, lambda name=name: checked(name), before[name]) for name in names]
    )
    found = {
        name: compile_checked(
            lambda name=name: checked(name),
            stops=stops(name),
            load_pass=load_pass or known.make_pass,
            handed=[*before[name], *after[name]],
        )
        for name in names
    }
    found = dict(zip(found, told_once([*found.values()]), strict=True))
    return CompiledPools(first[names[0]].plan.name.rpartition(".")[0], found)


Said = dict[str, list[Operation]]
"""For each pool, what its module is to say of the others."""


def said_before_all(checked: Mapping[str, CheckedModel]) -> Said:
    """What is said before the first pass: of pools that have parts of the model which part each has."""
    if any(each.part is not None for each in checked.values()):
        return experts_said_before(checked)
    if any(each.batch is not None for each in checked.values()):
        return {name: [] for name in checked}
    return said_before(checked)


def computed_by(checked: CheckedModel, said: Sequence[Operation]) -> ModuleOp:
    """What a pool computes of the model, of which `said` says what it has."""
    with conditions.unrecorded():
        module = lower(checked)
        module.body.block.insert_ops_before([op.clone() for op in said], programs(module)[0])
        for name in CUTS:
            make(name).apply(Context(), module)
        return module


CUTS = ("cut-towers", "cut-experts")
"""The passes that leave of a model what a pool computes."""


def said_after_all(known: Sequence[KnownPool]) -> Said:
    """What is said once each is known as far as others have to know it."""
    trained = [pool for pool in known if isinstance(pool, PoolKnown)]
    return (
        said_after(trained)
        if trained
        else Exchange([p for p in known if isinstance(p, Pool)]).ops()
    )


def plan_around(source: Source, plan: str | None) -> tuple[str, str] | None:
    """For a pool that is asked about by itself and has a part of the model: the plan of all pools, and the pool's own name."""
    whole, dot, pool = (plan or "").rpartition(DOT)
    if not dot or pool not in pools_in(source, whole):
        return None
    return (whole, pool) if check(source, plan).has_part else None


def known_pool(
    name: str, make: Callable[[], CheckedModel], said: Sequence[Operation] = ()
) -> KnownPool:
    """A pool, compiled as far as others have to know it; of one that has a part of the model something is said before."""
    if not said:
        return serving_pool(name, make)
    until = compile_checked(make, stops=UNTIL_KNOWN, handed=[op.clone() for op in said])
    return PoolKnown.of(name, until.module, until.plan)


def serving_pool(name: str, make: Callable[[], CheckedModel]) -> Pool:
    """A pool that serves whole layers, compiled as far as others have to know it."""
    return Pool.of(name, compile_checked(make, stops=UNTIL_KNOWN))


UNTIL_KNOWN = Stops(after=KNOWN_AFTER, verify=False)


def overrides_by_pool(
    source: Source, plan: str | None, pools: Sequence[str], overrides: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """What `--set` says to each pool: `tp=8` to all that have a `tp`, `prefill.tp=8` to one, whatever is said to all."""
    found: dict[str, dict[str, str]] = {pool: {} for pool in pools}
    settable = {pool: sizes_of(source, plan_of_pool(source, plan, pool)) for pool in pools}
    said = sorted(overrides.items(), key=lambda item: item[0].partition(".")[0] not in found)
    for name, text in said:
        of_pool, dot, rest = name.partition(".")
        if dot and of_pool in found:
            found[of_pool][rest] = text
            continue
        having = [pool for pool in pools if name in settable[pool]]
        for pool in having or pools[:1]:  # of which the first says that there is no such name
            found[pool].setdefault(name, text)
    return found


@dataclass(frozen=True)
class Kept:
    """A cache of a pool."""

    holds: TensorType
    layers: int
    """The number of layers that have one; 1 outside of layers."""
    stages: tuple[int, ...]
    """Where along the pipeline's axis each layer is; nothing without a pipeline."""


@dataclass(frozen=True)
class Alike:
    """Sequences of a pool that are alike: so many, of so many new positions after so many others."""

    count: int
    new: int
    context: int
    said: Sequences
    """In the plan."""

    @staticmethod
    def of(said: Sequences) -> Alike:
        count, new, context = (int(number.value) for number in said.numbers)
        return Alike(count, new, context, said)

    @property
    def end(self) -> int:
        return self.new + self.context

    @property
    def is_passed_on(self) -> bool:
        """Whether what was computed of them before comes from another pool in the same iteration, so that whoever goes on with them lacks that too."""
        return bool(self.said.source)

    @property
    def handed(self) -> int:
        """The positions of one that another pool is handed."""
        return self.end if self.is_passed_on else self.new


@dataclass(frozen=True)
class Pool:
    """What others have to know of a pool."""

    name: str
    checked: CheckedModel
    mesh: Mapping[str, int]
    microbatches: int
    axis: str
    """The axis of its stages; empty without a pipeline, or where that has one rank."""
    caches: Mapping[str, Kept]
    served: tuple[Alike, ...]
    sizes: Mapping[str, int]
    """The sizes of the text's dims."""

    @staticmethod
    def of(name: str, compiled: Compiled) -> Pool:
        """From the IR in which every cache has the shape that devices hold. E0423 for a pool that serves nothing."""
        module, checked = compiled.module, compiled.checked
        if checked.batch is None:
            message = f"the pool `{name}` serves nothing"
            help_ = "add `serve { prefill 4 x 2048 }`, or `serve { decode 4 at 2048 from prefill }`"
            note = "all pools of a plan serve, or all train"
            raise wrong(message, checked.plan.span, help_, [note])
        mesh = dict(mesh_of(module))
        microbatches = int(size_values(module)[TIME_AXIS])
        axis = dist.stage_axis(module)
        if axis and mesh[axis] == 1:
            axis = ""  # all layers are on one
        served = tuple(map(Alike.of, checked.batch.serve.sequences))
        caches = dict(caches_of(module))
        sizes = conditions.unread(checked.sizes.known)
        return Pool(name, checked, mesh, microbatches, axis, caches, served, sizes)

    @property
    def num_ranks(self) -> int:
        return prod(self.mesh.values())

    @property
    def span(self) -> Span | None:
        assert self.checked.batch is not None
        return self.checked.batch.serve.span

    def side(self, path: str, first: int) -> PoolSide:
        return PoolSide(first, self.mesh, self.caches[path].holds, self.microbatches, self.axis)


def caches_of(module: ModuleOp) -> Iterator[tuple[str, Kept]]:
    """The caches of a module, by path."""
    kinds = programs_by_kind(module)
    stages = dist.stages_of(module)
    if stages is None:
        for program in kinds.values():
            for op in caches_in(program):
                yield op.path.data, Kept(tensor_of(op.cache.type), layers_in(op), ())
        return
    places = stage_placement(module)
    assert places is not None
    found: dict[str, Kept] = {}
    for stage, at in zip(stages.stages.data, places, strict=True):
        for op in caches_in(kinds[stage.kind]):
            before = found.get(op.path.data, Kept(tensor_of(op.cache.type), 0, ()))
            stages_here = before.stages + (at[0],) * layers_in(op, stage.layers)
            found[op.path.data] = replace(before, layers=len(stages_here), stages=stages_here)
    yield from found.items()


def caches_in(program: stg.ProgramOp) -> Iterator[stg.CacheOp]:
    return (op for op in program.walk() if isinstance(op, stg.CacheOp))


def layers_in(op: stg.CacheOp, of_stage: Sequence[int] = ()) -> int:
    """How many layers have a cache, on a stage that runs so many of each repeat that is cut: of others all are on one."""
    if not isinstance(op.cache.type, StackType):
        return 1
    count = op.cache.type.total_count
    names = {dist.local_count(number): n for number, n in enumerate(of_stage)}
    return count.integer(conditions.with_known(size_values(module_of(op)), names))


KnownPool = Pool | PoolKnown
"""One that serves, or one that trains."""


@dataclass(frozen=True)
class Going:
    """Sequences of a pool that go on in another. Each side says of them what it knows by itself, in names of its own text where it has some."""

    count: int
    giver: Alike
    taker: Alike

    def here(self, alike: Alike) -> Size:
        """How many."""
        if self.count == alike.count:
            return alike.said.count.size
        return symbolic.constant(self.count)

    @property
    def plain(self) -> Numbers:
        return symbolic.constant(self.count), symbolic.constant(self.giver.handed)

    @property
    def given(self) -> Numbers:
        said = self.giver.said
        before = said.context.size if self.giver.is_passed_on else ZERO
        return self.here(self.giver), said.new.size + before

    @property
    def taken(self) -> Numbers:
        _, new = self.plain
        is_whole = self.giver.handed == self.giver.end
        return self.here(self.taker), self.taker.said.context.size if is_whole else new


Numbers = tuple[Size, Size]
"""Of sequences: how many, and of how many positions each that are handed over."""


@dataclass(frozen=True)
class HandedCache:
    """A cache that goes from one pool to another: how many elements of each layer."""

    giver: Pool
    taker: Pool
    path: str
    channel: int
    moving: Size
    given: Size
    """The same, as the giver says it."""
    taken: Size
    """And as the taker does."""


@dataclass
class Exchange:
    """Who hands what to whom."""

    pools: Sequence[Pool]
    known: dict[tuple[str, int, str, int, str], Messages] = field(default_factory=dict)
    """The messages about one element, by giver, taker, microbatches of either, and cache: the same for all numbers of sequences."""

    def ops(self) -> dict[str, list[Operation]]:
        """What the module of each pool is to say."""
        total = sum(pool.num_ranks for pool in self.pools)
        found: dict[str, list[Operation]] = {}
        firsts: dict[str, int] = {}
        first = 0
        for pool in self.pools:
            firsts[pool.name] = first
            op = dist.PoolOp(pool.name, first, first + pool.num_ranks, total)
            if pool.checked.plan.span is not None:
                op.location = location_of(pool.checked.plan.span)
            found[pool.name] = [op]
            first += pool.num_ranks
        for each in self.handed():
            one, other, path, number = each.giver, each.taker, each.path, each.channel
            give = said_of(dist.GivesOp, path, other, firsts[other.name], each.given, number)
            take = said_of(dist.TakesOp, path, one, firsts[one.name], each.taken, number)
            found[one.name].append(give)
            found[other.name].append(take)
        return found

    def handed(self) -> list[HandedCache]:
        """All that is handed over. E0423 where pools do not agree on it."""
        found: list[HandedCache] = []
        for (giver, taker), sequences in self.going().items():
            one, other = self.named(giver), self.named(taker)
            self.check_caches(one, other)
            for number, path in enumerate(one.caches):
                plain, given, taken = (
                    self.moving(one, other, path, [each(s) for s in sequences])
                    for each in (lambda s: s.plain, lambda s: s.given, lambda s: s.taken)
                )
                self.check_parts(one, other, path, plain, sequences)
                found.append(HandedCache(one, other, path, number, plain, given, taken))
        return found

    def named(self, name: str) -> Pool:
        return next(pool for pool in self.pools if pool.name == name)

    def going(self) -> dict[tuple[str, str], list[Going]]:
        """By giver and taker: which sequences. E0423 where pools do not agree on them."""
        left = {pool.name: [[each.count, each] for each in pool.served] for pool in self.pools}
        found: dict[tuple[str, str], list[Going]] = {}
        givers: set[str] = set()
        for taker in self.pools:
            for each in taker.served:
                if not each.said.source:
                    continue
                self.check_source(taker, each.said)
                source = each.said.source
                givers.add(source)
                wanted = each.count
                for kind in left[source]:
                    number, theirs = kind
                    if theirs.end == each.context and number and wanted:
                        taken = min(wanted, number)
                        kind[0] -= taken
                        wanted -= taken
                        going = found.setdefault((source, taker.name), [])
                        going.append(Going(taken, theirs, each))
                if wanted:
                    message = f"`{taker.name}` goes on with {wanted} sequences of {each.context} positions that `{source}` does not leave"
                    notes = [f"`{source}` computes {spelled(self.named(source).served)}"]
                    help_ = f"take as many as end in `{source}`, at the positions where they end"
                    raise wrong(message, each.said.span, help_, notes)
        for name in givers:
            for count, each in left[name]:
                if count:
                    message = (
                        f"{count} sequences of `{name}`, at {each.end} positions, go on in no pool"
                    )
                    help_ = f"write `decode {count} at {each.end} from {name}` in the pool that goes on with them"
                    raise wrong(message, each.said.span, help_)
        if not found and len(self.pools) > 1:
            one, other = self.pools[0].name, self.pools[-1].name
            message = (
                f"no pool goes on with what another computes: {quoted(p.name for p in self.pools)}"
            )
            help_ = f"write `decode 4 at 2048 from {one}` in `{other}`"
            raise wrong(message, self.pools[-1].span, help_)
        self.check_order(found)
        return found

    def check_source(self, taker: Pool, each: Sequences) -> None:
        names = [pool.name for pool in self.pools if pool.name != taker.name]
        if each.source not in names:
            message = (
                f"sequences of `{taker.name}` come from `{each.source}`, which is no other pool"
            )
            raise wrong(message, each.span, f"there are {quoted(names)}")

    def check_order(self, found: Mapping[tuple[str, str], object]) -> None:
        """Check that nobody waits for what it hands over itself: transfers go one way. E0423 else."""
        reached = {name: {t for g, t in found if g == name} for name, _ in found}
        for _ in self.pools:
            for name, others in reached.items():
                others |= {far for other in tuple(others) for far in reached.get(other, ())}
                if name in others:
                    message = (
                        f"`{name}` waits for sequences that come from itself, by way of other pools"
                    )
                    span = self.named(name).span
                    raise wrong(message, span, "let sequences go one way in an iteration")

    def check_caches(self, one: Pool, other: Pool) -> None:
        """Check that both keep the same of a sequence. E0423 else."""
        here, there = set(one.caches), set(other.caches)
        for path in sorted(here ^ there):
            has, lacks = (one, other) if path in here else (other, one)
            message = f"`{has.name}` keeps `{path}` of a sequence, and `{lacks.name}` does not"
            raise wrong(message, lacks.span, "let both run modules that have the same caches")
        for path, kept in one.caches.items():
            theirs = other.caches[path].holds
            if kept.holds.names != theirs.names:
                message = f"`{path}` is [{', '.join(kept.holds.names)}] in `{one.name}`, and [{', '.join(theirs.names)}] in `{other.name}`"
                raise wrong(message, other.span, "let both run modules that have the same caches")
            if kept.holds.dtype != theirs.dtype:
                message = f"`{path}` is {kept.holds.dtype} in `{one.name}`, and {theirs.dtype} in `{other.name}`"
                help_ = "say `precision { cache = ... }` for both, beside the pools"
                raise wrong(message, other.span, help_)
            layers = other.caches[path].layers
            if kept.layers != layers:
                message = f"{kept.layers} layers of `{one.name}` keep `{path}` of a sequence, and {layers} of `{other.name}`"
                raise wrong(message, other.span, "let both run as many layers")
            mine, own = one.sizes, other.sizes
            for dim in sized_dims(one, path):
                if mine.get(dim) != own.get(dim):
                    message = f"`{dim}` is {mine.get(dim)} in `{one.name}`, and {own.get(dim)} in `{other.name}`"
                    help_ = f"`{path}` is handed over: let it be of one size"
                    raise wrong(message, other.span, help_)

    def moving(self, one: Pool, other: Pool, path: str, sequences: Sequence[Numbers]) -> Size:
        """Elements of a layer that are handed over: of each sequence the positions that the other pool lacks, or all that is kept of it."""
        holds = one.caches[path].holds
        assert one.checked.batch is not None
        roles = one.checked.batch.roles
        dims = sized_dims(one, path)
        of_one = symbolic.product(map(symbolic.symbol, dims))
        for name, window in roles.positions.items():
            if stg.stored(name) in holds.names:
                most = None if window is None else int(window.value)
                return of_one * symbolic.total(
                    count * (new if most is None else symbolic.call("min", new, most))
                    for count, new in sequences
                )
        in_rows = stg.SEQUENCES not in holds.names
        for pool in (one, other):
            if in_rows and pool.checked.batch is not None and pool.checked.batch.is_packed:
                message = f"`{path}` has no dim of positions, and sequences of `{pool.name}` are not rows of their own"
                help_ = "serve sequences of one kind in each pool"
                raise wrong(message, pool.span, help_)
        return of_one * symbolic.total(count for count, _ in sequences)

    def check_positions(
        self, one: Pool, other: Pool, path: str, lengths: Iterable[int] = ()
    ) -> None:
        """E0423 where devices of the sides share positions otherwise, or a sequence has not as many on each."""
        found = ((pool, turns_of(pool, path)) for pool in (one, other))
        turns = [(pool, each) for pool, each in found if each is not None]
        if len({each for _, each in turns}) > 1:
            message = (
                f"`{one.name}` and `{other.name}` deal out the positions of `{path}` differently"
            )
            help_ = "let as many devices share them in both, by runs as long, or those of one pool alone"
            raise wrong(message, other.span, help_)
        for number, (pool, (ways, length)) in product(lengths, turns):
            if number % (ways * length):
                message = f"a sequence hands over {number} positions, which are not as many on each of the {ways} devices of `{pool.name}` that share them"
                raise wrong(message, pool.span, f"hand over a multiple of {ways * length}")

    def check_parts(
        self, one: Pool, other: Pool, path: str, moving: Size, sequences: Sequence[Going]
    ) -> None:
        """Check that sequences and bytes divide over the devices of both. E0423 else."""
        self.check_positions(one, other, path, (each.giver.handed for each in sequences))
        found = self.of_one(one, other, path)
        for each in sequences:
            if each.count % found.num_parts:
                message = f"{each.count} sequences do not divide over the devices of `{one.name}` and of `{other.name}`"
                help_ = f"hand over a multiple of {found.num_parts}"
                raise wrong(message, other.span, help_)
        size = (found.num_bytes * moving).evaluate(one.sizes)
        if size.denominator != 1:
            message = (
                f"`{path}` does not divide over the devices of `{one.name}` and of `{other.name}`"
            )
            sides = one.side(path, 0), other.side(path, 0)
            raise wrong(
                message, other.span, "choose sizes that divide", [not_dividing(*sides, size)]
            )

    def of_one(self, one: Pool, other: Pool, path: str) -> Messages:
        key = one.name, one.microbatches, other.name, other.microbatches, path
        if key not in self.known:
            batch = one.caches[path].holds.names[0]
            self.known[key] = messages(
                one.side(path, 0), other.side(path, 0), ONE, batch, gives=True
            )
        return self.known[key]


def sized_dims(pool: Pool, path: str) -> list[str]:
    """The dims of a cache that are the same for every sequence."""
    holds = pool.caches[path].holds
    positions = {stg.stored(name) for name in roles_of(pool)}
    return [name for name in holds.names[1:] if name not in (*positions, stg.SEQUENCES)]


def turns_of(pool: Pool, path: str) -> tuple[int, int] | None:
    """How many devices of a pool share the positions of a cache, and how many of them one has at a time; None if they do not."""
    batch, holds = pool.checked.batch, pool.caches[path].holds
    assert batch is not None
    for name, spread in batch.spreads.items():
        if stg.stored(name) in holds.names and holds.dim(stg.stored(name)).split:
            return prod(pool.mesh[axis] for axis in spread.axes), spread.interleave
    return None


def roles_of(pool: Pool) -> Mapping[str, object]:
    assert pool.checked.batch is not None
    return pool.checked.batch.roles.positions


def spelled(sequences: Sequence[Alike]) -> str:
    return ", ".join(f"{each.count} that end at {each.end}" for each in sequences)


def said_of(
    kind: type[dist.GivesOp | dist.TakesOp],
    path: str,
    other: Pool,
    first: int,
    moving: Size,
    channel: int,
) -> Operation:
    kept = other.caches[path]
    axis = other.axis or None if kept.stages else None
    op = kind(
        *(path, other.name, first, dist.MeshAxes(tuple(other.mesh.items())), kept.holds),
        *(moving, channel, other.microbatches, axis, tuple(kept.stages) if axis else None),
    )
    if other.span is not None:
        op.location = location_of(other.span)
    return op
