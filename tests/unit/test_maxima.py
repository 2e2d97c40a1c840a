"""The all-reduces of delayed scaling, beside a process of Transformer Engine that is stepped through: its autocasts, its first modules, its buffers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_text
from stagec.estimate.step import estimate
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some

PARTS = {
    "plain": ("up[D, F], down[F, D]", "gelu(x @ up) @ down", 2),
    "gated": ("gate[D, F], up[D, F], down[F, D]", "(silu(x @ gate) * (x @ up)) @ down", 2),
    "heads": ("q[D, F], k[D, F], v[D, F], o[F, D]", "(gelu(x @ q) + x @ k * (x @ v)) @ o", 2),
    "attention": (
        "q[D, H, E], k[D, H, E], v[D, H, E], o[H, E, D]",
        "attention(x @ q, x @ k, x @ v, causal = true) @ o",
        2,
    ),
}
"""Weights of a module, what it computes, and how many linear modules of Transformer Engine that is: linear layers of one input are one."""


@dataclass
class Process:
    """The state of `FP8GlobalStateManager`, as far as it decides when and what is reduced."""

    modules: int = 0
    """Products of all modules whose maxima are in the buffers."""
    depth: int = 0
    first: bool = False
    sent: Counter[int] = field(default_factory=Counter[int])
    """How often so many bytes were reduced."""

    def enter(self) -> None:
        if not self.depth:
            self.first = True
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1
        if not self.depth:
            self.sent[4 * 3 * self.modules] += 1

    def claims(self, again: bool) -> bool:
        """`_check_fp8_reduce_and_update`, of a module that runs with gradients."""
        first = self.first
        self.first = first and again
        return first

    def backward(self, reduces: bool) -> None:
        if reduces:
            self.sent[4 * 2 * self.modules] += 1


def stepped(
    layers: int, modules: list[int], attentions: int, stages: int, microbatches: int, again: bool
) -> Process:
    """A step of a rank with so many stages of so many layers, each of linear modules of so many products, and of attentions with `num_gemms=3`."""
    process = Process(modules=stages * layers * (sum(modules) + 3 * attentions))
    for _ in range(stages * microbatches):
        process.enter()
        # Layers that are computed again run without gradients at first.
        claimed = [not again and process.claims(False) for _ in range(layers) for _ in modules]
        process.leave()
        for layer in range(layers):
            if again:
                process.enter()
                claimed = [process.claims(True) for _ in modules]
                process.leave()
            of_layer = claimed if again else claimed[layer * len(modules) :][: len(modules)]
            for reduces in of_layer:
                process.backward(reduces)
    return process


@pytest.mark.parametrize("seed", some(range(6), 6))
def test_reduced_as_a_process_does(seed: int) -> None:
    rng = random.Random(seed)
    parts = rng.choices(list(PARTS), k=rng.randint(1, 3))
    experts, ways = rng.choice([0, 4, 6]), rng.choice([1, 2])
    pp, virtual, layers = (*rng.choice([(1, 1), (2, 1), (2, 2)]), rng.randint(1, 3))
    microbatches, again = pp * rng.randint(1, 2), rng.random() < 0.4
    calls = [f"Part{n}(x)" for n in range(len(parts))] + ["Experts(x)"] * bool(experts)
    text = "\n".join(
        f"module Part{n}(x[B, S, D]) -> [B, S, D] {{ weight {PARTS[part][0]} return {PARTS[part][1]} }}"
        for n, part in enumerate(parts)
    )
    chunk = f"interleaved_1f1b, virtual_stages = {virtual}" if virtual > 1 else "1f1b"
    plan = (
        f"pipeline L over pp {{ schedule = {chunk}, microbatch = 4 }}" if pp > 1 else "microbatch 4"
    )
    source = f"""
dim B = {2 * 4 * microbatches}
dim S = 4
dim D = 16
dim F = 8
dim H = 4
dim E = D / H
dim X = {experts or 4}
dim A = 2
dim T = B * S * A / X
dim L = {pp * virtual * layers}
{text}
module Experts(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  routed = dispatch(x, chosen, experts = X, tokens = T)
  h[X, T, F] = silu(routed @ up)
  y[X, T, D] = h @ down
  return combine(y, gates, chosen)
}}
model Net(x[B, S, D]) {{
  weight stem[D], head[D, F]
  x = x * stem
  repeat L {{ {" ".join(f"x = x + {call}" for call in calls)} }}
  loss = mean(x @ head, over = [B, S, F])
}}
plan p {{
  mesh pp = {pp}, dp = 2, tp = {ways}
  shard B over dp
  shard X over dp
  shard T over dp
  shard F, H over tp
  {plan}
  {"recompute whole" if again else ""}
  {"freeze Part0" if rng.random() < 0.4 else ""}
  precision {{ weights = bf16, products = fp8{", unquantized = [router]" * bool(experts)} }}
}}
"""
    modules = [1 for part in parts for _ in range(PARTS[part][2])] + [experts // 2] * 2 * bool(
        experts
    )
    attentions = parts.count("attention")
    process = stepped(layers, modules, attentions, virtual, microbatches, again)
    for ranks in compile_text(source).trace_set.classes:
        sent: Counter[int] = Counter()
        for node, count in nodes_of(ranks):
            if node.made_by == "reduce-maxima" and isinstance(node.action, Collective):
                assert node.action.axes == (("dp", "tp") if ways > 1 else ("dp",))
                sent[node.action.operand_bytes] += count
        assert sent == process.sent


DEEP = """
dim B = {batch}
dim S = {sequence}
dim D = {width}
dim F = 4 * D
dim L = {layers}
module Mlp(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}
model Net(x[B, S, D]) {{
  weight last[D]
  repeat L {{ x = Mlp(x) }}
  loss = mean(x @ last, over = [B, S])
}}
plan measured {{
  mesh dp = {ways}, pp = 4, tp = 2
  shard B over dp
  shard F over tp
  shard S over tp
  pipeline L over pp {{ schedule = {schedule}, microbatch = 1 }}
  zero 3 over dp {{ reshard = false }}
  precision {{ weights = bf16, gradients = fp32, products = fp8, maxima = {maxima} }}
  device h100
}}
"""


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(6))
def test_no_step_is_shorter_with_them(seed: int) -> None:
    """They stand between the reductions of a backward pass and its message, which waits for what its host has issued before, with them or without."""
    rng = random.Random(seed)
    ways = rng.choice([4, 16, 64])
    sizes = {
        "ways": ways,
        "batch": ways * 4 * rng.randint(1, 2),
        "sequence": rng.choice([2048, 8192]),
        "width": rng.choice([4096, 8192]),
        "layers": 8,
        "schedule": rng.choice(["1f1b", "interleaved_1f1b, virtual_stages = 2"]),
    }
    steps: list[float] = []
    for maxima in ("none", "all"):
        compiled = compile_text(DEEP.format(maxima=maxima, **sizes))
        steps.append(estimate(compiled).step_time_us)
    assert steps[0] <= steps[1]
