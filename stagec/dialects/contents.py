"""What a dialect consists of."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation


def ops_of(module: Mapping[str, object]) -> list[type[Operation]]:
    """The ops of a dialect that its module imports, in their order: what it hands on is what there is."""
    prefix = f"{module['__name__']}.".rpartition("dialects.")[2]
    return [
        each
        for each in module.values()
        if isinstance(each, type)
        and issubclass(each, Operation)
        and str(vars(each).get("name", "")).startswith(prefix)
    ]
