"""Experts on fewer ranks of tensor parallelism than attention: what travels, for random meshes, by Megatron-LM's all-to-all dispatcher."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_model
from tests.fidelity.totals import model_flops, nodes_of
from tests.unit.seldom import some

TEXT = Path(__file__).parents[1] / "lit/passes/insert_collectives/expert_tensor_parallel.stg"
LAYERS, CHOSEN, FLOAT = 2, 2, 4


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_exchanges_and_gathers(seed: int) -> None:
    """A rank sends its tokens to experts over `dp` and `t`; the `etp` ranks of an expert gather what each of them got, and reduce what they make."""
    draw = random.Random(seed)
    dp, t, etp = draw.choice([(2, 2, 2), (4, 1, 2), (1, 4, 2), (2, 1, 4), (1, 2, 4), (2, 4, 1)])
    width, batch = 16 * draw.randint(1, 4), 8 * draw.randint(1, 2)
    sizes = {"dp": dp, "t": t, "etp": etp, "D": width, "B": batch, "S": 64, "H": 8}
    made = compile_model(TEXT, "fewer", {name: str(size) for name, size in sizes.items()})
    (only,) = made.trace_set.classes
    found: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for node, count in nodes_of(only):
        action = node.action
        # Counts of tokens travel before the tokens do.
        if isinstance(action, Collective) and action.dtype != "i64":
            key = (action.kind, action.axes)
            sent, got = found.get(key, (0, 0))
            found[key] = (sent + count * action.operand_bytes, got + count * action.result_bytes)
    copies = batch * 64 * CHOSEN // (dp * t * etp) * width * FLOAT
    # There and back, forward and backward.
    passes = 4 * LAYERS
    experts = tuple(axis for axis in ("dp", "t") if sizes[axis] > 1)
    assert found[("all_to_all", experts)] == (passes * copies, passes * copies)
    if etp > 1 and t > 1:
        half = passes // 2 * copies
        assert found[("all_gather", ("etp",))] == (half, etp * half)
        assert found[("reduce_scatter", ("etp",))] == (etp * half, half)
    alone = compile_model(
        TEXT, "fewer", {**{n: "1" for n in ("dp", "t", "etp")}, "D": str(width), "B": str(batch)}
    )
    assert model_flops(made.trace_set) == model_flops(alone.trace_set)
