"""What Adafactor keeps: sums over the rows and over the columns of each matrix, as `torch.optim.Adafactor` has them of weights as modules store them."""

from __future__ import annotations

import pytest

from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_text
from stagec.memory import Kind
from tests.fidelity.totals import nodes_of

TEXT = """
dim B = 24
dim D = 64
dim H = 4
dim E = 16
dim V = 250
dim X = 6
dim F = 40
dim A = 3
dim T = B * A / X

module Layer(x[B, D]) -> [B, D] {
  weight norm[D], w[D, H, E], o[H, E, D], router[D, X], up[X, D, F], down[X, F, D]
  h = x + gelu(rms_norm(x, norm) @ w) @ o
  gates, chosen = topk(softmax(h @ router, over = X), over = X, to = A)
  routed = dispatch(h, chosen, experts = X, tokens = T)
  y[X, T, F] = gelu(routed @ up)
  z[X, T, D] = y @ down
  return h + combine(z, gates, chosen)
}

model Net(ids[B]: i32, targets[B]: i32) {
  weight table[V, D], head[D, V]
  x = embedding(ids, table)
  repeat 3 { x = Layer(x) }
  loss = cross_entropy(x @ head, targets)
}

plan whole { optimizer adafactor }
plan heads extends whole {
  mesh tp = 4
  shard H over tp
  shard V over tp { uneven = balanced }
}
plan flat extends whole {
  mesh dp = 4
  shard B over dp
  shard T over dp
  zero 1 over dp
}
plan flat_ways extends heads {
  mesh dp = 12, tp = 4
  shard B over dp
  shard H over tp
  shard V over tp { pad = 1 }
  shard T over dp
  zero 2 over dp
}
plan rows extends flat { zero 3 over dp }
"""

NORM, EXPERTS = 64, 6 * (64 + 40)
LAYER = NORM + 2 * (64 + 4 * 16) + (64 + 6) + 2 * EXPERTS
ELEMENTS = 3 * (64 + 2 * 64 * 64 + 64 * 6 + 2 * 6 * 64 * 40) + 2 * 250 * 64


@pytest.mark.parametrize(
    ("plan", "sums"),
    [
        ("whole", 3 * LAYER + 2 * (250 + 64)),
        # The first ranks have 63 words, and one head each.
        ("heads", 3 * (NORM + 2 * (64 + 16) + (64 + 6) + 2 * EXPERTS) + 2 * (63 + 64)),
        # A rank's part of a flat buffer is no matrix: a sum for each element, as DeepSpeed's partitions have one.
        ("flat", ELEMENTS // 4),
        (
            "flat_ways",
            # Shards of each weight, rounded up.
            3 * (6 + 2 * 86 + 32 + 2 * 1280) + 2 * 336,
        ),
        # Of what is split by rows each rank has all columns' sums; of experts those of two, of six over four ranks.
        ("rows", 3 * (16 + 2 * (64 + 16) + (64 + 2) + 2 * 2 * (64 + 40)) + 2 * (63 + 64)),
    ],
)
def test_sums_over_rows_and_columns(plan: str, sums: int) -> None:
    first, *_ = compile_text(TEXT, plan=plan).memory
    assert first.static.num_bytes[Kind.OPTIMIZER] == 4 * sums


@pytest.mark.parametrize(
    ("plan", "factors", "lengths"),
    [
        ("whole", 0, 0),
        # Of `w` and of words columns are split, of `o` rows: sums for each of the others, and a mean where columns are.
        ("heads", 3 * (64 + 1 + 64) + 2 * (64 + 1), 2 * (3 * 2 + 2)),
        ("flat", 0, 0),
        # What modules store first is split: columns, but of experts these, whose matrices stay whole; a vector has a length.
        ("rows", 3 * 3 * (64 + 1) + 2 * (64 + 1), 2 * (3 * 6 + 2)),
    ],
)
def test_sums_of_parts_are_added_up(plan: str, factors: int, lengths: int) -> None:
    ranks, *_ = compile_text(TEXT, plan=plan).trace_set.classes
    found = [n.action for n, _ in nodes_of(ranks) if n.made_by == "sum-factors"]
    sent = [each.operand_bytes for each in found if isinstance(each, Collective)]
    assert sent == [4 * count for count in (factors, lengths) if count]


@pytest.mark.parametrize(
    ("rules", "dim"),
    [
        ("mesh dp = 2, tp = 2 shard B over dp shard F over tp { uneven = chunk } zero 3 over dp", "F"),
        ("mesh dp = 3, tp = 2 shard B over dp shard X over dp { uneven = balanced } shard N over dp shard F over tp { pad = 1 }", "X"),
    ],
)  # fmt: skip
def test_parts_of_other_sizes_have_other_numbers_of_sums(rules: str, dim: str) -> None:
    """E0303, whether the mean of them is a whole number or not."""
    for layers in (1, 2):
        with pytest.raises(CompileError, match="Adafactor adds up a number for each") as error:
            compile_text(f"{UNEVEN}\nplan p {{ set L = {layers} {rules} optimizer adafactor }}")
        assert error.value.diagnostics[0].message.startswith(f"`{dim}` cannot be split unevenly")


UNEVEN = """
dim B = 12
dim S = 6
dim D = 40
dim F = 77
dim L = 2
dim X = 4
dim A = 1
dim N = B * S * A / X
module Block(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D], router[D, X], wide[X, D, F], narrow[X, F, D]
  h = x + gelu(x @ up) @ down
  gates, chosen = topk(softmax(h @ router, over = X), over = X, to = A)
  routed = dispatch(h, chosen, experts = X, tokens = N)
  made[X, N, F] = gelu(routed @ wide)
  y[X, N, D] = made @ narrow
  return h + combine(y, gates, chosen)
}
model Net(x[B, S, D]) {
  repeat L { x = Block(x) }
  loss = mean(x, over = [B, S, D])
}
"""
