"""The default pass lists, as data: what a plan's clauses ask for, in the order in which it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.passes import ModulePass

from stagec.diagnostics import Diagnostic
from stagec.frontend.plans.plan import Clause, Plan
from stagec.passes import load_pass


@dataclass(frozen=True)
class ModelFacts:
    """What a pipeline needs to know of a model."""

    batch_dim: str
    """The leading dim of the first input: what microbatches and data parallelism split."""
    is_training: bool
    """Whether the output is a loss."""


def default_pipeline(plan: Plan, facts: ModelFacts) -> list[ModulePass]:
    """The passes from a model to the tasks of each rank class."""
    precision = plan.precision
    passes: list[ModulePass] = [
        make("propagate-shardings"),
        make("localize-shapes"),
    ]
    if facts.is_training:
        passes.append(make("build-backward"))
    passes.append(
        make(
            "split-microbatches",
            dim=facts.batch_dim,
            size=microbatch_size(plan),
            gradients=precision.gradients,
        )
    )
    if facts.is_training:
        passes += [
            reduce_gradients(plan, facts),
            make(
                "insert-optimizer",
                algorithm=plan.optimizer.algorithm,
                states=precision.optimizer,
                master=precision.master or "",
            ),
        ]
    if plan.collectives.reduce == "lazy":
        passes.append(make("defer-reductions"))
    passes += [make("decompose-statistics"), make("insert-collectives")]
    return passes + storage_passes(plan)


def reduce_gradients(plan: Plan, facts: ModelFacts) -> ModulePass:
    """How gradients are summed over data-parallel ranks."""
    zero = plan.zero
    level = zero.level if zero is not None else 0
    return make(
        "reduce-gradients",
        axes=data_axes(plan, facts.batch_dim),
        shard_axes=zero.axes if zero is not None and level else (),
        dtype=plan.precision.reduce,
        join=level == 3,
        units=plan.units or (),
        one_unit=plan.units == (),
        overlap=plan.gradients.overlap,
        every_microbatch=plan.gradients.reduce == "microbatch" or level == 2,
    )


def storage_passes(plan: Plan) -> list[ModulePass]:
    """ZeRO, and the buckets in which gradients travel."""
    passes: list[ModulePass] = []
    zero, gradients, precision = plan.zero, plan.gradients, plan.precision
    if zero is not None and zero.level:
        passes.append(
            make(
                "shard-parameters",
                level=zero.level,
                axes=zero.axes,
                gather=precision.gather,
                storage=precision.weights,
                units=plan.units or (),
                one_unit=plan.units == (),
                reshard=zero.reshard,
                once_per_step=plan.pipeline is not None and not zero.reshard,
                prefetch=zero.prefetch,
            )
        )
    if gradients.bucket_bytes is not None:
        passes.append(
            make(
                "bucket-gradients",
                bucket_bytes=gradients.bucket_bytes,
                first_bucket_bytes=gradients.first_bucket_bytes or 0,
            )
        )
    return passes


def final_passes() -> list[ModulePass]:
    """What comes after a user's own passes."""
    return [make("lower-to-tasks")]


def make(name: str, **arguments: object) -> ModulePass:
    return load_pass(name)(**arguments)


def microbatch_size(plan: Plan) -> int:
    """Sequences per microbatch on one data-parallel rank; 0 if the plan says nothing: all at once."""
    if plan.pipeline is not None:
        return plan.pipeline.microbatch
    return plan.microbatch or 0


def data_axes(plan: Plan, batch_dim: str) -> tuple[str, ...]:
    """The axes whose ranks hold different data: those that split the batch, and contexts."""
    axes = [a for rule in plan.rules if batch_dim in rule.dims for a in rule.axes]
    axes += [
        a for context in plan.contexts for a in plan.products.get(context.axis, (context.axis,))
    ]
    return tuple(dict.fromkeys(axes))


def unsupported(plan: Plan) -> Sequence[Diagnostic]:
    """Clauses that no pass carries out yet. Nothing that a plan says is ignored in silence."""
    clauses: list[tuple[str, Clause | None, bool]] = [
        ("pipeline", plan.pipeline, plan.pipeline is not None),
        ("recompute", plan.recompute, plan.recompute.what != ("none",)),
        ("context", plan.contexts[0] if plan.contexts else None, bool(plan.contexts)),
        ("overlap", plan.overlap, plan.overlap.span is not None),
        ("device", plan.device, plan.device.span is not None),
        ("collectives { keep = shard }", plan.collectives, plan.collectives.keep == "shard"),
    ]
    found = [
        Diagnostic(
            "E0406",
            f"this version of stagec does not carry out `{name}`",
            clause.span if clause is not None else None,
            help="take the clause out of the plan",
        )
        for name, clause, used in clauses
        if used
    ]
    return found
