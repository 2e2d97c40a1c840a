"""When buffers live: what is a view, what a collective gathers, what layers fetch ahead."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from stagec.driver import compile_text
from stagec.memory import ClassPlan, Kind
from stagec.memory.plan import moment

ATTENTION = """
dim B = 4
dim S = 64
dim D = 32
dim H = 8
dim K = 4
dim E = D / H
dim L = 3
dim V = 128

module Block(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wo[H, E, D]
  k = repeat_heads(x @ wk, heads = K, to = H)
  return x + attention(x @ wq, k, k, causal = true) @ wo
}

model Gqa(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets, fused = false)
}
"""


def planned(plan: str) -> ClassPlan:
    (first, *_) = compile_text(f"{ATTENTION}\nplan p {{\n{plan}\n}}", "gqa.stg").memory
    return first


def rows_of(plan: ClassPlan, op: str) -> list[int]:
    return [row for row in range(len(plan.lives)) if plan.about(row).op == op]


@pytest.mark.parametrize(("tp", "buffers"), [(2, 3), (4, 0)])
def test_one_head_repeated_is_a_view(tp: int, buffers: int) -> None:
    """With one key head on a device nothing is copied; with two, each layer has a copy."""
    plan = planned(f"mesh tp = {tp}\nshard H, K over tp")
    assert len(rows_of(plan, "repeat_heads")) == buffers


def test_a_view_that_is_made_again_overwrites_nothing() -> None:
    """What is repeated once is saved, and read in the backward pass, where the view of it is made again."""
    plan = planned("mesh tp = 4\nshard H, K over tp\nrecompute repeat_heads in Block")
    assert len(rows_of(plan, "repeat_heads")) == 0


def test_a_unit_is_freed_when_its_last_parameter_was_read() -> None:
    """The root unit, table and head, is one buffer from the embedding to the head's gradient."""
    plan = planned("mesh dp = 4\nshard B over dp\nzero 3 over dp { reshard = true }\nunit Block")
    lives = plan.lives
    gathered = np.flatnonzero(lives.kind == Kind.GATHERED)
    table_and_head = 2 * 128 * 32 * 4
    (root,) = [row for row in gathered.tolist() if lives.num_bytes[row] == table_and_head]
    (loss,) = rows_of(plan, "target_grad")
    assert lives.birth[root] == 0
    assert lives.death[root] > lives.birth[loss]


def test_a_stage_keeps_what_a_backward_pass_gathered() -> None:
    """1F1B of four microbatches on the first of two stages: F0 F1 B0 F2 B1 F3 B2 B3. A pass gathers the layer if a forward pass came before."""
    pipeline = "pipeline L over pp { layers = [1, 2], microbatch = 1 }"
    plan = planned(
        f"mesh dp = 2, pp = 2\nset B = 8\nshard B over dp\n{pipeline}\nzero 3 over dp\nunit Block"
    )
    lives = plan.lives
    layer = (2 * 32 * 32 + 32 * 16) * 4
    is_layer = (lives.kind == Kind.GATHERED) & (lives.num_bytes == layer)
    birth, death = np.sort(lives.birth[is_layer]), np.sort(lives.death[is_layer])
    tasks = [moment(plan.arrangement, node) for node in birth.tolist()]
    assert [(t.task, t.microbatch) for t in tasks] == [
        ("GATHER_F", 0), ("GATHER_F", 1), ("GATHER_B", 0), ("GATHER_B", 1), ("GATHER_B", 2),
    ]  # fmt: skip
    assert (death[:-1] < birth[1:]).all()
    ends = [moment(plan.arrangement, node) for node in death.tolist()]
    assert [(t.task, t.microbatch) for t in ends] == [
        ("F", 0), ("F", 1), ("F", 2), ("F", 3), ("B", 3),
    ]  # fmt: skip


def test_layers_are_fetched_ahead_from_where_the_unit_before_begins() -> None:
    """The last layer's parameters are not there yet while the gradient of the loss is made."""
    plan = planned("mesh dp = 4\nshard B over dp\nzero 3 over dp { reshard = true }\nunit Block")
    lives = plan.lives
    (last,) = rows_of(plan, "log_softmax_loss_grad")
    layer = (2 * 32 * 32 + 32 * 16) * 4
    again = [
        row
        for row in np.flatnonzero(lives.kind == Kind.GATHERED).tolist()
        if lives.num_bytes[row] == layer and lives.birth[row] >= lives.birth[last]
    ]
    assert len(again) == 3
    assert lives.birth[last] < lives.birth[again].min() <= lives.birth[last] + 2


def test_a_loss_in_two_kernels_keeps_its_log_probabilities() -> None:
    """They, the gradient at the targets and that of the logits are alive together, all of one size."""
    plan = planned("mesh tp = 1")
    logits = 4 * 64 * 128 * 4
    (kept,) = [row for row in rows_of(plan, "log_softmax_loss") if plan.lives.num_bytes[row] > 4]
    assert Kind(plan.lives.kind[kept]) is Kind.SAVED
    (last,) = rows_of(plan, "log_softmax_loss_grad")
    node = int(plan.lives.birth[last])
    alive = plan.lives.alive_at(node)
    assert np.count_nonzero(plan.lives.num_bytes[alive] == logits) == 3


FSDP = "mesh dp = 4\nshard B over dp\nzero 3 over dp { reshard = true }\nunit Block"


def live_of(plan: ClassPlan, kind: Kind) -> np.ndarray:
    return plan.lives.live_bytes(np.flatnonzero(plan.lives.kind == kind))


def test_parameters_are_freed_after_use() -> None:
    """Beside the root unit no more than two layers are gathered at once: the one that runs, and the next."""
    layer, root = (2 * 32 * 32 + 32 * 16) * 4, 2 * 128 * 32 * 4
    assert live_of(planned(FSDP), Kind.GATHERED).max() == root + 2 * layer


def test_gradients_are_freed_by_buckets() -> None:
    """The smaller the buckets in which gradients are reduced to shards, the fewer of them are whole."""

    def most(bucket: str) -> int:
        clause = f"gradients {{ bucket_bytes = {bucket} }}"
        plan = planned(FSDP.replace("zero 3", "zero 2") + "\n" + clause)
        whole = [row for row in range(len(plan.lives)) if plan.about(row).phase == "wgrad"]
        return int(plan.lives.live_bytes(np.array(whole)).max())

    layer, tables = (2 * 32 * 32 + 32 * 16) * 4, 2 * 128 * 32 * 4
    assert most("64MiB") == 3 * layer + tables
    assert most("8KiB") < layer + tables


MIXED = "precision { weights = bf16, gradients = fp32 }"


def test_gradients_of_a_unit_are_copied_into_one_buffer() -> None:
    """Terms in bf16 are there until the copy in fp32 is made, and that until the next unit's (FSDP2's `foreach_reduce`)."""
    plan = planned(f"{FSDP}\n{MIXED}")
    lives = plan.lives
    copies = sorted(rows_of(plan, "copy_in"), key=lambda row: int(lives.birth[row]))
    layer, root = (2 * 32 * 32 + 32 * 16) * 4, 2 * 128 * 32 * 4
    assert lives.num_bytes[copies].tolist() == [layer, layer, layer, root]
    assert (lives.death[copies[:-1]] == lives.birth[copies[1:]] - 1).all()
    for copy in copies:
        node = lives.birth[copy]
        terms = np.flatnonzero((lives.kind == Kind.GRADIENTS) & (lives.death == node))
        assert int(lives.num_bytes[terms].sum()) == lives.num_bytes[copy] // 2


def test_sums_over_microbatches_are_copied_too() -> None:
    """Of several microbatches the sums are whole, in fp32, until they are copied."""
    plan = planned(
        f"{FSDP}\nmicrobatch 1\ngradients {{ reduce = step }}\n{MIXED}".replace("dp = 4", "dp = 2")
    )
    lives = plan.lives
    (last, *_) = sorted(rows_of(plan, "copy_in"), key=lambda row: -int(lives.birth[row]))
    ending = np.flatnonzero((lives.kind == Kind.GRADIENTS) & (lives.death == lives.birth[last]))
    assert int(lives.num_bytes[ending].sum()) == lives.num_bytes[last] == 2 * 128 * 32 * 4


GATED = ATTENTION.replace("dim V = 128", "dim V = 128\ndim F = 64").replace(
    "return x + attention(x @ wq, k, k, causal = true) @ wo",
    "weight gate[D, F], up[D, F], down[F, D]\n  h = x + attention(x @ wq, k, k, causal = true) @ wo\n"
    "  return h + (silu(h @ gate) * (h @ up)) @ down",
)


def test_both_factors_of_a_product_stay_until_both_gradients_are_made() -> None:
    """As autograd frees them: silu(gate) and up, in each layer."""
    (plan,) = compile_text(f"{GATED}\nplan p {{ mesh tp = 1 }}", "gated.stg").memory
    lives = plan.lives
    gradients = sorted(int(lives.birth[row]) for row in rows_of(plan, "mul"))[-6:]
    pairs = list(zip(gradients[::2], gradients[1::2], strict=True))
    saved = [row for op in ("unary", "contract") for row in rows_of(plan, op)]
    for first, second in pairs:
        read = [row for row in saved if lives.death[row] == second and lives.birth[row] < first]
        assert [Kind(lives.kind[row]) for row in read].count(Kind.SAVED) == 2


def test_factors_do_not_wait_for_another_product_of_the_same_sum() -> None:
    """Both terms of a sum have its cotangent; each frees its own factors."""
    text = GATED.replace("gate[D, F], up[D, F]", "gate[D, F], up[D, F], a[D, F], b[D, F]")
    text = text.replace("(h @ up))", "(h @ up) + silu(h @ a) * (h @ b))")
    (plan,) = compile_text(f"{text}\nplan p {{ mesh tp = 1 }}", "sum.stg").memory
    lives = plan.lives
    gradients = sorted(int(lives.birth[row]) for row in rows_of(plan, "mul"))[-12:]
    saved = [row for row in range(len(lives)) if lives.kind[row] == Kind.SAVED]
    for second in gradients[1::2]:
        assert [int(lives.death[row]) for row in saved].count(second) == 2


def test_a_stage_may_gather_more_often_than_there_are_microbatches() -> None:
    """Two stages of six are gathered at a time, again and again; what they keep for the backward pass is what it is without ZeRO."""
    text = ATTENTION.replace("dim B = 4", "dim B = 8").replace("dim L = 3", "dim L = 6")
    schedule = "schedule = interleaved_1f1b, microbatch = 1, virtual_stages = L"
    plan = f"mesh dp = 2, pp = 1\nshard B over dp\npipeline L over pp {{ {schedule} }}\nunit none"
    saved = [
        int(lives.live_bytes(lives.kind == Kind.SAVED).max())
        for zero in ("", "zero 3 over dp { reshard = false }")
        for lives in [
            compile_text(f"{text}\nplan p {{\n{plan}\n{zero}\n}}", "m.stg").memory[0].lives
        ]
    ]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_collective_gathers_or_reduces_is_as_large_as_what_travels(seed: int) -> None:
    """Ranks that do not divide rows: shards are padded, and so are the buffers that they are gathered into and reduced from."""
    draw = Random(seed)
    dp = draw.choice([3, 5, 6, 7, 12, 48])
    shards = draw.choice(["", "shards = flat"])
    clauses = (
        f"set B = {dp}\nmesh dp = {dp}\nshard B over dp\nzero 3 over dp {{ {shards} }}\nunit Block"
    )
    (plan, *_) = compile_text(f"{ATTENTION}\nplan p {{\n{clauses}\n}}", "gqa.stg").memory
    gathered, copied = (
        {int(plan.lives.num_bytes[row]) for row in rows_of(plan, op)}
        for op in ("all_gather", "copy_in")
    )
    layer, root = ((256, 4), (128, 4), (32, 32)), ((128, 32), (32, 128))
    units = {sum(padded(rows, cols, dp, shards) for rows, cols in unit) for unit in (layer, root)}
    assert gathered == copied == units


def padded(rows: int, columns: int, ways: int, shards: str) -> int:
    """Bytes of a matrix in fp32 that is cut by rows, or by elements, and padded."""
    if shards:
        return 4 * ways * -(-rows * columns // ways)
    return 4 * ways * -(-rows // ways) * columns
