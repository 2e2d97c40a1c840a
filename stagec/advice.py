"""A device that has not enough memory: what is too much, when, and what of the plan to change.

Two peaks are held against what a device has. That in the order in which nodes are issued is the plan's alone: too much is an error, E0501, where
the plan says what there is. That along the estimated time depends on the network too, for communication that lags behind keeps its buffers: too
much is a warning, W0501.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.memory import Kind
from stagec.estimate.missing_units import missing_units
from stagec.pictures.scales import size_of
from stagec.plans.clause_text import name_text, written
from stagec.plans.clauses import Device, Plan, Recompute, Zero
from stagec.rewriting import programs

if TYPE_CHECKING:
    from stagec.estimate.step import Estimate
    from stagec.memory import ClassPlan, TimedPeak

MOST_CAUSES = 5
MOST_REMEDIES = 3
MOST_CHUNKS = 8
LEAST_HELP = 0.01
"""The least share of the peak that is worth freeing: what would free less is not proposed."""


@dataclass(frozen=True)
class Suggestion:
    """Another plan, and what a user writes for it."""

    texts: tuple[str, ...]
    """The clauses, as a user writes them."""
    clauses: Mapping[str, Any]
    """The fields of the plan that they are."""

    def applied(self, plan: Plan) -> Plan:
        """For a pool, which no plan extends. What follows from several clauses stays as it was."""
        return replace(plan, **self.clauses)


@dataclass(frozen=True)
class Tried:
    """A change, and the highest peak of any rank with it."""

    change: Suggestion
    peak_bytes: int
    timed_bytes: int = 0
    """Along the estimated time; 0 where that is not known."""


def check_memory(compiled: Compiled, compile_with: Callable[[Suggestion], Compiled | None]) -> None:
    """E0501 if a rank needs more memory than the plan says a device has.

    `compile_with` compiles the plan with a change, for its peak; nothing where it does not compile, and is none to propose.
    """
    plan, limit = compiled.plan, compiled.plan.device.memory
    worst = too_much(compiled.memory, limit) if limit is not None else None
    if worst is None or limit is None:
        return

    def tries(changed: Iterable[Suggestion]) -> list[Tried]:
        pairs = [(each, compile_with(each)) for each in changed]
        return [Tried(each, *peaks(other)) for each, other in pairs if other is not None]

    tried = tries(changes(worst, compiled))
    if all(each.peak_bytes > limit for each in tried):
        combined = together(tried)
        tried += tries([combined] if combined is not None else [])
    raise CompileError([explain(worst, peaks(compiled)[1], plan, tried)])


def peaks(compiled: Compiled) -> tuple[int, int]:
    """The most that a rank needs in the order in which nodes are issued, and along the estimated time."""
    from stagec.estimate.memory import most_along_time, timed_peaks
    from stagec.estimate.step import estimate_if_known

    most = most_along_time(timed_peaks(estimate_if_known(compiled)))
    issued = max(each.peak_bytes for each in compiled.memory)
    return issued, most[1].num_bytes if most is not None else 0


def too_much(classes: Sequence[ClassPlan], limit: int) -> ClassPlan | None:
    """The class with the highest peak, if that is above the limit."""
    worst = max(classes, key=lambda each: each.peak_bytes)
    return worst if worst.peak_bytes > limit else None


def changes(worst: ClassPlan, compiled: Compiled) -> Iterator[Suggestion]:
    """What might help, each alone."""
    plan, stated = compiled.plan, compiled.stated
    if not stated.is_training:
        return
    if could_keep_shards(worst, plan):
        shards = replace(plan.collectives, keep="shard", keep_in=())
        yield Suggestion(("collectives { keep = shard }",), {"collectives": shards})
    if plan.recompute.what == ("none",):
        yield Suggestion(("recompute full",), {"recompute": Recompute(what=("full",))})
    if chunks := logits_at_peak(worst, compiled).chunks:
        yield Suggestion((f"loss_chunks {chunks}",), {"loss_chunks": chunks})
    yield from onto_host(plan)
    yield from smaller_microbatches(plan)
    yield from more_zero(plan, stated)
    yield from more_stages(plan)


def together(tried: Sequence[Tried]) -> Suggestion | None:
    """The best of each knob that asks for no other hardware, for when none is enough alone."""
    texts: list[str] = []
    clauses: dict[str, Any] = {}
    for each in sorted(tried, key=lambda one: one.peak_bytes):
        change = each.change
        costs_more = {"offload", "axes"} & change.clauses.keys()
        if not costs_more and not clauses.keys() & change.clauses.keys():
            texts += change.texts
            clauses |= change.clauses
    alone = any(each.change.clauses == clauses for each in tried)
    return None if alone or not clauses else Suggestion(tuple(texts), clauses)


def could_keep_shards(worst: ClassPlan, plan: Plan) -> int:
    """The bytes that are kept of gathered tensors for the backward pass, by a plan that does not gather again: 0 if none are."""
    if plan.collectives.keep == "shard" and not plan.collectives.keep_in:
        return 0
    gathered = dist.AllGatherOp.name.removeprefix("dist.")
    parts = [part for part in worst.parts_at_peak() if part.kind == Kind.SAVED]
    return sum(part.num_bytes for part in parts if part.name == gathered)


@dataclass(frozen=True)
class Logits:
    """The tensors with a number for each token and each word that are there at the peak."""

    num_bytes: int = 0
    chunks: int = 0
    """What `loss_chunks` may be: the most up to `MOST_CHUNKS` that divides the tokens' last dim on the device; 0 if there is none."""


def logits_at_peak(worst: ClassPlan, compiled: Compiled) -> Logits:
    """What `loss_chunks` would have less of; nothing for a model that has no cross-entropy over logits, or a plan with chunks."""
    if compiled.plan.loss_chunks > 1 or compiled.model is None:
        return Logits()
    tops = (op for program in programs(compiled.as_written) for op in program.body.block.ops)
    losses = [op for op in tops if isinstance(op, stg.CrossEntropyOp)]
    tokens = {
        frozenset((*stg.tensor_type(loss.targets).names, stg.tensor_type(loss.logits).names[-1])): (
            stg.tensor_type(loss.targets).names[-1]
        )
        for loss in losses
    }
    num_bytes, common = 0, 0
    for part in worst.tensors_at_peak() if losses else ():
        dim = next((tokens[wide] for wide in tokens if wide <= set(part.type.names)), None)
        if dim is not None and part.kind in (Kind.TEMPORARIES, Kind.SAVED):
            num_bytes += part.num_bytes
            common = gcd(common, part.type.dim(dim).size.integer(part.values))
    chunks = next((n for n in range(MOST_CHUNKS, 1, -1) if common and common % n == 0), 0)
    return Logits(num_bytes, chunks) if chunks else Logits()


def onto_host(plan: Plan) -> Iterator[Suggestion]:
    """What a plan does not offload yet, one after the other."""
    offload = plan.offload
    if not offload.optimizer:
        text = "offload { optimizer = true }"
        yield Suggestion((text,), {"offload": replace(offload, optimizer=True)})
    if not offload.activations:
        text = "offload { activations = all }"
        yield Suggestion((text,), {"offload": replace(offload, activations=("all",))})


def smaller_microbatches(plan: Plan) -> Iterator[Suggestion]:
    """Half as large, and of one sequence."""
    pipeline = plan.pipeline
    if pipeline is not None:
        for size in halved(pipeline.microbatch or 2):
            smaller = replace(pipeline, microbatch=size)
            yield Suggestion((microbatch_text(plan, size),), {"pipeline": smaller})
        return
    for size in halved(plan.microbatch or 2):
        yield Suggestion((microbatch_text(plan, size),), {"microbatch": size})


def microbatch_text(plan: Plan, size: int) -> str:
    """The clause that counts: in a pipeline its setting, if it has one."""
    pipeline = plan.pipeline
    if pipeline is None or "microbatch" not in pipeline.given:
        return f"microbatch {size}"
    return written(
        f"pipeline {', '.join(pipeline.counts)} over {pipeline.axis}", pipeline, microbatch=size
    )


def halved(size: int) -> list[int]:
    return sorted({size // 2, 1} - {0, size}, reverse=True)


def more_zero(plan: Plan, stated: dist.PlanOp) -> Iterator[Suggestion]:
    """Further levels; weights that are freed after the forward pass, and gradients of which only a part is kept, where the plan keeps whole ones.

    A framework's settings are of its own levels.
    """
    axes = plan.zero.axes if plan.zero is not None else split_batch(plan, stated)
    level = plan.zero_level
    if not axes:
        return
    for stage in range(level + 1, 4):
        further = at_level(plan, stage, axes)
        yield Suggestion((zero_text(further),), {"zero": further})
    if plan.zero is not None and level == 3 and not plan.zero.reshard:
        freed = replace(plan.zero, reshard=True)
        yield Suggestion((zero_text(freed),), {"zero": freed})
    every = replace(plan.gradients, reduce="microbatch")
    if level >= 2 and not plan.reduces_each_microbatch:
        yield Suggestion(("gradients { reduce = microbatch }",), {"gradients": every})
    third = at_level(plan, 3, axes)
    if level < 3 and not replace(plan, zero=third).reduces_each_microbatch:
        texts = (zero_text(third), "gradients { reduce = microbatch }")
        yield Suggestion(texts, {"zero": third, "gradients": every})


def at_level(plan: Plan, level: int, axes: tuple[str, ...]) -> Zero:
    """The plan's `zero` at another level, or one of its own."""
    if plan.zero is None or plan.zero.like is not None:
        return Zero(level=level, axes=axes)
    return replace(plan.zero, level=level)


def zero_text(zero: Zero) -> str:
    return written(f"zero {zero.level} over {', '.join(zero.axes)}", zero)


def split_batch(plan: Plan, stated: dist.PlanOp) -> tuple[str, ...]:
    return tuple(a for rule in plan.rules if stated.batch_dim in rule.dims for a in rule.axes)


def more_stages(plan: Plan) -> Iterator[Suggestion]:
    """Twice the stages, on twice the ranks."""
    pipeline = plan.pipeline
    if pipeline is None:
        return
    axes = tuple(
        replace(axis, size=2 * axis.size) if axis.name == pipeline.axis else axis
        for axis in plan.axes
    )
    yield Suggestion((f"set {pipeline.axis} = {2 * plan.mesh[pipeline.axis]}",), {"axes": axes})


def explain(worst: ClassPlan, timed_bytes: int, plan: Plan, tried: Sequence[Tried]) -> Diagnostic:
    """The error: by how much, where, when, the largest causes, and the changes that would do."""
    from stagec.memory.kinds import TITLES

    limit = plan.device.memory
    assert limit is not None
    causes = worst.parts_at_peak()[:MOST_CAUSES]
    fitting = [each for each in tried if each.peak_bytes <= limit]
    others = [each for each in tried if each.peak_bytes > limit]
    is_alone = any(len(each.change.clauses) == 1 for each in fitting)
    return Diagnostic(
        "E0501",
        f"rank class `{worst.name}` needs {size_of(worst.peak_bytes)}, "
        f"{size_of(worst.peak_bytes - limit)} more than the device has",
        plan.device.given.get("memory", plan.device.span),
        label=f"the device has {size_of(limit)}",
        notes=[
            f"the peak is at {worst.peak}",
            *along_time(timed_bytes, worst.peak_bytes),
            *(f"{size_of(part.num_bytes)} {TITLES[part.kind]}: {part.place}" for part in causes),
        ],
        help=[help_text(each, limit) for each in (fitting if is_alone else fitting + others)]
        or ["use a larger device, or more ranks"],
    )


def along_time(timed_bytes: int, issued_bytes: int) -> Iterator[str]:
    if timed_bytes > issued_bytes:
        yield f"along the estimated time it is {size_of(timed_bytes)}: communication that lags behind keeps its buffers"


def idle_parts(compiled: Compiled) -> list[Diagnostic]:
    """What of a plan changes nothing, and what its device lacks: W0304, W0502, W0703."""
    return [*compiled.idle, *missing_units(compiled)]


def warnings(compiled: Compiled, found: Estimate | None) -> list[Diagnostic]:
    """What is doubtful, seen from the end: also W0501. `found` is the estimate of the step, if its time is known."""
    device, idle = compiled.plan.device, idle_parts(compiled)
    if compiled.traces is None or (device.capacity is None and device.memory is None):
        return idle
    from stagec.estimate.memory import timed_peaks

    return [*idle, *doubt(compiled, compiled.memory, timed_peaks(found))]


def doubt(
    compiled: Compiled, classes: Sequence[ClassPlan], timed: Sequence[TimedPeak]
) -> list[Diagnostic]:
    """W0501 if a rank needs more than the preset has, and the plan does not say how much it may need; or if it does along the estimated time alone."""
    from stagec.estimate.memory import most_along_time

    plan, device = compiled.plan, compiled.plan.device
    limit = device.memory or device.capacity
    if limit is None:
        return []
    worst = too_much(classes, limit)
    if worst is None:
        return doubt_in_time(classes, timed, limit, plan)
    if device.capacity is None or device.memory is not None:
        return []
    most = most_along_time(timed)
    return [
        Diagnostic(
            "W0501",
            f"rank class `{worst.name}` needs {size_of(worst.peak_bytes)}, "
            f"and `{device.preset}` has {size_of(device.capacity)}",
            device.span,
            notes=[
                f"the peak is at {worst.peak}",
                *along_time(most[1].num_bytes if most is not None else 0, worst.peak_bytes),
            ],
            help=[
                *remedies(worst, compiled),
                f"`{limited(device, device.capacity)}` makes this an error, "
                "which says what would fit",
            ],
        )
    ]


def limited(device: Device, num_bytes: int) -> str:
    """The clause with which more memory is an error."""
    return written(f"device {name_text(device.preset or '')}", device, memory=num_bytes)


def doubt_in_time(
    classes: Sequence[ClassPlan], timed: Sequence[TimedPeak], limit: int, plan: Plan
) -> list[Diagnostic]:
    """W0501 if a rank needs more than the limit because communication lags behind."""
    from stagec.estimate.memory import most_along_time

    most, device = most_along_time(timed), plan.device
    if most is None or most[1].num_bytes <= limit:
        return []
    number, peak = most
    issued = max(each.peak_bytes for each in classes)
    has = f"`{device.preset}` has" if device.memory is None else "the device has"
    return [
        Diagnostic(
            "W0501",
            f"rank class `{classes[number].name}` needs {size_of(peak.num_bytes)} along the estimated time, and {has} {size_of(limit)}",
            device.given.get("memory", device.span),
            notes=[
                f"in the order in which nodes are issued it is {size_of(issued)}: communication that lags behind keeps its buffers",
                f"the peak is at {peak.at}",
            ],
            help="fewer things ahead of their readers, faster links, or room for what waits",
        )
    ]


def remedies(worst: ClassPlan, compiled: Compiled) -> Iterator[str]:
    """What would make less of what there is at the peak, the largest first. None is compiled: E0501 says what each would give."""
    if not compiled.stated.is_training:
        return
    from stagec.memory.kinds import TITLES

    plan, zero = compiled.plan, compiled.plan.zero
    found: list[tuple[int, str, str]] = []
    if gathered := could_keep_shards(worst, plan):
        text = "`collectives { keep = shard }` gathers them again"
        found.append((gathered, "saved activations that were gathered", text))
    logits = logits_at_peak(worst, compiled)
    if logits.num_bytes:
        text = f"`loss_chunks {logits.chunks}` has one part of them at a time"
        found.append((logits.num_bytes, "logits, or their gradients", text))
    at_peak = worst.at_peak()
    if text := less_saved(plan):
        found.append((at_peak[Kind.SAVED], TITLES[Kind.SAVED], text))
    if (smaller := smaller_microbatch(plan)) and not logits.num_bytes:
        text = f"`{smaller}` makes smaller ones"
        found.append((at_peak[Kind.TEMPORARIES], TITLES[Kind.TEMPORARIES], text))
    if zero is not None and not zero.reshard:
        text = f"`{zero_text(replace(zero, reshard=True))}` frees them after the forward pass"
        found.append((at_peak[Kind.GATHERED], TITLES[Kind.GATHERED], text))
    for kind, num_bytes, text in split_further(worst, plan, compiled.stated):
        found.append((num_bytes, TITLES[kind], text))
    helping = [each for each in found if each[0] >= LEAST_HELP * worst.peak_bytes]
    for num_bytes, what, text in sorted(helping, key=lambda each: -each[0])[:MOST_REMEDIES]:
        yield f"{size_of(num_bytes)} are {what}: {text}"


def less_saved(plan: Plan) -> str:
    """The first of the clauses against saved activations that the plan does not have."""
    if plan.recompute.what == ("none",):
        return "`recompute full` computes them again"
    if smaller := smaller_microbatch(plan):
        return f"`{smaller}` has fewer of them at a time"
    return (
        "" if plan.offload.activations else "`offload { activations = all }` keeps them on the host"
    )


def smaller_microbatch(plan: Plan) -> str:
    """The clause of one sequence at a time; nothing if the plan has it."""
    size = plan.microbatch if plan.pipeline is None else plan.pipeline.microbatch
    return "" if size == 1 else microbatch_text(plan, 1)


def split_further(
    worst: ClassPlan, plan: Plan, stated: dist.PlanOp
) -> Iterator[tuple[Kind, int, str]]:
    """What a level of `zero` would split that is whole along its axes, and gradients of which each microbatch makes all."""
    level = plan.zero_level
    axes = plan.zero.axes if plan.zero is not None else split_batch(plan, stated)
    if level >= 2 and not plan.reduces_each_microbatch:
        text = "`gradients { reduce = microbatch }` keeps a part of each instead"
        yield Kind.GRADIENTS, worst.at_peak()[Kind.GRADIENTS], text
    least = {Kind.OPTIMIZER: 1, Kind.MASTER: 1, Kind.GRADIENTS: 2, Kind.PARAMETERS: 3}
    for kind, needed in least.items():
        if level < needed:
            text = f"`{zero_text(at_level(plan, needed, axes))}` splits them"
            yield kind, whole_along(worst, kind, frozenset(axes)), text


def whole_along(worst: ClassPlan, kind: Kind, axes: frozenset[str]) -> int:
    """The bytes of a kind at the peak that some of the axes do not split yet."""
    lasting = (each for each in worst.always if each.kind == kind)
    passing = (each for each in worst.tensors_at_peak() if each.kind == kind)
    return sum(each.num_bytes for each in lasting if not axes <= each.split_axes) + sum(
        each.num_bytes for each in passing if not axes <= set(each.type.split_axes)
    )


def help_text(tried: Tried, limit: int) -> str:
    texts = tried.change.texts
    shown = " and ".join(f"`{text}`" for text in texts)
    alone = " alone" if len(texts) == 1 else ""
    fits = "" if tried.peak_bytes <= limit else f", which is not enough{alone}"
    if tried.peak_bytes <= limit < tried.timed_bytes:
        fits = f", but of {size_of(tried.timed_bytes)} along the estimated time"
    verb = "gives" if len(texts) == 1 else "together give"
    return f"{shown} {verb} a peak of {size_of(tried.peak_bytes)}{fits}"
