"""What ops say of the memory of their operands: which of them a gradient reads, and whether it takes the place of one."""

from __future__ import annotations

import random

from stagec.driver import compile_text
from stagec.memory import Kind

TEXT = """
dim B = 2
dim S = {positions}
dim D = 8
dim E = 8
dim V = {words}
op mixed(a[B, S, D], b[B, S, D], c[B, S, D]) -> [B, S, D] {{ flops = 0, bytes = 0 {reads} }}
model M(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V], wa[D, E], wb[D, E], wc[D, E]
  x = embedding(tokens, embed)
  a[B, S, E] = x @ wa
  b[B, S, E] = x @ wb
  c[B, S, E] = x @ wc
  y = mixed(a[E -> D], b[E -> D], c[E -> D])
  loss = cross_entropy(y @ head, targets{loss})
}}
plan p {{
  mesh tp = 2
  shard V over tp
  precision {{ weights = bf16, activations = bf16 }}
}}
"""


def saved(text: str) -> int:
    """Bytes of what is kept for the backward pass."""
    (plan,) = compile_text(text, plan="p").memory
    return sum(plan.saved_bytes)


def test_a_gradient_reads_the_operands_that_its_op_names() -> None:
    draw = random.Random(3)
    for _ in range(3):
        sizes = {"positions": draw.choice([4, 6]), "words": draw.choice([16, 32]), "loss": ""}
        read = draw.sample("abc", draw.randint(0, 3))
        named = saved(TEXT.format(reads=f", backward_reads = [{', '.join(read)}]", **sizes))
        every = saved(TEXT.format(reads="", **sizes))
        assert every - named == (3 - len(read)) * 2 * 2 * sizes["positions"] * 8


def test_a_loss_whose_gradient_takes_the_place_of_the_logits() -> None:
    draw = random.Random(4)
    for _ in range(2):
        sizes = {"positions": draw.choice([4, 6]), "words": draw.choice([16, 32]), "reads": ""}
        logits = 2 * 2 * sizes["positions"] * sizes["words"] // 2
        made = []
        for said in ("", ", in_place = true"):
            (plan,) = compile_text(TEXT.format(loss=said, **sizes), plan="p").memory
            lives = plan.lives
            kept = lives.num_bytes[(lives.kind == Kind.SAVED) | (lives.kind == Kind.TEMPORARIES)]
            made.append(int((kept == logits).sum()))
        assert made == [2, 1]


def test_a_gradient_beside_a_wider_sum_is_there_for_one_weight_at_a_time() -> None:
    """Megatron-LM's hook adds `param.grad` to `main_grad` and frees it (`_make_backward_post_hook`)."""
    draw = random.Random(5)
    for _ in range(2):
        words, inner = draw.choice([8, 512]), draw.choice([24, 64])
        text = f"""
dim B = 4 dim V = {words} dim D = 16 dim F = {inner} dim L = 3
module Mlp(x[B, D]) -> [B, D] {{ weight up[D, F], down[F, D] return gelu(x @ up) @ down }}
model M(ids[B]: i32, targets[B]: i32) {{
  weight table[V, D], head[D, V]
  x = embedding(ids, table)
  repeat L {{ x = x + Mlp(x) }}
  loss = cross_entropy(x @ head, targets)
}}
plan p {{ microbatch 2 precision {{ weights = bf16, gradients = fp32 }} }}
"""
        (plan,) = compile_text(text, plan="p").memory
        sums = 4 * (2 * words * 16 + 3 * 2 * 16 * inner)
        assert plan.static.num_bytes[Kind.GRADIENTS] == sums
        most = plan.timeline_by_kind()[Kind.GRADIENTS].max()
        assert most == sums + 2 * max(words * 16, 16 * inner)
