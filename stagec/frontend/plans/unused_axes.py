"""Axes of a mesh that a plan does nothing with: W0302."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stagec.diagnostics import Diagnostic
from stagec.plans.clauses import PassCall, Plan


def unused_axes(plan: Plan, origins: Mapping[str, str], batch: str) -> list[Diagnostic]:
    """A warning for each axis of several ranks along which all ranks do the same: nothing splits work over it.

    A product names its axes, so replication that is meant (`dp = replicas * fsdp`) is none of these. A `link` says
    what joins ranks and not what they do, nor does their order; a `context` is about what a rule splits. `zero` splits what
    is stored: who compute with it do the same, unless their samples differ. `origins` tells which sizes `--set` gave,
    `batch` is the dim of samples.
    """
    wide = {axis.name: axis for axis in plan.axes if axis.size > 1}
    if not wide or any(not _axes_of(call, plan) for call in plan.passes):
        return []  # A pass that is told of no axis may be about any.
    used = set(_named(plan))
    found: list[Diagnostic] = []
    for name, axis in wide.items():
        if name not in used:
            origin = origins.get(name)
            help_ = f"split something, `shard DIM over {name}`, or leave the axis out of the mesh"
            message = f"nothing in the plan uses axis `{name}`"
            label = f"the {axis.size} ranks along it all do the same"
            notes: list[str] = []
            shared = next((rule for rule in plan.rules if name in rule.copies), None)
            if shared is not None:
                # What a rule made of an axis is not what the plan calls it.
                whole = next((p for p, parts in plan.products.items() if name in parts), name)
                (dim,) = shared.dims
                message = f"ranks along `{whole}` share parts of `{dim}`, and nothing else is split over them"
                label = f"{axis.size} each do the same"
                help_ = f"split what reads `{dim}` too, such as heads of queries: `shard DIM over {whole}`"
            elif plan.zero is not None and name in plan.zero.axes:
                message = f"ranks along `{name}` compute the same"
                label = f"{axis.size} ranks, and nothing but what is stored differs"
                notes.append("`zero` splits what is stored, not the work")
                axes = (*(a for rule in plan.rules if batch in rule.dims for a in rule.axes), name)
                help_ = f"give each its own samples: `shard {batch} over {', '.join(axes)}`"
            notes += [f"from `{origin}`"] if origin else []
            if any(name in parts_of(context.axis, plan) for context in plan.contexts):
                notes.append("`context` says how attention sees a sequence that a rule splits")
            found.append(Diagnostic("W0302", message, axis.span, label, notes=notes, help=help_))
    return found


def _named(plan: Plan) -> Iterator[str]:
    """The axes of the mesh that the clauses name, products taken apart."""
    for rule in (*plan.rules, *plan.overrides):
        yield from rule.axes
    if plan.pipeline is not None:
        yield plan.pipeline.axis
    for call in plan.passes:
        yield from _axes_of(call, plan)


def _axes_of(call: PassCall, plan: Plan) -> list[str]:
    """The axes among a pass' arguments."""
    found: list[str] = []
    for value in call.arguments.values():
        for word in value if isinstance(value, tuple) else (value,):
            if isinstance(word, str):
                found += parts_of(word, plan)
    return found


def parts_of(name: str, plan: Plan) -> tuple[str, ...]:
    """The axes of the mesh that a name stands for; none if it is no axis."""
    return plan.products.get(name, (name,) if name in plan.mesh else ())
