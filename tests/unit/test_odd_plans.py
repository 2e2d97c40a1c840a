"""Plans that nobody would write, and that went wrong once: their traces are written, and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagec.analysis.sharding_errors import largest_divisor
from stagec.backend.encode import encode_traces
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.driver import compile_text
from tests.unit.seldom import some

MODEL = """
dim B = 12
dim S = 12
dim D = 48
dim H = 8
dim K = 2
dim E = 8
dim F = 96
dim V = 60
dim L = 3

module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight n1[D], wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D], n2[D]
  n = rms_norm(x, n1)
  h = x + dropout(attention(rope(n @ wq), rope(n @ wk), n @ wv, causal = true) @ wo, rate = 0.1)
  return h + Mlp(rms_norm(h, n2))
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}

plan p {
%s
}
"""

PLANS = {
    # Ranks without work in a step of the ring ran ahead, and reduced gradients before they had handed blocks on.
    "ring_without_balance": """
  mesh cp = 4, dp = 3
  rank_order dp, cp
  shard B over dp
  shard S over cp
  context cp { balance = none, rotate = send_recv }
  microbatch 2
""",
    "rotated_without_balance": """
  mesh cp = 4, dp = 3
  shard B over dp
  shard S over cp
  context cp { balance = none, rotate = all_to_all }
  microbatch 2
""",
    "gathered_without_balance": """
  mesh cp = 4, dp = 3
  shard B over dp
  shard S over cp
  context cp { balance = none, rotate = all_gather }
  microbatch 2
""",
    "ring_of_two_without_balance": """
  mesh cp = 2, dp = 3
  shard B over dp
  shard S over cp
  context cp { balance = none }
  microbatch 2
""",
    # A value that is gathered over two axes is gathered in two steps: neither result is kept.
    "gathered_over_two_axes": """
  mesh dp = 2, tp = 1
  shard B over dp
  shard S over tp
  shard Block.h over none
  zero 2 over dp
  collectives { keep = shard }
""",
    # Layers read slices of what is gathered, in its dtype.
    "gathered_once_in_another_dtype": """
  mesh pp = 3, dp = 2
  shard B over dp
  pipeline L over pp
  zero 3 over dp { reshard = false }
  precision { gather = bf16 }
""",
    # A bucket that is full holds what is still in an open bucket over other axes.
    "buckets_over_two_axes": """
  mesh cp = 2, dp = 6
  shard B over dp
  shard S over cp
  context cp { method = ulysses }
  zero 1 over dp
  gradients { bucket_bytes = 16KiB }
""",
    # Weights begin at multiples of 64 elements, which three ranks do not divide; a bucket ends at one of 128 and of 3.
    "buckets_of_three_ranks": """
  mesh dp = 3
  shard B over dp
  microbatch 2
  zero 1 over dp { like = megatron }
""",
}


@pytest.mark.parametrize("name", some(PLANS, 8))
def test_traces_run(name: str, tmp_path: Path) -> None:
    compiled = compile_text(MODEL % PLANS[name], name)
    write_traces(encode_traces(compiled.trace_set), str(tmp_path / "traces"))
    report = check_traces(tmp_path / "traces", stress=2)
    # The model is so small that its first op may take less than a simulator's nanosecond.
    assert [f for f in report.findings if f.code != "W0643"] == [], report.text()


@pytest.mark.parametrize("number", [1, 7, 12, 64, 97, 360])
def test_largest_divisors(number: int) -> None:
    for most in range(1, 400):
        wanted = max(n for n in range(1, most + 1) if number % n == 0)
        assert largest_divisor(number, most) == wanted


def test_a_size_of_nine_digits_too_many_is_soon_refused() -> None:
    """What divides is not looked for one by one."""
    assert largest_divisor(2**40, 10**9) == 2**29
