"""Scans of state-space models in time: at what Mamba-2's kernels reach, or as fast as memory is."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from tests.unit.seldom import some

MODEL = """
dim B = {batch}
dim S = {length}
dim H = {heads}
dim E = 64
dim N = {state}

module Scan(x[B, S, H, E], dt[B, S, H], b[B, S, N], c[B, S, N]) -> [B, S, H, E] {{
  weight rate[H]
  return ssd_scan(x, dt, rate, b, c, chunk = 256)
}}

model Net(x[B, S, H, E], dt[B, S, H], b[B, S, N], c[B, S, N], targets[B, S, H]: i32) {{
  y = Scan(x, dt, b, c)
  {last}
}}

plan p {{
  precision {{ weights = bf16, activations = bf16 }}
  device {device}
}}
"""
LOSS = "loss = cross_entropy(y, targets)"


def scan_us(last: str, device: str = "h100", **sizes: int) -> float:
    text = MODEL.format(last=last, device=device, **sizes)
    return step_summary(compile_text(text)).breakdown.parts["scans"]


def test_a_long_sequence_takes_what_was_measured():
    """Pull request 27299 of vllm-project/vllm on an H100: 12.92 million tokens a second."""
    found = scan_us("return y", batch=1, length=16384, heads=128, state=128)
    assert found == pytest.approx(16384 / 12.92, rel=0.05)


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_both_passes_grow_with_sequences_and_heads(seed: int):
    rng = random.Random(seed)
    device = rng.choice(["a100", "h200", "gb200", "b300"])
    sizes = {"batch": rng.randint(1, 4), "length": 4096, "heads": 64, "state": 128}
    forward, both = (scan_us(last, device, **sizes) for last in ("return y", LOSS))
    assert both > 5 * forward, (
        "a backward pass has nearly three times the FLOPs, at a third of their speed"
    )
    more = rng.randint(2, 4)
    for name in ("batch", "heads"):
        wider = scan_us(LOSS, device, **(sizes | {name: more * sizes[name]}))
        assert wider == pytest.approx(more * both, rel=0.02)
