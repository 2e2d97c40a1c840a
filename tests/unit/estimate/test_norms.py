"""What kernels of norms and activations do for the quantization behind them (`device h100 { norms = ..., fused_activations = ... }`)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stagec.backend.program import Node, TraceSegment
from stagec.devices import named
from stagec.dialects.sched.actions import Compute
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.prices import Prices
from stagec.estimate.step import step_summary
from tests.unit.estimate.priced import priced_nodes
from tests.unit.seldom import some

TEXT = """
dim B = 2
dim S = {S}
dim V = 512
dim D = {D}
dim F = {F}
dim H = 4
dim E = 64

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, H, E], wo[H, E, D]
  q = x @ wq
  k = x @ wk
  return attention(q, k, k, causal = true) @ wo
}}

module Twice(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  n = rms_norm(x, norm)
  return x + silu(n @ up) @ down + n
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], n2[D], c2[D], up[D, F], down[F, D]
  h = x + Attention(rms_norm(x, n1))
  h = Twice(h)
  return h + silu(layer_norm(h, n2, c2) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], last[D], head[D, V]
  x = embedding(tokens, embed)
  repeat 2 {{ x = Block(x) }}
  loss = cross_entropy(rms_norm(x, last) @ head, targets)
}}

plan p {{
  mesh tp = {tp}
  shard H, F over tp
{sequence}  recompute {again}
  precision {{ weights = bf16, activations = bf16, gradients = bf16, products = {form} }}
  device {device} {{ {norms}kernels = {kernels}, graphs = {graphs} }}
}}
"""
CURRENT = "fp8, scaling = current"


def drawn(rng: random.Random) -> dict[str, object]:
    tp = rng.choice([1, 2, 4])
    return {
        **{name: 128 * rng.randint(2, 8) for name in ("S", "D", "F")},
        "tp": tp,
        "sequence": rng.choice(["  shard S over tp\n", ""]) if tp > 1 else "",
        "again": rng.choice(["none", "rms_norm, layer_norm", "full"]),
        "device": rng.choice(["h100", "b200"]),
        "graphs": rng.choice(["true", "false"]),
        "kernels": "fused",
    }


def text_of(said: dict[str, object], form: str, norms: str = "") -> str:
    return TEXT.format(**{**said, "form": form, "norms": f"norms = {norms}, " if norms else ""})


def read(node: Node) -> int:
    assert isinstance(node.action, Compute)
    return node.action.num_bytes - node.action.num_written


def normed(text: str) -> list[bool]:
    """By hand, of each node of the job's segments: whether it quantizes the result of one of the two norms that nothing else reads."""
    found: list[bool] = []
    for segment in compile_text(text).trace_set.classes[0].program.segments:
        for node in segment.nodes:
            before = [segment.nodes[dep.node] for dep in node.data_deps if dep.slot < 0]
            is_behind = any(each.op in ("rms_norm", "layer_norm") for each in before)
            found.append(is_behind and node.op == "quantize" and "Twice" not in node.scope)
    return found


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [2, 0, 1])
def test_a_norm_that_finds_the_maximum_saves_one_reading_and_one_kernel(seed: int) -> None:
    said = drawn(random.Random(seed))
    device = named(str(said["device"]))
    kernels = KernelPrices(device)
    ways = [text_of(said, CURRENT, each) for each in ("plain", "maxima", "cudnn")]
    is_normed = normed(ways[0])
    plain, found, cudnn = (list(priced_nodes(text)) for text in ways)
    assert [row[1:] for row in plain] == [row[1:] for row in cudnn]
    # Two in the forward pass, and again where they are computed again.
    assert sum(is_normed) == (2 if said["again"] == "none" else 4)
    for at, (before, after) in enumerate(zip(plain, found, strict=True)):
        saved = kernels.measured.moved(read(before[0])).us if is_normed[at] else 0.0
        assert before[1] - after[1] == pytest.approx(saved, abs=1e-9)
        launch = device.host_kernel_us / device.host_launch_us if is_normed[at] else 0.0
        assert before[2] - after[2] == pytest.approx(launch)
    assert text_of(said, CURRENT, "maxima") != text_of(said, CURRENT)
    assert found == list(priced_nodes(text_of(said, CURRENT)))


def timed(
    text: str,
) -> tuple[KernelPrices, list[tuple[TraceSegment, Node, Sequence[float], float]]]:
    """The kernels of a text, and of each node of its first rank class: its segment, the times of the segment's nodes, and its own."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    rank_class = compiled.trace_set.classes[0]
    assert prices.kernels is not None
    found: list[tuple[TraceSegment, Node, Sequence[float], float]] = []
    for index, segment in enumerate(rank_class.program.segments):
        us: Sequence[float] = prices.segment(rank_class, index).us.tolist()
        found += [(segment, node, us, us[at]) for at, node in enumerate(segment.nodes)]
    return prices.kernels, found


@pytest.mark.parametrize(("seed", "form", "norms"), [(5, "fp8", ""), (6, "mxfp8", "cudnn")])
def test_a_norm_that_writes_eight_bits_writes_nothing_else_but_statistics(
    seed: int, form: str, norms: str
) -> None:
    """Of delayed scaling always, in mxfp8 with cuDNN's kernels: what the norm reads, what the quantization writes, and four bytes a position."""
    said = {**drawn(random.Random(seed)), "again": "none"}
    text = text_of(said, form, norms)
    kernels, nodes = timed(text)
    is_normed = normed(text)
    for (segment, node, times, us), is_behind in zip(nodes, is_normed, strict=True):
        before = [dep.node for dep in node.data_deps if dep.slot < 0]
        if not is_behind:
            if work_of(node) == Work.QUANTIZE and node.phase == "fwd":
                assert isinstance(node.action, Compute)
                assert us == pytest.approx(kernels.measured.moved(node.action.num_bytes).us)
            continue
        norm = segment.nodes[before[0]].action
        assert isinstance(norm, Compute) and isinstance(node.action, Compute)
        statistics = norm.num_written - read(node)
        moved = norm.num_bytes - norm.num_written + statistics + node.action.num_written
        assert us + times[before[0]] == pytest.approx(kernels.measured.moved(moved).us)
    assert sum(is_normed) == 2


@pytest.mark.seldom
def test_other_formats_and_kernels_take_as_long_with_any() -> None:
    """Each choice changes what it is about, and nothing else."""
    said = {**drawn(random.Random(8)), "again": "none", "tp": 1, "sequence": ""}
    for kernels, form, equal in (
        ("fused", CURRENT, {"plain", "cudnn"}),
        ("fused", "mxfp8", {"plain", "maxima"}),
        ("fused", "fp8", {"plain", "maxima", "cudnn"}),
        ("fused", "fp4", {"plain", "maxima", "cudnn"}),
        ("compiled", CURRENT, {"plain", "maxima", "cudnn"}),
    ):
        found = {
            norms: step_summary(
                compile_text(text_of({**said, "kernels": kernels}, form, norms))
            ).step_s
            for norms in ("plain", "maxima", "cudnn")
        }
        assert len({found[norms] for norms in equal}) == 1
        others = {found[norms] for norms in found if norms not in equal}
        assert all(each < found["plain"] for each in others)
        assert len(set(found.values())) == 1 + len(others)


def activated(text: str) -> list[bool]:
    """By hand, of each node: whether it quantizes an activation of what a layer made, or the gradient of that, which nothing else reads."""
    found: list[bool] = []
    for segment in compile_text(text).trace_set.classes[0].program.segments:
        for node in segment.nodes:
            before = [segment.nodes[dep.node].op for dep in node.data_deps if dep.slot < 0]
            found.append(node.op == "quantize" and before in (["unary"], ["unary_grad"]))
    return found


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_an_activation_that_finds_the_maximum_saves_one_reading_and_one_kernel(seed: int) -> None:
    """Of the two layers behind one, in both passes; a sum of several paths, and what attention made, are no activations."""
    said = drawn(random.Random(20 + seed))
    kernels = KernelPrices(named(str(said["device"])))
    text = text_of(said, CURRENT)
    plain, found = (
        list(priced_nodes(each))
        for each in (text, text.replace("kernels =", "fused_activations = true, kernels ="))
    )
    is_activated = activated(text)
    # Two forward and two backward, and forward again where they are computed again.
    assert sum(is_activated) == (6 if said["again"] == "full" else 4)
    for at, (before, after) in enumerate(zip(plain, found, strict=True)):
        saved = kernels.measured.moved(read(before[0])).us if is_activated[at] else 0.0
        assert before[1] - after[1] == pytest.approx(saved, abs=1e-9)
        launch = kernels.device.host_kernel_us / kernels.device.host_launch_us
        assert before[2] - after[2] == pytest.approx(launch * is_activated[at])


@pytest.mark.parametrize(("seed", "form"), [(30, "fp8"), (31, "mxfp8")])
def test_an_activation_that_writes_eight_bits_writes_nothing_else(seed: int, form: str) -> None:
    """One kernel reads what the layer made, and in the backward pass the gradient too, and writes what the next layer reads."""
    said = {**drawn(random.Random(seed)), "again": "none"}
    text = text_of(said, form).replace("kernels =", "fused_activations = true, kernels =")
    kernels, nodes = timed(text)
    is_activated = activated(text)
    for (segment, node, times, us), is_behind in zip(nodes, is_activated, strict=True):
        if is_behind:
            (before,) = {dep.node for dep in node.data_deps if dep.slot < 0}
            made = segment.nodes[before].action
            assert isinstance(made, Compute) and isinstance(node.action, Compute)
            moved = made.num_bytes - made.num_written + node.action.num_written
            assert us + times[before] == pytest.approx(kernels.measured.moved(moved).us)
    assert sum(is_activated) >= 4
