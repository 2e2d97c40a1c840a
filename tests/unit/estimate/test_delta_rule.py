"""Gated delta nets in time: tables of flash-linear-attention's kernels, for prompts, single tokens and training."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from tests.unit.seldom import some
from tests.unit.test_serving import Group

MODEL = """
dim B = 8
dim S = 4096
dim D = 4096
dim K = 16
dim H = 32
dim E = 128
dim G = 128

module DeltaNet(x[B, S, D]) -> [B, S, D] {
  weight wq[D, K, E], wk[D, K, E], wv[D, H, G], wd[D, H], wb[D, H], wo[H, G, D]
  cache state[B, H, E, G]: STATE
  return gated_delta_rule(x @ wq, x @ wk, x @ wv, x @ wd, x @ wb, state = state) @ wo
}

model Net(x[B, S, D]) {
  y = DeltaNet(x)
  LAST
}
"""


def delta_us(plan: str, last: str, state: str = "fp32") -> float:
    """What a step spends in recurrences."""
    text = MODEL.replace("STATE", state).replace("LAST", last)
    clauses = f"precision {{ weights = bf16, activations = bf16 }} {plan}"
    found = step_summary(compile_text(f"{text}\nplan p {{ {clauses} }}"))
    return found.breakdown.parts["scans"]


def served_us(groups: list[Group], device: str = "b200", state: str = "fp32") -> float:
    sequences = ", ".join(each.clause for each in groups)
    return delta_us(f"device {device} serve {{ {sequences}, logits = all }}", "return y", state)


@pytest.mark.parametrize(
    ("device", "measured_us"),
    # aiconfigurator-core 0.12.0, TensorRT-LLM 1.3.0rc20: `chunk_gated_delta_rule` of one sequence of 16,384, 16 heads of keys and 32 of values.
    [("b200", 1045.9), ("h100", 1293.2)],
)
def test_a_long_prompt_takes_what_was_measured(device: str, measured_us: float):
    assert served_us([Group(1, 16384, 0)], device) == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize("seed", some(range(6), 3))
def test_prompts_and_single_tokens_are_priced_apart(seed: int):
    rng = random.Random(seed)
    groups = [
        Group(rng.randint(1, 64), 1, rng.randint(1, 9000)),
        Group(rng.randint(1, 4), rng.choice([64, 512, 2048]), rng.choice([0, 512])),
    ]
    apart = sum(served_us([each]) for each in groups)
    assert served_us(groups) == pytest.approx(apart, rel=1e-3)


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_lengths_of_prompts_share_a_kernel(seed: int):
    """It takes as long as the longest kind alone, and no longer than one after the other; halves of one kind are that kind."""
    rng = random.Random(f"lengths {seed}")
    groups = [Group(rng.randint(1, 12), rng.choice([40, 300, 2048, 9000]), 0) for _ in range(3)]
    alone = [served_us([each]) for each in groups]
    together = served_us(groups)
    assert max(alone) <= together * 1.0001
    assert together <= sum(alone) * 1.0001
    count = rng.randint(1, 8)
    halves = [Group(count, 700, 0), Group(count, 700, 0)]
    assert served_us(halves) == pytest.approx(served_us([Group(2 * count, 700, 0)]), rel=1e-6)


def test_a_narrower_state_is_read_faster():
    wide, narrow = (served_us([Group(512, 1, 100)], state=each) for each in ("fp32", "bf16"))
    assert narrow == pytest.approx(wide / 2, rel=0.05)


def test_training_is_as_fast_as_a_prompt_by_flops():
    """Forward what a prompt takes; backward 8 E G and C (9 E + 5 G + 2 C) for 3 E G and C (3 E + 2 G)."""
    prompt = served_us([Group(8, 4096, 0)])
    step = delta_us("device b200", "loss = mean(y, over = [B, S, D])")
    chunk, width = 64, 128
    backward = 8 * width * width + chunk * (14 * width + 2 * chunk)
    forward = 3 * width * width + chunk * 5 * width
    assert step == pytest.approx(prompt * (1 + backward / forward), rel=1e-3)
