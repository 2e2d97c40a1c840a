"""Memory that papers print: Korthikanti et al. 2022, figure 1; the four states of ZeRO."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stagec.driver import Stops, compile_text
from stagec.memory import ClassPlan, Kind, plan_memory
from stagec.unrolling.module import rank_runs
from tests.unit.seldom import mostly

TEXT = (Path(__file__).parent / "korthikanti.stg").read_text()
GIB = 1 << 30

# Batch, width, heads, layers, stages, virtual stages; GiB of parameters and optimizer, of activations with tensor
# parallelism alone, and with sequence parallelism and selective recomputation.
FIGURE_1 = {
    "22B": (4, 6144, 64, 48, 1, 1, 45.5625, 59.25, 9.5625),
    "175B": (1, 12288, 96, 96, 8, 3, 45.5625, 66.84375, 12.3515625),
    "530B": (1, 20480, 128, 105, 35, 3, 31.640625, 114.0234375, 23.076171875),
    "1T": (1, 25600, 160, 128, 64, 1, 32.958984375, 131.25, 26.5625),
}

STATES = 2 + 4 + 4 + 8
"""Bytes of a parameter, its gradient, master weight and moments: of `scale`, too, which the paper does not have."""


def first_stage(model: str, plan: str) -> ClassPlan:
    """The memory of the ranks that have most in flight."""
    batch, width, heads, layers, stages, virtual, *_ = FIGURE_1[model]
    microbatches = 2 * stages if stages > 1 else 1
    sizes = {"B": batch * microbatches, "D": width, "H": heads, "L": layers, "pp": stages}
    schedule = f"schedule = interleaved_1f1b, virtual_stages = {virtual}"
    schedule = schedule if virtual > 1 else "schedule = 1f1b"
    text = re.sub(r"schedule = \w+, virtual_stages = 1", schedule, TEXT)
    text = text.replace("microbatch = 1", f"microbatch = {batch}")
    numbers = {name: str(size) for name, size in sizes.items()}
    stop = Stops(unroll=False)  # the tasks of one class are enough
    job = compile_text(text, "korthikanti.stg", plan, numbers, stops=stop)
    assert job.stated is not None
    (first,) = plan_memory(rank_runs(job.module)[:1])
    return first


def activation_bytes(plan: ClassPlan) -> int:
    """The most that is saved at once, without the statistics of norms, which the paper leaves out."""
    lives = plan.lives
    norms = [plan.about(row).op == "layer_norm" for row in range(len(lives))]
    fours = np.array([table_dtype(plan, row) == "fp32" for row in range(len(lives))])
    saved = (lives.kind == Kind.SAVED) & ~(np.array(norms) & fours)
    return int(lives.live_bytes(np.flatnonzero(saved)).max())


def table_dtype(plan: ClassPlan, row: int) -> str:
    table = plan.tables[int(plan.lives.stage[row])]
    value = table.results[int(plan.lives.value[row])]
    return value.type.dtype  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("model", mostly(("22B", "530B").__contains__, FIGURE_1, 2))
def test_korthikanti_figure_1(model: str) -> None:
    *_, states, with_tp, with_sp = FIGURE_1[model]
    first = first_stage(model, "tp")
    width = FIGURE_1[model][1]
    assert sum(first.static.num_bytes.values()) == states * GIB + STATES * width
    assert activation_bytes(first) == with_tp * GIB
    assert activation_bytes(first_stage(model, "sp_selective")) == with_sp * GIB


# Parameters of the model, and bytes by stage of ZeRO in GB (Rajbhandari et al. 2020, figure 1).
ZERO = {0: 120.0, 1: 31.40625, 2: 16.640625, 3: 1.875}

ZERO_TEXT = """
dim B = 64
dim D = 37500
dim F = 200000

model Wide(x[B, D]: fp16) {
  weight w[F, D]
  loss = mean(x @ w, over = [B, F])
}

plan zero {
  mesh dp = 64
  shard B over dp
  CLAUSE
  precision { weights = fp16, activations = fp16, gradients = fp16, optimizer = fp32 }
  optimizer adam
}
"""


@pytest.mark.parametrize("level", ZERO)
def test_states_of_zero(level: int) -> None:
    """7.5 billion parameters on 64 devices: 2 + 2 + 12 bytes, of which ZeRO splits more and more."""
    clause = f"zero {level} over dp" if level else ""
    (plan,) = compile_text(ZERO_TEXT.replace("CLAUSE", clause), "zero.stg").memory
    assert sum(plan.static.num_bytes.values()) == ZERO[level] * 10**9
