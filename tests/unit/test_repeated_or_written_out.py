"""A model whose layers are written out one by one is the model that repeats them: the same work, communication, memory and time."""

from __future__ import annotations

import random

import pytest

import stagec
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


@pytest.mark.parametrize("seed", some(range(12), 4))
def test_a_repeat_is_its_layers_one_by_one(seed: int) -> None:
    """Steps differ a little: the gradients of a layer that is repeated are reduced behind it."""
    text = plan(random.Random(seed))
    repeated, written_out = (stagec.compile(each + text) for each in (REPEATED, WRITTEN_OUT))
    assert dict(repeated.summary) == dict(written_out.summary), text
    assert dict(repeated.communication) == dict(written_out.communication), text
    assert repeated.peak_bytes == written_out.peak_bytes, text
    assert repeated.step_time is not None
    assert written_out.step_time == pytest.approx(repeated.step_time, rel=0.02), text
