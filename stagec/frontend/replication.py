"""Dims that are smaller than their axis: `shard K over tp { replicate = true }`.

With more ranks than heads of keys and values, neighbours have the same head. The axis is then two: `tp.K` splits the heads, and along
`tp.copies` ranks share one. Both stand wherever the plan says `tp`.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagec.frontend import syntax
from stagec.frontend.padding import entries
from stagec.frontend.plans.merge import Merged

REPLICATE = "replicate"
COPIES = "copies"


def is_replicating(rule: syntax.Shard) -> bool:
    return any(
        entry.name.text == REPLICATE
        and isinstance(entry.value, syntax.Boolean)
        and entry.value.text == "true"
        for entry in entries(rule)
    )


def replicated(merged: Merged, products: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The dims of rules that replicate, and the one axis of each."""
    found: dict[str, str] = {}
    for rule in merged.rules:
        axes = [part for axis in rule.axes for part in products.get(axis.text, (axis.text,))]
        if is_replicating(rule) and len(axes) == 1:
            found |= {target.path.names[0].text: axes[0] for target in rule.targets}
    return found
