"""Single changes of a plan of the user's own, each of which is compiled whole to see what it gains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

from stagec.frontend import CheckedModel
from stagec.plans.clauses import Plan
from stagec.schedules.catalogue import build_named
from stagec.schedules.errors import ScheduleError
from stagec.searching.evaluation import NAME
from stagec.searching.model import ModelDims
from stagec.searching.space import divisors, is_file
from stagec.searching.whole_plans import IdleSetting

SCHEDULES = ("1f1b", "zb_h1", "gpipe")


@dataclass(frozen=True)
class PlanChange:
    """One change of a plan."""

    title: str
    """The change in a few words, for the user."""
    clauses: tuple[str, ...] = ()
    """The clauses that replace those of the plan."""
    sizes: tuple[tuple[str, str], ...] = ()
    """The sizes that replace those of the plan, as `--set` takes them."""

    def why_idle(self, told: Iterable[IdleSetting]) -> str:
        """Why the change is none; empty if it is one. `told` is what of the changed plan changes nothing."""
        return next((each.message for each in told if each.line in self.clauses), "")

    def text(self, plan: str, further: tuple[str, ...]) -> str:
        """The text of a plan that extends the user's by this change, and by further clauses."""
        body = "".join(f"  {line}\n" for line in (*self.clauses, *further))
        return f"plan {NAME} extends {plan} {{\n{body}}}\n"


def changes(checked: CheckedModel, dims: ModelDims) -> Iterator[PlanChange]:
    """All single changes of a plan; the first one changes nothing. A changed plan may turn out not to compile, and is not proposed then."""
    plan = checked.plan
    yield PlanChange("as it is")
    yield from of_mesh(checked)
    yield from of_microbatch(plan, sequences_of_rank(plan, dims))
    yield from of_storage(plan, dims)
    if dims.is_training:
        for what in ("none", "attention", "full"):
            if plan.recompute.what != (what,):
                yield PlanChange(f"recompute {what}", (f"recompute {what}",))
    other = "gathered" if plan.collectives.keep == "shard" else "shard"
    yield PlanChange(f"keep = {other}", (f"collectives {{ keep = {other} }}",))
    stored_whole = plan.zero_level in (1, 2)
    for kind, is_there in (
        *((axis, axis in plan.mesh) for axis in ("tp", "ep")),
        ("param_gather", stored_whole),
    ):
        if is_there and not getattr(plan.overlap, kind):
            yield PlanChange(f"overlap {kind}", (f"overlap {{ {kind} = true }}",))


def of_mesh(checked: CheckedModel) -> Iterator[PlanChange]:
    """Move ranks from one axis of the mesh to another: for each pair of axes, by the smallest factor above 1 that divides the first one's size."""
    mesh = checked.plan.mesh
    for more, less in permutations(mesh, 2):
        if mesh[less] > 1:
            part = divisors(mesh[less])[1]
            sizes = {more: mesh[more] * part, less: mesh[less] // part}
            said = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
            yield PlanChange(said, sizes=tuple((a, str(s)) for a, s in sizes.items()))


def of_microbatch(plan: Plan, sequences: int) -> Iterator[PlanChange]:
    """Change the microbatch to the next larger and the next smaller size that divides a rank's sequences; in a pipeline, also change the schedule."""
    size = plan.microbatch_size
    if not size:
        yield PlanChange("microbatch 1", ("microbatch 1",))
        return
    every = divisors(sequences)
    larger, smaller = (n for n in every if n > size), (n for n in reversed(every) if n < size)
    for other in (next(larger, 0), next(smaller, 0)):
        if other:
            yield with_pipeline(plan, f"microbatch {other}", microbatch=other)
    pipeline = plan.pipeline
    if pipeline is not None:
        for schedule in SCHEDULES:
            if schedule != pipeline.schedule and pipeline.virtual_stages == 1:
                yield with_pipeline(plan, f"schedule = {schedule}", schedule=schedule)
        virtual = pipeline.virtual_stages * 2
        yield with_pipeline(
            plan,
            f"interleaved_1f1b, virtual_stages = {virtual}",
            schedule="interleaved_1f1b",
            virtual_stages=virtual,
        )


def sequences_of_rank(plan: Plan, dims: ModelDims) -> int:
    """How many sequences of the batch a rank has."""
    split = {axis for rule in plan.rules if dims.batch in rule.dims for axis in rule.axes}
    split = {part for axis in split for part in plan.products.get(axis, (axis,))}
    ranks = prod(plan.mesh.get(axis, 1) for axis in split)
    return max(dims.values.get(dims.batch, 1) // ranks, 1)


def with_pipeline(plan: Plan, title: str, **other: object) -> PlanChange:
    """The pipeline clause with some settings changed; in a plan without a pipeline, the microbatch clause."""
    pipeline = plan.pipeline
    if pipeline is None:
        return PlanChange(title, (f"microbatch {other['microbatch']}",))
    settings: dict[str, object] = {
        "schedule": pipeline.schedule,
        "virtual_stages": pipeline.virtual_stages,
        **({"microbatch": pipeline.microbatch} if pipeline.microbatch else {}),
        "first": pipeline.first,
        "last": pipeline.last,
    }
    if pipeline.scatter_gather:
        settings["scatter_gather"] = "true"
    if pipeline.transfers is not None and "schedule" not in other:
        # Not all schedules get through with all orders.
        settings["transfers"] = pipeline.transfers
    settings |= other
    if pipeline.first_backward != "split" and splits_backward(plan, settings):
        settings["first_backward"] = pipeline.first_backward
    if is_file(str(settings["schedule"])):
        settings["schedule"] = f'"{settings["schedule"]}"'
    if pipeline.layers and "virtual_stages" not in other:
        settings = {k: v for k, v in settings.items() if k not in ("first", "last")}
        settings["layers"] = f"[{', '.join(map(str, pipeline.layers))}]"
    said = ", ".join(f"{name} = {value}" for name, value in settings.items())
    counts = ", ".join(pipeline.counts)
    return PlanChange(title, (f"pipeline {counts} over {pipeline.axis} {{ {said} }}",))


def splits_backward(plan: Plan, settings: Mapping[str, object]) -> bool:
    """Whether a pipeline with these settings has several stages, and a schedule that splits backward passes. Of one of the user's own only running it tells."""
    schedule, virtual = str(settings["schedule"]), int(str(settings["virtual_stages"]))
    assert plan.pipeline is not None
    ranks = plan.mesh[plan.pipeline.axis]
    if is_file(schedule) or ranks * virtual == 1:
        return ranks * virtual > 1
    try:
        return build_named(schedule, ranks, virtual, 2 * ranks).some_in_halves
    except ScheduleError:
        return False


def of_storage(plan: Plan, dims: ModelDims) -> Iterator[PlanChange]:
    """Change the level of ZeRO."""
    axes = plan.zero.axes if plan.zero is not None else plan.data_axes(dims.batch)
    now = plan.zero_level
    if not axes or not dims.is_training:
        return
    for level in range(4):
        if level != now:
            clause = f"zero {level} over {', '.join(axes)}" if level else "zero none"
            clauses = [clause]
            if level == 3 and plan.units is None and dims.units:
                clauses.append(f"unit {', '.join(dims.units)}")
            yield PlanChange(clause, tuple(clauses))
