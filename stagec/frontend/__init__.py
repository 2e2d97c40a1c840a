"""From text to the `stg` dialect: `lower(check(parse_file(path), plan, overrides))`.

`parse_file` and `parse_text` make syntax, `check` a `CheckedModel` (its `.plan` has every clause of the
plan), `lower` the module, of which `warnings_of` says what is doubtful, and `plan_of_model` the op that says
the plan. Each raises `CompileError` with all mistakes that it finds.
"""

from stagec.frontend.check import check, warnings_of
from stagec.frontend.checker import CheckedModel
from stagec.frontend.files import Source, parse_file, parse_text
from stagec.frontend.lowering import lower, plan_of_model
from stagec.plans.clauses import Plan

__all__ = [
    "CheckedModel",
    "Plan",
    "Source",
    "check",
    "lower",
    "parse_file",
    "parse_text",
    "plan_of_model",
    "warnings_of",
]
