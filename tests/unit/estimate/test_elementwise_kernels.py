"""How often kernels of elementwise ops read and write memory."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest

from stagec.devices import named
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.prices import Prices, read_before
from tests.unit.seldom import some

MODEL = """
dim B = 8
dim S = 512
dim D = 1024
dim F = 4096
dim U = F
dim G = F + U
dim V = 1024

module FeedForward(x[B, S, D]) -> [B, S, D] {{
  weight both[D, G], down[F, D]
  g, u = split(x @ both, over = G, to = [F, U])
  return (silu(g) * u[U -> F]) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat 2 {{ x = x + FeedForward(x) }}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh dp = 1
  recompute {again}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }}
  device h100 {{ kernels = {kernels} }}
}}
"""
HALF_BYTES = 8 * 512 * 4096 * 2


def times(text: str) -> tuple[dict[str, float], Callable[[float], float]]:
    """What the kernels of the activation take in each pass, and what one takes that moves so many times a half's bytes."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    kernels = prices.kernels
    assert kernels is not None
    rank_class = compiled.trace_set.classes[0]
    found: dict[str, float] = defaultdict(float)
    for index, segment in enumerate(rank_class.program.segments):
        costs = prices.segment(rank_class, index).us
        for node, us in zip(segment.nodes, costs, strict=True):
            if node.scope == "FeedForward" and node.op in ("unary", "mul", "unary_grad", "concat"):
                found[segment.task] += float(us)
    return dict(found), lambda halves: kernels.measured.moved(halves * HALF_BYTES).us


@pytest.mark.parametrize("kernels", ["fused", "compiled"])
def test_a_gated_activation_that_keeps_what_it_reads_takes_three_passes_and_five(
    kernels: str,
) -> None:
    """`swiglu` and `swiglu_back` of Megatron-LM, compiled with PyTorch 2.13, load two and three operands once and store one and two."""
    found, moving = times(MODEL.format(again="silu", kernels=kernels))
    assert found == pytest.approx({"F": moving(3), "B": moving(5)})
    kept, moving = times(MODEL.format(again="none", kernels=kernels))
    assert kept == pytest.approx({"F": moving(4), "B": moving(6)})


def test_eager_kernels_read_all_their_operands() -> None:
    """What reads a half of what both gates' product made goes element by element."""
    found, moving = times(MODEL.format(again="none", kernels="eager"))
    h100 = named("h100")
    apart = 1e6 * HALF_BYTES / 2 / h100.scalars_per_s + h100.launch_us
    of_half = [max(moving(halves), apart) for halves in (2, 3)]
    each = {"F": sum(of_half), "B": moving(3) + 2 * of_half[1] + moving(4)}
    assert found == pytest.approx(each)
    assert of_half == [apart, apart]


OPS = ("exp({0})", "silu({0})", "{0} + {1}", "{0} * {1}", "{0} - {1}", "relu({0})")


def drawn(rng: random.Random) -> str:
    """Elementwise ops on what came before, with products between."""
    names, lines = ["a", "b"], []
    for i in range(rng.randint(4, 9)):
        first, second = rng.sample(names, 2)
        made = rng.choice(OPS).format(first, second)
        if i and rng.random() < 0.25:
            made = f"{first}[D -> E] @ w"
        lines.append(f"  v{i}[B, D] = {made}")
        names.append(f"v{i}")
    body, total = "\n".join(lines), " + ".join(names[2:])
    return f"""
dim B = 64
dim D = 512
dim E = D
model Net(a[B, D], b[B, D]) {{
  weight w[E, D]
{body}
  loss = sum({total}, over = [B, D])
}}
plan p {{ mesh dp = 1 }}
"""


@pytest.mark.parametrize("seed", some(range(40), 8))
def test_what_is_read_before_is_read_by_an_earlier_op_of_one_kernel(seed: int) -> None:
    """On random programs, by paths through the nodes of a trace: an earlier elementwise one reads it too, and no product lies on a path between both."""
    compiled = compile_text(drawn(random.Random(seed)))
    for segment in compiled.trace_set.classes[0].program.segments:
        works = [work_of(node) for node in segment.nodes]
        behind: list[set[tuple[int, bool]]] = []
        for node in segment.nodes:
            own: set[tuple[int, bool]] = set()
            for dep in node.data_deps:
                if dep.slot < 0:
                    other = works[dep.node] != Work.ELEMENTWISE
                    own |= {(at, by or other) for at, by in behind[dep.node]}
                    own.add((dep.node, False))
            behind.append(own)
        for at, node in enumerate(segment.nodes):
            if node.phase != "fwd" or works[at] != Work.ELEMENTWISE:
                continue
            read = {(dep.slot, dep.node) for dep in node.data_deps}
            known = {
                each
                for each in read
                for i in range(at)
                if works[i] == Work.ELEMENTWISE
                and each in {(dep.slot, dep.node) for dep in segment.nodes[i].data_deps}
                and (i, True) not in behind[at]
            }
            assert read_before(node) == pytest.approx(len(known) / len(read))
