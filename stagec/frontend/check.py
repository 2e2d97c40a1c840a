"""`check`, and the warnings about a plan that splits less than it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from stagec.diagnostics import Diagnostic
from stagec.dialects import stg
from stagec.frontend import checker
from stagec.frontend.files import Source
from stagec.frontend.plans.iterations import Iterations
from stagec.frontend.plans.moved_parts import moved_parts
from stagec.frontend.plans.repeated_work import repeated_work
from stagec.frontend.plans.split_routers import split_routers
from stagec.frontend.plans.unused_axes import unused_axes
from stagec.frontend.plans.unused_rules import (
    idle_contexts,
    idle_overrides,
    unused_rules,
)
from stagec.frontend.routed_tokens import summed_experts
from stagec.symbolic.conditions import unrecorded


def check(
    source: Source,
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    functions: Mapping[str, stg.Function] = stg.FUNCTIONS,
    iterations: Iterations | None = None,
) -> checker.CheckedModel:
    """Raises `CompileError` with all mistakes. Without a name, the first plan of the file holds.

    `overrides` are those of `--set`: the sizes of dims and axes, as text. `functions` are those of the language, with
    those of plug-ins, `iterations` those of a series.
    """
    checked = checker.check(source, plan, overrides, functions, iterations)
    with unrecorded():
        found = unused_axes(checked.plan, checked.sizes.origins, checked.batch_dim)
    return replace(checked, warnings=(*checked.warnings, *found)) if found else checked


def warnings_of(checked: checker.CheckedModel, module: ModuleOp) -> list[Diagnostic]:
    """What is doubtful about a model, and about the rules of its plan, as its IR shows before any pass."""
    places = {each.span for each in checked.warnings if each.code == "W0302"}
    told = {axis.name for axis in checked.plan.axes if axis.span in places}
    with unrecorded():
        rules = [
            *unused_rules(module, checked.implied_dims),
            *idle_overrides(module),
            *idle_contexts(module, told),
        ]
        rules += [*moved_parts(module), *split_routers(module)]
        if checked.part != "attention":  # whose experts another pool has
            rules += [*summed_experts(module), *repeated_work(module)]
        return [*checked.warnings, *rules]
