"""`check`, with the warnings about a plan that splits less than it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stagec.analysis.unused_rules import unused_rules
from stagec.dialects import stg
from stagec.frontend import checker
from stagec.frontend.files import Source
from stagec.frontend.lowering import lower
from stagec.frontend.plans.unused_axes import unused_axes
from stagec.symbolic.conditions import unrecorded


def check(
    source: Source,
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    functions: Mapping[str, stg.Function] = stg.FUNCTIONS,
) -> checker.CheckedModel:
    """Raises `CompileError` with all mistakes. Without a name, the first plan of the file holds.

    `overrides` are those of `--set`: the sizes of dims and axes, as text. `functions` are those of the language, with
    those of plug-ins.
    """
    checked = checker.check(source, plan, overrides, functions)
    with unrecorded():
        found = unused_axes(checked.plan, checked.sizes.origins)
        if checked.plan.rules:
            found += unused_rules(lower(checked), checked.implied_dims)
    return replace(checked, warnings=(*checked.warnings, *found)) if found else checked
