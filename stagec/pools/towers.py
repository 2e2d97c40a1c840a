"""Pools that each have a part of one model: towers that train, as stages of one pipeline, and experts that serve, beside attention.

What one pool has to know of the others is said in its module: which part each has and where its ranks are (`dist.towers`, `dist.experts`,
`dist.pool`), before anything else is done; and of each value that crosses how the devices at the other end hold it (`dist.gives`,
`dist.takes`), which is read off the IR of both once they are compiled that far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec import symbolic
from stagec.analysis.handing_over import PoolSide, messages, not_dividing
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import averages, mesh_of, size_values
from stagec.diagnostics import CompileError, Span, location_of, quoted, refused
from stagec.dialects import dist
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TIME_AXES, TIME_AXIS, TensorType, tensor_of
from stagec.frontend import CheckedModel
from stagec.frontend.plans.iterations import Iterations
from stagec.pass_arguments import virtual_stages
from stagec.plans.clauses import Optimizer, Pipeline, Plan, Serve
from stagec.rewriting import programs_by_kind
from stagec.schedules.catalogue import CATALOGUE
from stagec.symbolic import Size, conditions


def said_before(checked: Mapping[str, CheckedModel]) -> dict[str, list[Operation]]:
    """What the module of each pool is to say before its first pass. E0423 for pools that are not parts of one pipeline."""
    pipelines = {name: pipeline_of(name, each) for name, each in checked.items()}
    check_schedules(pipelines)
    check_norms(checked)
    towers = [
        dist.PoolPart(name, each.plan.mesh[pipelines[name].axis], pipelines[name].counts)
        for name, each in checked.items()
    ]
    check_counts(towers, checked)
    return ranked(checked, dist.TowersOp(tuple(towers)))


def ranked(checked: Mapping[str, CheckedModel], parts: Operation) -> dict[str, list[Operation]]:
    """Who has which part, and which ranks are whose."""
    sizes = {name: prod(each.plan.mesh.values()) for name, each in checked.items()}
    found: dict[str, list[Operation]] = {}
    first = 0
    for name, each in checked.items():
        pool = dist.PoolOp(name, first, first + sizes[name], sum(sizes.values()))
        first += sizes[name]
        listed = parts.clone()
        for op in (listed, pool):
            if each.plan.span is not None:
                op.location = location_of(each.plan.span)
        found[name] = [listed, pool]
    return found


def experts_said_before(checked: Mapping[str, CheckedModel]) -> dict[str, list[Operation]]:
    """The same of a pool of experts and one of everything else. E0423 for pools that are not these two, or serve different iterations."""
    parts = {name: part_of(name, each) for name, each in checked.items()}
    if sorted(parts.values()) != ["attention", "experts"]:
        wanting = [part for part in ("attention", "experts") if part not in parts.values()]
        last = list(checked)[-1]
        message = (
            f"no pool computes {PARTS[wanting[0]]}"
            if wanting
            else f"`{last}` computes what another pool does"
        )
        help_ = "experts on their own are served by two pools: `part = attention` in the `serve` of one, and `part = experts` in that of the other"
        raise wrong(message, part_span(checked[last]), help_)
    experts, others = (
        next(n for n in parts if parts[n] == part) for part in ("experts", "attention")
    )
    check_served(checked[others], checked[experts], others, experts)
    for name, each in checked.items():
        check_part(name, each)
    check_dtypes(checked[others], checked[experts], others, experts)
    check_loads(checked[others], checked[experts], others, experts)
    batch = checked[experts].batch
    assert batch is not None
    return ranked(checked, dist.ExpertsOp(tuple(batch.serve.modules), experts, others))


PARTS = {"attention": "attention and what else is no expert", "experts": "the experts"}


def part_of(name: str, checked: CheckedModel) -> str:
    part = checked.part
    if part is None:
        message = f"the pool `{name}` does not say what of each layer it computes"
        help_ = "write `part = attention` or `part = experts` in its `serve`: so does another pool of this plan"
        raise wrong(message, part_span(checked), help_)
    return part


def part_span(checked: CheckedModel) -> Span | None:
    if checked.batch is None:
        return checked.plan.span
    return checked.batch.serve.given.get("part", checked.batch.serve.span)


def check_served(one: CheckedModel, other: CheckedModel, others: str, experts: str) -> None:
    """Check that both are about one iteration: the tokens that the one dispatches are those of the other's experts."""
    assert one.batch is not None and other.batch is not None
    here, there = one.batch.serve, other.batch.serve
    same = numbers_of(here) == numbers_of(there)
    for setting in ("drafts", "experts", "redundant", "logits", "microbatches", "split"):
        if getattr(here, setting) != getattr(there, setting):
            message = f"`{setting}` is not the same in `{others}` and in `{experts}`"
            raise wrong(message, there.given.get(setting, there.span), SERVES_ALIKE)
    if not same:
        message = f"`{experts}` serves other sequences than `{others}`"
        raise wrong(message, there.span, SERVES_ALIKE)


def all_of(checked: Mapping[str, CheckedModel], some: Iterations | None) -> dict[str, Iterations]:
    """What pools of experts serve: all sequences that others have dealt to their devices, where these differ."""
    others = next(each.batch for each in checked.values() if each.part == "attention")
    if others is None or others.sums is None:
        return {}
    dealt = others.sums.sequences
    joined = Iterations("", joined=dealt) if some is None else replace(some, joined=dealt)
    return {name: joined for name, each in checked.items() if each.part == "experts"}


def numbers_of(serve: Serve) -> list[list[int]]:
    return [[int(number.value) for number in each.numbers] for each in serve.sequences]


SERVES_ALIKE = "say the same of both, but for `part`: they compute one iteration"


def check_part(name: str, checked: CheckedModel) -> None:
    """E0423 for what nobody can say of layers whose experts are elsewhere."""
    plan, batch = checked.plan, checked.batch
    assert batch is not None
    wanted: list[tuple[bool, str, Span | None, str]] = [
        (
            any(each.source for each in batch.serve.sequences),
            "goes on with sequences of another pool, and computes a part of each layer",
            batch.serve.span,
            "leave out `from`",
        ),
        (
            bool(batch.serve.modules) and batch.serve.part == "attention",
            "names modules of the other pool",
            batch.serve.given.get("modules"),
            "say `modules` in the `serve` of the pool of experts",
        ),
        (
            plan.pipeline is not None,
            "cuts layers into stages, and each layer into two pools",
            plan.pipeline.span if plan.pipeline else None,
            "leave out `pipeline`",
        ),
        (
            plan.collectives.exchange != "direct" or plan.collectives.like is not None,
            "says how devices of one mesh exchange tokens, and these go to another pool",
            plan.collectives.span,
            "leave out `exchange` and `like`",
        ),
        (
            batch.serve.part == "experts" and batch.sums is not None and bool(batch.sums.axes),
            "has sequences of their own on its devices, and gets the tokens of all",
            batch.serve.span,
            "leave out what splits them",
        ),
    ]
    for is_so, what, span, help_ in wanted:
        if is_so:
            raise wrong(f"`{name}` {what}", span, help_)


def check_dtypes(one: CheckedModel, other: CheckedModel, others: str, experts: str) -> None:
    for setting in ("activations", "dispatch", "combine"):
        here, there = (getattr(each.plan.precision, setting) for each in (one, other))
        if here != there:
            message = f"`{setting}` is {here or 'as values are'} in `{others}`, and {there or 'as values are'} in `{experts}`"
            precision = other.plan.precision
            span = precision.given.get(setting, precision.span)
            raise wrong(message, span, "say `precision` beside the pools, for both")


def check_loads(one: CheckedModel, other: CheckedModel, others: str, experts: str) -> None:
    """Check that both know alike how busy each expert is."""
    here, there = (each.plan.load for each in (one, other))
    if here != there:
        message = f"`load` is not the same in `{others}` and in `{experts}`"
        span = (there or here or one.plan).span
        raise wrong(message, span, "say `load` beside the pools, for both")


def pipeline_of(name: str, checked: CheckedModel) -> Pipeline:
    found = checked.plan.pipeline
    if found is None:
        message = f"the pool `{name}` does not say what it runs"
        help_ = "name the count of its repeat: `mesh dp = 4, pp = 1` and `pipeline L over pp {}`; or serve requests in all pools, with `serve`"
        note = (
            "pools that train are stages of one pipeline: each runs the repeats that its `pipeline` names, "
            "and what lies between them"
        )
        raise wrong(message, checked.plan.span, help_, [note])
    return found


def check_schedules(pipelines: Mapping[str, Pipeline]) -> None:
    """Check that all pools run one schedule, with one stage on each rank."""
    one, first = next(iter(pipelines.items()))
    for name, each in pipelines.items():
        span = each.given.get("schedule", each.span)
        if each.schedule != first.schedule:
            message = (
                f"`{name}` runs the schedule `{each.schedule}`, and `{one}` runs `{first.schedule}`"
            )
            raise wrong(message, span, "name one schedule: pools are stages of one pipeline")
        entry = CATALOGUE.get(each.schedule)
        if entry is None or entry.placement != "loop" or virtual_stages(each) != 1:
            known = [
                n for n, e in CATALOGUE.items() if e.placement == "loop" and e.stages_per_rank == 1
            ]
            message = f"`{name}` has other stages than one on each rank"
            raise wrong(
                message, span, f"pools run one of {quoted(known)}, with `virtual_stages = 1`"
            )


def check_norms(checked: Mapping[str, CheckedModel]) -> None:
    """Check that what is asked of the gradients of all pools together is asked in each."""
    one, first = next(iter(checked.items()))
    asked = asked_of_gradients(first.plan.optimizer)
    for name, each in checked.items():
        optimizer = each.plan.optimizer
        own = asked_of_gradients(optimizer)
        for setting, wanted in asked.items():
            if own[setting] == wanted:
                continue
            message = f"`{name}` has {own[setting]}, and `{one}` has {wanted}"
            help_ = "say `optimizer` once, beside the pools"
            note = (
                "pools are parts of one model: its gradients have one norm, and its loss one scale"
            )
            raise wrong(message, optimizer.given.get(setting, optimizer.span), help_, [note])


def asked_of_gradients(optimizer: Optimizer) -> dict[str, str]:
    """What the optimizer has to know of all gradients together, by setting."""
    settings = {"clip": optimizer.clip, "loss_scale": optimizer.loss_scale}
    return {
        name: f"no `{name}`" if value is None else f"`{name} = {value}`"
        for name, value in settings.items()
    }


def check_counts(towers: Sequence[dist.PoolPart], checked: Mapping[str, CheckedModel]) -> None:
    owners: dict[str, str] = {}
    for tower in towers:
        for count in tower.counts:
            if count in owners:
                pipeline = checked[tower.pool].plan.pipeline
                message = f"`{owners[count]}` and `{tower.pool}` both run the repeat of `{count}`"
                help_ = (
                    "give each repeat to one pool, which may have several ranks along the pipeline"
                )
                raise wrong(message, pipeline and pipeline.span, help_)
            owners[count] = tower.pool


@dataclass(frozen=True)
class End:
    """Where a value is, at one end of its way: which way it goes, and how devices of the pool hold it."""

    holds: TensorType
    sends: bool
    other: str
    """The pool at the other end."""
    stages: tuple[int, ...]
    """Of this pool: that which makes it, or reads it first; all that have a weight whose gradient it is."""


@dataclass(frozen=True)
class PoolKnown:
    """What others have to know of a pool."""

    name: str
    first: int
    mesh: Mapping[str, int]
    axis: str
    """The axis of its stages; empty where there are none."""
    microbatches: int
    sizes: Mapping[str, int]
    averages: Set[str]
    """Sizes that need be no whole numbers."""
    ends: Mapping[str, End]
    """By path."""
    module: ModuleOp
    plan: Plan

    @staticmethod
    def of(name: str, module: ModuleOp, plan: Plan) -> PoolKnown:
        """From the IR in which every value has the shape that devices hold."""
        with conditions.unrecorded():
            values = dict(conditions.unread(size_values(module)))
            mesh = dict(conditions.unread(mesh_of(module)))
        pool, axis = dist.pool_of(module), dist.stage_axis(module)
        assert pool is not None
        first, microbatches = pool.first.value.data, int(values[TIME_AXIS])
        ends = dict(ends_in(module))
        even = averages(module).keys()
        return PoolKnown(name, first, mesh, axis, microbatches, values, even, ends, module, plan)

    @property
    def span(self) -> Span | None:
        return self.plan.span

    def side(self, path: str) -> PoolSide:
        return PoolSide(self.first, self.mesh, self.ends[path].holds, 1, self.axis)


def ends_in(module: ModuleOp) -> Iterator[tuple[str, End]]:
    """What is between layers is of one stage."""
    by_kind = programs_by_kind(module)
    found: dict[str, End] = {}
    for number, kind in enumerate(dist.stage_kinds(module)):
        for op in by_kind[kind].walk():
            if isinstance(op, dist.TowerSendOp | dist.TowerRecvOp):
                sends = isinstance(op, dist.TowerSendOp)
                before = found[op.path].stages if op.path in found else ()
                holds = tensor_of(op.value.type)
                found[op.path] = End(holds, sends, op.pool.data, (*before, number))
    yield from found.items()


def said_after(pools: Sequence[PoolKnown]) -> dict[str, list[Operation]]:
    """What the module of each pool is to say of the others, in order. E0423 where they cannot hand over what crosses."""
    by_name = {pool.name: pool for pool in pools}
    check_microbatches(pools)
    found: dict[str, list[Operation]] = {pool.name: [] for pool in pools}
    paths = {path: None for pool in pools for path in pool.ends}
    for channel, path in enumerate(sorted(paths, key=place_of_path)):
        having = [pool for pool in pools if path in pool.ends]
        if len(having) != 2:
            raise lonely(having[0], path)
        giver = next(pool for pool in having if pool.ends[path].sends)
        taker = by_name[giver.ends[path].other]
        moving = check_value(giver, taker, path)
        for kind, own, other in (
            (dist.GivesOp, giver, taker),
            (dist.TakesOp, taker, giver),
        ):
            mesh, end = dist.MeshAxes(tuple(other.mesh.items())), other.ends[path]
            axis = other.axis if other.mesh.get(other.axis, 1) > 1 else None
            stages = tuple(end.stages) if axis else None
            op = kind(
                path, other.name, other.first, mesh, end.holds, moving, channel, 1, axis, stages
            )
            if other.span is not None:
                op.location = location_of(other.span)
            found[own.name].append(op)
    return found


def place_of_path(path: str) -> tuple[int, str]:
    direction, _, number = path.partition(" ")
    return int(number), direction


def lonely(pool: PoolKnown, path: str) -> CompileError:
    """E0423 for what one end knows of and the other does not."""
    end = pool.ends[path]
    verb = "hands" if end.sends else "waits for"
    message = f"`{pool.name}` {verb} a gradient that `{end.other}` knows nothing of"
    return wrong(message, pool.span, "say `freeze` for all pools, beside them")


def check_microbatches(pools: Sequence[PoolKnown]) -> None:
    """Check that a step has as many microbatches in each pool."""
    one = pools[0]
    for other in pools:
        if other.microbatches != one.microbatches:
            message = f"a step has {one.microbatches} microbatches in `{one.name}`, and {other.microbatches} in `{other.name}`"
            notes = [
                "a microbatch goes through all pools: the batch, over the data-parallel ranks of a pool and its `microbatch`, is their number"
            ]
            help_ = "choose `microbatch` in each pool so that its data-parallel ranks together run as many samples at once"
            raise wrong(message, other.span, help_, notes)


def check_value(giver: PoolKnown, taker: PoolKnown, path: str) -> Size:
    """Check that both mean the same value, and that it divides over the devices of both; how many elements of it a microbatch has."""
    here, there = giver.ends[path].holds, taker.ends[path].holds
    sequences = ModuleSequences.of(giver.module)
    own = sequences.names if sequences is not None else frozenset[str]()
    if here.dtype != there.dtype:
        message = f"`{giver.name}` hands over values of {here.dtype}, and `{taker.name}` takes {there.dtype}"
        what = "gradients" if path.startswith(dist.TIED) else "activations"
        help_ = f"say `precision {{ {what} = ... }}` for both, beside the pools"
        raise wrong(message, taker.span, help_)
    for name in here.names:
        if name not in own and giver.sizes.get(name) != taker.sizes.get(name):
            message = f"`{name}` is {giver.sizes.get(name)} in `{giver.name}`, and {taker.sizes.get(name)} in `{taker.name}`"
            raise wrong(message, taker.span, f"let `{name}` be of one size: it is handed over")
    moving = moving_of(here)
    bytes_of_one = bytes_of_message(giver, taker, path)
    if bytes_of_one.names & (giver.averages | own):
        return moving
    size = bytes_of_one.evaluate(giver.sizes)
    if size.denominator != 1:
        message = (
            f"what `{giver.name}` hands to `{taker.name}` does not divide over the devices of both"
        )
        sides = giver.side(path), taker.side(path)
        raise wrong(message, taker.span, "choose sizes that divide", [not_dividing(*sides, size)])
    return moving


def moving_of(holds: TensorType) -> Size:
    """How many elements a microbatch has of a value, all devices together."""
    return symbolic.product(
        Dim(dim.name, tuple(a for a in dim.split if a in TIME_AXES)).size for dim in holds.dims
    )


def bytes_of_message(giver: PoolKnown, taker: PoolKnown, path: str) -> Size:
    """In the names of the giver."""
    here = giver.ends[path].holds
    batch = here.names[0] if here.names else ""
    sides = giver.side(path), taker.side(path)
    return messages(*sides, moving_of(here), batch, gives=True).num_bytes


def wrong(message: str, span: Span | None, help_: str, notes: Sequence[str] = ()) -> CompileError:
    return refused("E0423", message, span, notes=notes, help=help_)
