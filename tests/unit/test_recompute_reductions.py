"""All-reduces of a layer under plain tensor parallelism: 4, and what full recomputation adds."""

from __future__ import annotations

import pytest

from stagec.driver import compile_text
from stagec.summary import summarize

LAYERS = 5
MODEL = """
dim B = 4
dim S = 64
dim D = 64
dim H = 4
dim E = D / H
dim F = 4 * D
dim L = {layers}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], n2[D], up[D, F], down[F, D]
  n = rms_norm(x, n1)
  h = x + attention(rope(n @ wq), rope(n @ wk), n @ wv, causal = true) @ wo
  y = silu(rms_norm(h, n2) @ up) @ down
  return h + {end}
}}

model M(x[B, S, D]) {{
  repeat L {{ x = Block(x) }}
  loss = mean(x, over = [B, S, D])
}}

plan p {{
  mesh tp = 4
  shard H, F over tp
  recompute {what}
}}
"""


@pytest.mark.parametrize(
    ("end", "what", "per_layer"),
    [
        ("y", "none", 4),
        # Forward 2, backward 2, and that of attention again: nothing reads the last sum.
        ("y", "full in Block", 5),
        # What dropout is run on is read again, for its mask.
        ("dropout(y, rate = 0.1)", "full in Block", 6),
        ("dropout(y, rate = 0.1)", "none", 4),
    ],
)
def test_reductions_of_a_layer(end: str, what: str, per_layer: int) -> None:
    compiled = compile_text(MODEL.format(layers=LAYERS, end=end, what=what))
    (rank_class,) = summarize(compiled.module, compiled.counts).classes
    (traffic,) = rank_class.traffic
    assert (traffic.kind, traffic.count) == ("all_reduce", LAYERS * per_layer)
