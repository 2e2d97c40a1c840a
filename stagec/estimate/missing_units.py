"""Warn of dtypes that a plan multiplies in, but for which its device has no matrix units: W0502."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.compiled import Compiled
from stagec.diagnostics import Diagnostic, quoted
from stagec.dialects.sched.actions import Compute
from stagec.dialects.work import Work


def missing_units(compiled: Compiled) -> Iterator[Diagnostic]:
    """A warning (W0502) for each such dtype. Its products are timed as if their operands were converted to bf16 first."""
    plan, model = compiled.plan, compiled.plan.device.model
    if model is None or compiled.traces is None:
        return
    settings = {plan.precision.products: "products", plan.precision.attention: "attention"}
    read = {
        node.action.kernel.dtype
        for each in compiled.trace_set.classes
        for segment in each.program.segments
        for node in segment.nodes
        if isinstance(node.action, Compute)
        and node.action.kernel is not None
        and node.action.kernel.kind == Work.PRODUCT
    }
    asked = sorted({*read, *(dtype for dtype in settings if dtype is not None)})
    for dtype in asked:
        if not model.multiplies(dtype):
            span = plan.precision.unusual.get(settings.get(dtype, "")) or plan.device.span
            yield Diagnostic(
                "W0502",
                f"`{model.name}` does not multiply in `{dtype}`",
                span,
                label="timed as products of bf16",
                help=f"it multiplies in {quoted(sorted(model.peaks))}; a device file says what else in `[peaks]`, and "
                "with `scales_blocks = true` that `mxfp8` is among them",
            )
