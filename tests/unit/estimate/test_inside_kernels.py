"""What an engine's measured kernels do besides, and which products are of quantized weights."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.estimate.prices import Prices
from tests.unit.seldom import some

MODEL = """
dim B = 8
dim S = 64
dim P = S
dim V = 1024
dim D = 1024
dim H = 8
dim K = 4
dim E = 128
dim X = 16
dim A = 2
dim T = B * S * A / X
dim F = 512

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache keys[B, P, K, E], values[B, P, K, E]
  k[B, P, K, E] = append(keys, rope(x @ wk))
  v[B, P, K, E] = append(values, x @ wv)
  return attention(rope(x @ wq), k, v, causal = true) @ wo
}

module Experts(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], gate[X, D, F], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = T)
  g[X, T, F] = r @ gate
  u[X, T, F] = r @ up
  y[X, T, D] = (silu(g) * u) @ down
  return combine(y, gates, chosen)
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight norm1[D], norm2[D]
  h = x + Attention(rms_norm(x, norm1))
  return h + Experts(rms_norm(h, norm2))
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat 4 { x = Block(x) }
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}

plan p {
  mesh dp = 1
  precision { weights = bf16, activations = bf16%s }
  device %s { kernels = %s }
  %s
}
"""
SERVED = "serve { decode 64 at %d, experts = padded }"
INSIDE = ("rope", "append", "dispatch", "combine", "unary")


def times(precision: str, device: str, kernels: str, serve: str) -> list[tuple[str, str, float]]:
    """Of the ops of a layer's forward pass: what they are, where, and µs."""
    compiled = compile_text(MODEL % (precision, device, kernels, serve))
    (own,) = compiled.trace_set.classes
    prices = Prices.of(compiled.trace_set, compiled.plan)
    segments = [at for at, each in enumerate(own.program.segments) if each.name == "Block.fwd"]
    return [
        (node.op, node.scope, float(us))
        for at in segments
        for node, us in zip(own.program.segments[at].nodes, prices.segment(own, at).us, strict=True)
    ]


@pytest.mark.parametrize("device", some(["h100", "b200"], 2))
def test_measured_kernels_of_an_engine_do_what_leads_to_them(device: str) -> None:
    serve = SERVED % random.Random(device).randint(100, 4000)
    served = times("", device, "compiled", serve)
    assert {op for op, _, us in served if us == 0} == {*INSIDE, "mul"}
    assert {op for op, _, _ in served} >= {*INSIDE, "mul"}
    # Whoever trains, or has a kernel for each op, pays for each.
    for other in (times("", device, "fused", ""), times("", device, "eager", serve)):
        assert all(us > 0 for _, _, us in other)


@pytest.mark.parametrize(("products", "device"), some([("fp8", "h100"), ("fp4", "b200")], 2))
def test_unquantized_products_take_what_wide_ones_do(products: str, device: str) -> None:
    serve = SERVED % random.Random(products).randint(100, 4000)

    def products_of(precision: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for op, scope, us in times(precision, device, "compiled", serve):
            if op == "contract":
                found.setdefault(scope, []).append(us)
        return found

    wide = products_of("")
    narrow = products_of(f", products = {products}")
    mixed = products_of(f", products = {products}, unquantized = [Attention]")
    assert mixed["Block.Attention"] == wide["Block.Attention"] != narrow["Block.Attention"]
    assert mixed["Block.Experts"] == narrow["Block.Experts"] != wide["Block.Experts"]
