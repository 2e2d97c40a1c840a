"""Which nodes are one kernel: none that waits for another kernel which waits for it."""

from __future__ import annotations

import random
from collections.abc import Collection
from graphlib import TopologicalSorter

import pytest

from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.joined_kernels import joined_kernels, work_of
from stagec.estimate.prices import Prices
from tests.unit.estimate.test_elementwise_kernels import drawn
from tests.unit.seldom import some

RESIDUAL = """
dim B = 4
dim S = 4096
dim D = 4096
dim F = 16384
module Part(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return (x @ up) @ down
}
module Block(x[B, S, D]) -> [B, S, D] {
  h = x + Part(x)
  return h + Part(h)
}
model Net(x[B, S, D]) {
  loss = sum(Part(Block(x)), over = [B, S, D])
}
plan p {
  mesh dp = 1
  precision { weights = bf16, activations = bf16 }
  device h100 { kernels = KERNELS }
}
"""
TENSOR_BYTES = 4 * 4096 * 4096 * 2


@pytest.mark.parametrize("kernels", ["fused", "compiled"])
def test_a_sum_reads_an_earlier_sum_from_memory_behind_products(kernels: str) -> None:
    """Of two residual sums around products each reads two tensors and writes one, by a kernel of its own."""
    compiled = compile_text(RESIDUAL.replace("KERNELS", kernels))
    prices = Prices.of(compiled.trace_set, compiled.plan)
    assert prices.kernels is not None
    rank_class = compiled.trace_set.classes[0]
    sums = [
        float(us)
        for index, segment in enumerate(rank_class.program.segments)
        for node, us in zip(segment.nodes, prices.segment(rank_class, index).us, strict=True)
        if node.phase == "fwd" and node.op == "add"
    ]
    assert sums == pytest.approx([prices.kernels.measured.moved(3 * TENSOR_BYTES).us] * 2)


@pytest.mark.parametrize("seed", some(range(60), 12))
def test_kernels_can_run_one_after_the_other(seed: int) -> None:
    """On random programs: kernels wait for each other in no circle, a kernel has its own values alone, and no two could be one that are not."""
    rng = random.Random(seed)
    compiled = compile_text(drawn(rng))
    joinable = {Work.ELEMENTWISE} | ({Work.REDUCTION} if rng.random() < 0.5 else set())

    def joins(node: object) -> Collection[Work] | None:
        return joinable if work_of(node) in joinable else None

    for segment in compiled.trace_set.classes[0].program.segments:
        nodes = segment.nodes
        kernel_of, joined = joined_kernels(nodes, joins)
        assert list(joined) == [i for i, n in enumerate(nodes) if work_of(n) in joinable]
        for i, before in joined.items():
            read = {dep.node for dep in nodes[i].data_deps if dep.slot < 0}
            assert all(kernel_of[j] == kernel_of[i] and j in read for j in before)
        waits = waits_of(nodes, kernel_of)
        assert is_in_order(waits)
        for i in joined:
            read = {dep.node for dep in nodes[i].data_deps if dep.slot < 0 and dep.node in joined}
            apart = {kernel_of[j] for j in read} - {kernel_of[i]}
            for other in apart:
                both = {k: kernel_of[i] if own == other else own for k, own in kernel_of.items()}
                assert not is_in_order(waits_of(nodes, both))


def waits_of(nodes, kernel_of) -> dict[int, set[int]]:
    """For each kernel those that make what it reads."""
    found: dict[int, set[int]] = {}
    for i, node in enumerate(nodes):
        own = found.setdefault(kernel_of.get(i, i), set())
        own |= {kernel_of.get(dep.node, dep.node) for dep in node.data_deps if dep.slot < 0}
    return {kernel: waits - {kernel} for kernel, waits in found.items()}


def is_in_order(waits: dict[int, set[int]]) -> bool:
    try:
        TopologicalSorter(waits).prepare()
    except ValueError:
        return False
    return True
