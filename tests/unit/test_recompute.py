"""Recomputation, and gathering again: what is saved, what is done again, and that it computes the same."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from stagec.analysis.recompute_choice import call_of, op_words
from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError
from stagec.dialects import dist, stg
from stagec.driver import Stops, compile_text
from tests.fidelity.totals import layer_collectives
from tests.unit.recompute_texts import LLAMA, MODELS, model_text
from tests.unit.seldom import some
from tests.unit.value_numbers import ValueNumbers

SEQUENCE_PARALLEL = ("fused", "unfused", "gpt")
"""The models that have a sequence."""


def ir(text: str, verify: bool = True) -> ModuleOp:
    """The IR after the last pass that changes what is saved."""
    if "keep = shard" in text:
        after = "regather-operands"
    elif "recompute " in text:
        after = "recompute-activations"
    else:
        after = "insert-collectives"
    return compile_text(text, "model.stg", "p", stops=Stops(after=after, verify=verify)).module


def ops_of(module: ModuleOp, phase: str) -> list[Operation]:
    return [op for op in module.walk() if stg.phase_of(op) == phase]


def count_kinds(module: ModuleOp, phase: str = "recompute") -> Counter[str]:
    return Counter(op.name.partition(".")[2] for op in ops_of(module, phase))


def layers(module: ModuleOp) -> stg.RepeatOp:
    """The forward pass' repeat; the outermost of several."""
    return next(op for op in ops_of(module, "fwd") if isinstance(op, stg.RepeatOp))


def saved_names(module: ModuleOp) -> list[str | None]:
    repeat = layers(module)
    return [v.name_hint for v in repeat.yield_op.values[len(repeat.carried) :]]


# It computes the same


@cache
def plain(model: str, sp: bool) -> tuple[ValueNumbers, str]:
    table = ValueNumbers()
    return table, str(table.of_gradients(ir(model_text(model, sp=sp))))


def check_same(model: str, sp: bool, clauses: str) -> None:
    """The gradients are made by the same ops of the same values as without the clauses."""
    table, expected = plain(model, sp)
    module = ir(model_text(model, clauses, sp=sp))
    assert str(table.of_gradients(module)) == expected
    for op in ops_of(module, "recompute"):
        # A checkpoint of a module runs again up to its end.
        is_read = any(result.uses for result in op.results)
        assert is_read or " in " in clauses, f"nobody reads {op}"
        assert stg.made_by(op) in ("recompute-activations", "regather-operands")
    for op in module.walk():
        if isinstance(op, stg.RepeatOp) and stg.phase_of(op) == "fwd":
            assert all(result.uses for result in op.stack_results), "a stack that nobody reads"


def test_the_comparison_sees_a_difference() -> None:
    table, expected = plain("fused", False)
    module = ir(model_text("fused"))
    op = next(op for op in ops_of(module, "bwd") if isinstance(op, stg.MulOp))
    op.operands[0] = op.operands[1]
    assert str(table.of_gradients(module)) != expected


@pytest.mark.parametrize("keep", ["gathered", "shard"])
@pytest.mark.parametrize("model", some(MODELS, 6))
def test_full_recomputation_computes_the_same(model: str, keep: str) -> None:
    sp = model in SEQUENCE_PARALLEL
    check_same(model, sp, f"recompute full\n  collectives {{ keep = {keep} }}")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("shared_keys", "full in Attention, Block"),
        ("shared_keys", "full in Attention"),
        ("sums", "add, tanh in Mlp"),
        ("sums", "whole in Mlp"),
    ],
)
def test_what_leaves_a_checkpoint_is_there_when_others_read_it(model: str, words: str) -> None:
    """Layers behind a call have their backward pass before the call's."""
    check_same(model, False, f"recompute {words}")


@pytest.mark.parametrize(
    "words", some(["full in Attention", "full in Mlp", "full in Attention, Mlp"], 3)
)
def test_what_a_norm_behind_a_checkpoint_reads_is_kept(words: str) -> None:
    """PyTorch's checkpoint returns it, and autograd saves it for the norm: no reduction runs again."""
    found = collectives("shared_keys", f"recompute {words}")
    assert found == collectives("shared_keys", "")


def test_what_a_checkpoint_returns_is_made_again_for_itself() -> None:
    """PyTorch's runs again whatever its own backward pass reads, as keys and values here, though others keep them; up to attention, whose product ends it."""
    found = count_kinds(ir(model_text("shared_keys", "recompute full in Attention")))
    assert (found["contract"], found["attention"]) == (2 * 3, 2)


VALUES = ("q", "k", "v", "up", "h", "x", "hidden", "y", "mixed", "Block.h", "Attention.x", "Mlp.x")
MODULES = ("Block", "Attention", "SwiGLU", "Mlp", "Block.Attention")


@settings(max_examples=5, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.booleans(),
    st.lists(st.sampled_from((*sorted(op_words()), *VALUES, *MODULES)), min_size=1, unique=True),
    st.lists(st.sampled_from(MODULES), max_size=2, unique=True),
    st.sampled_from(("gathered", "shard")),
)
def test_any_choice_computes_the_same(
    model: str, sp: bool, what: list[str], modules: list[str], keep: str
) -> None:
    known = [word for word in what if fits(model, word)]
    where = [module for module in modules if fits(model, module)]
    clauses = f"recompute {', '.join(known or ['full'])}"
    clauses += f" in {', '.join(where)}" if where else ""
    try:
        check_same(
            model,
            sp and model in SEQUENCE_PARALLEL,
            f"{clauses}\n  collectives {{ keep = {keep} }}",
        )
    except CompileError as error:
        assert {d.code for d in error.diagnostics} == {"E0401"}, error.render()


@cache
def fits(model: str, word: str) -> bool:
    """Whether a word alone is met somewhere in a model."""
    try:
        ir(model_text(model, f"recompute {word}"), verify=False)
    except CompileError:
        return False
    return True


# Numbers of the measured runs


T, D, F, KV, L, S, B, H = 512, 256, 688, 128, 2, 64, 8, 8
"""Of the models above: tokens, widths, layers, sequence, batch, heads."""


def recompute_flops(model: str, clauses: str) -> dict[str, int]:
    """FLOPs of a step on one rank, by op."""
    text = model_text(model, clauses, tp=1).replace("mesh dp = 2", "mesh dp = 1")
    trace_set = compile_text(text, "model.stg", "p").trace_set
    found: Counter[str] = Counter()
    program = trace_set.classes[0].program
    for segment in program.segment:
        for node in program.segments[segment].nodes:
            if node.phase == "recompute" and node.op in ("contract", "attention"):
                found[node.op] += node.action.num_ops
    return dict(found)


def test_full_recomputation_of_a_llama() -> None:
    """wq, wk, wv, wo, w1, w3, and the fused attention: all but w2 (llama_1_ac_full)."""
    matmuls = 2 * T * D * (2 * D + 2 * KV + 2 * F)
    attention = 2 * 2 * B * S * S * D
    assert recompute_flops("fused", "recompute full in Block") == {
        "contract": L * matmuls,
        "attention": L * attention,
    }
    assert L * matmuls == 1_124_073_472
    assert L * attention == 67_108_864


def test_full_recomputation_of_unfused_attention() -> None:
    """The products of scores and of values are repeated as well (llama_1_eager_ac_full)."""
    matmuls = 2 * T * D * (2 * D + 2 * KV + 2 * F)
    products = 2 * (2 * B * S * S * D)
    flops = recompute_flops("unfused", "recompute full")
    assert flops == {"contract": L * (matmuls + products)}
    assert L * products == 67_108_864


def test_every_second_matmul() -> None:
    """wk, wo and w3 are repeated; `h` stands for the product with wo (llama_1_ac_sac_mm2)."""
    flops = recompute_flops("fused", "recompute k, up, h, rms_norm, rope, silu, mul in Block")
    assert flops == {"contract": L * 2 * T * D * (KV + D + F)}
    assert flops["contract"] == 562_036_736


def test_all_but_attention() -> None:
    """`sac_attn` of the measured runs: ops may be named by kind."""
    flops = recompute_flops("fused", "recompute contract, rms_norm, rope, add, silu, mul in Block")
    assert flops == {"contract": L * 2 * T * D * (2 * D + 2 * KV + 2 * F)}


# Collectives of a layer


def collectives(model: str, clauses: str, *, sp: bool = False) -> Counter[tuple[str, str]]:
    text = model_text(model, clauses, sp=sp)
    found: Counter[tuple[str, str]] = Counter()
    trace_set = compile_text(text, "model.stg", "p").trace_set
    for (phase, kind, _), count in layer_collectives(trace_set, "tp", 1).items():
        if phase != "grad_reduce":
            found[phase, kind] += count
    return +found


BOTH = ("all_gather", "reduce_scatter")


def test_tensor_parallel_layer_under_full_recomputation() -> None:
    """6 all-reduces (Shoeybi et al. 2019): dropout after the last product needs its sum again."""
    expected = {(phase, "all_reduce"): 2 for phase in ("fwd", "recompute", "bwd")}
    assert collectives("gpt", "recompute full") == expected


def test_a_layer_without_dropout_does_not_repeat_its_last_reduction() -> None:
    expected = {("fwd", "all_reduce"): 2, ("recompute", "all_reduce"): 1, ("bwd", "all_reduce"): 2}
    assert collectives("fused", "recompute full") == expected


def test_sequence_parallel_block_repeats_two_gathers_and_one_reduce_scatter() -> None:
    expected = {(phase, kind): 2 for phase in ("fwd", "bwd") for kind in BOTH}
    expected |= {("recompute", "all_gather"): 2, ("recompute", "reduce_scatter"): 1}
    assert collectives("fused", "recompute full", sp=True) == expected


@pytest.mark.parametrize("model", some(SEQUENCE_PARALLEL, 2))
def test_kept_shards_are_gathered_for_weight_gradients(model: str) -> None:
    """Megatron-LM: 6 all-gathers and 4 reduce-scatters (Korthikanti et al. 2022)."""
    expected = {(phase, kind): 2 for phase in ("fwd", "bwd") for kind in BOTH}
    expected["wgrad", "all_gather"] = 2
    assert collectives(model, "collectives { keep = shard }", sp=True) == expected


def test_kept_shards_under_full_recomputation() -> None:
    """The recomputed operands are not kept whole either."""
    found = collectives("fused", "recompute full collectives { keep = shard }", sp=True)
    assert found["wgrad", "all_gather"] == found["recompute", "all_gather"] == 2


def test_the_head_gathers_its_operand_again() -> None:
    module = ir(model_text("fused", "collectives { keep = shard }", sp=True))
    outside = [
        op
        for op in ops_of(module, "wgrad")
        if isinstance(op, dist.AllGatherOp) and not isinstance(op.parent_op(), stg.RepeatOp)
    ]
    assert len(outside) == 1


# What is saved


@pytest.mark.parametrize(
    "clause", some(["recompute full", "recompute full in Block", "recompute Block"], 2)
)
def test_full_recomputation_saves_the_layer_s_input(clause: str) -> None:
    assert saved_names(ir(model_text("fused", clause))) == ["x"]


@pytest.mark.parametrize(
    ("sp", "clauses", "bytes_of_sbh"),
    [
        (False, "", lambda t, scores: 10 + 24 / t + scores / t),
        (False, "recompute attention", lambda t, scores: 10 + 24 / t),
        (False, "recompute full", lambda t, scores: 2),
        (True, "collectives { keep = shard }", lambda t, scores: 34 / t + scores / t),
        (True, "recompute attention collectives { keep = shard }", lambda t, scores: 34 / t),
    ],
)
def test_saved_bytes_of_a_gpt_layer(sp: bool, clauses: str, bytes_of_sbh) -> None:
    """Korthikanti et al. 2022, table 2, in units of s b h; without the norms' statistics."""
    module = ir(model_text("gpt", clauses, tp=8, sp=sp, dtype="fp16"))
    values = size_values(module)
    saved = sum(
        result.type.element.num_bytes.evaluate(values)
        for result in layers(module).stack_results
        if result.type.tensor.dtype != "fp32"
    )
    unit = values["S"] * (values["B"] // values["dp"]) * values["D"]
    scores = Fraction(5 * values["H"] * values["S"], values["D"])
    assert saved == unit * bytes_of_sbh(Fraction(8), scores)


def test_fused_attention_is_repeated_for_its_statistics() -> None:
    module = ir(model_text("fused", "recompute attention"))
    assert count_kinds(module) == {"attention": 1}
    assert "mixed" in saved_names(module)


def test_unfused_attention() -> None:
    """Nothing reads the scores' scale or the product with v again: they are not redone for nothing."""
    module = ir(model_text("unfused", "recompute attention"))
    expected = {"repeat_heads": 2, "rename": 2, "contract": 1, "constant": 1, "div": 1}
    expected |= {"causal_mask": 1, "cast": 2, "softmax": 1, "dropout": 1}
    assert count_kinds(module) == expected
    assert {"q", "k", "v", "mixed"} <= set(saved_names(module))


def test_operands_of_what_is_repeated_are_saved() -> None:
    before, after = (saved_names(ir(model_text("fused", c))) for c in ("", "recompute rope"))
    assert {"q", "k"} <= set(before)
    assert not {"q", "k"} & set(after)
    assert len(before) == len(after)


# Names


def redone(clause: str, model: str = "fused") -> dict[str, int]:
    return dict(count_kinds(ir(model_text(model, clause))))


def test_a_value_stands_for_the_steps_that_make_it() -> None:
    assert redone("recompute k") == {"contract": 1, "rope": 1}
    assert redone("recompute Attention.k") == {"contract": 1, "rope": 1}
    assert redone("recompute Block.Attention.k") == {"contract": 1, "rope": 1}


@pytest.mark.parametrize("module", some(["", " in Block", " in Attention"], 3))
@pytest.mark.parametrize("words", ["attention, mixed", "mixed, attention"])
def test_attention_that_a_value_stands_for_is_there(words: str, module: str) -> None:
    """One more word for what another one names already is no mistake."""
    assert redone(f"recompute {words}{module}") == redone(f"recompute mixed{module}")


def test_a_parameter_stands_for_what_is_passed() -> None:
    assert redone("recompute Attention.x") == {"rms_norm": 1}
    assert redone("recompute SwiGLU.x, Attention.x") == {"rms_norm": 2}


def test_names_with_numbers_are_different_names() -> None:
    text = LLAMA.format(attention="  mixed = attention(q, k, v)\n")
    text = text.replace("gate", "u_1").replace("up", "u_2")
    plan = "plan p { mesh tp = 2 shard H, K, F over tp recompute u_1 }"
    module = ir(text + plan)
    (again,) = ops_of(module, "recompute")
    assert isinstance(again, stg.ContractOp)
    assert stg.names_of(again) == ("u_1",)


def test_the_result_of_a_call_has_the_name_it_is_given() -> None:
    text = MODELS["nested"].replace("return x + hidden @ down", "o = hidden @ down\n  return o")
    text = text.replace("y = Mlp(x)", "first = Mlp(x)\n    y = first * first")
    module = ir(text + "plan p { mesh dp = 2 shard B over dp recompute first }")
    assert count_kinds(module) == {"contract": 1}


@pytest.mark.parametrize(
    ("scope", "modules", "call"),
    [
        ("Block.Attention", ("Block",), "Block"),
        ("Block.Attention", ("Attention", "Block"), "Block"),
        ("Block.Attention", ("Attention",), "Block.Attention"),
        ("Block_2.Attention", ("Block.Attention",), "Block_2.Attention"),
        ("Block_2.Attention", ("Block_3",), ""),
        ("Blocks.Attention", ("Block",), ""),
        ("", ("Block",), ""),
    ],
)
def test_calls_of_modules(scope: str, modules: tuple[str, ...], call: str) -> None:
    op = stg.ConstantOp("1", "fp32")
    if scope:
        stg.marks(op)["scope"] = StringAttr(scope)
    assert call_of(op, modules) == call


# With other clauses


@pytest.mark.parametrize(
    "clauses",
    some(
        [
            "zero 3 over dp",
            "zero 1 over dp gradients { bucket_bytes = 1MiB }",
            "collectives { reduce = eager }",
        ],
        3,
    ),
)
def test_recomputation_under_other_clauses(clauses: str) -> None:
    found = collectives("gpt", f"recompute full {clauses}")
    assert found["recompute", "all_reduce"] == 2


def test_each_microbatch_is_recomputed() -> None:
    """Two sequences on each rank, one at a time."""
    found = collectives("gpt", "recompute full microbatch 1")
    assert found == {(phase, "all_reduce"): 2 * 2 for phase in ("fwd", "recompute", "bwd")}


def test_zero_3_gathers_a_layer_once_for_recomputation_and_gradients() -> None:
    text = model_text("fused", "recompute full zero 3 over dp unit Block")
    module = compile_text(text, "model.stg", "p", stops=Stops(after="shard-parameters")).module
    backward = next(op for op in ops_of(module, "bwd") if isinstance(op, stg.RepeatOp))
    gathers = [op for op in backward.body.walk() if isinstance(op, dist.UnshardOp)]
    assert len(gathers) == 1


PIPELINE = """
  pipeline L over pp { schedule = 1f1b, microbatch = 1 }
  recompute full in Block
"""


def test_stages_recompute_their_own_layers() -> None:
    text = model_text("fused", PIPELINE).replace(
        "mesh dp = 2, tp = 2", "mesh pp = 2, dp = 2, tp = 2"
    )
    trace_set = compile_text(text, "model.stg", "p").trace_set
    for rank_class in trace_set.classes:
        program = rank_class.program
        nodes = [n for segment in program.segment for n in program.segments[segment].nodes]
        again = [n.op for n in nodes if n.phase == "recompute"]
        # One layer on each stage, four microbatches on each rank.
        assert again.count("contract") == 4 * 6


@pytest.mark.parametrize("rotate", ["all_to_all", "all_gather"])
def test_ring_attention_goes_round_again(rotate: str) -> None:
    text = model_text(
        "fused", f"context cp {{ method = ring, rotate = {rotate} }}\n  recompute full"
    )
    text = text.replace("mesh dp = 2, tp = 2", "mesh dp = 2, cp = 2, tp = 2")
    text = text.replace("shard B over dp", "shard B over dp  shard S over cp")
    trace_set = compile_text(text, "model.stg", "p").trace_set
    found = layer_collectives(trace_set, "cp", 1)
    again = {key[1:]: n for key, n in found.items() if key[0] == "recompute"}
    assert again
    assert again == {key[1:]: n for key, n in found.items() if key[0] == "fwd"}
