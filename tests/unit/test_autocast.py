"""Weights in fp32 and activations in bf16, against a PyTorch run under `torch.autocast`: what is saved, converted and multiplied."""

from __future__ import annotations

import random

import pytest

from stagec.dialects.sched.actions import Compute
from stagec.dialects.work import Work
from stagec.driver import Compiled, compile_text
from stagec.memory.kinds import Kind
from tests.fidelity.totals import nodes_of

TEXT = """
dim B = {B}
dim D = {D}
dim F = {F}
dim L = {L}
dim V = {V}
module Mlp(x[B, D]) -> [B, D] {{
  weight up[D, F], down[F, D]
  return x + gelu(x @ up) @ down
}}
model Net(ids[B]: i32) {{
  weight table[V, D]
  x = embedding(ids, table)
  repeat L {{ x = Mlp(x) }}
  loss = mean(x, over = [B, D])
}}
plan p {{
  mesh dp = {dp}
  shard B over dp
  precision {{ weights = fp32, activations = bf16 }}
  optimizer sgd
}}
"""

# PyTorch 2.13 on a CPU, `torch.autocast("cpu", torch.bfloat16)` around the same model, its table's output in bf16: bytes that
# `saved_tensors_hooks` sees but for weights and token numbers, elements that `_to_copy` converts forward and backward, `FlopCounterMode`'s FLOPs.
# All gradients were in fp32.
TORCH: dict[tuple[int, ...], tuple[int, int, int, int]] = {
    (32, 64, 128, 3, 1024): (159_744, 51_200, 51_200, 9_437_184),
    (8, 16, 48, 2, 40): (9_728, 3_200, 3_200, 147_456),
    (20, 40, 24, 5, 64): (36_800, 10_400, 10_400, 1_152_000),
}


def found(compiled: Compiled) -> tuple[int, int, int, int]:
    """Bytes saved, elements converted forward and backward, and FLOPs of products, of one rank."""
    converted, flops = {"fwd": 0, "bwd": 0}, 0
    for node, count in nodes_of(compiled.trace_set.classes[0]):
        action = node.action
        if isinstance(action, Compute) and action.work == Work.CAST:
            # 4 bytes on one side, 2 on the other.
            converted["fwd" if node.phase == "fwd" else "bwd"] += count * action.num_bytes // 6
        elif isinstance(action, Compute) and action.work == Work.PRODUCT:
            flops += count * action.num_ops
    return compiled.memory[0].saved_bytes[0], converted["fwd"], converted["bwd"], flops


@pytest.mark.parametrize("sizes", TORCH)
def test_as_pytorch_does_it(sizes: tuple[int, ...]) -> None:
    given = dict(zip("BDFLV", sizes, strict=True))
    made = compile_text(TEXT.format(**given, dp=1))
    assert found(made) == TORCH[sizes]
    parameters = given["V"] * given["D"] + 2 * given["L"] * given["D"] * given["F"]
    assert made.memory[0].static.num_bytes[Kind.GRADIENTS] == 4 * parameters


@pytest.mark.parametrize("seed", range(3))
def test_every_rank_converts_its_weights_once(seed: int) -> None:
    """Copies of weights in bf16 are kept for the backward pass, whatever the batch; gradients are converted one by one, and reduced in fp32."""
    rng = random.Random(seed)
    dp, layers = rng.choice((1, 2, 4)), rng.randint(2, 5)
    tokens, width, inner, words = (8 * rng.randint(1, 9) for _ in range(4))
    text = TEXT.format(B=tokens * dp, D=width, F=inner, L=layers, V=words, dp=dp)
    saved, before, after, flops = found(compile_text(text))
    weights = 2 * layers * width * inner
    assert saved == 2 * (weights + layers * tokens * (width + 2 * inner))
    assert before == after == weights + tokens * width
    assert flops == 3 * 2 * tokens * weights
