"""What goes straight from a model's inputs into its first layer has no gradient, as in PyTorch, however the text has its layers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from stagec.driver import Compiled, compile_text
from stagec.summary import ClassSummary, summarize
from tests.unit.seldom import some

PLANS = (
    "mesh dp = 2, tp = 2\n shard B over dp\n shard F0 over tp\n microbatch 2",
    "mesh tp = 2\n shard D over tp",
    "mesh dp = 4\n shard B over dp\n zero 3 over dp\n unit Layer",
    "mesh dp = 2\n shard B over dp\n recompute full in Layer\n microbatch 1",
    "mesh dp = 2\n shard B over dp\n zero 2 over dp\n precision { weights = fp32, activations = bf16 }",
)
TEXT = """
dim B = 16
dim D = 8
dim L = {layers}
{dims}
module Layer(x0[B, D]) -> [B, D] {{
{body}
}}
model Net(x[B, D]) {{
  {calls}
  loss = mean(square(x), over = [B, D])
}}
plan p {{
  {plan}
}}
"""


def drawn(seed: int, plan: str, calls: str = "repeat L { x = Layer(x) }") -> tuple[str, list[int]]:
    """A model, and the FLOPs of the products of a layer's forward pass: of the whole batch."""
    rng = Random(seed)
    layers = rng.randint(2, 5)
    widths = [8, *(rng.choice([4, 8, 16]) for _ in range(rng.randint(1, 3))), 8]
    names = ["D", *(f"F{n}" for n in range(len(widths) - 2)), "C"]
    dims = [f"dim {name} = {width}" for name, width in zip(names[1:-1], widths[1:-1], strict=True)]
    steps = [
        f"  weight w{n}[{a}, {b}]\n  x{n + 1} = {rng.choice(['relu', 'tanh'])}(x{n} @ w{n})"
        for n, (a, b) in enumerate(pairwise(names))
    ]
    body = "\n".join([*steps, f"  return x{len(steps)}[C -> D]"])
    text = TEXT.format(
        layers=layers, dims="\n".join(["dim C = D", *dims]), body=body, calls=calls, plan=plan
    )
    return text, [2 * 16 * a * b for a, b in pairwise(widths)] * layers


def summarized(compiled: Compiled) -> tuple[ClassSummary, ...]:
    return summarize(compiled.module, compiled.counts).classes


@pytest.mark.parametrize("seed", some(range(5), 4))
def test_a_repeat_is_its_layers_written_out(seed: int) -> None:
    """The first of them by itself, or all at once: the same work, communication and memory."""
    plan = PLANS[seed % len(PLANS)]
    ways = ("repeat L { x = Layer(x) }", "x = Layer(x)\n  repeat L - 1 { x = Layer(x) }")
    rolled, written = (compile_text(drawn(seed, plan, calls)[0], plan="p") for calls in ways)
    assert summarized(rolled) == summarized(written)
    assert [each.peak_bytes for each in rolled.memory] == [
        each.peak_bytes for each in written.memory
    ]


@pytest.mark.parametrize("seed", some(range(5), 2))
def test_the_first_product_has_no_gradient_of_its_input(seed: int) -> None:
    text, products = drawn(seed, "mesh dp = 2\n shard B over dp")
    (of_all,) = summarized(compile_text(text, plan="p"))
    assert 2 * of_all.matrix_flops == 3 * sum(products) - products[0]
