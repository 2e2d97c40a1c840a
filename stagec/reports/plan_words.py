"""A plan in words, for someone who reads none."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.diagnostics import quoted
from stagec.plans.clauses import Plan

LEVELS = {
    1: "optimizer state is split",
    2: "optimizer state and gradients are split",
    3: "parameters, gradients and optimizer state are split",
}


def plan_in_words(plan: Plan) -> Iterator[str]:
    """A sentence for each decision."""
    axes = ", ".join(f"{axis.name} = {axis.size}" for axis in plan.axes)
    ranks = 1
    for axis in plan.axes:
        ranks *= axis.size
    yield f"{ranks:,} devices as a mesh of {axes or 'one'}; neighbours along the last axis have consecutive ranks."
    for rule in plan.rules:
        parts = (
            f", where they do not divide it into parts that differ ({rule.uneven})"
            if rule.uneven
            else ""
        )
        yield f"Where a tensor has {quoted(rule.dims, 'or')}, {quoted(rule.axes)} {'split' if len(rule.axes) > 1 else 'splits'} it{parts}."
    for each in plan.overrides:
        over = f"split over {quoted(each.axes)}" if each.axes else "whole on every device"
        dims = f" along {quoted(each.dims)}" if each.dims else ""
        yield f"Readers of `{'.'.join(each.path)}` see it {over}{dims}."
    pipeline = plan.pipeline
    if pipeline is not None:
        size = pipeline.microbatch
        what = "1 sequence" if size == 1 else f"{size or 'all'} sequences"
        yield (
            f"The {quoted(pipeline.counts)} layers are cut into stages along `{pipeline.axis}`, which run the schedule "
            f"`{pipeline.schedule}` with {what} in a microbatch."
        )
    elif plan.microbatch:
        what = "1 sequence" if plan.microbatch == 1 else f"{plan.microbatch} sequences"
        yield f"A step is cut into microbatches of {what}; their gradients are added up."
    if plan.zero is not None and plan.zero.level:
        yield f"{LEVELS[plan.zero.level].capitalize()} over {quoted(plan.zero.axes)} (ZeRO-{plan.zero.level})."
    for context in plan.contexts:
        yield f"The sequence is split over `{context.axis}` in attention too, by the method `{context.method}`."
    what = plan.recompute.what
    if what != ("none",):
        where = f" in {quoted(plan.recompute.modules)}" if plan.recompute.modules else ""
        yield f"The backward pass computes {quoted(what)}{where} again instead of keeping it."
    p = plan.precision
    yield f"Weights are {p.weights}, activations {p.activations}, gradients {p.gradients}, optimizer state {p.optimizer}."
    if plan.device.preset:
        yield f"Times are those of the device `{plan.device.preset}`."
