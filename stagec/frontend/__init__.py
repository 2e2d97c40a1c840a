"""From text to the `stg` dialect: `lower(check(parse_file(path), plan, overrides))`.

`parse_file` and `parse_text` make syntax, `check` a `CheckedModel` (its `.plan` has every clause of the
plan), `lower` the module, of which `warnings_of` says what is doubtful, and `plan_of_model` the op that says
the plan. Each raises `CompileError` with all mistakes that it finds.
"""

from stagec.frontend.check import (
    check as check,
    check_not_a_part as check_not_a_part,
    extended as extended,
    warnings_by_pool as warnings_by_pool,
    warnings_of as warnings_of,
    warnings_of_pools as warnings_of_pools,
)
from stagec.frontend.checker import CheckedModel as CheckedModel
from stagec.frontend.files import (
    Source as Source,
    parse_file as parse_file,
    parse_text as parse_text,
)
from stagec.frontend.lowering import lower as lower, plan_of_model as plan_of_model
from stagec.plans.clauses import Plan as Plan
