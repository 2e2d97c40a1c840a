"""What kernels a step runs does not hang on where its weights were gathered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stagec.dialects.sched.actions import Compute, Kernel
from stagec.driver import compile_text
from tests.attack.models import MODELS
from tests.unit.seldom import some

PIPELINE = (
    "mesh pp = 2, dp = 2 shard B over dp pipeline L over pp { virtual_stages = %d, schedule = %s }"
)


def kernels(plan: str, model: str) -> Counter[tuple[str, Kernel]]:
    """By phase: kind, sizes but for what is copied of a gather in front of it, and whether a product is of a linear layer."""
    compiled = compile_text(f"{MODELS[model]}\nplan p {{ {plan} }}\n")
    found: Counter[tuple[str, Kernel]] = Counter()
    for each in compiled.trace_set.classes:
        for node in (node for segment in each.program.segments for node in segment.nodes):
            if isinstance(node.action, Compute) and (kernel := node.action.kernel) is not None:
                own = tuple(size for size in kernel.sizes if size[0] != "copied")
                if own or own == kernel.sizes:
                    found[node.phase, replace(kernel, sizes=own)] += 1
    return found


@pytest.mark.parametrize("model", some(["attention", "experts"], 4))
@pytest.mark.parametrize(
    "mesh", ["mesh dp = 2 shard B over dp", PIPELINE % (2, "interleaved_1f1b")]
)
def test_gathered_once_or_twice(model: str, mesh: str):
    once, twice = (
        kernels(f"{mesh}\nzero 3 over dp {{ reshard = {word} }}", model)
        for word in ("false", "true")
    )
    assert once
    assert once == twice
