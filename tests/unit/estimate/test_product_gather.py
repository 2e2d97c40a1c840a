"""Weights in mxfp8 that are gathered wide and quantized by each rank (`precision { product_gather = bf16 }`)."""

from __future__ import annotations

import random

import pytest

from stagec.devices import named
from stagec.dialects.sched.actions import Collective
from stagec.dialects.types import bytes_per_element
from stagec.dialects.work import Work
from stagec.driver import Compiled, compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.prices import Prices
from tests.unit.seldom import some

TEXT = """
dim B = {B}
dim S = 128
dim D = {D}
dim F = {F}
dim L = 4

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n[D], up[D, F], down[F, D]
  return x + relu(rms_norm(x, n) @ up) @ down
}}

model M(x[B, S, D]) {{
  repeat L {{ x = Block(x) }}
  loss = mean(square(x), over = [B, S, D])
}}

plan p {{
  mesh dp = 4, tp = {tp}
  shard B over dp
  shard F over tp
  microbatch 2
  {zero}
  {rest}
  precision {{ weights = bf16, products = {form}{how} }}
  device b200
}}
"""
WAYS = (
    ("zero 1 over dp", ""),
    ("zero 2 over dp", "overlap { param_gather = true }"),
    ("zero 1 over dp", "overlap { param_gather = true } gradients { bucket_bytes = 100KB }"),
    ("zero 1 over dp { like = megatron }", "gradients { overlap = true, bucket_bytes = 300KB }"),
)


def gathered_bytes(compiled: Compiled) -> int:
    program = compiled.trace_set.classes[0].program
    return sum(
        node.action.result_bytes
        for index in program.segment.tolist()
        for node in program.segments[index].nodes
        if isinstance(node.action, Collective) and node.action.kind == "all_gather"
        if "dp" in node.action.axes
    )


def forward_us(compiled: Compiled) -> float:
    """Of the products of a step."""
    prices = Prices.of(compiled.trace_set, compiled.plan)
    rank_class = compiled.trace_set.classes[0]
    program = rank_class.program
    us = 0.0
    for index in program.segment.tolist():
        costs = prices.segment(rank_class, index).us
        for node, own in zip(program.segments[index].nodes, costs, strict=True):
            if work_of(node) == Work.PRODUCT and node.phase == "fwd":
                us += float(own)
    return us


@pytest.mark.parametrize("way", some(range(len(WAYS))))
def test_a_step_gathers_wide_and_quantizes_once(way: int) -> None:
    """What comes in bf16 is read once and set to zero once, and written along both dims where products read it so, however many microbatches there are."""
    rng = random.Random(way)
    form, stored, copies = rng.choice([("mxfp8", "mxfp8", 2), ("fp8", "fp8", 1)])
    zero, rest = WAYS[way]
    said = {"D": 128 * rng.randint(1, 4), "F": 256 * rng.randint(1, 3), "tp": rng.choice([1, 2])}
    said |= {"B": 8 * rng.choice([1, 3, 4]), "form": form, "zero": zero, "rest": rest}
    narrow, wide = (
        compile_text(TEXT.format(**said, how=f", product_weights = {stored}{how}"))
        for how in ("", ", product_gather = bf16")
    )
    elements = 4 * 2 * int(str(said["D"])) * int(str(said["F"])) // int(str(said["tp"]))
    width = bytes_per_element(stored)
    more = gathered_bytes(wide) - gathered_bytes(narrow)
    assert more == pytest.approx(elements * (2 - width), rel=1e-2)
    model = named("b200")
    rate = float(model.numbers["memory_bytes_per_s"]) * model.reached.memory
    us = forward_us(wide) - forward_us(narrow)
    assert us == pytest.approx(1e6 * elements * (2 * 2 + copies * width) / rate, rel=1e-3)
    # The buffer is that of gradients: nothing needs more memory.
    peaks = [max(plan.peak_bytes for plan in each.memory) for each in (narrow, wide)]
    assert peaks[1] <= peaks[0] * 1.01
