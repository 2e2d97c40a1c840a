"""A plan on another device."""

from __future__ import annotations

import pytest

from stagec.estimate.step import on_device
from stagec.frontend import check, parse_text
from stagec.plans.clauses import Device, settings_of

MODEL = """
dim B = 8
dim D = 64
module Block(x[B, D]) -> [B, D] {
  weight w[D]
  return x * w
}
model M(x[B, D]) {
  loss = mean(Block(x), over = [B, D])
}
"""


@pytest.mark.parametrize(
    ("said", "stays"),
    [
        ("memory = 40GiB", True),
        ("kernels = eager", True),
        ("graphs = false", True),
        ("captured = [Block]", True),
        ("collective_units = 8", True),
        ("exchange_units = 8", True),
        ("message_units = 8", True),
        ("tile_scheduler = static", True),
        ("all_reduce = vllm", True),
        ("experts = grouped", True),
        ("swizzle = each", True),
        ("fused_activations = true", True),
        ("norms = cudnn", True),
        ("flops_per_s = 1e15", False),
        ("memory_bytes_per_s = 3TB", False),
        ("link_latency_us = 9", False),
        ("node = 4", False),
        ("price_per_hour = 3", False),
    ],
)
def test_how_a_plan_uses_a_device_stays_on_another(said: str, stays: bool) -> None:
    """What describes the device goes with it."""
    text = f"{MODEL}\nplan own {{ device h100 {{ {said} }} }}\n"
    plan = check(parse_text(text, "m.stg"), "own").plan
    name, other = said.partition(" ")[0], Device.of("b200")
    assert name in plan.device.given
    moved = on_device(plan, "b200").device
    assert getattr(moved, name) == getattr(plan.device if stays else other, name)
    assert (name in Device.uses()) == stays == (name in moved.given)
    assert moved.preset == "b200"


def test_every_setting_of_a_device_describes_it_or_says_how_it_is_used() -> None:
    numbers = {name for name in settings_of("device") if name.endswith(("_per_s", "_us", "_hour"))}
    assert {*settings_of("device")} == {*Device.uses()} | numbers | {"node"}
