"""What tensor parallelism hides moves nothing else: the same bytes and FLOPs, with and without it."""

from __future__ import annotations

import random

import pytest

from stagec.compiled import Compiled
from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from stagec.summary import summarize

TEXT = """
dim B = {batch}
dim S = {sequence}
dim D = {width}
dim F = 2 * D
dim G = F
dim Q = F + G
dim V = 4096
dim L = 2
module Joined(x[B, S, D]) -> [B, S, D] {{
  weight both[D, Q], down[F, D]
  g, u = split(x @ both, over = Q, to = [F, G])
  return (silu(g) * u[G -> F]) @ down
}}
module Apart(x[B, S, D]) -> [B, S, D] {{
  weight gate[D, F], up[D, F], down[F, D]
  return (silu(x @ gate) * (x @ up)) @ down
}}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D]
  return x + {part}(rms_norm(x, norm))
}}
model M(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}}
plan p {{
  mesh dp = 2, tp = {tp}
  shard B over dp
  shard F, G, Q, V over tp
  shard S over tp
  microbatch 1
  {keep}
  {recompute}
  {frozen}
  overlap {{ tp = {overlap} }}
  device h100
}}
"""


def volumes(job: Compiled) -> list[object]:
    """FLOPs, and bytes of each kind of communication, whatever the number of messages."""
    return [
        (
            each.matrix_flops,
            each.other_flops,
            [(t.axes, t.kind, t.operand_bytes) for t in each.traffic],
        )
        for each in summarize(job.module, job.counts).classes
    ]


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(6))
def test_what_overlaps_moves_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    drawn = {
        "batch": rng.choice([2, 4]),
        "sequence": 4096 * rng.choice([1, 2]),
        "width": 2048 * rng.choice([1, 2]),
        "part": rng.choice(["Joined", "Apart"]),
        "tp": rng.choice([2, 4]),
        "keep": rng.choice(["", "collectives { keep = shard }"]),
        "recompute": rng.choice(["", "recompute full in Block"]),
        "frozen": rng.choice(["", "", "freeze Block"]),
    }
    found = [
        compile_text(TEXT.format(**drawn, overlap=overlap))
        for overlap in ("false", "true, pieces = 1", "true, pieces = 4")
    ]
    assert volumes(found[0]) == volumes(found[1]) == volumes(found[2])
    apart, whole, pieces = (step_summary(one).step_s for one in found)
    assert whole < apart
    assert pieces < apart
