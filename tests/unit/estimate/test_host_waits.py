"""Hosts that have to know how many tokens come before they launch more, modules that are graphs, and kernels that one call launches."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from stagec.compiled import Compiled
from stagec.devices import named
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.graph import build_graph
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.prices import Prices
from stagec.estimate.step import estimate
from stagec.estimate.timeline import FEW, Hosts, Timeline, piece_durations, solve
from tests.unit.seldom import some

MODEL = """
dim B = {batch}
dim S = {length}
dim H = 8
dim E = 64
dim D = H * E
dim F = 768
dim X = 16
dim A = 2
dim C = B * S * A / X
dim L = 4
dim V = 512

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wo[H, E, D]
  q[B, S, H, E] = x @ wq
  return attention(q, q, q, causal = true) @ wo
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], router[D, X], up[X, D, F], down[X, F, D]
  h = x + Attention(rms_norm(x, norm))
  gates, chosen = topk(softmax(h @ router, over = X), over = X, to = A, normalise = true)
  own = dispatch(h, chosen, experts = X, tokens = C, dropless = {dropless})
  u[X, C, F] = own @ up
  y[X, C, D] = gelu(u) @ down
  return h + combine(y, gates, chosen)
}}

model Net(x[B, S, D], targets[B, S]: i32) {{
  weight head[D, V]
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh {mesh}
  shard B over ep
  shard X over ep
  {cut}
  precision {{ weights = bf16, activations = bf16 }}
  device {device} {{ graphs = {graphs} }}
}}
"""
CUTS = {
    "ep = 4": "microbatch 1",
    "pp = 2, ep = 2": "pipeline L over pp { schedule = 1f1b, microbatch = 1 }",
    "pp = 2, ep = 4": "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2, microbatch = 1 }",
}


def drawn(seed: int, graphs: str = "false", dropless: str = "true") -> Compiled:
    rng = random.Random(seed)
    mesh = rng.choice(sorted(CUTS))
    text = MODEL.format(
        batch=4 * rng.choice([2, 4]),
        length=rng.choice([256, 1024, 4096]),
        mesh=mesh,
        cut=CUTS[mesh],
        device=rng.choice(["h100", "gb200"]),
        graphs=graphs,
        dropless=dropless,
    )
    return compile_text(text)


def launched_one_by_one(compiled: Compiled, timeline: Timeline, number: int) -> np.ndarray:
    """When a rank of a class has launched each node, followed node by node."""
    prices = Prices.of(compiled.trace_set, compiled.plan)
    program = compiled.trace_set.classes[number].program
    _, ends = timeline.of_class(number)
    counts = [
        prices.launches(segment.nodes, escaping)
        for segment, escaping in zip(program.segments, prices.escaping(program), strict=True)
    ]
    read: set[int] = set()
    last = -1
    nodes = [node for at in program.segment.tolist() for node in program.segments[at].nodes]
    for position, node in enumerate(nodes):
        read |= {position} if node.told else {last} if node.checked else set()
        last = position if node.computes else last
    clock, found = 0.0, np.full(len(ends), np.nan)
    for row, segment in enumerate(program.segment.tolist()):
        for at in range(len(program.segments[segment].nodes)):
            position = int(program.first_node[row]) + at
            clock += prices.host_launch_us * counts[segment][at]
            if counts[segment][at]:
                found[position] = clock
            if position in read:
                clock = ends[position]
    return found


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(5))
def test_hosts_launch_what_they_know(seed: int):
    """Against a host that is followed node by node: it waits for counts of tokens, and nothing runs before it is launched."""
    compiled = drawn(seed)
    timeline = estimate(compiled).timeline
    assert timeline.launched_us is not None
    for number, (begin, end) in enumerate(pairwise(timeline.begins)):
        expected = launched_one_by_one(compiled, timeline, number)
        np.testing.assert_allclose(timeline.launched_us[begin:end], expected, rtol=1e-9)
        program = compiled.trace_set.classes[number].program
        computes = [n.computes for at in program.segment for n in program.segments[at].nodes]
        starts, _ = timeline.of_class(number)
        known = ~np.isnan(expected) & computes
        assert (starts[known] >= expected[known] * (1 - 1e-9)).all()
    ahead = estimate(drawn(seed, dropless="false")).step_time_us
    assert ahead < estimate(compiled).step_time_us, "with a capacity no host waits"


DENSE = """
dim B = 32
dim S = {length}
dim D = 512
dim F = 2048
dim L = 4
dim V = 512

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}

model Net(x[B, S, D], targets[B, S]: i32) {{
  weight head[D, V]
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh {mesh}
  shard B over dp
  {cut}
  {zero}
  precision {{ weights = bf16, activations = bf16, gradients = fp32 }}
  gradients {{ {gradients} }}
  device {device} {{ graphs = {graphs} }}
}}
"""
STAGES = "pipeline L over pp { schedule = 1f1b, microbatch = 1 }"


def checking(seed: int, check: str = ", check = true", graphs: str = "false") -> Compiled:
    rng = random.Random(seed)
    mesh, cut = rng.choice([("dp = 4", "microbatch 2"), ("dp = 4", ""), ("pp = 2, dp = 2", STAGES)])
    text = DENSE.format(
        length=rng.choice([256, 1024, 4096]),
        mesh=mesh,
        cut=cut,
        zero=rng.choice(["", "zero 1 over dp { like = megatron }"]),
        gradients=f"bucket_bytes = {rng.choice([1, 2**20, 2**22])}B, overlap = {rng.choice(['true', 'false'])}{check}",
        device=rng.choice(["h100", "gb200"]),
        graphs=graphs,
    )
    return compile_text(text)


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(8))
def test_hosts_read_the_norm_of_each_bucket(seed: int):
    """Against a host that is followed node by node: it waits for what it launched last before it launches a reduction."""
    compiled, free = checking(seed), checking(seed, check="")
    timeline = estimate(compiled).timeline
    assert timeline.launched_us is not None
    for number, (begin, end) in enumerate(pairwise(timeline.begins)):
        expected = launched_one_by_one(compiled, timeline, number)
        np.testing.assert_allclose(timeline.launched_us[begin:end], expected, rtol=1e-9)
    assert estimate(compiled).step_time_us > estimate(free).step_time_us
    nodes = {
        node
        for each in compiled.trace_set.classes
        for segment in each.program.segments
        for node in segment.nodes
    }
    assert {node.phase for node in nodes if node.checked} == {"grad_reduce"}
    # Where graphs launch, a norm takes the time to read a bucket, and no one waits for it.
    norms = [estimate(checking(seed, each, "true")).step_time_us for each in (", check = true", "")]
    assert norms[0] > norms[1]


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_several_plans_at_once_wait_as_one_does(seed: int):
    compiled = drawn(seed)
    traces, prices = compiled.trace_set, Prices.of(compiled.trace_set, compiled.plan)
    graph = build_graph(traces, launches=True)
    hosts = Hosts.of(graph, [(traces, prices)] * len(graph.pieces))
    alone = [piece_durations(piece, traces, prices) for piece in graph.pieces]
    factors = 1 + np.arange(FEW + 1)
    together = solve(graph.every_node, [own[:, None] * factors for own in alone], hosts=hosts)
    for plan, factor in enumerate(factors.tolist()):
        one = solve(graph.every_node, [own * factor for own in alone], hosts=hosts)
        np.testing.assert_allclose(together.ends[:, plan], one.ends, rtol=1e-9)


def test_a_captured_module_is_launched_at_once():
    steps = [
        estimate(drawn(1, graphs)).step_time_us
        for graphs in ("true", "false, captured = [Attention]", "false")
    ]
    assert steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize("ranks", some([2, 4, 8], 2))
def test_kernels_of_experts_take_parts_of_a_launch(ranks: int):
    """Each further expert of a rank is another kernel of one call: a product takes 8.9 us of an H100's host, for 45."""
    text = MODEL.format(
        batch=8,
        length=1024,
        mesh=f"ep = {ranks}",
        cut="microbatch 1",
        device="h100",
        graphs="false",
        dropless="true",
    )
    compiled = compile_text(text)
    kernels = Prices.of(compiled.trace_set, compiled.plan).kernels
    program = compiled.trace_set.classes[0].program
    assert kernels is not None
    further = sum(
        kernels.further_launches(node.action)
        for at in program.segment
        for node in program.segments[at].nodes
    )
    # Six products in each of four layers, for each sequence of a rank.
    assert further == pytest.approx(8 / ranks * 4 * 6 * (16 / ranks - 1) * 8.9 / 45)


@pytest.mark.parametrize("device", some(["h100", "gb200"], 1))
def test_finding_a_scale_launches_three_more_kernels(device: str) -> None:
    """The largest number is set to zero, found, and made a scale, each by an operator of its own, for each expert's tokens."""
    kernels = KernelPrices(named(device), trains="cudnn", scales_are_known=False)
    launch, own = kernels.device.host_launch_us, kernels.device.host_kernel_us
    for experts in (1, 4, 16):
        kernel = Kernel(Work.QUANTIZE, "fp8", (("experts", experts),))
        quantized = Compute(0, 1, kernel=kernel, work=Work.QUANTIZE)
        for kernels_of_one in (1, 4):
            further = kernels.further_launches(quantized, kernels_of_one)
            assert further * launch == pytest.approx((kernels_of_one * experts - 1) * own)
