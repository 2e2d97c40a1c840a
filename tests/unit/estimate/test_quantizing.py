"""What a quantization takes: by itself, in the kernel that makes its operand, or with a first pass for the scale."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from stagec.backend.program import Node
from stagec.devices import named
from stagec.dialects.sched.actions import Collective, Compute, Kernel
from stagec.dialects.types import bytes_per_element
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.prices import SCALE_BYTES, Prices
from tests.unit.estimate.test_columnwise import text_of
from tests.unit.seldom import some

NORM, WEIGHT, OTHER = "norm", "weight", "other"


def quantizations(text: str) -> Iterator[tuple[str, float, float, float]]:
    """Of layers: behind what each stands, its time, what its bytes take by themselves, and what reading them takes."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    assert prices.kernels is not None
    rank_class = compiled.trace_set.classes[0]
    for index, segment in enumerate(rank_class.program.segments):
        costs = prices.segment(rank_class, index).us
        for node, us in zip(segment.nodes, costs, strict=True):
            action = node.action
            if isinstance(action, Compute) and action.work == Work.QUANTIZE:
                alone = prices.kernels.measured.moved(action.num_bytes).us
                read = prices.kernels.measured.moved(action.num_bytes - action.num_written).us
                yield behind(node, segment.nodes), float(us), alone, read


def behind(node: Node, nodes: tuple[Node, ...]) -> str:
    before = [nodes[dep.node].action for dep in node.data_deps if dep.slot < 0]
    if not before:
        return WEIGHT
    works = {each.work for each in before if isinstance(each, Compute)}
    return NORM if works == {Work.REDUCTION} else OTHER


def drawn(
    rng: random.Random, form: str, kernels: str, rest: str = "", ways: tuple[int, ...] = (1, 2)
) -> str:
    sizes = {name: 128 * rng.randint(4, 12) for name in ("B", "S", "D", "F", "G")}
    text = text_of("b200", sizes, form, rng.choice(ways), rest)
    return text.replace("device b200", f"device b200 {{ kernels = {kernels} }}")


@pytest.mark.parametrize("seed", some(range(2), 2))
def test_who_makes_an_operand_and_quantizes_it_at_once(seed: int) -> None:
    """A compiler does it always, Transformer Engine's linear layers of Megatron-LM for a norm in front of one with a known scale."""
    rng = random.Random(seed)
    for form in ("fp8", "mxfp8"):
        for place, us, alone, _ in quantizations(drawn(rng, form, "fused")):
            if place == NORM and form == "fp8":
                assert us < 0.9 * alone
            else:
                assert us == pytest.approx(alone)
        places = [
            (us, alone)
            for place, us, alone, _ in quantizations(drawn(rng, form, "compiled"))
            if place == OTHER
        ]
        assert any(us < 0.9 * alone for us, alone in places)


@pytest.mark.parametrize(
    ("form", "rest"), some([("fp8", ", scaling = current"), ("fp4", ""), ("mxfp8", "")], 2)
)
def test_a_scale_of_the_tensor_itself_takes_a_first_pass(form: str, rest: str) -> None:
    """Transformer Engine has two kernels more for the scale, and its norms may find the largest number."""
    rng = random.Random(form)
    device = KernelPrices(named("b200"))
    for kernels in ("fused, norms = plain", "compiled"):
        scale = 0.0 if kernels == "compiled" else 2 * device.measured.moved(SCALE_BYTES).us
        text = drawn(rng, form, kernels, rest, ways=(1,))
        for _, us, alone, read in quantizations(text):
            if form == "mxfp8":
                assert us <= alone * (1 + 1e-9)
            else:
                assert us == pytest.approx(alone + read + scale)


@pytest.mark.parametrize("seed", range(3))
def test_products_of_nvfp4_are_without_the_conversion_that_was_measured_with_them(
    seed: int,
) -> None:
    rng = random.Random(seed)
    device = named(rng.choice(["b200", "gb200", "gb300"]))
    m, n, k = (256 * rng.randint(8, 64) for _ in range(3))
    sizes = {"batch": 1, "m": m, "n": n, "k": k}
    kernel = Kernel(Work.PRODUCT, "nvfp4", tuple(sizes.items()))
    prices = KernelPrices(device)
    own = {name: np.float64(size) for name, size in sizes.items()}
    whole = prices.measured.by_table(("product", "nvfp4"), own)
    assert whole is not None
    converted = prices.measured.moved(m * k * (2 + bytes_per_element("nvfp4"))).us
    found = prices.price(Compute(1, 1, kernel=kernel)).us
    assert found == pytest.approx(max(whole.us - converted, device.launch_us))
    # An engine that serves converts its input as it was measured.
    stored = Kernel(Work.PRODUCT, "bf16", tuple(sizes.items()), stored="nvfp4")
    served = prices.price(Compute(1, 1, kernel=stored))
    assert served.us == pytest.approx(whole.us)
    # What a weight's gradient reads along columns is rotated first, by a kernel that reads it once more.
    more = Kernel(
        Work.PRODUCT,
        "nvfp4",
        (*sizes.items(), ("whole", 3 << 20), ("shard", 1 << 20), ("gathered", 0)),
    )
    rate = float(device.numbers["memory_bytes_per_s"]) * device.reached.memory
    beyond = prices.price(Compute(1, 1, kernel=more), True).us - found
    assert beyond == pytest.approx(1e6 * (4 << 20) * (2 + 9 / 16) / rate)


ONE_PATH = (" + relu(n @ other) @ back", "")


def product_us(text: str) -> float:
    """Of the forward pass, whose products are as large in pieces as whole."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    rank_class = compiled.trace_set.classes[0]
    us = 0.0
    for index, segment in enumerate(rank_class.program.segments):
        times = int((rank_class.program.segment == index).sum())
        for node, own in zip(segment.nodes, prices.segment(rank_class, index).us, strict=True):
            action = node.action
            if isinstance(action, Compute) and action.work == Work.PRODUCT and node.phase == "fwd":
                us += float(own) * times
    return us


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(2))
def test_pieces_that_arrive_are_added_up_by_a_kernel(seed: int) -> None:
    """Not in bf16 under Transformer Engine, whose collective adds them."""
    rng = random.Random(seed)
    sizes = {name: 128 * rng.randint(4, 12) for name in ("B", "S", "D", "F", "G")}
    tp, layers = rng.choice([2, 4]), 2
    made = 2 * sizes["B"] * sizes["S"] * sizes["D"]
    sums = KernelPrices(named("b200")).measured.moved(made * (1 + 1 / tp)).us
    for form, kernels, is_summed in (
        ("mxfp8", "fused", True),
        ("bf16", "fused", False),
        ("bf16", "compiled", True),
    ):
        whole = text_of("b200", sizes, form, tp).replace(*ONE_PATH)
        whole = whole.replace("device b200", f"device b200 {{ kernels = {kernels} }}")
        split = whole.replace("device b200", "overlap { tp = true }\n  device b200")
        more = product_us(split) - product_us(whole)
        assert more == pytest.approx(layers * sums * is_summed, rel=1e-6, abs=1e-3)


SPLIT = """
dim B = 4
dim S = 1024
dim D = 1024
dim F = 4096
dim V = 1024
dim H = 8
dim E = 128

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wo[H, E, D]
  q = x @ wq
  return attention(q, q, q, causal = true) @ wo
}}

module FeedForward(x[B, S, D]) -> [B, S, D] {{
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat 2 {{
    h = x + Attention(x)
    x = h + FeedForward(rms_norm(h, norm))
  }}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh tp = {ranks}
  shard H, F over tp
  shard S over tp
  {overlap}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32, products = {form} }}
  device h100 {{ kernels = {kernels}, graphs = false }}
}}
"""


@pytest.mark.parametrize(
    ("form", "overlap"),
    some(itertools.product(("fp8, scaling = current", "fp4", "fp8", "mxfp8"), (False, True)), 3),
)
def test_ranks_agree_on_the_scale_of_what_they_gather(form: str, overlap: bool) -> None:
    """Of what a column-parallel layer reads, and of the gradient of what a row-parallel one makes: one of the two each time, in either pass of a layer."""
    rng = random.Random(form)
    for kernels in ("fused", "compiled"):
        ranks = rng.choice([2, 4, 8])
        clause = "overlap { tp = true }" if overlap else ""
        text = SPLIT.format(form=form, overlap=clause, kernels=kernels, ranks=ranks)
        compiled = compile_text(text)
        prices = Prices.of(compiled.trace_set, compiled.plan)
        found: dict[str, set[float]] = {"fwd": set(), "bwd": set()}
        for segment in compiled.trace_set.classes[0].program.segments:
            launches = prices.launches(segment.nodes, ())
            alone = [on_its_own(node) for node in segment.nodes]
            for node, other, more in zip(
                segment.nodes, alone, launches - prices.launches(alone, ()), strict=True
            ):
                if work_of(node) == Work.QUANTIZE and node.phase in found:
                    us = round(prices.node(node).us - prices.node(other).us, 9)
                    found[node.phase].add(us)
                    assert more == pytest.approx(float(us > 0))
        message = Collective("all_reduce", ("tp",), 4, 4, "fp32")
        agrees = kernels == "fused" and form in ("fp8, scaling = current", "fp4")
        expected = {0, prices.network.collective(message).us} if agrees else {0}
        for each in found.values():
            assert sorted(each) == pytest.approx(sorted(expected))


def on_its_own(node: Node) -> Node:
    """A node whose quantization nobody gathers."""
    action = node.action
    if not isinstance(action, Compute) or action.kernel is None:
        return node
    return replace(node, action=replace(action, kernel=replace(action.kernel, agreed=())))
