"""Which cases to run when there is no time for all: whatever some case has, a chosen one has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SIZES = {"vocab", "dim", "ffn", "heads", "kv_heads", "layers", "seq", "batch", "moe_ffn", "context"}
"""What cases draw numbers for. What a number is good for is in `words`: what divides it."""


def words(data: Mapping[str, Any]) -> frozenset[str]:
    """What is said of a recorded case: its options, and which sizes its axes do not divide."""
    model, parallel, opts = data["model"], data["parallel"], data["opts"]
    said = [*model.items(), *parallel.items(), *opts.items()]
    found = {f"{name} = {value}" for name, value in said if name not in {*SIZES, "sublayers"}}
    found.add(f"backend = {data['backend']}")
    stages = parallel.get("pp", 1) * parallel.get("vstages", 1)
    found |= {f"part {name}" for name in re.findall(r"\w+", model.get("sublayers", ""))}
    uneven = {
        "layers": stages,
        "batch": parallel.get("dp", 1),
        "dim": parallel.get("dp", 1),
        "ffn": parallel.get("dp", 1),
        "vocab": parallel.get("tp", 1),
        "kv_heads": parallel.get("tp", 1),
    }
    found |= {f"{name} in uneven parts" for name, parts in uneven.items() if model[name] % parts}
    if model["kv_heads"] != model["heads"]:
        found.add("heads share keys")
    return frozenset(found)


def covering(cases: Mapping[str, frozenset[str]]) -> list[str]:
    """The names of few cases that have every word that some case has; the same each time.

    Greedy: again and again the case that has most of what is left.
    """
    left = {name: set(said) for name, said in cases.items()}
    chosen: list[str] = []
    while left:
        best = max(left, key=lambda name: (len(left[name]), name))
        new = left.pop(best)
        if not new:
            break
        chosen.append(best)
        for words_left in left.values():
            words_left -= new
    return sorted(chosen)
