"""Checking: names, arities, shapes, sizes, plans. Every mistake is reported, not only the first.

`check` takes what was parsed and yields a `CheckedModel`, in which nothing is left to resolve.
"""

from stagec.frontend.checker.program import (
    Adapt,
    CheckedModel,
    check,
    on_device_of_command,
    plan_of_pool,
    plans_of_one_mesh,
    pools_in,
    settings_beside,
    sizes_of,
)

__all__ = [
    "Adapt",
    "CheckedModel",
    "check",
    "on_device_of_command",
    "plan_of_pool",
    "plans_of_one_mesh",
    "pools_in",
    "settings_beside",
    "sizes_of",
]
