"""A gather that runs past the products that read it is hidden as far as their kernel lasts, also where that kernel is of several layers."""

from __future__ import annotations

import random

import pytest

from stagec.backend.program import Collective, Compute
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.prices import OVERLAP_CHUNKS, Prices

TEXT = """
dim B = 1
dim S = {S}
dim D = {D}
dim F = {F}
dim L = 2
module Block(x[B, S, D]) -> [B, S, D] {{
  weight {weights}, down[F, D]
  return x + ({product}) @ down
}}
model Net(x[B, S, D]) {{
  repeat L {{ x = Block(x) }}
  return x
}}
plan p {{
  mesh tp = 8
  shard F, S over tp
  overlap {{ tp = {overlaps} }}
  precision {{ weights = bf16, activations = bf16 }}
  device h100 {{ kernels = {kernels} }}
}}
"""


def gather_and_products(overlaps: str, **given: object) -> tuple[float, list[float]]:
    """µs of a block's gather, and of the products that read it."""
    compiled = compile_text(TEXT.format(overlaps=overlaps, **given))
    prices = Prices.of(compiled.trace_set, compiled.plan)
    rank_class = compiled.trace_set.classes[0]
    for index, segment in enumerate(rank_class.program.segments):
        us = prices.segment(rank_class, index).us
        for i, node in enumerate(segment.nodes):
            if isinstance(node.action, Collective) and node.action.kind == "all_gather":
                reading = [
                    float(us[k])
                    for k, other in enumerate(segment.nodes)
                    if any(dep.slot < 0 and dep.node == i for dep in other.data_deps)
                    and isinstance(other.action, Compute)
                    and other.action.work == Work.PRODUCT
                ]
                return float(us[i]), reading
    raise AssertionError("no gather")


@pytest.mark.parametrize("kernels", ["fused", "eager"])
@pytest.mark.parametrize("seed", range(3))
def test_a_gather_is_hidden_by_the_kernel_that_reads_it(seed: int, kernels: str) -> None:
    rng = random.Random(seed)
    sizes = {
        "S": 1024 * rng.randint(1, 8),
        "D": 512 * rng.randint(2, 16),
        "F": 512 * rng.randint(2, 8),
    }
    layers = rng.randint(2, 4)
    given = {
        **sizes,
        "weights": ", ".join(f"w{i}[D, F]" for i in range(layers)),
        "product": " * ".join(f"(x @ w{i})" for i in range(layers)),
        "kernels": kernels,
    }
    alone, products = gather_and_products("false", **given)
    left, same = gather_and_products("true", **given)
    assert same == products
    assert len(products) == layers
    hiding = sum(products) if kernels == "fused" else max(products)
    share = (OVERLAP_CHUNKS - 1) / OVERLAP_CHUNKS
    assert left == pytest.approx(alone - share * min(alone, hiding), rel=1e-9)
