"""Muon: FLOPs against PyTorch's own count, and what a step computes and sends against sums over matrices, for random models and meshes."""

from __future__ import annotations

import random
from math import prod

import pytest

from stagec.dialects.sched.actions import Collective, Compute
from stagec.dialects.work import Work
from stagec.driver import Compiled, compile_text
from stagec.memory import Kind
from tests.fidelity.totals import nodes_of, ranks_of
from tests.unit.seldom import some

# `torch.optim.Muon` (2.13), one step with five iterations: `torch.utils.flop_counter.FlopCounterMode`.
TORCH = {
    (64, 64): 7_864_320,
    (96, 32): 2_293_760,
    (32, 96): 2_293_760,
    (128, 48): 7_004_160,
    (17, 40): 280_330,
}

MODEL = """
dim B = {batch}
dim V = 128
dim D = {width}
dim F = {inner}
dim L = {layers}

module Mlp(x[B, D]) -> [B, D] {{
  weight norm[D], up[D, F], down[F, D]
  return gelu(rms_norm(x, norm) @ up) @ down
}}

model M(ids[B]: i32, targets[B]: i32) {{
  weight table[V, D], head[D, V]
  x = embedding(ids, table)
  repeat L {{ x = x + Mlp(x) }}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard F over tp
  zero {zero} over dp
  precision {{ weights = bf16, gradients = fp32 }}
  optimizer muon {{ steps = {steps} }}
}}
"""


def iterations(rows: int, columns: int, steps: int) -> int:
    """FLOPs of `steps` times three products: X X', A A and B X."""
    n, m = sorted((rows, columns))
    products = [(n, m, n), (n, n, n), (n, n, m)]
    return steps * sum(2 * prod(each) for each in products)


@pytest.mark.parametrize("shape", TORCH)
def test_flops_are_those_that_pytorch_counts(shape: tuple[int, int]) -> None:
    rows, columns = shape
    assert iterations(*shape, 5) == TORCH[shape]
    sizes = {"batch": 4, "width": rows, "inner": columns, "layers": 1, "dp": 1, "tp": 1}
    made = compile_text(MODEL.format(**sizes, zero="1", steps=5))
    assert flops_of_ranks(made, Work.ORTHOGONALIZATION) == 2 * TORCH[shape]


def flops_of_ranks(compiled: Compiled, work: Work) -> int:
    """Of all ranks together."""
    return sum(
        ranks_of(compiled.trace_set, each) * count * node.action.num_ops
        for each in compiled.trace_set.classes
        for node, count in nodes_of(each)
        if isinstance(node.action, Compute) and node.action.work == work
    )


def sent(compiled: Compiled, kind: str) -> int:
    """Bytes that a rank has before the pass's collectives of a kind."""
    return sum(
        count * node.action.operand_bytes
        for each in compiled.trace_set.classes
        for node, count in nodes_of(each)
        if isinstance(node.action, Collective)
        and node.action.kind == kind
        and node.made_by == "orthogonalize-updates"
    )


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_matrices_are_made_once_for_ranks_that_share_them(seed: int) -> None:
    """Without ZeRO by each rank, under ZeRO 1 once for all of `dp`, under ZeRO 3 once at all; momenta travel in bf16."""
    draw = random.Random(seed)
    dp, tp, layers = draw.choice((1, 2, 4)), draw.choice((1, 2)), draw.choice((2, 4))
    zero, steps = (1, 3, 0)[seed % 3], draw.randint(1, 6)
    width, inner = 16 * draw.randint(1, 4), 16 * draw.randint(1, 6)
    sizes = {"batch": 8, "width": width, "inner": inner, "layers": layers, "dp": dp, "tp": tp}
    text = MODEL.format(**sizes, zero=zero, steps=steps)
    made = compile_text(text.replace("zero 0 over dp", "zero none"))
    one = iterations(width, inner, steps)
    ways = {0: 1, 1: dp, 3: dp * tp}[zero]
    of_rank = max(one, -(-2 * layers * one // ways))
    assert flops_of_ranks(made, Work.ORTHOGONALIZATION) == dp * tp * of_rank
    whole = 2 * layers * 2 * width * inner // tp
    gathered = {0: 0, 1: whole // dp, 3: 0}[zero] if dp > 1 else 0
    gathered += whole if tp > 1 and zero != 3 else 0
    assert sent(made, "all_gather") == gathered
    dealt = 2 * whole // dp if zero == 3 and dp * tp > 1 else 0
    assert sent(made, "all_to_all") == dealt
    # Gradients of all weights in fp32, though the update of a matrix reads its momenta in bf16.
    elements = 2 * 128 * width + layers * (width + 2 * width * inner // tp)
    assert gradient_bytes(made) == 4 * elements // (dp if zero == 3 else 1)


def gradient_bytes(compiled: Compiled) -> int:
    return compiled.memory[0].static.num_bytes[Kind.GRADIENTS]
