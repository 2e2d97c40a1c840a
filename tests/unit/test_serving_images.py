"""Prompts that begin with an image: an iteration of several kinds of sequences is what these are alone, and images are seen once."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_text
from stagec.summary import summarize
from tests.unit.seldom import some

M = 12

MODEL = f"""
dim B = 8
dim S = 64
dim M = {M}
dim P = 4 * M
dim U = S - M
dim T = S
dim C = 24
dim D = 32
dim G = 2 * D
dim V = 100
dim H = 4
dim E = D / H

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  cache keys[B, T, H, E], values[B, T, H, E]
  return attention(x @ wq, append(keys, x @ wk), append(values, x @ wv), causal = true) @ wo
}}

module See(x[B, P, C]) -> [B, M, D] {{
  weight q[C, H, E], k[C, H, E], v[C, H, E], o[H, E, D], pool[P, M]
  seen[B, P, D] = attention(x @ q, x @ k, x @ v) @ o
  return tanh(seen) @ pool
}}

# What is seen comes to images once more, as in Qwen3-VL.
module Deepen(x[B, S, D], deep[B, M, D]) -> [B, S, D] {{
  weight w[D, G]
  image, text = split(x, over = S, to = [M, U])
  more[B, M, D] = tanh(deep @ w) @ w
  return concat(image + more, text, over = [M, U], to = S)
}}

model Net(tokens[B, U]: i32, image[B, P, C]) {{
  weight embed[V, D]
  seen = See(image)
  x = concat(seen, embedding(tokens, embed), over = [M, U], to = S)
  x = Deepen(x + Attention(x), seen)
  repeat 2 {{ x = x + Attention(x) }}
  return x @ embed
}}
"""


def served(kinds: list[str], dp: int, tp: int) -> Compiled:
    plan = f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H over tp
  serve {{ {", ".join(kinds)}, logits = all }}
}}
"""
    return compile_text(MODEL + plan)


def flops(kinds: list[str], dp: int, tp: int) -> int:
    done = served(kinds, dp, tp)
    classes = summarize(done.module, done.counts).classes
    return sum(each.num_ranks * each.matrix_flops for each in classes)


def drawn(seed: int) -> tuple[list[str], int, int]:
    """Kinds of sequences of which as many are on each device, and degrees."""
    pick = random.Random(seed)
    dp, tp = pick.choice([1, 2, 3]), pick.choice([1, 2])
    kinds: list[str] = []
    for _ in range(pick.randint(2, 4)):
        count = dp * pick.randint(1, 3)
        context = pick.randint(M, 90)
        kinds.append(
            pick.choice(
                [
                    f"prefill {count} x {pick.randint(M + 1, 80)}",
                    f"prefill {count} x {pick.randint(2, 40)} at {context}",
                    f"decode {count} at {context}",
                ]
            )
        )
    return kinds, dp, tp


@pytest.mark.parametrize("seed", some(range(6), 6))
def test_sequences_that_do_not_divide_are_dealt_out_with_their_images(seed: int):
    pick = random.Random(f"uneven {seed}")
    dp = pick.choice([2, 3, 4])
    counts = [pick.randint(dp, 3 * dp), pick.randint(1, 9)]
    kinds = [f"x {pick.randint(M + 1, 70)}", f"x {pick.randint(1, 9)} at {pick.randint(M, 60)}"]
    whole = flops([f"prefill {n} {each}" for n, each in zip(counts, kinds, strict=True)], dp, 1)
    alone = [flops([f"prefill 1 {each}"], 1, 1) for each in kinds]
    assert whole == sum(n * each for n, each in zip(counts, alone, strict=True))


@pytest.mark.parametrize("seed", some(range(12), 12))
def test_sequences_together_are_what_they_are_alone(seed: int):
    kinds, dp, tp = drawn(seed)
    assert flops(kinds, dp, tp) == sum(flops([each], dp, tp) for each in kinds)


def test_an_image_is_seen_when_its_sequence_begins():
    """FLOPs that differ by an image: as many positions of text more, and fewer."""
    alone = [flops([f"prefill 1 x {n}"], 1, 1) for n in (20, 21, 22)]
    decoded = [flops([f"prefill 1 x 8 at {n}"], 1, 1) for n in (20, 21, 22)]
    # A position more is a token more, and pairs with those before.
    assert len({b - a for a, b in pairwise(decoded)}) == 1
    assert alone[0] > 20 * decoded[0] / 8
    names = {op.name for op in served(["decode 4 at 30"], 1, 1).module.walk()}
    assert "stg.concat" not in names


@pytest.mark.parametrize(
    "kinds", ["prefill 2 x 12, decode 2 at 40", "decode 2 at 5", "prefill 2 x 30, decode 2 at 11"]
)
def test_a_sequence_does_not_end_in_its_image(kinds: str):
    with pytest.raises(CompileError, match="E0424"):
        served([kinds], 1, 1)
