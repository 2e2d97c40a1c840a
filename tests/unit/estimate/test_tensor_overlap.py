"""Pieces of products that run past their gathers and reductions: what a trace has of them, and what that hides."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stagec.backend.program import Node
from stagec.dialects.sched.actions import Collective, Compute
from stagec.driver import Compiled, compile_text
from stagec.estimate.prices import Prices
from stagec.estimate.step import estimate
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some

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
  {result}
}}
plan p {{
  mesh tp = 8
  shard F, S over tp
  overlap {{ tp = {overlaps}, pieces = {pieces} }}
  precision {{ weights = bf16, activations = bf16 }}
  {device}
}}
"""
ROOFLINE = "device { flops_per_s = 1e15, memory_bytes_per_s = 3e12, link_bytes_per_s = 4e11 }"


def drawn(seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    layers, pieces = rng.randint(1, 4), rng.choice((2, 4, 8))
    return {
        "S": 8 * pieces * rng.randint(4, 64),
        "D": 512 * rng.randint(3, 16),
        "F": 512 * rng.randint(2, 16),
        "weights": ", ".join(f"w{i}[D, F]" for i in range(layers)),
        "product": " * ".join(f"(x @ w{i})" for i in range(layers)),
        "pieces": pieces,
    }


def nodes(compiled: Compiled) -> list[tuple[Node, int]]:
    return [*nodes_of(compiled.trace_set.classes[0])]


def totals(compiled: Compiled) -> Counter[tuple[str, ...]]:
    """FLOPs of each op, and bytes of each kind of collective."""
    found: Counter[tuple[str, ...]] = Counter()
    for node, count in nodes(compiled):
        action = node.action
        if isinstance(action, Compute):
            found[node.op, node.phase] += count * action.num_ops
        elif isinstance(action, Collective):
            found[action.kind, "before", node.phase] += count * action.operand_bytes
            found[action.kind, "after", node.phase] += count * action.result_bytes
    return found


@pytest.mark.parametrize("seed", range(4))
def test_pieces_hide_what_their_products_last(seed: int) -> None:
    """Forward alone, on a device without tables: of n pieces the first gather waits for nothing, and the last reduction for everything."""
    given = drawn(seed)
    made = compile_text(TEXT.format(**given, overlaps="true", device=ROOFLINE, result="return x"))
    prices = Prices.of(made.trace_set, made.plan)
    us = {name: 0.0 for name in ("all_gather", "reduce_scatter", "leading", "down", "rest")}
    for node, count in nodes(made):
        name = node.op if node.op in us else "rest"
        if node.op == "contract":
            name = "leading" if summed_over(node) == given["D"] else "down"
        us[name] += count * prices.node(node).us
    n = int(str(given["pieces"]))
    hidden = min(us["all_gather"], us["leading"]) + min(us["reduce_scatter"], us["down"])
    step = estimate(made).timeline.makespan_us
    assert step == pytest.approx(sum(us.values()) - hidden * (n - 1) / n, rel=1e-6)


def summed_over(node: Node) -> int:
    """Elements that a product sums over."""
    assert isinstance(node.action, Compute) and node.action.kernel is not None
    return dict(node.action.kernel.sizes)["k"]


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_pieces_are_of_the_same_work(seed: int) -> None:
    """With the backward pass: FLOPs and bytes are those of whole products and collectives, and memory is not more but for gradients of weights put off."""
    given = drawn(seed)
    whole, pieces = (
        compile_text(
            TEXT.format(
                **given,
                overlaps=word,
                device="device h100",
                result="loss = sum(x, over = [B, S, D])",
            )
        )
        for word in ("false", "true")
    )
    assert totals(whole) == totals(pieces)
    split = [(node, count) for node, count in nodes(pieces) if node.pieces > 1]
    assert {node.pieces for node, _ in split} == {given["pieces"]}
    kinds = Counter(node.op for node, count in split for _ in range(count))
    n = int(str(given["pieces"]))
    # A gather each way, and a reduction forward: what is reduced backward is whole, beside the gradients of weights.
    assert kinds["all_gather"] == 2 * 2 * n
    assert kinds["reduce_scatter"] == 2 * n
    prices = Prices.of(pieces.trace_set, pieces.plan)
    known = Prices.of(whole.trace_set, whole.plan)
    for op in ("all_gather", "reduce_scatter"):
        one = next(node for node, _ in split if node.op == op and node.phase == "fwd")
        all_of_it = next(node for node, _ in nodes(whole) if node.op == op and node.phase == "fwd")
        assert prices.node(one).us * n == pytest.approx(known.node(all_of_it).us)
