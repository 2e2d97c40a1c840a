"""Where a step's time goes: each kernel belongs to the part of its kind of work."""

from __future__ import annotations

from collections import defaultdict
from math import prod
from random import Random

import pytest

from stagec.analysis.kernels import FORMS
from stagec.dialects.sched.actions import Compute
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.breakdown import ATTENTION, MEMORY, PARTS, PRODUCTS, SCANS
from stagec.estimate.step import estimate

MODEL = """
dim B = 4
dim S = 512
dim D = 512
dim H = 4
dim E = D / H
dim K = E
dim N = 128
dim L = 2

module Scan(x[B, S, D]) -> [B, S, D] {
  weight wx[D, H, E], wt[D, H], rate[H], wb[D, N], wc[D, N], wo[H, E, D]
  return ssd_scan(x @ wx, x @ wt, rate, x @ wb, x @ wc, chunk = 256) @ wo
}

module Delta(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, K], wk[D, H, K], wv[D, H, E], wd[D, H], wb[D, H], wo[H, E, D]
  return gated_delta_rule(x @ wq, x @ wk, x @ wv, x @ wd, x @ wb) @ wo
}

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  return attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
}

model Mixed(x[B, S, D]) {
  repeat L { x = Mixer(x) }
  loss = mean(x, over = [B, S, D])
}

plan p {
  precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }
  optimizer adamw
  device h100
}
"""
MIXERS = {"Scan": SCANS, "Delta": SCANS, "Attention": ATTENTION}


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mixer_is_told_apart_from_others(mixer: str) -> None:
    """A rank by itself computes all the time, so that each part is the sum of what its nodes take."""
    found = estimate(compile_text(MODEL.replace("Mixer", mixer)))
    parts = found.breakdown.parts
    assert {SCANS, ATTENTION} & parts.keys() == {MIXERS[mixer]}
    took: dict[str, float] = defaultdict(float)
    (ranks,) = found.compiled.trace_set.classes
    starts, ends = found.timeline.of_class(0)
    nodes = [n for i in ranks.program.segment.tolist() for n in ranks.program.segments[i].nodes]
    for node, us in zip(nodes, ends - starts, strict=True):
        if isinstance(node.action, Compute) and node.phase != "optim":
            took[node.op] += us
    mixing = sum(us for op, us in took.items() if op.startswith(("ssd", "gated", "attention")))
    assert parts[MIXERS[mixer]] == pytest.approx(mixing, rel=1e-6)
    assert parts[PRODUCTS] == pytest.approx(took["contract"], rel=1e-6)
    assert parts.get(MEMORY, 0) == pytest.approx(sum(took.values()) - mixing - took["contract"])


def test_kernels_of_every_kind_belong_to_a_part() -> None:
    moving = {Work.OTHER, Work.ELEMENTWISE, Work.ROTATION, Work.CAST, Work.QUANTIZE}
    assert FORMS.keys() - moving == PARTS.keys()


PATCHED = """
dim B = {B}
dim C = 3
dim Y = {rows} * I
dim X = {columns} * J
dim I = {I}
dim J = {J}
dim P = {rows} * {columns}
dim Q = C * I * J
dim D = {D}

model Patched(IMAGE) {{
  weight KERNEL
  x = MADE
  loss = mean(x, over = [B, P, D])
}}

plan p {{
  precision {{ weights = bf16, activations = bf16 }}
  optimizer sgd
  device h100
}}
"""
AS_IMAGES = {
    "IMAGE": "images[B, C, Y, X]",
    "KERNEL": "kernel[C, I, J, D], scale[X]",
    "MADE": "patch_embedding(images * scale, kernel, patches = P)",
}
AS_PATCHES = {
    "IMAGE": "patches[B, P, Q]",
    "KERNEL": "kernel[Q, D], scale[Q]",
    "MADE": "(patches * scale) @ kernel",
}


@pytest.mark.parametrize("seed", range(3))
def test_a_patch_embedding_takes_as_long_as_the_product_of_its_patches(seed: int) -> None:
    """Forward and in both gradients, as images are scaled by what is trained."""
    rng = Random(seed)
    numbers = {name: rng.randint(7, 16) for name in ("rows", "columns", "I", "J")}
    numbers |= {"B": rng.choice((8, 64)), "D": 64 * rng.randint(4, 20)}
    took: list[dict[str, float]] = []
    sizes: list[dict[str, tuple[tuple[str, int], ...]]] = []
    for words in (AS_IMAGES, AS_PATCHES):
        text = PATCHED.format(**numbers)
        for word, said in words.items():
            text = text.replace(word, said)
        found = estimate(compile_text(text))
        (ranks,) = found.compiled.trace_set.classes
        nodes = (node for segment in ranks.program.segments for node in segment.nodes)
        works = (Work.PRODUCT, Work.CONVOLUTION)
        actions = [(n, n.action) for n in nodes if isinstance(n.action, Compute)]
        products = [(node, action.kernel) for node, action in actions if action.work in works]
        for _, action in actions:
            if action.work in works and action.kernel is not None:
                assert action.num_ops == 2 * prod(size for _, size in action.kernel.sizes[:4])
        sizes.append({node.phase: kernel.sizes[:4] for node, kernel in products if kernel})
        took.append({node.phase: found.prices.node(node).us for node, _ in products})
        assert found.breakdown.parts[PRODUCTS] == pytest.approx(sum(took[-1].values()), rel=1e-6)
    images, patches = took
    assert images.keys() == {"fwd", "bwd", "wgrad"}
    # Sums of linear layers' gradients are set to zero before.
    assert images == pytest.approx(patches, rel=0.1)
    assert sizes[0] == sizes[1]
