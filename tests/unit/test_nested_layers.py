"""Layers in a repeat of a repeat cost what they cost in one repeat: the same work, communication and memory."""

from __future__ import annotations

import re
from random import Random

import pytest

from tests.differential.random_plans import draw
from tests.differential.ways_to_write import DEVICE, cost, same
from tests.unit.seldom import some

FLAT = "repeat L { x = Block(x) }"
NESTED = "repeat L { repeat 2 { x = Block(x) } }"
MODEL = """
dim B = 32
dim D = 16
dim F = 24
module Block(x[B, D]) -> [B, D] {
  weight n[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, n) @ up) @ down
}
model Net(x[B, D]) {
  weight stem[D], head[D, F]
  x = x * stem
  repeat L { x = Block(x) }
  loss = mean(x @ head, over = [B, F])
}
"""
PLANS = (
    """  mesh pp = 2, dp = 2
  pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2, microbatch = 4 }
  zero 3 over dp
  unit Block""",
    """  mesh pp = 2, dp = 2
  pipeline L over pp { schedule = looped_bfs, virtual_stages = 2, microbatch = 4 }
  zero 3 over dp { reshard = false }""",
    """  mesh dp = 4
  zero 1 over dp
  overlap { param_gather = true }""",
    """  mesh dp = 4
  zero 3 over dp { persist = 100 }""",
)


def untimed(text: str) -> dict[str, object]:
    """What a text costs but for times: kernels that follow each other in one repeat are merged there."""
    return {key: value for key, value in cost(text).items() if key not in ("step_time", "bubble")}


def compare(nested: str, layers: int) -> None:
    flat = nested.replace(f"dim L = {layers}", f"dim L = {2 * layers}").replace(NESTED, FLAT)
    assert flat != nested
    one, other = untimed(flat), untimed(nested)
    assert {key for key in one | other if not same(one.get(key), other.get(key))} == set()


@pytest.mark.seldom
@pytest.mark.parametrize("plan", PLANS)
def test_gathers_of_inner_layers(plan: str) -> None:
    text = f"dim L = 8{MODEL}plan p {{\n{plan}\n  shard B over dp\n  {DEVICE}\n}}\n"
    compare(text.replace(FLAT, NESTED), 8)


@pytest.mark.parametrize("seed", some(range(8), 8))
def test_random_plans(seed: int) -> None:
    text = draw(Random(seed), DEVICE).text.replace(FLAT, NESTED)
    text = re.sub(r", (first|last) = [^,}]+", "", text).replace("virtual_stages = L / pp", "")
    (layers,) = re.findall(r"dim L = (\d+)", text)
    if "pipeline" in text:
        # As many as all their stages divide.
        text, layers = text.replace(f"dim L = {layers}", "dim L = 8"), "8"
    compare(text, int(layers))
