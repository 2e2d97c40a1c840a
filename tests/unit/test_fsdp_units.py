"""The order in which FSDP's units are gathered and reduced, against runs of PyTorch 2.13's `fully_shard`."""

import pytest

from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_text
from stagec.memory import Kind

TEXT = """
dim B = 4
dim S = 8
dim D = 8
dim C = D
dim V = 100

module Embedding(tokens[B, S]: i64) -> [B, S, D] {
  weight table[V, D]
  return embedding(tokens, table)
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight up[D, C], down[C, D]
  return x + relu(x @ up) @ down
}

module Head(x[B, S, D]) -> [B, S, V] {
  weight norm[D], head[V, D]
  return rms_norm(x, norm) @ head
}

model Net(tokens[B, S]: i64, targets[B, S]: i64) {
  x = Embedding(tokens)
  repeat 3 { x = Block(x) }
  loss = cross_entropy(Head(x), targets)
}

plan fsdp {
  mesh dp = 2
  shard B over dp
  zero 3 over dp
  unit Embedding, Block, Head
}
"""


def issued(text: str) -> list[tuple[str, int]]:
    """Collectives in issue order: kind, and bytes of the shard."""
    (rank_class,) = compile_text(text).trace_set.classes
    program = rank_class.program
    return [
        (node.action.kind, min(node.action.operand_bytes, node.action.result_bytes))
        for segment in program.segment.tolist()
        for node in program.segments[segment].nodes
        if isinstance(node.action, Collective)
    ]


def test_units_as_torchtitan_makes_them():
    """Measured: `fully_shard` of the embedding, of each block, and of norm and head, which is not resharded.

    The head stays gathered and is reduced as soon as it is ready; the embedding is gathered again with the
    first block's backward pass, although no gradient reads it.
    """
    embedding, block, head = 1600, 256, 1616
    assert issued(TEXT) == [
        ("all_gather", embedding),
        *[("all_gather", block)] * 3,
        ("all_gather", head),
        ("all_gather", block),
        ("reduce_scatter", head),
        ("all_gather", block),
        ("reduce_scatter", block),
        ("all_gather", block),
        ("reduce_scatter", block),
        ("all_gather", embedding),
        ("reduce_scatter", block),
        ("reduce_scatter", embedding),
    ]


def test_two_repeats_of_equal_length_are_reduced_apart():
    """Layers of an encoder and of a decoder are units of their own, also where there are equally many."""
    twice = TEXT.replace("repeat 3 { x = Block(x) }", "repeat 2 { x = Block(x) }\n" * 2)
    reduced = [size for kind, size in issued(twice) if kind == "reduce_scatter"]
    assert reduced == [1616, 256, 256, 256, 256, 1600]


def test_a_module_is_a_unit_in_all_its_calls():
    """Also by its path. What the layers have beside is of the root, which is reduced last."""
    inner = TEXT.replace(
        "return x + relu(x @ up) @ down", "return x + Mlp(x * own) + Mlp(x)"
    ).replace("weight up[D, C], down[C, D]", "weight own[D]")
    inner += "module Mlp(x[B, S, D]) -> [B, S, D] { weight up[D, C], down[C, D] return relu(x @ up) @ down }"
    for unit in ("Mlp", "Block.Mlp"):
        text = inner.replace("unit Embedding, Block, Head", f"unit Embedding, {unit}, Head")
        reduced = [size for kind, size in issued(text) if kind == "reduce_scatter"]
        assert reduced == [1616, *[256] * 6, 3 * 16, 1600]


def test_a_unit_is_gathered_whole_for_backward():
    """Measured: FSDP2 gathers a block again with its biases, which no gradient reads."""
    biased = TEXT.replace("down[C, D]", "down[C, D], b[D]").replace("@ down", "@ down + b")
    sizes = [size for kind, size in issued(biased) if kind == "all_gather"]
    block = 256 + 16
    assert sizes.count(block) == 6
    assert 256 not in sizes


def test_units_that_stay_gathered_are_gathered_once():
    """Measured: with `reshard_after_forward = False` nothing is gathered in backward; the parameters stay until then."""
    whole = TEXT.replace("zero 3 over dp", "zero 3 over dp { reshard = false }")
    order = issued(whole)
    assert [kind for kind, _ in order[:5]] == ["all_gather"] * 5
    assert [kind for kind, _ in order[5:]] == ["reduce_scatter"] * 5
    (plan,) = compile_text(whole).memory
    gathered = plan.lives.live_bytes(plan.lives.kind == Kind.GATHERED)
    # Five units, whole: the shards are halves.
    assert gathered.max() == 2 * (1600 + 3 * 256 + 1616)


def test_gradients_over_tp_are_reduced_as_they_were_computed():
    """Measured: FSDP2 in mixed precision reduces a norm's gradient over `tp` in bf16, and a unit in fp32; sums over microbatches are fp32."""
    plan = """
plan mixed {
  mesh dp = 2, tp = 2
  shard B over dp
  shard C, V over tp
  shard S over tp
  zero 3 over dp
  unit Embedding, Block, Head
  precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32, reduce = fp32 }
}
plan summed extends mixed { microbatch 1 gradients { reduce = step } }
"""
    text = TEXT[: TEXT.index("plan")] + plan
    assert reduced(text, "mixed") == {("all_reduce", "bf16"), ("reduce_scatter", "fp32")}
    assert reduced(text, "summed") == {("all_reduce", "fp32"), ("reduce_scatter", "fp32")}


def reduced(text: str, plan: str) -> set[tuple[str, str]]:
    """Kinds and dtypes of the reductions of gradients."""
    (rank_class,) = compile_text(text, plan=plan).trace_set.classes
    return {
        (node.action.kind, node.action.dtype)
        for segment in rank_class.program.segments
        for node in segment.nodes
        if isinstance(node.action, Collective) and node.phase == "grad_reduce"
    }


@pytest.mark.parametrize(
    ("clauses", "of_a_microbatch"),
    [
        ("zero 3 over dp unit none", 1),
        ("zero 3 over dp { like = fsdp2 } unit none", 1),
        ("zero 3 over dp { reshard = true } unit none", 2),
        ("zero 3 over dp unit Block", 7),
    ],
)
def test_a_root_that_is_the_only_unit_stays_gathered(clauses: str, of_a_microbatch: int):
    """Measured over four microbatches: `fully_shard` of a root alone gathers 4 times, with `reshard_after_forward=True` 8, of three blocks and a root 28."""
    text = LAST_IN_ROOT.format(clauses=clauses)
    kinds = [kind for kind, _ in issued(text)]
    assert kinds.count("all_gather") == 4 * of_a_microbatch


LAST_IN_ROOT = """
dim B = 16
dim D = 32
dim F = 64

module Block(x[B, D]) -> [B, D] {{
  weight up[D, F], down[F, D]
  return x + silu(x @ up) @ down
}}

model Net(x[B, D]) {{
  weight head[D, F]
  repeat 3 {{ x = Block(x) }}
  loss = mean(square(x @ head), over = [B, F])
}}

plan p {{
  mesh dp = 2
  shard B over dp
  microbatch 2
  {clauses}
}}
"""
