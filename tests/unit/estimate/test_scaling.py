"""Scales of operands in fp8: from earlier steps, or from the tensor itself, which is read once more for them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stagec.dialects.sched.actions import Compute
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.prices import SCALE_BYTES, Prices
from tests.unit.estimate.test_columnwise import text_of
from tests.unit.seldom import some


def quantizations(text: str) -> tuple[float, list[float], list[float]]:
    """µs of a block's pass in all; of each quantization µs, and µs of reading its operand once, of moving what it moves, and of both kernels of its scale."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    assert prices.kernels is not None
    rank_class = compiled.trace_set.classes[0]
    total, own, alone = 0.0, [], []
    for index, segment in enumerate(rank_class.program.segments):
        priced = prices.segment(rank_class, index)
        total += float(priced.us.sum())
        for node, us in zip(segment.nodes, priced.us, strict=True):
            action = node.action
            if isinstance(action, Compute) and action.work == Work.QUANTIZE:
                read = action.num_bytes - action.num_written
                own.append(float(us))
                moved = (read, action.num_bytes, SCALE_BYTES, SCALE_BYTES)
                alone.append(sum(prices.kernels.measured.moved(each).us for each in moved))
    return total, own, alone


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_current_scaling_reads_each_operand_once_more(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {name: 128 * rng.randint(2, 9) for name in ("B", "S", "D", "F", "G")}
    device, tp = rng.choice(["h100", "b200"]) + " { norms = plain }", 1
    delayed, _, _ = quantizations(text_of(device, sizes, "fp8", tp, ", scaling = delayed"))
    current, own, alone = quantizations(text_of(device, sizes, "fp8", tp, ", scaling = current"))
    assert own
    assert np.allclose(own, alone)
    assert quantizations(text_of(device, sizes, "fp8", tp))[0] == delayed
    # Each reads at least once more, and what a kernel made and converted at once is written and read besides.
    assert current > delayed
