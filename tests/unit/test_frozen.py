"""Weights that are not trained: no gradient, no state, no reduction, no work that nobody reads."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, strategies as st
from xdsl.dialects.builtin import ModuleOp

import stagec
from stagec.analysis.units import called_module
from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.sched.actions import Compute, Transfer
from stagec.dialects.types import tensor_of
from stagec.driver import Compiled, Stops, compile_model, compile_text
from stagec.memory import Kind
from stagec.rewriting import programs
from stagec.step_count import matrix_flops
from stagec.summary import summarize
from tests.fidelity.totals import model_flops, nodes_of
from tests.unit.examples import FOLDER
from tests.unit.seldom import some

TEXT = """
dim B = 8
dim D = 16
dim F = 32
dim R = 4
dim V = 24
dim L = 3

module Mlp(x[B, D]) -> [B, D] {
  weight norm[D], up[D, F], a[D, R], b[R, F], down[F, D]
  n = rms_norm(x, norm)
  return x + silu(n @ up + n @ a @ b) @ down
}

model Net(tokens[B]: i32, targets[B]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Mlp(x) }
  loss = cross_entropy(x @ head, targets)
}

plan p {
  mesh dp = 2
  shard B over dp
  FREEZE
}
"""

WEIGHTS = ("embed", "head", "Mlp.norm", "Mlp.up", "Mlp.a", "Mlp.b", "Mlp.down")


@cache
def backward(frozen: tuple[str, ...]) -> ModuleOp:
    text = TEXT.replace("FREEZE", f"freeze {', '.join(frozen)}" if frozen else "")
    return compile_text(text, stops=Stops(after="build-backward")).module


def trained(module: ModuleOp) -> dict[str, str]:
    """The weights that have gradients, and what these are of one layer, or of the first and of others."""
    output = programs(module)[0].body.block.last_op
    assert isinstance(output, stg.OutputOp)
    found: dict[str, set[str]] = {}
    for weight, gradient in zip(output.weights, output.gradients, strict=True):
        assert isinstance(weight.owner, stg.WeightOp)
        path = ".".join(map(called_module, weight.owner.path.data.split(".")))
        found.setdefault(path, set()).add(str(tensor_of(gradient.type)))
    return {path: " ".join(sorted(types)) for path, types in found.items()}


def kinds(module: ModuleOp) -> Counter[str]:
    """Of all layers."""
    found: Counter[str] = Counter()
    for op in module.walk():
        if isinstance(op, stg.TensorOp):
            around = op.parent_op()
            is_layer = isinstance(around, stg.RepeatOp)
            found[op.name] += around.count.data.integer({"L": 3}) if is_layer else 1
    return found


@pytest.mark.seldom
@given(st.sets(st.sampled_from(WEIGHTS), max_size=len(WEIGHTS) - 1))
def test_the_rest_is_trained_as_before(frozen: set[str]):
    whole, part = backward(()), backward(tuple(sorted(frozen)))
    kept = {path: kind for path, kind in trained(whole).items() if path not in frozen}
    assert trained(part) == kept
    assert not kinds(part) - kinds(whole)


@pytest.mark.seldom
@given(st.sets(st.sampled_from(WEIGHTS[:-1]), max_size=5))
def test_nothing_is_computed_that_nobody_reads(frozen: set[str]):
    for op in backward(tuple(sorted(frozen))).walk():
        if isinstance(op, stg.TensorOp) and stg.phase_of(op) in ("bwd", "wgrad"):
            assert any(result.uses for result in op.results), op


def adapters(layers: int) -> int:
    """Rank 16: to one of all heads of queries, keys and values and back, and so of the output projection."""
    return layers * 16 * (8192 + 64 * 128 + 2 * 8 * 128 + 2 * 8192)


def flops_per_token(layers: int) -> int:
    """Frozen matrices cost 4 FLOPs per parameter, forward and for their inputs, adapters 6; attention as ever.

    Nobody reads a gradient of what goes into the first layer.
    """
    matrices = layers * 8192 * (2 * 64 * 128 + 2 * 8 * 128 + 3 * 28672) + 128_256 * 8192
    attention = 3 * 2 * 8192 * 8192 * layers
    unread = 2 * 8192 * (64 * 128 + 2 * 8 * 128 + 16)
    return 4 * matrices + 6 * adapters(layers) + attention - unread


@pytest.mark.seldom
def test_adapters_of_a_70b_model():
    path = FOLDER / "llama3_70b_lora.stg"
    text = path.read_text()
    assert f"{adapters(80):,} are trained" in text
    assert f"per token: {flops_per_token(80):,}" in text
    made = compile_model(path, overrides={"L": "2"})
    assert model_flops(made.trace_set) == flops_per_token(2) * 16 * 8192


def test_a_critic_and_a_policy_are_trained_beside_a_reference():
    """The step of PPO in docs/language.md."""
    blocks = re.findall(
        r"```stg\n(.*?)```", (FOLDER.parent / "docs" / "language.md").read_text(), re.DOTALL
    )
    (text,) = [block for block in blocks if "module Critic(" in block]
    compiled = compile_text(text)
    policy, critic = 2 * 4 * 64 * 128 + 64 * 96, 2 * 2 * 32 * 64
    assert matrix_flops(compiled.module, compiled.counts).model == 16 * (
        6 * policy + 2 * policy + 6 * critic
    )
    module = compile_text(text, stops=Stops(after="build-backward")).module
    assert {weight.partition(".")[0] for weight in trained(module)} == {"Policy", "Critic"}


def test_a_reference_model_runs_forward_alone():
    """Direct preference optimization: the policy is trained, of the reference there is a forward pass."""
    path = FOLDER / "llama3_8b_dpo.stg"
    module = compile_model(path, stops=Stops(after="build-backward")).module
    assert trained(module) and all(weight.startswith("Policy.") for weight in trained(module))
    phases = {"Policy": set[str](), "Reference": set[str]()}
    for op in module.walk():
        of = stg.text(op, "scope").partition(".")[0]
        if isinstance(op, stg.TensorOp) and of in phases:
            phases[of].add(stg.phase_of(op))
    assert phases["Reference"] == {"fwd"} < phases["Policy"]


QLORA = (
    TEXT.replace("dim D = 16", "dim D = 64")
    .replace("dim F = 32", "dim F = 256")
    .replace(
        "FREEZE",
        "freeze embed, head, norm, up, down\n  precision { weights = bf16 SETTINGS }\n  CLAUSES",
    )
)


@pytest.mark.parametrize(
    "clauses", some(["", "recompute silu", "recompute full", "microbatch 2"], 4)
)
@pytest.mark.parametrize("weights", ["weights = bf16", "weights = fp32, activations = bf16"])
def test_a_frozen_base_in_four_bits(weights: str, clauses: str) -> None:
    """QLoRA: stored in half a byte and a byte for 64, made bf16 for each product and again for its gradient. Nothing else differs, and no more is saved."""
    text = QLORA.replace("weights = bf16", weights).replace("CLAUSES", clauses)
    plain, narrow = (
        compile_text(text.replace("SETTINGS", settings))
        for settings in ("", ", product_weights = nf4")
    )
    base = 3 * 2 * 64 * 256
    of_one = 4 if "fp32" in weights else 2
    stored = [each.memory[0].static.num_bytes[Kind.PARAMETERS] for each in (plain, narrow)]
    assert stored[0] - stored[1] == of_one * base - base // 2 - base // 64
    assert narrow.memory[0].saved_bytes <= plain.memory[0].saved_bytes
    counts = [summarize(each.module, each.counts).classes[0] for each in (plain, narrow)]
    assert counts[0].matrix_flops == counts[1].matrix_flops
    program = narrow.trace_set.classes[0].program
    nodes = [node for segment in program.segment for node in program.segments[segment].nodes]
    casts = [n.action.num_bytes for n in nodes if n.op == "cast" and isinstance(n.action, Compute)]
    made = [size for size in casts if size == 2 * 64 * 256 + 64 * 256 // 2 + 64 * 256 // 64]
    microbatches = 2 if "microbatch" in clauses else 1
    # What makes `up`'s product again under full recomputation reads it, too. The first layer has no gradient of what its `up` reads.
    assert len(made) == (3 * (5 if "full" in clauses else 4) - 1) * microbatches


MODELS = """
dim B = 12
dim D = 16
dim F = 32
dim V = 24
dim L = 6
dim C = 3

module Mlp(x[B, D]) -> [B, D] {
  weight up[D, F], down[F, D]
  return x + silu(x @ up) @ down
}

module Policy(tokens[B]: i32, targets[B]: i32) -> [] {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Mlp(x) }
  return cross_entropy(x @ head, targets)
}

module Reference(tokens[B]: i32, targets[B]: i32) -> [] {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Mlp(x) }
  return cross_entropy(x @ head, targets)
}

module Critic(tokens[B]: i32) -> [] {
  weight embed[V, D], head[D]
  x = embedding(tokens, embed)
  repeat C { x = Mlp(x) }
  return mean(x @ head, over = B)
}

model Net(tokens[B]: i32, targets[B]: i32) {
  loss = LOSS
}

plan whole {
  freeze FROZEN
}

plan stages extends whole {
  mesh pp = 3
  pipeline L, C over pp { microbatch = 4 }
}
"""
POLICY, REFERENCE = "Policy(tokens, targets)", "Reference(tokens, targets)"


@pytest.mark.parametrize("frozen", ["Reference", "Reference, Policy.embed, Policy.head"])
@pytest.mark.parametrize(
    "loss",
    some(
        [
            f"softplus({POLICY} - {REFERENCE})",
            f"softplus(-{REFERENCE} + {POLICY})",
            f"Critic(tokens) + softplus({POLICY} - {REFERENCE})",
            f"softplus({POLICY} - {REFERENCE}) * Critic(tokens)",
        ],
        4,
    ),
)
def test_a_frozen_model_is_in_stages_before_what_is_trained(loss: str, frozen: str) -> None:
    """Preference optimization with a pipeline, whichever model the text names first: all stages together do what one rank does, and can run."""
    text = MODELS.replace("LOSS", loss).replace("FROZEN", frozen)
    if "Critic" not in loss:
        text = text.replace("pipeline L, C over", "pipeline L over")
    whole, stages = (compile_text(text, plan=plan) for plan in ("whole", "stages"))
    (alone,) = summarize(whole.module, whole.counts).classes
    parts = summarize(stages.module, stages.counts).classes
    assert sum(each.matrix_flops for each in parts) == alone.matrix_flops
    assert sum(each.parameters.count for each in parts) == alone.parameters.count
    assert parts[0].matrix_flops < parts[-1].matrix_flops


def test_a_teacher_beside_its_student_on_every_stage():
    """In one repeat: each of two stages has half of both, and no gradient of what the teacher makes goes back."""
    text = """
dim B = 16
dim D = 64
dim DT = 128
dim L = 4
dim LT = 8
module Layer(x[B, D]) -> [B, D] { weight w[D] return silu(x * w) }
module TeacherLayer(x[B, DT]) -> [B, DT] { weight w[DT] return silu(x * w) }
model Distilled(x[B, D], t[B, DT]) {
  weight head[D, DT]
  repeat L {
    repeat LT / L { t = TeacherLayer(t) }
    x = Layer(x)
  }
  loss = mean(square(x @ head - t), over = [B, DT])
}
plan beside {
  mesh pp = 2
  pipeline L over pp { microbatch = 4 }
  freeze TeacherLayer
}
"""
    job = compile_text(text)
    first, last = job.memory
    half = 4 * 2 * 64 + 4 * 4 * 128
    assert first.static.num_bytes[Kind.PARAMETERS] == half
    assert last.static.num_bytes[Kind.PARAMETERS] == half + 4 * 64 * 128
    assert first.static.num_bytes[Kind.OPTIMIZER] == 2 * 4 * 2 * 64
    sent = [
        (n.action.kind, n.action.num_bytes)
        for ranks in job.trace_set.classes
        for n, count in nodes_of(ranks)
        for _ in range(count)
        if isinstance(n.action, Transfer) and n.action.kind == "send"
    ]
    width, teacher = 4 * 4 * 64, 4 * 4 * 128
    assert Counter(sent) == {("send", width): 4 + 4, ("send", teacher): 4}


def test_a_frozen_table_makes_no_step_longer() -> None:
    """Without an all-to-all in the backward pass, gradients are still reduced as each is complete: only the forward pass has one."""
    text = (FOLDER / "dlrm.stg").read_text()
    trained = "optimizer sgd { tables = sgd }"
    frozen = text.replace(trained, "optimizer sgd\n  freeze tables")
    steps = [stagec.compile(each, plan="tables8").step_time for each in (text, frozen)]
    assert steps[0] is not None and steps[1] is not None
    assert steps[1] < 0.9 * steps[0]


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_rows_of_a_frozen_table_have_a_gradient(seed: int) -> None:
    """`inputs = true` (`enable_input_require_grads` of Transformers): all products are made that a trained table asks for, and nothing of it is kept."""
    others = [weight for weight in WEIGHTS if weight != "embed"]
    draw = random.Random(seed)
    words = draw.sample(others, draw.randrange(1, len(others)))

    def compiled(names: Sequence[str], more: str = "") -> Compiled:
        clause = f"freeze {', '.join(names)}" if names else ""
        return compile_text(TEXT.replace("FREEZE", f"{clause} {more}"))

    trained = compiled(words)
    asked = compiled([*words, "embed"], "gradients { inputs = true }")
    plain = compiled([*words, "embed"])
    products = [model_flops(job.trace_set) for job in (trained, asked, plain)]
    assert products[0] == products[1] >= products[2]
    of_asked, of_plain = (job.memory[0].static.num_bytes for job in (asked, plain))
    assert of_asked == of_plain


def test_no_gradient_is_placed_as_a_frozen_table_makes_rows() -> None:
    """Under sequence parallelism the first layer's input gradient is reduce-scattered, and not gathered for a table that has none."""
    text = """
dim B = 2
dim S = 8
dim D = 16
dim F = 32
dim V = 24
module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return x + silu(x @ up) @ down
}
model Net(tokens[B, S]: i32) {
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat 3 { x = Mlp(x) }
  loss = mean(x, over = [B, S, D])
}
plan p { mesh tp = 2 shard F, V over tp shard S over tp freeze embed, up INPUTS }
"""
    kinds = []
    for more in ("", "gradients { inputs = true }"):
        job = compile_text(text.replace("INPUTS", more))
        (one,) = summarize(job.module, job.counts).classes
        kinds.append({each.kind: each.count for each in one.traffic})
    # Forward: the table's rows, and in each layer a gather and a reduce-scatter. Backward: a gather in each layer, and a reduce-scatter but in the first.
    assert kinds[0] == {"all_gather": 6, "reduce_scatter": 6}
    assert kinds[1] == {"all_gather": 6, "reduce_scatter": 7}


@pytest.mark.parametrize(("freeze", "code"), [("head", "E0401"), ("", "W0304")])
def test_inputs_are_about_frozen_tables(freeze: str, code: str) -> None:
    clause = f"freeze {freeze}" if freeze else ""
    text = TEXT.replace("FREEZE", f"{clause} gradients {{ inputs = true }}")
    if code == "W0304":
        assert code in {each.code for each in stagec.compile(text).warnings}
        return
    with pytest.raises(CompileError) as error:
        compile_text(text)
    assert [each.code for each in error.value.diagnostics] == [code]
