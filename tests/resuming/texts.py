"""A small model under plans drawn at random."""

from __future__ import annotations

import random

TEXT = """
dim B = 16
dim S = 8
dim D = 16
dim D2 = D
dim F = 32
dim V = 64
dim L = 4

module Mlp(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Mlp(x) }}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh dp = 2, pp = {pp}, tp = {tp}
  shard B over dp
  shard F, V over tp
  {clauses}
}}
"""

SCHEDULES = ("1f1b", "gpipe", "zb_h1", "interleaved_1f1b, virtual_stages = 2")
ZERO = ("", "zero 1 over dp", "zero 2 over dp", "zero 3 over dp", "zero 3 over dp { prefetch = 2 }")
OTHERS = (
    "gradients { bucket_bytes = 2000 }",
    "gradients { overlap = false }",
    "recompute full",
    "offload { optimizer = true }",
    "overlap { tp = true }",
    "shard S over tp",
    "precision { weights = bf16, gradients = fp32 }",
)


def random_text(seed: int) -> str:
    """A plan of clauses that go together."""
    chance = random.Random(seed)
    pp = chance.choice((1, 2))
    schedule = chance.choice(SCHEDULES)
    clauses = [chance.choice(ZERO), *chance.sample(OTHERS, 2)]
    if pp > 1:
        clauses.append(f"pipeline L over pp {{ schedule = {schedule} }}")
    else:
        clauses.append("microbatch 2")
    return TEXT.format(pp=pp, tp=chance.choice((1, 2)), clauses="\n  ".join(filter(None, clauses)))
