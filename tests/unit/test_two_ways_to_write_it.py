"""What can be written in two ways is the same work, communication, memory and time: layers repeated or one by one, an axis of size 1 or none, names, orders."""

from __future__ import annotations

import random

import pytest

import stagec
from tests.differential.random_plans import draw
from tests.differential.ways_to_write import DEVICE, differences_between_ways
from tests.unit.seldom import some

LAYERS = 3
REPEATED = f"""
dim B = 32
dim S = 2048
dim V = 32000
dim D = 2048
dim F = 8192
dim H = 16
dim E = 128
dim L = {LAYERS}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], up[D, F], down[F, D]
  n = rms_norm(x, norm)
  h = x + attention(rope(n @ wq), rope(n @ wk), n @ wv, causal = true) @ wo
  return h + gelu(h @ up) @ down
}}
model M(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}}
"""
WRITTEN_OUT = REPEATED.replace("repeat L { x = Block(x) }", "\n  ".join(["x = Block(x)"] * LAYERS))
CLAUSES = (
    ("gradients { bucket_bytes = 16MiB }", "gradients { overlap = false }"),
    ("collectives { keep = shard }", "collectives { reduce = lazy }"),
    ("recompute Block",),
    ("overlap { tp = true }",),
    ("shard S over tp",),
)


RULES = {
    "dp": "shard B over dp",
    "cp": "shard S over cp\ncontext cp { method = ring }",
    "tp": "shard H, F, V over tp",
}


def plan(rng: random.Random) -> str:
    clauses = [rng.choice(each) for each in CLAUSES if rng.random() < 0.5]
    return "\n".join(
        [
            "plan p {",
            f"mesh dp = {rng.choice([2, 4])}, tp = {rng.choice([1, 2, 4])}",
            "shard B over dp",
            "shard H, F, V over tp",
            f"microbatch {rng.choice([1, 4])}",
            "device h100",
            *clauses,
            "}",
        ]
    )


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(6))
def test_a_repeat_is_its_layers_one_by_one(seed: int) -> None:
    """Steps differ a little: the gradients of a layer that is repeated are reduced behind it."""
    text = plan(random.Random(seed))
    assert_same(REPEATED + text, WRITTEN_OUT + text, within=0.02)


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(3))
def test_names_and_orders_cost_nothing(seed: int) -> None:
    assert not differences_between_ways(draw(random.Random(seed), DEVICE), random.Random(seed))


@pytest.mark.parametrize("seed", some(range(6), 6))
def test_an_axis_of_size_one_is_none(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {axis: rng.choice([1, 2]) for axis in RULES}
    sizes[rng.choice(list(sizes))] = 1
    sizes["dp"] = 2
    split = [axis for axis, size in sizes.items() if size > 1]
    clauses = [rng.choice(each) for each in CLAUSES[:3] if rng.random() < 0.5]
    every, fewer = (
        "\n".join(
            [
                "plan p {",
                "mesh " + ", ".join(f"{axis} = {sizes[axis]}" for axis in axes),
                *(RULES[axis] for axis in axes),
                "microbatch 4",
                "device h100",
                *clauses,
                "}",
            ]
        )
        for axes in (list(sizes), split)
    )
    assert_same(REPEATED + every, REPEATED + fewer, within=1e-9)


EXPERTS = """
dim B = 12
dim S = 72
dim D = 64
dim F = 128
dim X = 12
dim A = 2
dim N = B * S * A / X
model M(x[B, S, D]) {
  weight router[D, X], up[X, D, F], down[X, F, D]
  scores, chosen = topk(softmax(x @ router, over = X), over = X, to = A)EARLY
  r = dispatch(x, chosen, experts = X, tokens = N)
  h[X, N, F] = silu(r @ up)
  y[X, N, D] = h @ down
  loss = mean(combine(y, WEIGHTS, chosen), over = [B, S, D])
}
plan p {
  mesh ep = 3
  shard B, X, N over ep
  collectives { like = megatron, exchange = EXCHANGE }
  device h100
}
"""


@pytest.mark.parametrize("exchange", ["direct", "all_gather"])
def test_weights_of_experts_stand_anywhere(exchange: str) -> None:
    """Scaled before tokens go to their experts, or where they come back."""
    weights = "cast(scores * 2.5 + mean(scores, over = [A]), dtype = bf16)"
    text = EXPERTS.replace("EXCHANGE", exchange)
    late = text.replace("EARLY", "").replace("WEIGHTS", weights)
    early = text.replace("EARLY", f"\n  w = {weights}").replace("WEIGHTS", "w")
    assert_same(late, early, within=1e-12)


def assert_same(one: str, other: str, *, within: float) -> None:
    a, b = stagec.compile(one), stagec.compile(other)
    assert dict(a.summary) == dict(b.summary), one
    assert dict(a.communication) == dict(b.communication), one
    assert a.peak_bytes == b.peak_bytes, one
    assert a.step_time is not None
    assert b.step_time == pytest.approx(a.step_time, rel=within), one
