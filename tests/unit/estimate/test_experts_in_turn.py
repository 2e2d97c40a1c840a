"""Transformer Engine multiplies and quantizes the tokens of one expert after the other; and what packs an exchange beside attention."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stagec.devices import load, named
from stagec.dialects.sched.actions import Collective, Compute, Kernel
from stagec.dialects.work import Work
from stagec.driver import Compiled, compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.prices import Prices, kernel_sizes
from tests.unit.seldom import some


def product(batch: int, m: int, n: int, k: int) -> Kernel:
    """Of so many experts, unless it is one."""
    sizes = {"batch": batch, "m": m, "n": n, "k": k}
    if batch > 1:
        sizes |= {"experts": batch}
    return Kernel(Work.PRODUCT, "bf16", tuple(sizes.items()))


def test_experts_take_turns_where_no_kernel_is_for_all() -> None:
    """Each takes as long as by itself, and 3.4 us more."""
    device = named("b200")
    trained = KernelPrices(device, trains="cudnn")
    experts, single = product(160, 154, 5120, 1536), product(1, 154, 5120, 1536)
    one = trained.products.price(single, False).us
    assert trained.products.price(experts, False).us == pytest.approx(160 * (one + 3.4))
    for others in (
        KernelPrices(device, trains="cudnn", engine="grouped"),
        KernelPrices(device, trains="flash2"),
        KernelPrices(device),
    ):
        assert others.products.price(single, False).us == one
        assert others.products.price(experts, False).us < 0.8 * 160 * one


def test_scores_that_are_written_out_are_one_kernel() -> None:
    """Like any product of pairs of matrices that no tokens were sent for."""
    device = named("b200")
    pairs = Kernel(Work.PRODUCT, "bf16", (("batch", 96), ("m", 512), ("n", 512), ("k", 64)))
    us = {
        KernelPrices(device, trains=library, engine=engine).products.price(pairs, False).us
        for library in ("cudnn", "flash2")
        for engine in ("trtllm", "grouped")
    }
    assert len(us) == 1


GROUPED = {
    (20, 1232, 3072, 5120): (33.5, 40.9),
    (32, 1024, 4096, 7168): (58.5, 61.4),
    (32, 1024, 7168, 2048): (34.8, 31.1),
    (40, 616, 3072, 5120): (18.6, 26.8),
    (40, 2460, 5120, 1536): (34.7, 35.2),
    (40, 9832, 3072, 5120): (289.6, 289.1),
    (64, 512, 4096, 7168): (36.4, 33.0),
    (80, 308, 3072, 5120): (11.1, 14.1),
    (128, 256, 4096, 7168): (24.6, 20.1),
    (256, 128, 4096, 7168): (16.1, 14.8),
}
"""Experts, and of each [tokens, k] by [n, k]: microseconds of an expert forward, and of the gradient of its input (SimuMax, `group_matmul`, bf16, B200)."""


def test_experts_in_turn_take_what_simumax_measured() -> None:
    device = load(str(Path(__file__).parents[2] / "fidelity" / "b200_simumax.toml"))
    kernels = KernelPrices(device, trains="cudnn")
    errors: list[float] = []
    for (experts, tokens, n, k), measured in GROUPED.items():
        both = product(experts, tokens, n, k), product(experts, tokens, k, n)
        for kernel, us in zip(both, measured, strict=True):
            errors.append(kernels.products.price(kernel, False).us / experts / us - 1)
    assert abs(np.median(errors)) < 0.05 and np.max(np.abs(errors)) < 0.4


LAYER = """
dim B = 8
dim S = 1024
dim H = 8
dim E = 128
dim D = H * E
dim F = 768
dim X = 16
dim A = 2
dim C = B * S * A / X
dim L = 2
dim V = 512

module Block(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wo[H, E, D], norm[D], router[D, X], gate[X, D, F], up[X, D, F], down[X, F, D]
  q[B, S, H, E] = x @ wq
  h = rms_norm(attention(q, q, q, causal = true) @ wo, norm)
  gates, chosen = topk(softmax(h @ router, over = X), over = X, to = A, normalise = true)
  own = dispatch(h, chosen, experts = X, tokens = C, dropless = true)
  g[X, C, F] = own @ gate
  u[X, C, F] = own @ up
  y[X, C, D] = (silu(g) * u) @ down
  return x + combine(y, gates, chosen)
}

model Net(x[B, S, D], targets[B, S]: i32) {
  weight head[D, V]
  repeat L {
    x = Block(x)
  }
  loss = cross_entropy(x @ head, targets)
}
plan p {
  mesh ep = 2
  shard B over ep
  shard X over ep
  precision { weights = bf16, activations = bf16, products = %s, unquantized = router }
  device b200 { experts = %s }
}
"""


SENT = "dispatch(h, chosen, experts = X, tokens = C, dropless = true)"


@pytest.mark.parametrize("between", some(["", "padded(", "cast(", "hierarchical"]))
@pytest.mark.parametrize("dtype", some(["bf16", "mxfp8", "fp8", "fp8_1x128", "fp4"], 2))
def test_all_products_of_experts_take_turns(dtype: str, between: str) -> None:
    """Forward and for both gradients, in any dtype, whatever lies between them and what sends tokens; not those of a weight for each head."""
    end = {"padded(": ")", "cast(": ", dtype = bf16)"}.get(between)
    text = LAYER % (dtype, "trtllm")
    text = f"dim W = E\n{text}".replace("wo[H, E, D]", "wo[H, W, D]")
    text = text.replace("weight wq[D, H, E],", "weight wq[D, H, E], turned[H, E, W],")
    text = text.replace("q[B, S, H, E] = x @ wq", "q[B, S, H, W] = (x @ wq) @ turned")
    if end is not None:
        text = text.replace(SENT, f"{between}{SENT}{end}")
    if between == "padded(":
        text = f"op padded(x[X, C, D]) -> [X, C, D] {{ flops = 0, bytes = 4 * X * C * D }}\n{text}"
    if between == "hierarchical":
        text = text.replace("ep = 2", "en = 2, el = 2, ep = en * el")
        text = text.replace("  device", "  collectives { exchange = hierarchical }\n  device")
    compiled = compile_text(text)
    kernels = Prices.of(compiled.trace_set, compiled.plan).kernels
    assert kernels is not None
    nodes = [node for s in compiled.trace_set.classes[0].program.segments for node in s.nodes]
    products = [n.action.kernel for n in nodes if work_of(n) == Work.PRODUCT]
    sizes = [dict(each.sizes) for each in products]
    own = 4 if between == "hierarchical" else 8
    of_experts = [each["k"] in (768, 1024) and each["batch"] == own for each in sizes]
    assert sum(of_experts) == 9 * 2 and sum(each["batch"] > 1 for each in sizes) == 12 * 2
    for kernel, is_one_each in zip(products, of_experts, strict=True):
        assert kernels.kernels_of(kernel) == (own if is_one_each else 1)


@pytest.mark.parametrize(
    ("dtype", "scaling"),
    some([("mxfp8", "delayed"), ("fp8", "delayed"), ("fp8", "current"), ("fp4", "delayed")], 4),
)
def test_tokens_of_each_expert_are_quantized_by_a_kernel(dtype: str, scaling: str) -> None:
    """With delayed scaling, and in nvfp4, one kernel does it for all. Where a scale is found first, it is by a kernel that reads and two that do not."""
    found = {}
    says = dtype if dtype != "fp8" else f"fp8, scaling = {scaling}"
    finds = dtype == "fp4" or scaling == "current"
    for engine in ("trtllm", "grouped"):
        compiled = compile_text(LAYER % (says, engine))
        prices = Prices.of(compiled.trace_set, compiled.plan)
        kernels = prices.kernels
        assert kernels is not None
        nodes = [node for s in compiled.trace_set.classes[0].program.segments for node in s.nodes]
        experts = [n for n in nodes if work_of(n) == Work.QUANTIZE and "experts" in kernel_sizes(n)]
        assert [kernel_sizes(node)["experts"] for node in experts] == [8] * len(experts) != []
        found[engine] = [prices.node(node).us for node in experts]
        turns = engine == "trtllm" and (dtype == "mxfp8" or scaling == "current")
        count = 8 if turns else 1
        for node, us in zip(experts, found[engine], strict=True):
            assert isinstance(node.action, Compute)
            read = node.action.num_bytes - node.action.num_written
            moved = [node.action.num_bytes, *([read, 4, 4] if finds else [])]
            assert us == pytest.approx(
                sum(count * kernels.measured.moved(each / count).us for each in moved)
            )
    turns = dtype == "mxfp8" or scaling == "current"
    assert (found["trtllm"] > found["grouped"]) == turns


def test_gates_of_experts_are_one_product() -> None:
    compiled = compile_text(LAYER % ("bf16", "trtllm"))
    nodes = [node for s in compiled.trace_set.classes[0].program.segments for node in s.nodes]
    sizes = [kernel_sizes(node) for node in nodes if work_of(node) == Work.PRODUCT]
    assert sum(each["batch"] == 8 and each["all_n"] == 2 * 768 for each in sizes) >= 2


EXCHANGED = """
dim B = 4
dim S = 4096
dim H = 16
dim E = 128
dim D = H * E
dim V = 512

model Net(x[B, S, D], targets[B, S]: i32) {
  weight head[D, V], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  y = attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
  loss = cross_entropy(y @ head, targets)
}
plan p {
  mesh dp = 1, cp = 4
  shard B over dp
  shard S over cp
  context cp { method = ulysses }
  microbatch 1
  precision { weights = bf16, activations = bf16 }
  device h100
}
"""


def exchanges(compiled: Compiled) -> tuple[list[float], list[float]]:
    """What exchanges take with what packs them, and what their messages take."""
    prices = Prices.of(compiled.trace_set, compiled.plan)
    whole, alone = [], []
    for rank_class in compiled.trace_set.classes:
        for index, segment in enumerate(rank_class.program.segments):
            us = prices.segment(rank_class, index).us
            for node, each in zip(segment.nodes, us.tolist(), strict=True):
                action = node.action
                if isinstance(action, Collective) and action.kind == "all_to_all":
                    whole.append(each)
                    alone.append(prices.node(node).us)
    return whole, alone


def test_what_an_exchange_beside_attention_moves_is_packed_and_put_into_place() -> None:
    compiled = compile_text(EXCHANGED)
    whole, alone = exchanges(compiled)
    assert len(whole) == 8
    moved = 2 * 4096 * 2048 // 4 * 2
    kernels = Prices.of(compiled.trace_set, compiled.plan).kernels
    assert kernels is not None
    assert np.subtract(whole, alone) == pytest.approx([2 * kernels.measured.moved(moved).us] * 8)
    # Tokens of experts are packed by nodes of their own.
    whole, alone = exchanges(compile_text(LAYER % ("bf16", "trtllm")))
    assert whole == alone != []


def test_logits_are_read_and_written_twice_by_transformer_engines_loss() -> None:
    found = {}
    for kernels in ("fused", "compiled"):
        compiled = compile_text(
            EXCHANGED.replace("device h100", f"device h100 {{ kernels = {kernels} }}")
        )
        prices = Prices.of(compiled.trace_set, compiled.plan)
        nodes = [node for s in compiled.trace_set.classes[0].program.segments for node in s.nodes]
        (node,) = [each for each in nodes if each.op == "cross_entropy_grad"]
        found[kernels] = prices.node(node).us
    assert found["fused"] == 2 * found["compiled"] > 0


def test_a_measured_loss_takes_what_it_does_as_a_whole() -> None:
    """On B200, both passes: 0.2795 of 8,000 GiB/s, by eight bytes for each logit in bf16 (SimuMax, `ce_fusion`)."""
    large = re.sub(r"dim V = \d+", "dim V = 128256", EXCHANGED)
    compiled = compile_text(large.replace("device h100", "device b200"))
    prices = Prices.of(compiled.trace_set, compiled.plan)
    assert prices.kernels is not None
    nodes = [node for s in compiled.trace_set.classes[0].program.segments for node in s.nodes]
    (behind,) = [each for each in nodes if each.op == "cross_entropy_grad"]
    assert isinstance(behind.action, Compute)
    moved = behind.action.num_bytes
    ahead = prices.kernels.measured.moved(moved - behind.action.num_written).us
    whole = 1e6 * 2 * moved / (0.2795 * 8000 * 2**30)
    assert ahead + prices.node(behind).us == pytest.approx(whole, rel=1e-3)


WITHOUT_ATTENTION = """
dim B = 16
dim S = 64
dim D = 256
dim F = 512
dim X = 8
dim A = 1
dim H = 4
dim E = 64
dim N = B * S / X
module Experts(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  h[X, N, F] = silu(dispatch(x, chosen, experts = X, tokens = N) @ up)
  o[X, N, D] = h @ down
  return x + combine(o, gates, chosen)
}
module Attention(x[B, S, D]) -> [B, S, D] {
  weight q[D, H, E], k[D, H, E], v[D, H, E], o[H, E, D]
  return x + attention(x @ q, x @ k, x @ v) @ o
}
model M(x[B, S, D]) {
  %s
  x = Experts(x)
  loss = mean(x, over = [B, S, D])
}
plan p { precision { weights = bf16, activations = bf16 } microbatch 4 device h100 { %s } }
plan q extends p { %s }
"""


@pytest.mark.parametrize(
    "kernels", some(["kernels = fused", "experts = grouped", "kernels = eager"])
)
@pytest.mark.parametrize("around", ["x = Attention(x)", "repeat 2 { x = Attention(x) }"])
@pytest.mark.parametrize("clause", some(["", "freeze Attention"]))
def test_experts_are_trained_alike_whether_attention_is_or_not(
    kernels: str, around: str, clause: str
) -> None:
    found = []
    for before, own in ((around, clause), ("", "")):
        compiled = compile_text(WITHOUT_ATTENTION % (before, kernels, own), plan="q")
        prices = Prices.of(compiled.trace_set, compiled.plan)
        assert compiled.trace_set.is_training
        found.append(
            {
                (node.op, node.phase, *kernel_sizes(node).items()): prices.node(node).us
                for segment in compiled.trace_set.classes[0].program.segments
                for node in segment.nodes
                if kernel_sizes(node).get("batch") == 8 and work_of(node) == Work.PRODUCT
            }
        )
    with_attention, alone = found
    assert alone.items() <= with_attention.items()
    assert len(alone) >= 4
