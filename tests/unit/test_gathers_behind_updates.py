"""What gathers updated parameters waits for the update, though that is in place and makes nothing that is read."""

from __future__ import annotations

import pytest

from stagec.driver import compile_text
from stagec.estimate.graph import build_graph
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import simulate_graph
from tests.unit.seldom import some

MODEL = """
dim B = 32
dim S = 64
dim D = 128
dim F = 256
dim L = 4
module Mlp(x[B, S, D]) -> [B, S, D] {
  weight norm[D], up[D, F], down[F, D]
  return relu(rms_norm(x, norm) @ up) @ down
}
model Net(x[B, S, D], y[B, S, D]) {
  repeat L {
    x = x + Mlp(x)
  }
  loss = mean(square(x - y), over = [B, S, D])
}
"""
MESHES = (
    "mesh dp = 4 shard B over dp microbatch 4",
    "mesh dp = 2, tp = 2 shard B over dp shard F over tp microbatch 4",
    "mesh rep = 2, dp = 2 shard B over rep, dp microbatch 4",
    "mesh pp = 2, dp = 2 shard B over dp pipeline L over pp { schedule = 1f1b, microbatch = 4 }",
    "mesh pp = 2, dp = 2 shard B over dp pipeline L over pp { schedule = interleaved_1f1b, microbatch = 4, virtual_stages = 2 }",
)
FURTHER = (
    "zero 1 over dp",
    "zero 2 over dp",
    "zero 1 over dp gradients { bucket_bytes = 4KiB }",
    "zero 1 over dp optimizer adamw { clip = 1 }",
    "zero 1 over dp optimizer adamw { copies = true } precision { weights = bf16 }",
    "zero 1 over dp optimizer muon",
    "zero 3 over dp { persist = 1000 }",
)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("further", some(FURTHER, 3))
def test_parameters_are_gathered_when_they_are_updated(mesh: str, further: str) -> None:
    """Of each stage by itself: another one of the rank may still be updated."""
    gathered_behind_updates(f"{MODEL}\nplan p {{ {mesh} {further} device h100 }}\n")


def gathered_behind_updates(text: str) -> None:
    """Each gather in the phase of the optimizer begins when the update before it has ended, if there is one."""
    made = compile_text(text)
    traces = made.trace_set
    graph = build_graph(traces, launches=False)
    timeline = simulate_graph(graph, traces, Prices.of(traces, made.plan))
    found = 0
    for number, each in enumerate(traces.classes):
        starts, ends = timeline.of_class(number)
        program, updated = each.program, None
        for row, first in zip(program.segment, program.first_node[:-1], strict=True):
            for place, node in enumerate(program.segments[row].nodes, first):
                if node.op == "optimizer_step":
                    updated = ends[place]
                elif updated is not None and node.op == "all_gather" and node.phase == "optim":
                    assert starts[place] >= updated * (1 - 1e-9)
                    found += 1
    assert found


EXPERTS = """
dim B = 32
dim S = 64
dim D = 128
dim F = 256
dim X = 8
dim A = 2
dim T = B * S * A / X
dim L = 4
module Experts(x[B, S, D]) -> [B, S, D] {
  weight norm[D], router[D, X], up[X, D, F], down[X, F, D]
  y = rms_norm(x, norm)
  gates, chosen = topk(softmax(y @ router, over = X), over = X, to = A)
  r = dispatch(y, chosen, experts = X, tokens = T)
  u[X, T, F] = r @ up
  z[X, T, D] = silu(u) @ down
  return combine(z, gates, chosen)
}
model Net(x[B, S, D], y[B, S, D]) {
  repeat L {
    x = x + Experts(x)
  }
  loss = mean(square(x - y), over = [B, S, D])
}
"""
OFFLOAD = "offload { optimizer = true }"


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (
            EXPERTS,
            f"mesh edp = 2, ep = 2, dp = edp * ep shard B over dp shard X over ep shard T over dp zero 1 over dp {OFFLOAD}",
        ),
        (MODEL, f"mesh dp = 4 shard B over dp zero 3 over dp {{ persist = 100000 }} {OFFLOAD}"),
    ],
)
def test_parameters_that_are_updated_layer_by_layer_are_gathered_when_all_are(
    model: str, plan: str
) -> None:
    """Since what gathers them is of all layers."""
    gathered_behind_updates(f"{model}\nplan p {{ {plan} device h100 }}\n")
