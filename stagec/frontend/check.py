"""`check`, with the warnings that need the plan's rules applied to ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stagec.analysis.unused_rules import unused_rules
from stagec.frontend import checker
from stagec.frontend.files import Source
from stagec.frontend.lowering import lower


def check(
    source: Source, plan: str | None = None, overrides: Mapping[str, str] | None = None
) -> checker.CheckedModel:
    """Raises `CompileError` with all mistakes. Without a name, the first plan of the file holds.

    `overrides` are those of `--set`: the sizes of dims and axes, as text.
    """
    checked = checker.check(source, plan, overrides)
    if not checked.plan.rules:
        return checked
    return replace(checked, warnings=(*checked.warnings, *unused_rules(lower(checked))))
