"""What communication takes from the computation that hides it: multiprocessors, more of them in an exchange."""

from __future__ import annotations

import numpy as np
import pytest

from stagec.devices import named
from stagec.driver import compile_text
from stagec.estimate.interference import lost_in
from stagec.estimate.step import step_summary
from tests.unit.estimate.test_experts_in_turn import LAYER


def test_of_several_that_run_at_once_the_one_that_takes_most_counts() -> None:
    """Computation from 0 to 10, beside an exchange from 2 to 6 and a sum from 4 to 9, of which nothing computes behind 8."""
    starts, ends = np.array([0.0, 2.0, 4.0, 7.0]), np.array([7.0, 6.0, 9.0, 8.0])
    moving = {0.5: np.array([1]), 0.1: np.array([1, 2])}
    computing, lost = lost_in(starts, ends, np.array([0, 3]), moving)
    assert computing == 8
    assert lost == pytest.approx(0.5 * 4 + 0.1 * 2)


def seconds(device: str) -> tuple[float, float]:
    """Of a step, and of what it computes."""
    text = (
        LAYER.split("precision {")[0]
        .replace("mesh ep = 2", "mesh ep = 8")
        .replace("dim L = 2", "dim L = 8")
    )
    plan = f"  microbatch 1\n  zero 1 over ep\n  overlap {{ ep = true }}\n  {device}\n}}\n"
    found = step_summary(compile_text(text.replace("dim B = 8", "dim B = 64") + plan))
    computed = sum(found.breakdown.parts[each] for each in ("products", "attention"))
    return found.step_s, computed


@pytest.mark.seldom
def test_exchanges_take_what_the_plan_says() -> None:
    """Else what NCCL's messages do, by the device's file: more than its sums."""
    assert named("h100").exchange_units == 32 > named("h100").collective_units
    few, default, nccl, many = (
        seconds(f"device h100 {{ {each} }}")
        for each in ("exchange_units = 1", "", "exchange_units = 32", "exchange_units = 64")
    )
    assert default == nccl
    assert few < default < many
    # In the time that exchanges run beside it, computation has 131, 100 and 68 multiprocessors of 132.
    grown = [(each[1] - few[1]) / few[1] for each in (default, many)]
    assert grown[1] / grown[0] == pytest.approx((64 / 68 - 1 / 131) / (32 / 100 - 1 / 131), rel=0.1)
