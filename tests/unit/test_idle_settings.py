"""A setting that is said to change nothing changes nothing of what is written, needed and timed (W0304)."""

from __future__ import annotations

import random
import re
from functools import cache, partial

import pytest

from stagec.diagnostics import CompileError, Span
from stagec.driver import Compiled, Stops, compile_ir, compile_program, compile_text
from stagec.estimate.step import on_device, step_summary
from stagec.frontend import check, lower, parse_text, warnings_of
from stagec.frontend.plans import idle_settings
from stagec.frontend.plans.unused_rules import idle_contexts, idle_overrides
from stagec.frontend.typed_device import device_said
from stagec.ir_text import print_ir
from stagec.passes.backward.recompute_activations import RecomputeActivations
from stagec.schedules.catalogue import CATALOGUE
from stagec.without_effect import (
    NEEDS,
    OF_PASSES,
    are_same,
    idle_names,
    made_again_of,
    made_by,
)
from tests.differential.random_plans import draw
from tests.differential.sweeps import whole
from tests.unit.examples import digest
from tests.unit.recompute_texts import model_text
from tests.unit.seldom import mostly, some

SETTINGS = (
    *(
        "overlap { zero = false }",
        "overlap { tp = true }",
        "overlap { pieces = 8 }",
        "overlap { ep = true }",
    ),
    *("overlap { p2p = false }", "overlap { cp = false }", "overlap { param_gather = true }"),
    *("collectives { reduce = eager }", "collectives { keep = shard }"),
    *("collectives { bias = before }", "gradients { bucket_bytes = 1KiB }"),
    *("gradients { first_bucket_bytes = 1KiB }", "offload { prefetch = 2 }"),
    *("precision { maxima = none }", "precision { loss = fp32 }", "gradients { average = before }"),
    *("gradients { check = true }", "optimizer adamw { copies = true }"),
    *("precision { gather = fp8 }", "precision { cache = fp8 }", "precision { saved = mxfp8 }"),
    "precision { products = fp8_1x128, unquantized = [Block] }",
    *("precision { product_gather = bf16 }", "precision { reduce = bf16 }"),
    *("shard K over tp { replicate = true }", "optimizer adamw { loss_scale = static }"),
    *("precision { weight_gradients = bf16 }", "precision { product_weights = fp8 }"),
    *("optimizer adamw { tables = adam }", "device { exchange_units = 8 }"),
    *("device { message_units = 8 }", "device { tile_scheduler = static }"),
    "device { collective_units = 8 }",
    *("device { swizzle = none }", "device { captured = [Block] }", "gradients { inputs = true }"),
    *("device { norms = plain }", "zero 3 over dp { copies = false }"),
    "device { fused_activations = true }",
    *("overlap { bulk = false }", "gradients { late = [Block] overlap = false }"),
    *("process { dummy_gradients = true }", "process { communicator = 1KiB }"),
    *("optimizer muon { steps = 3 }", "offload { optimizer = true, update = host, prefetch = 2 }"),
    *(
        "device { experts = grouped }",
        "optimizer adamw { bits = 8 }",
        "zero 3 over dp { reshard = false }",
    ),
    *("zero 3 over dp { prefetch = 3 }", "zero 1 over dp { like = megatron, experts = joined }"),
    *("overlap { tp = true, pieces = 8 }", "overlap { tp = true, bulk = false }"),
    *("shard Block.h[B] over dp", "shard Block.x[S] over tp", "shard Block.n1 over none"),
    *("shard Net.x[D] over none", "shard Block.h[S] over tp"),
    *("shard Attention.wo[H] over tp", "shard Net.embed[V] over tp"),
    *(
        "context cp { method = all_gather, rotate = all_to_all }",
        "context cp { method = ulysses, balance = none }",
        "context tp { method = ring }",
        "context dp { method = all_gather }",
    ),
    *("precision { weights = bf16, cache = fp32 }", "precision { weights = bf16, gather = fp32 }"),
)


WITHOUT = {
    "optimizer adamw { copies = true }": "optimizer adamw",
    "precision { weights = bf16, cache = fp32 }": "precision { weights = bf16 }",
    "precision { weights = bf16, gather = fp32 }": "precision { weights = bf16 }",
    "precision { products = fp8_1x128, unquantized = [Block] }": "precision { products = bf16 }",
    "shard K over tp { replicate = true }": "shard K over tp",
    "optimizer adamw { loss_scale = static }": "optimizer adamw",
    "optimizer adamw { tables = adam }": "optimizer adamw",
    "gradients { late = [Block] overlap = false }": "gradients { overlap = false }",
    "optimizer adamw { bits = 8 }": "optimizer adamw",
    "optimizer muon { steps = 3 }": "optimizer muon",
    "offload { optimizer = true, update = host, prefetch = 2 }": "offload { optimizer = true, update = host }",
    "context cp { method = all_gather, rotate = all_to_all }": "context cp { method = all_gather }",
    "context cp { method = ulysses, balance = none }": "context cp { method = ulysses }",
    "zero 3 over dp { reshard = false }": "zero 3 over dp",
    "zero 3 over dp { copies = false }": "zero 3 over dp",
    "zero 3 over dp { prefetch = 3 }": "zero 3 over dp",
    "zero 1 over dp { like = megatron, experts = joined }": "zero 1 over dp { like = megatron }",
    "overlap { pieces = 8 }": "overlap { pieces = 1 }",
    "overlap { tp = true, pieces = 8 }": "overlap { tp = true, pieces = 1 }",
    "overlap { tp = true, bulk = false }": "overlap { tp = true }",
}
"""The same clause without the setting, where the clause is not one of settings alone."""
INSTEAD = {"tp": "overlap { tp = false }", "zero 3": "zero none"}
"""What is compared instead of a clause of which all changes nothing. Without `tp` of `overlap`, all else that this says is idle."""


def compiled(text: str) -> Compiled | None:
    try:
        return compile_text(text, plan="q")
    except CompileError:
        return None


def is_said_to_change_nothing(made: Compiled) -> bool:
    model = made.checked
    module = lower(model)
    splits_less = [*idle_overrides(module), *idle_contexts(module, model.batch_dim)]
    found = [*model.warnings, *made.idle, *splits_less]
    return any(each.code in ("W0301", "W0304") for each in found)


def wrong(seed: int) -> tuple[list[str], int]:
    """Settings that change something, though it is said that they do not; and of how many it was said."""
    text = draw(random.Random(seed), "device h100 { nvme_bytes_per_s = 5GB }").text
    if (base := compiled(f"{text}\nplan q extends p {{ }}")) is None:
        return [], 0
    bases = {"": base}
    found, number = [], 0
    for setting in SETTINGS:
        made = compiled(f"{text}\nplan q extends p {{ {setting} }}")
        if made is not None and is_said_to_change_nothing(made):
            number += 1
            whole_clause = next((each for each in told(made) if each in INSTEAD), None)
            clause = INSTEAD[whole_clause] if whole_clause else WITHOUT.get(setting, "")
            plain = bases.get(clause) or compiled(f"{text}\nplan q extends p {{ {clause} }}")
            assert plain is not None, setting
            if (digest(made), whole(made)) != (digest(plain), whole(plain)):
                found.append(f"{text}\n{setting}")
    return found, number


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [7])
def test_what_is_said_to_change_nothing_does_not(seed: int):
    found, _ = wrong(seed)
    assert not found, "\n".join(found)


CONVERTED = """
dim B = 16
dim S = 8
dim D = 32
dim F = 64
dim V = 40

module Mlp(x[B, S, D]) -> [B, S, D] {
  weight down[F, D], unread[F], up[D, F]
  return silu(x @ up) @ down
}

model M(tokens[B, S]: i32) {
  weight embed[V, D]
  x = Mlp(embedding(tokens, embed))
  loss = mean(square(x), over = [B, S, D])
}

plan p {
  mesh dp = 2, tp = 2
  shard B over dp
  shard V, F over tp
  precision { weights = fp32, activations = bf16 }
}
"""


@pytest.mark.parametrize("weight", ["Mlp.down[F]", "Mlp.unread[F]", "M.embed[V]"])
def test_an_override_of_a_weight_leaves_where_it_is_converted(weight: str):
    overridden = compiled(f"{CONVERTED}\nplan q extends p {{ shard {weight} over tp }}")
    plain = compiled(f"{CONVERTED}\nplan q extends p {{ }}")
    assert overridden is not None
    assert plain is not None
    assert is_said_to_change_nothing(overridden)
    assert digest(overridden) == digest(plain)


def test_all_of_them_are_tried():
    """But for those whose plans are another matter: they need a level, a format, stages, or modules of the text."""
    tried = {
        (clause, name)
        for setting in SETTINGS
        for clause, said in re.findall(r"(\w+)[^{]*{ ([^}]*)", setting)
        for name in re.findall(r"(\w+) =", said)
    }
    known = {(need.clause, need.setting) for need in (*NEEDS, *OF_PASSES)}
    known |= {(need.clause, name) for need in idle_settings.NEEDS for name in need.settings}
    assert known - tried == {
        ("zero", "reshard_over"),
        ("zero", "persist"),
        ("process", "transposed_weights"),
        ("process", "cached_weights"),
        ("pipeline", "scatter_gather"),
        ("pipeline", "transfers"),
        ("pipeline", "first_backward"),
        ("offload", "parameters"),
    }


LAYERS = """
dim B = 16
dim S = 8
dim D = 32
dim F = 64
dim L = 2

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n[D], up[D, F], down[F, D]
  h = rms_norm(x, n)
  return x + silu(h @ up) @ down
}}

model M(x[B, S, D]) {{
  weight head[D, F]
  repeat L {{ x = Block(x) }}
  loss = mean(square(x @ head), over = [B, S, F])
}}

plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard F over tp
}}

plan q extends p {{
  {clauses}
}}
"""


OF_LAYERS: list[tuple[str, tuple[int, int], list[str]]] = [
    ("zero 3 over dp { persist = 9999, reshard = false }", (2, 1), ["reshard"]),
    ("zero 3 over dp { reshard = false } unit none", (2, 1), ["reshard"]),
    ("zero 3 over dp { reshard = false } unit Block", (2, 1), []),
    ("zero 3 over dp unit Block, Block", (2, 1), ["Block"]),
    ("zero 1 over dp { like = megatron, experts = joined }", (2, 1), ["experts"]),
    ("process { communicator = 1GiB }", (1, 1), ["communicator"]),
    ("process { communicator = 1GiB }", (2, 1), []),
    ("process { dummy_gradients = true } freeze Block", (2, 1), ["dummy_gradients"]),
    ("process { dummy_gradients = true }", (2, 1), []),
    ("optimizer adamw { bits = 8 }", (1, 1), ["bits"]),
    ("set F = 128 optimizer adamw { bits = 8 }", (1, 1), []),
    ("set F = 128 optimizer adamw { bits = 8 }", (1, 2), ["bits"]),
    ("freeze n, Block.n, up, n", (1, 1), ["n", "Block.n"]),
    ("freeze n, up", (1, 1), []),
    ("overlap { tp = true, pieces = 2 }", (1, 2), ["pieces"]),
    ("shard F over tp shard S over tp overlap { tp = true, pieces = 8 }", (1, 2), ["pieces"]),
    ("shard F over tp shard S over tp overlap { tp = true, pieces = 2 }", (1, 2), []),
    ("overlap { tp = true, bulk = false }", (1, 2), ["tp"]),
    ("overlap { tp = true, pieces = 2, bulk = false }", (1, 2), ["tp", "pieces"]),
    *(
        (
            f"shard F over tp shard S over tp overlap {{ tp = true, bulk = {each} }}",
            (1, 2),
            said,
        )
        for each, said in (
            ("false", []),
            ("false, pieces = 1", ["tp"]),
            ("false, pieces = 8", ["tp", "pieces"]),
            ("true, pieces = 1", []),
        )
    ),
    ("gradients { average = before }", (2, 1), ["average"]),
    ("gradients { average = before } device h100", (2, 1), []),
    ("gradients { check = true }", (2, 1), ["check"]),
    ("gradients { check = true } device h100", (2, 1), []),
    ("precision { weights = bf16 } optimizer adamw { copies = true }", (1, 1), []),
    ("precision { weights = fp32 } optimizer adamw { copies = true }", (1, 1), ["copies"]),
    ("offload { optimizer = true } optimizer adamw { copies = true }", (1, 1), ["copies"]),
    ("recompute silu, silu", (1, 1), ["silu"]),
    ("offload { optimizer = true, update = host, prefetch = 2 }", (1, 1), ["prefetch"]),
    ("offload { optimizer = true, update = host, nvme = true, prefetch = 2 }", (1, 1), []),
    ("offload { optimizer = true, prefetch = 2 }", (1, 1), []),
    ("optimizer muon { steps = 3 } freeze up, down, head", (1, 1), ["steps"]),
    ("optimizer muon { steps = 3 }", (1, 1), []),
    ("device h100 { experts = grouped }", (1, 1), ["experts"]),
    ("device h100 { experts = vllm }", (1, 1), ["experts"]),
    ("device h100 { exchange_units = 8 }", (2, 1), ["exchange_units"]),
    ("device h100 { message_units = 8 }", (2, 1), ["message_units"]),
    ("device h100 { collective_units = 8 }", (1, 1), ["collective_units"]),
    ("device h100 { collective_units = 8 }", (2, 1), []),
    ("precision { reduce = bf16 }", (1, 2), ["reduce"]),
    ("precision { reduce = bf16 }", (2, 1), []),
    ("zero 3 over dp precision { reduce = bf16 }", (1, 1), ["reduce"]),
    *(
        (f"mesh rep = 2, dp = 1 shard B over rep, dp zero 2 over dp {each}", (1, 1), [])
        for each in ("precision { reduce = bf16 }", "gradients { bucket_bytes = 1KiB }")
    ),
    ("zero 3 over dp precision { reduce = bf16 } microbatch 1", (2, 1), []),
    ("device h100 { tile_scheduler = static }", (1, 1), ["tile_scheduler"]),
    ("device h100 { tile_scheduler = static }", (2, 1), []),
    (
        "device h100 { tile_scheduler = static } overlap { zero = false }",
        (2, 1),
        ["tile_scheduler"],
    ),
    ("device h100 { tile_scheduler = static } zero 3 over dp", (2, 1), []),
    *(
        (
            f"device h100 {{ tile_scheduler = static }} gradients {{ overlap = false }} {each}",
            (2, 1),
            said,
        )
        for each, said in (
            ("", ["tile_scheduler"]),
            ("microbatch 1", ["tile_scheduler"]),
            ("zero 1 over dp", ["tile_scheduler"]),
            ("zero 1 over dp overlap { param_gather = true }", []),
            ("zero 2 over dp microbatch 1", []),
            ("zero 3 over dp", []),
            ("optimizer adamw { clip = 1 }", ["tile_scheduler"]),
            ("optimizer muon", []),
        )
    ),
    ("device b200 { swizzle = none } precision { products = mxfp8 }", (1, 1), []),
    ("device b200 { swizzle = each } precision { products = fp8 }", (1, 1), ["swizzle"]),
    ("zero 3 over dp { copies = false } device h100", (1, 1), ["copies"]),
    ("zero 3 over dp { copies = false } device h100", (2, 1), []),
    ("zero 2 over dp { copies = false } device h100", (2, 1), ["copies"]),
    ("device b200 { norms = plain } precision { products = fp8 }", (1, 1), ["norms"]),
    ("device b200 { norms = plain } precision { products = mxfp8 }", (1, 1), ["norms"]),
    ("device b200 { norms = cudnn } precision { products = mxfp8 }", (1, 1), []),
    ("device b200 { fused_activations = true } precision { products = mxfp8 }", (1, 1), []),
    (
        "device b200 { fused_activations = true } precision { products = fp4 }",
        (1, 1),
        ["fused_activations"],
    ),
    (
        "device b200 { norms = plain } precision { products = fp8, scaling = current }",
        (1, 1),
        [],
    ),
    (
        "device b200 { swizzle = each } precision { products = mxfp8, unquantized = [Block] }",
        (1, 1),
        ["products", "swizzle"],
    ),
    ("offload { activations = [silu, inputs, silu] }", (1, 1), ["silu"]),
    ("recompute full optimizer adamw { clip = 1 }", (1, 1), []),
    ("zero 3 over dp { persist = 9999 } offload { parameters = true }", (2, 1), ["parameters"]),
    ("zero 3 over dp { persist = 32 } offload { parameters = true }", (2, 1), []),
    ("optimizer sgd offload { optimizer = true }", (1, 1), ["optimizer"]),
    ("precision { products = mxfp8, unquantized = [Block] }", (1, 1), ["products"]),
    ("precision { products = mxfp8, unquantized = [up] }", (1, 1), []),
    ("precision { products = bf16 }", (1, 1), []),
    ("optimizer sgd offload { optimizer = true, update = host }", (1, 1), []),
    ("precision { weights = bf16, cache = fp32 }", (1, 1), ["cache"]),
    ("precision { weights = bf16, cache = bf16 }", (1, 1), []),
    ("precision { weights = bf16, gather = bf16 }", (2, 1), []),
    ("precision { weights = bf16, gather = fp32 }", (2, 1), ["gather"]),
    ("shard F over tp { uneven = balanced }", (1, 2), ["uneven"]),
    ("shard F over tp { uneven = chunk }", (1, 2), ["uneven"]),
    ("shard F over tp { uneven = balanced }", (1, 3), []),
    ("shard F over tp { pad = 8 }", (1, 2), []),
]
"""Clauses, sizes of `dp` and `tp`, and the settings that change nothing there."""


@pytest.mark.parametrize(
    ("clauses", "axes", "said"),
    mostly(lambda case: bool(case[2] or OF_LAYERS.index(case) % 2), OF_LAYERS, 2),
)
def test_a_setting_without_effect_is_told(clauses: str, axes: tuple[int, int], said: list[str]):
    made = compile_text(LAYERS.format(clauses=clauses, dp=axes[0], tp=axes[1]), plan="q")
    assert told(made) == said


@pytest.mark.parametrize(
    ("schedule", "overlap", "said"),
    [
        ("interleaved_1f1b, transfers = as_sent", "", ["transfers"]),
        ("interleaved_1f1b, transfers = batched", "", []),
        ("interleaved_1f1b, transfers = as_sent", "overlap { p2p = false }", []),
        ("interleaved_1f1b, transfers = batched", "overlap { p2p = false }", ["transfers"]),
        ("zb_h1, transfers = as_sent", "overlap { p2p = false }", ["transfers"]),
        ("zb_h1, transfers = batched", "overlap { p2p = false }", []),
        ("gpipe, transfers = as_sent", "", ["transfers"]),
        ("gpipe, transfers = batched", "", ["transfers"]),
        ("1f1b, transfers = as_sent", "", []),
        ("1f1b, transfers = batched", "", ["transfers"]),
    ],
)
def test_an_order_of_transfers_that_holds_anyway_is_told(
    schedule: str, overlap: str, said: list[str]
):
    pipeline = f"pipeline L over dp {{ schedule = {schedule}, microbatch = 4 }}"
    text = LAYERS.format(clauses=f"{pipeline} {overlap}", dp=2, tp=1)
    assert told(compile_text(text.replace(OVER, ""), plan="q")) == said


@pytest.mark.parametrize("schedule", some(CATALOGUE, 3))
@pytest.mark.parametrize("ways", some([2, 1]))
def test_a_first_stage_whose_backward_passes_are_whole_anyway_is_told(schedule: str, ways: int):
    """Under each schedule: where traces are the same, and nowhere else."""
    clause = "set L = 4 pipeline L over dp {{ schedule = {}, microbatch = 4{} }}".format
    said, plain = (
        compiled(LAYERS.format(clauses=clause(schedule, each), dp=ways, tp=1).replace(OVER, ""))
        for each in (", first_backward = whole", "")
    )
    if said is None or plain is None:
        assert (schedule, ways) == ("dualpipe", 1)
        return
    found = [each for each in told(said) if each == "first_backward"]
    assert len(found) == (digest(said) == digest(plain))


def test_a_forward_pass_gathers_no_weights_wider_than_products_read_them():
    of_loss = "loss = mean(square(x @ head), over = [B, S, F])"
    clauses = "zero 1 over dp device h100 precision {{ weights = bf16, products = fp8_1x128{} }}"
    said, plain = (
        compile_text(
            LAYERS.replace(of_loss, "return x").format(clauses=clauses.format(each), dp=2, tp=1),
            plan="q",
        )
        for each in (", product_gather = bf16", "")
    )
    assert "product_gather" in told(said)
    assert (digest(said), whole(said)) == (digest(plain), whole(plain))


OVER = "  shard B over dp\n"


@pytest.mark.parametrize("seed", some([27, 3, 59], 3))
def test_a_scheduler_of_tiles_that_is_told_takes_no_longer(seed: int):
    """A rank whose gradients are reduced behind its backward pass has products beside them if it has other stages."""
    assert takes_as_long(seed)


def takes_as_long(seed: int) -> bool | None:
    """Whether a step takes as long where it is told that it does; nothing where it is not told."""
    text = draw(random.Random(seed), "device h100").text
    late = "gradients { overlap = false }"
    made, plain = (
        compiled(
            f"{text}\nplan q extends p {{ {late} device h100 {{ nvme_bytes_per_s = 5GB{each} }} }}"
        )
        for each in (", tile_scheduler = static", "")
    )
    if made is None or plain is None or "tile_scheduler" not in told(made):
        return None
    return step_summary(made).step_s == step_summary(plain).step_s


@pytest.mark.parametrize("seed", some([1, 2, 21], 3))
def test_tensor_parallelism_that_is_waited_for_after_all_is_told(seed: int):
    """With `bulk = false`, and nothing in pieces: what is written and timed is the same as without `tp = true`, and nowhere else."""
    text = draw(random.Random(seed), "device h100 { nvme_bytes_per_s = 5GB }").text
    said, plain = (
        compiled(f"{text}\nplan q extends p {{ overlap {{ tp = {each} }} }}")
        for each in ("true, bulk = false", "false")
    )
    assert said is not None and plain is not None
    same = (digest(said), whole(said)) == (digest(plain), whole(plain))
    assert ("tp" in told(said)) == same


WORDS = (
    *("silu", "rms_norm", "mul", "add", "contract", "attention", "rope", "Attention"),
    *("SwiGLU", "Block", "Attention.q", "SwiGLU.gate", "Block.h", "softmax", "dropout", "cast"),
)


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(8))
def test_what_is_made_again_tells_of_the_program(seed: int):
    """Names without which something else is made again are not tried, and are the same that are found by making all programs."""
    drawn = random.Random(seed)
    named = f"recompute {', '.join(word for word in WORDS if '.' in word)}"
    text = model_text("unfused", named, sp=drawn.random() < 0.5)
    module = compile_text(text, "model.stg", "p", stops=Stops(after="insert-collectives")).module
    each = RecomputeActivations(tuple(drawn.choices(WORDS, k=drawn.randint(2, 5))))
    seen = made_again_of(module)
    tried = made_by(each, module)
    assert tried is not None
    assert idle_names(each, module, "what", seen) == idle_names(each, module, "what")
    for word in WORDS:
        other = RecomputeActivations((word,))
        if seen(other) != seen(each):
            assert not are_same(made_by(other, module), tried)


def test_products_that_stand_in_no_repeat_are_told():
    clauses = "precision { products = fp8 }"
    text = LAYERS.format(clauses=clauses, dp=1, tp=1)
    assert told(compile_text(text, plan="q")) == []
    alone = text.replace("repeat L { x = Block(x) }", "x = Block(x)").replace("dim L = 2", "")
    assert told(compile_text(alone, plan="q")) == ["products"]


@pytest.mark.parametrize(
    "setting",
    ["precision {{ products = mxfp8, unquantized = [{}] }}", "gradients {{ late = [{}] }}"],
)
def test_names_mean_the_weights_of_all_layers(setting: str):
    """Also where the first layer, which makes no gradient of its input, is a repeat of its own."""
    texts = (LAYERS.format(clauses=setting.format(n), dp=2, tp=1) for n in ("up", '"Block.up"'))
    one, other = (compile_text(text, plan="q") for text in texts)
    assert digest(one) == digest(other)
    assert digest(one) != written(LAYERS.format(clauses="", dp=2, tp=1))


def test_maxima_of_fused_attention_are_an_effect():
    """They are reduced whatever linear layers multiply in."""
    clauses = "precision {{ weights = bf16, products = {}, unquantized = [wq, wk, wv] }}".format
    for products, said in (("fp8", []), ("fp8_1x128", ["products"])):
        text = QUANTIZED.format(clauses=clauses(products))
        assert told(compile_text(text)) == said


QUANTIZED = """
dim B = 4
dim S = 16
dim T = S
dim D = 32
dim H = 2
dim E = 16
dim L = 2
model M(x[B, S, D]) {{
  repeat L {{
    weight wq[D, H, E], wk[D, H, E], wv[D, H, E]
    y = attention(x @ wq, (x @ wk)[S -> T], (x @ wv)[S -> T], causal = true)
    x[B, S, D] = x * mean(y, over = [H, E])
  }}
  loss = mean(x, over = [B, S, D])
}}
plan p {{
  mesh dp = 2
  shard B over dp
  {clauses}
}}
"""


def told(made: Compiled) -> list[str]:
    """What each W0304 is about."""
    warnings = [each for each in (*made.checked.warnings, *made.idle) if each.code == "W0304"]
    return [each.message.split("`")[1] for each in warnings]


CONTEXTS = {
    "method = ulysses, rotate = all_to_all": ["rotate"],
    "method = ulysses, balance = none": ["balance"],
    "method = all_gather, rotate = all_to_all, balance = none": ["rotate"],
    "rotate = all_to_all, balance = none": [],
}


@pytest.mark.parametrize("settings", CONTEXTS)
def test_settings_of_other_methods_are_told(settings: str):
    text = ATTENTION + f"\nplan p {{ mesh cp = 2 shard S over cp context cp {{ {settings} }} }}"
    assert told(compile_text(text)) == CONTEXTS[settings]


BALANCES = {"causal = true": [], "causal = false": ["balance"], "window = 4": []}
"""Attention with a mask, without, and with one at both ends."""


@pytest.mark.parametrize("mask", BALANCES)
def test_a_balance_without_a_mask_is_told(mask: str):
    """Each query meets all keys, wherever both are."""
    text = ATTENTION.replace("causal = true", mask)
    plan = "plan p {{ mesh cp = 2 shard S over cp context cp {{ method = all_gather{} }} device h100 }}"
    made, plain = (compile_text(text + plan.format(each)) for each in (", balance = none", ""))
    found = warnings_of(made.checked, lower(made.checked))
    assert [each.message.split("`")[1] for each in found] == BALANCES[mask]
    same = (digest(made), whole(made)) == (digest(plain), whole(plain))
    assert same == bool(BALANCES[mask])


IDLE_CONTEXTS = {
    ("attention(x @ wq, x @ wk, x @ wv, causal = true)", "H"): True,
    ("attention(x @ wq, x @ wk, x @ wv, causal = true)", "B"): True,
    ("(x @ wv)", "H"): True,
    ("(x @ wv)", "B"): True,
    ("(x @ wv)", "S"): False,
}
"""What a layer makes of its positions, what is split over an axis, and whether a context along it is about nothing.

A layer without attention may have its sequence split too: gradients are then reduced over ranks along the axis as over those of other samples.
"""


@pytest.mark.parametrize(("made", "split"), IDLE_CONTEXTS)
def test_a_context_of_no_sequence_is_told(made: str, split: str):
    text = ATTENTION.replace("attention(x @ wq, x @ wk, x @ wv, causal = true)", made)
    text += f"\nplan p {{ mesh dp = 2, tp = 2 shard B over dp shard {split} over tp }}"
    clause = "context tp { method = all_gather }"
    given, plain = (
        compile_text(f"{text}\nplan q extends p {{ {each} }}", plan="q") for each in (clause, "")
    )
    is_told = bool(idle_contexts(lower(given.checked), given.checked.batch_dim))
    assert is_told == (digest(given) == digest(plain)) == IDLE_CONTEXTS[made, split]


SERVED = """
dim B = 4
dim S = 16
dim T = S
dim D = 32
dim H = 4
dim E = D / H
dim V = 64
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  cache k[B, T, H, E], v[B, T, H, E]
  return attention(x @ wq, append(k, x @ wk), append(v, x @ wv), causal = true) @ wo
}
model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat 2 { x = Attention(x) }
  loss = cross_entropy(x @ head, targets)
}
plan p { mesh dp = 2 shard B over dp precision { weights = bf16, activations = bf16 } serve { decode 4 at 32 } device h100 }
"""


@pytest.mark.parametrize(
    ("beside", "clause", "what"),
    [
        ("", "zero 3 over dp { reshard = false }", "zero 3"),
        ("", "zero 3 over dp", ""),
        ("precision { weights = fp32 }", "zero 3 over dp { reshard = false }", ""),
        ("precision { weights = fp32 } :bf16", "zero 3 over dp { reshard = false }", "zero 3"),
        ("precision { weights = fp32 } :fp32", "zero 3 over dp { reshard = false }", "zero 3"),
        ("precision { weights = fp32 } :head", "zero 3 over dp { reshard = false }", ""),
        ("", "precision { loss = fp32 }", "loss"),
    ],
)
def test_what_is_served_is_told_of_weights_that_stay_and_of_losses(
    beside: str, clause: str, what: str
):
    """Weights that are gathered in fewer bits than they are stored in are kept so, but for those whose dtype the text says."""
    beside, _, own = beside.partition(":")
    text = SERVED
    if own:
        names = "wq|wk|wv|wo|embed|head" if own != "head" else "head"
        dtype = own if own != "head" else "bf16"
        text = re.sub(rf"\b({names})(\[[^\]]*\])", rf"\1\2: {dtype}", SERVED)
    given, plain = (
        compile_text(f"{text}plan q extends p {{ {beside} {each} }}", plan="q")
        for each in (clause, "")
    )
    assert told(given) == ([what] if what else [])
    assert ((digest(given), whole(given)) == (digest(plain), whole(plain))) == bool(what)


ATTENTION = """
dim B = 4
dim S = 16
dim D = 32
dim H = 4
dim E = D / H
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  return attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
}
model M(x[B, S, D]) {
  repeat 2 { x = Attention(x) }
  loss = mean(x, over = [B, S, D])
}
"""


EVALUATED = """
  mesh dp = 1, tp = 1, pp = 2
  pipeline L over pp { schedule = forward_only }
  optimizer adamw { clip = 1 }
  recompute full
  freeze n
  loss_chunks 2
  gradients { overlap = false }
  precision { gradients = bf16 }
  offload { optimizer = true }
"""


def test_a_plan_without_a_backward_pass_is_told_of_what_is_about_one():
    """Also where the model has no loss."""
    clauses = ["optimizer", "recompute", "freeze", "loss_chunks", "gradients"]
    text = LAYERS.format(clauses=EVALUATED, dp=1, tp=1)
    assert told(compile_text(text, plan="q")) == ["gradients", "optimizer", *clauses]
    text = text.replace("loss = mean(square(x @ head), over = [B, S, F])", "return x @ head")
    text = text.replace("pipeline L over pp { schedule = forward_only }", "")
    assert told(compile_text(text, plan="q")) == ["gradients", "optimizer", *clauses]


OVERRIDES = {
    "shard Block.h[B] over dp": True,
    "shard Block.h[S] over none": True,
    "shard Block.n over none": True,
    "shard Block.x[B] over dp": True,
    "shard Block.up[F] over tp": True,
    "shard M.x[B] over dp": True,
    "shard Block.h[S] over tp": False,
    "shard Block.h[S] over dp": False,
    "shard Block.h over none": False,
    "shard Block.up[D] over tp": False,
}
"""Overrides, and whether they place nothing."""


@pytest.mark.parametrize("override", some(OVERRIDES))
def test_an_override_that_places_nothing_is_told(override: str):
    said = compile_text(LAYERS.format(clauses=override, dp=2, tp=2), plan="q")
    is_told = bool(idle_overrides(lower(said.checked)))
    plain = written(LAYERS.format(clauses="", dp=2, tp=2))
    assert is_told == (digest(said) == plain) == OVERRIDES[override]


@cache
def written(text: str) -> str:
    """A hash of what is written of a text that several cases are held against."""
    return digest(compile_text(text, plan="q"))


ROUTED = """
dim B = 8
dim S = 8
dim D = 16
dim F = 16
dim X = 4
dim A = 2
dim N = B * S * A / X
module Moe(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  t = dispatch(x, chosen, experts = X, tokens = N)
  h[X, N, F] = silu(t @ up)
  y[X, N, D] = h @ down
  return combine(y, gates, chosen)
}}
model M(x[B, S, D]) {{
  weight head[D, F]
  repeat 2 {{ x = x + Moe(x) }}
  loss = mean(square(x @ head), over = [B, S, F])
}}
plan q {{ mesh ep = 2 shard B over ep shard X over ep shard N over ep {override} }}
"""


@pytest.mark.parametrize(
    "override", some(["router[X]", "router", "up[X]", "up[D]", "down[X]", "x[B]"], 3)
)
def test_a_weight_that_its_readers_have_whole_anyway_is_told(override: str):
    """Where the tokens take the axis, a router is whole on each rank, whatever a rule says of its dim."""
    said = compile_text(ROUTED.format(override=f"shard Moe.{override} over none"), plan="q")
    is_told = bool(idle_overrides(lower(said.checked)))
    assert is_told == (digest(said) == written(ROUTED.format(override="")))
    assert is_told == (override in ("router[X]", "router", "up[D]"))


CONVERTS = """
dim B = 8
dim V = 48
dim D = 24
model M(x[B, D], targets[B]: i32) {{
  weight head[D, V]
  loss = cross_entropy({logits}, targets)
}}
plan q {{
  mesh dp = {ways}, tp = 2
  shard B over dp
  shard V over tp
  microbatch 1
  zero 3 over dp
  precision {{ weights = bf16, activations = bf16, loss = fp32 }}
  {clause}
}}
"""


@pytest.mark.parametrize(
    ("logits", "clause", "ways", "said"),
    [
        ("x @ head", "", 2, []),
        ("cast(x @ head, dtype = fp32)", "", 2, ["loss"]),
        ("x @ head", "gradients { average = before }", 1, ["average"]),
        ("x @ head", "gradients { check = true }", 1, ["check"]),
    ],
)
def test_each_is_told_once(logits: str, clause: str, ways: int, said: list[str]):
    """Also what both the plan and its program say, and what the model's text does by itself."""
    made = compile_text(CONVERTS.format(logits=logits, clause=clause, ways=ways))
    assert told(made) == said


@pytest.mark.seldom
def test_values_that_could_be_kept_in_fewer_bits_are_named():
    """Each of them, written in place of what is not saved, is one."""
    clauses = "precision {{ weights = bf16, saved_values = {} }}".format
    with pytest.raises(CompileError) as raised:
        compile_text(LAYERS.format(clauses=clauses("square"), dp=2, tp=2), plan="q")
    (help_,) = raised.value.diagnostics[0].helps
    words = re.findall("`(.*?)`", help_)
    assert "silu" in words
    for word in words:
        compile_text(LAYERS.format(clauses=clauses(word), dp=2, tp=2), plan="q")
    text = LAYERS.format(clauses=f"recompute full {clauses('silu')}", dp=2, tp=2)
    with pytest.raises(CompileError, match="leave `saved_values` out"):
        compile_text(text, plan="q")


def words_at(span: Span, lines: list[str]) -> str:
    line = span.file if span.is_flag else lines[span.line - 1]
    return line[span.column - 1 : span.end_column - 1]


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [1, 2])
def test_a_device_on_the_command_line_is_told_of_as_one_in_a_plan(seed: int):
    """Whatever it says: the same warnings, at the same words, and the same time; also of IR."""
    draws = random.Random(seed)
    text = draw(draws, "device h100").text
    settings = [
        each.removeprefix("device { ").removesuffix(" }")
        for each in SETTINGS
        if each.startswith("device {") and "captured" not in each
    ]
    said = f"h100 {{ {', '.join((*draws.sample(settings, 4), 'all_reduce = vllm'))} }}"
    found: list[tuple[float, list[tuple[str, str, str, tuple[str, ...]]]]] = []
    for clause, flag, is_ir in (
        (f"device {said}", "h100", False),
        ("", said, False),
        ("", said, True),
    ):
        plan = f"\nplan q extends p {{ {clause} }}"
        checked = check(parse_text(f"{text}{plan}"), "q")
        adapt = partial(on_device, device=device_said(flag))
        if is_ir:
            first = compile_program(checked, stops=Stops(after="build-backward"))
            made = compile_ir(print_ir(first.module), "m.mlir", adapt=adapt)
        else:
            made = compile_program(checked.adapted(adapt))
        every = [*(made.model.warnings if made.model else ()), *made.idle]
        own = [(each, each.span) for each in every if each.code == "W0304" and each.span]
        lines = f"{text}{plan}".split("\n")
        told = ((each.message, words_at(span, lines), each.label, each.helps) for each, span in own)
        found.append((step_summary(made).step_s, sorted(told)))
    assert found[0] == found[1] == found[2]
    assert found[0][1]


BY_AN_ENGINE = """
dim B = 8
dim S = 1
dim T = S
dim D = 512
dim H = 8
dim E = D / H
module Attention(x[B, S, D]) -> [B, S, D] {{
  weight q[D, H, E], o[H, E, D]
  cache keys[B, T, H, E]
  k = append(keys, x @ q)
  return attention(x @ q, k, k, causal = true) @ o
}}
model Served(x[B, S, D]) {{
  repeat 4 {{ x = Attention(x) }}
  return x
}}
plan p {{
  mesh tp = 8
  shard H over tp
  precision {{ weights = bf16 }}
  serve {{ {served} }}
  device {device}
}}
"""


@pytest.mark.parametrize("served", ["decode 8 at 9", "decode 6 at 5, prefill 2 x 3"])
def test_ir_of_an_iteration_is_served_by_an_engine(served: str):
    """Sequences that are alike are no sums in the IR; an engine's all-reduce is theirs too."""
    said = "h100 { all_reduce = vllm }"
    whole = compile_text(BY_AN_ENGINE.format(served=served, device=said))
    plain = compile_text(BY_AN_ENGINE.format(served=served, device="h100"))
    adapt = partial(on_device, device=device_said(said))
    again = compile_ir(print_ir(plain.module), "m.mlir", adapt=adapt)
    assert step_summary(again).step_s == step_summary(whole).step_s < step_summary(plain).step_s
    assert not again.idle


SHARING_ON_DEVICES = """
dim B = 8
dim S = 64
dim T = S
dim D = 64
dim H = 4
dim E = D / H

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  cache k[B, T, H, E], v[B, T, H, E]
  return attention(x @ wq, append(k, x @ wk{window}), append(v, x @ wv{window}), causal = true{window}) @ wo
}}

model Net(x[B, S, D]) {{
  repeat 2 {{ x = Attention(x) }}
  return x
}}

plan p {{
  mesh dp = 2
  shard B over dp
  serve {{ decode {count} at 64{sharing}, prefill 2 x 4, block = {block} }}
  device h100
}}

plan q extends p {{ }}
"""


@pytest.mark.parametrize("seed", some(range(10), 5))
def test_a_prefix_that_is_stored_once_and_saves_nothing_is_told(seed: int):
    """And no other: what devices store of caches is the same without it where it is told, and less where it is not."""
    draws = random.Random(seed)
    words = {
        "count": draws.choice((2, 4, 8)),
        "block": draws.choice((1, 16, 32)),
        "window": draws.choice(("", ", window = 20")),
    }
    sharing = f" sharing {draws.choice((8, 16, 40, 64))}"
    made, plain = (
        compile_text(SHARING_ON_DEVICES.format(sharing=s, **words), plan="p") for s in (sharing, "")
    )
    is_told = told(made) == ["sharing"]
    assert (whole(made) == whole(plain)) == is_told, words
    if is_told:
        assert digest(made) == digest(plain)
        (found,) = (each for each in made.checked.warnings if each.code == "W0304")
        assert found.span is not None
        line = SHARING_ON_DEVICES.format(sharing=sharing, **words).split("\n")[found.span.line - 1]
        assert line[found.span.column - 1 : found.span.end_column - 1] == sharing.strip()


PACKED = """
dim B = 4
dim S = 24
dim D = 32
dim H = 4
dim E = D / H
model M(x[B, S, D]) {
  weight wq[D, H, E], wo[H, E, D]
  q = x @ wq
  y = attention(q, q, q, REACH) @ wo
  loss = mean(y * y, over = [B, S, D])
}
plan p { mesh cp = 2 device h100 }
"""


@pytest.mark.seldom
@pytest.mark.parametrize("reach", ["causal = true", "window = 15, causal = true", "causal = false"])
def test_documents_of_which_each_sequence_has_one_are_told(reach: str):
    """However many there are, and if they are cut to that; not what a context balances by."""
    text = PACKED.replace("REACH", reach)
    for beside in ("", "shard S over cp context cp { method = all_gather }"):
        plans = {"S, 24": True, "2 * S, 25": True, "S / 2, 12": False}
        plain, *given = (
            compile_text(f"{text}plan q extends p {{ {beside} {each} }}", plan="q")
            for each in ("", *(f"documents S [{lengths}]" for lengths in plans))
        )
        for made, is_idle in zip(given, plans.values(), strict=True):
            assert ("documents" in told(made)) == is_idle
            same = (digest(made), whole(made)) == (digest(plain), whole(plain))
            assert same == is_idle
    balanced = "shard S over cp context cp { balance = documents, method = all_gather }"
    given = compile_text(f"{text}plan q extends p {{ {balanced} documents S [S] }}", plan="q")
    assert "documents" not in told(given)
