"""Scales of blocks that kernels put into another order in front of products (`device b200 { swizzle = ... }`)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stagec.backend.program import Node
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.prices import Prices
from stagec.estimate.step import step_summary
from tests.unit.estimate.priced import priced_nodes

TEXT = """
dim B = {B}
dim S = {S}
dim D = {D}
dim F = {F}
dim G = {G}
dim L = 2

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n[D], up[D, F], gate[D, F], down[F, D], far[D, G], near[G, D]
  h = rms_norm(x, n)
  y = x + (silu(h @ gate) * (h @ up)) @ down
  return y + relu(y @ far) @ near
}}

model M(x[B, S, D]) {{
  repeat L {{ x = Block(x) }}
  loss = mean(square(x), over = [B, S, D])
}}

plan p {{
  mesh tp = {tp}
  shard F, G over tp
{sequence}  precision {{ weights = bf16, products = {form}{rest} }}
  device b200 {{ swizzle = {swizzle}, graphs = {graphs} }}
}}
"""
SHARING = {"mxfp8": 32, "fp4": 16}
"""Elements that share a scale of one byte."""


def drawn(rng: random.Random) -> dict[str, object]:
    sizes = {name: 128 * rng.randint(2, 8) for name in ("S", "D", "F", "G")}
    tp = rng.choice([1, 2, 4])
    return {
        **sizes,
        "B": rng.randint(1, 3),
        "tp": tp,
        "sequence": rng.choice(["  shard S over tp\n", ""]) if tp > 1 else "",
        "form": rng.choice(list(SHARING)),
        "rest": "",
        "graphs": rng.choice(["true", "false"]),
    }


def products(text: str) -> Iterator[tuple[Node, float, float]]:
    """Of layers, each with its time, and how many kernels the host launches for it."""
    for node, us, launched in priced_nodes(text):
        if work_of(node) == Work.PRODUCT:
            yield node, us, launched


def swizzled_elements(swizzle: str, said: dict[str, object], phase: str) -> list[int]:
    """By hand, of the kernels in front of the products of a layer: elements of their operands."""
    batch, positions, width, hidden, far = (int(str(said[name])) for name in "BSDFG")
    tp = int(str(said["tp"]))
    hidden, far, gathers = hidden // tp, far // tp, said["sequence"] != ""
    every, rows = swizzle == "each", batch * positions
    found: list[int] = []
    # The width that a layer reads, what it makes, and whether ranks gather what it reads, or the gradient of what it makes.
    # Of the gradient of what both gates read each makes a part.
    first = [(width, hidden, True)] * 2 if phase == "bwd" else [(width, 2 * hidden, True)]
    others = (hidden, width, False), (width, far, True), (far, width, False)
    for read, made, is_column in (*first, *others):
        x, w, dy = rows * read, read * made, rows * made
        x_late, dy_late = every or (gathers and is_column), every or (gathers and not is_column)
        if phase == "fwd":
            found += [w, *([x] if x_late else [])]
        elif phase == "bwd":
            found += [w, *([dy] if dy_late else [])]
        else:
            found += [*([x] if x_late else []), *([dy] if dy_late else [])]
    return found


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_products_take_what_reading_and_writing_scales_takes(seed: int) -> None:
    """Beside those without: in bytes, and one kernel for each operand of a product."""
    said = drawn(random.Random(seed))
    plain = list(products(TEXT.format(**said, swizzle="none")))
    compiled = compile_text(TEXT.format(**said, swizzle="none"))
    kernels = Prices.of(compiled.trace_set, compiled.plan).kernels
    assert kernels is not None
    share = kernels.device.host_kernel_us / kernels.device.host_launch_us
    for swizzle in ("stored", "each"):
        other = list(products(TEXT.format(**said, swizzle=swizzle)))
        for phase in ("fwd", "bwd", "wgrad"):
            pairs = [
                (b[1] - a[1], b[2] - a[2])
                for a, b in zip(plain, other, strict=True)
                if a[0].phase == phase
            ]
            wanted = swizzled_elements(swizzle, said, phase)
            per_scale = 2 / SHARING[str(said["form"])]
            us = [kernels.measured.moved(per_scale * elements).us for elements in wanted]
            layers, rest = divmod(len(pairs), 5)
            assert rest == 0
            assert sum(us for us, _ in pairs) == pytest.approx(layers * sum(us), abs=1e-6)
            assert sum(n for _, n in pairs) == pytest.approx(layers * share * len(wanted))


@pytest.mark.seldom
def test_what_else_multiplies_takes_no_longer() -> None:
    """Another format, other kernels, and steps that graphs or hosts launch: `none` is the quickest, `each` the slowest."""
    rng = random.Random(3)
    said = {**drawn(rng), "tp": 2, "sequence": "  shard S over tp\n"}
    for form, differs in (("mxfp8", True), ("fp4", True), ("fp8", False), ("bf16", False)):
        text = TEXT.format(**{**said, "form": form}, swizzle="{}")
        found = [
            step_summary(compile_text(text.replace("{}", each))).step_s
            for each in ("none", "stored", "each")
        ]
        assert found == sorted(found)
        assert (len(set(found)) == 3) == differs
        assert (len(set(found)) == 1) != differs
    compiled = TEXT.format(**{**said, "form": "mxfp8"}, swizzle="each, kernels = compiled")
    assert step_summary(compile_text(compiled)).step_s == pytest.approx(
        step_summary(compile_text(compiled.replace("each", "none"))).step_s
    )
