"""Warn of dtypes that a plan multiplies in, but for which its device has no matrix units: W0502."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.analysis.kernels import kernel_form
from stagec.compiled import Compiled
from stagec.diagnostics import Diagnostic, quoted
from stagec.dialects import sched
from stagec.dialects.work import Work


def missing_units(compiled: Compiled) -> Iterator[Diagnostic]:
    """A warning (W0502) for each such dtype. Its products are timed as if their operands were converted to bf16 first."""
    plan, model = compiled.plan, compiled.plan.device.model
    if model is None or not compiled.has_programs:
        return
    settings = {plan.precision.products: "products", plan.precision.attention: "attention"}
    ops = (op for op in compiled.module.walk() if isinstance(op, sched.ComputeOp))
    forms = (kernel_form(op) for op in ops)
    read = {form.dtype for form in forms if form is not None and form.kind == Work.PRODUCT}
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
