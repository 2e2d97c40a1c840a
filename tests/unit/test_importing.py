"""Configurations become models with the parameters, FLOPs and cache that transformers has for them, or a diagnostic."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import stagec
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_text
from stagec.frontend import check, parse_text
from stagec.frontend.lowering import lower
from stagec.importing import import_configuration
from stagec.importing.shipped import shipped
from stagec.memory import Kind
from stagec.text_places import json_key
from tests.fidelity.configs import cache_bytes, judge, own_sizes, product_flops, sizes
from tests.fidelity.configs_pack import unpacked
from tests.unit.seldom import mostly, some

KNOWN = [tuple(known) for known in unpacked()]
OF_EACH_TYPE = {config.get("model_type"): name for name, config, _ in KNOWN}.values()
"""A configuration of each type."""


def text_of_known(name: str) -> str:
    """The text of a configuration that there is an oracle for."""
    config: Any = next(config for known, config, _ in KNOWN if known == name)
    return import_configuration(config, name).text


def config_of_shipped(name: str) -> Any:
    found = shipped(name)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("name", "config", "oracle"),
    mostly(lambda known: known[0] in OF_EACH_TYPE, KNOWN, 12),
    ids=[name for name, *_ in KNOWN],
)
def test_configuration_is_exact_or_refused(name: str, config: dict, oracle: dict):
    verdict = judge(name, config, oracle)
    assert not verdict.wrong
    assert not verdict.refused or not verdict.claimed  # there is no class of those that are refused


@pytest.mark.parametrize(
    "name",
    mostly(
        lambda name: "DeepSeek" in name or "t5" in name,
        [
            "Qwen--Qwen3-0.6B",  # a dense decoder
            "ibm-granite--granite-3.0-1b-a400m-instruct",  # with experts
            "deepseek-ai--DeepSeek-V2-Lite",  # with experts and latent attention
            "google--gemma-3-1b-it",  # with windows
            "default--nemotron_h",  # with states
            "llava-hf--llava-1.5-7b-hf",  # that sees
            "openai--clip-vit-base-patch32",  # of two towers, and a length that nothing divides
            "google-t5--t5-base",
        ],
        2,
    ),
)
def test_plans_to_start_with_compile(name: str):
    text = text_of_known(name)
    names = [line.split()[1] for line in text.splitlines() if line.startswith("plan ")]
    assert names
    for plan in names:
        compiled = compile_text(text, f"{name}.stg", plan, stops=Stops(unroll=False))
        assert compiled.plan.name == plan
        is_wide = compiled.stated.is_training and not name.startswith(("openai--clip", "google-t5"))
        assert (compiled.plan.precision.loss == "fp32") == is_wide


@pytest.mark.parametrize(
    ("name", "few"),
    mostly(
        lambda case: "TinyLlama" in case[0],
        [
            ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"L": 1}),  # a tower that sees nothing
            ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", {"L": 2}),
        ],
        1,
    ),
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_nothing_is_doubtful_about_what_is_imported(name: str, few: dict[str, int]):
    text = import_configuration(config_of_shipped(name), name).text
    plans = [line.split()[1] for line in text.splitlines() if line.startswith("plan ")]
    assert any(plan.startswith("transformers_tp") for plan in plans)
    for plan in plans:
        made = stagec.compile(text, plan, few if "pp" not in plan else {})
        assert [str(each) for each in made.warnings] == []


def test_a_tower_that_is_not_quantized_is_no_setting_of_a_plan_that_decodes():
    gemma = config_of_shipped("google/gemma-4-31B")
    said = group(4, group_size=16) | {"ignore": ["model.vision_tower*", "*self_attn*"]}
    text = import_configuration(gemma | {"quantization_config": said}, "gemma").text
    assert "It leaves `VisionAttention`, `VisionGeGLU` as they are" in text[: text.index("dim ")]
    assert "unquantized = [LocalAttention, Attention]" in " ".join(text.split())
    (plan,) = re.findall(r"^plan (serve\w+)", text, re.MULTILINE)
    assert [str(each) for each in stagec.compile(text, plan).warnings] == []


FOUR = {"num_hidden_layers": 4}

FURTHER = {
    "arcee": 4_022_766_080,
    "bart": 406_291_456,
    "codegen": 6_050_882_784,
    "cohere": 34_980_831_232,
    "cohere2": 34_980_831_232,
    "distilbert": 66_985_530,
    "ernie4_5": 360_748_032,
    "exaone4": 9_429_069_824,
    "glm": 9_399_951_360,
    "gpt_neo": 1_315_575_808,
    "gptj": 6_050_882_784,
    "granitemoeshared": 37_039_116_288,
    "helium": 2_172_643_840,
    "m2m_100": 483_905_536,
    "marian": 414_307_328,
    "mbart": 406_295_552,
    "mpt": 1_311_213_568,
    "mt5": 172_119_424,
    "olmo": 6_888_095_744,
    "pegasus": 406_287_360,
    "qwen2_vl": 73_381_962_752,
    "olmo2": 6_888_624_128,
    "persimmon": 9_397_175_296,
    "roberta": 124_696_665,
    "seed_oss": 28_921_040_896,
    "stablelm": 2_795_443_200,
    "starcoder2": 3_030_371_328,
}
"""Parameters of classes of transformers 5.23 that are not among those configurations, at their own sizes."""

SMALLER = (
    ("bitnet", {"num_hidden_layers": 4}, 934_604_288),
    ("cohere", {"num_hidden_layers": 4, "use_qk_norm": True}, 5_385_592_832),
    ("cwm", {"num_hidden_layers": 8}, 5_451_651_072),
    (
        "ernie4_5_moe",
        {"num_hidden_layers": 7, "use_bias": True, "moe_layer_interval": 2, "moe_k": 3}
        | {"moe_layer_start_index": 2, "moe_layer_end_index": 4, "moe_num_shared_experts": 0}
        | {"tie_word_embeddings": False},
        1_961_348_672,
    ),
    ("flex_olmo", {"num_hidden_layers": 4}, 4_878_159_872),
    ("minimax_m3_vl_text", {"num_hidden_layers": 4}, 32_106_929_152),
    ("solar_open", {"num_hidden_layers": 4}, 10_030_714_880),
    ("glm4_moe_lite", {"num_hidden_layers": 4}, 2_625_002_496),
    ("hunyuan_v1_dense", {"head_dim": 128}, 8_859_684_864),
    ("ministral", {"head_dim": 128}, 7_241_732_096),
    ("mistral4", {"num_hidden_layers": 4}, 14_173_643_776),
    ("vaultgemma", {"num_hidden_layers": 4}, 901_271_808),
)
"""The same at other sizes."""

ODD = (
    ("bert", {"num_hidden_layers": 4, "tie_word_embeddings": False}, 76_282_740),
    ("cwm", {"num_hidden_layers": 4, "attention_bias": True}, 3_513_833_472),
    ("deepseek_v4", {"num_hidden_layers": 4, "mlp_bias": True}, 27_396_752_989),
    (
        "gemma4_text",
        {"num_hidden_layers": 4, "vocab_size_per_layer_input": 40823},
        978_494_464,
    ),
    ("llava", {"tie_word_embeddings": True}, 6_931_830_784),
    (
        "llama4",
        {"text_config": {"num_hidden_layers": 4, "tie_word_embeddings": True}},
        10_298_076_160,
    ),
    ("step3p7", {"text_config": FOUR | {"num_local_experts": 7}}, 8_301_336_320),
    (
        "glm4v",
        {
            "vision_config": {"out_hidden_size": 1024, "depth": 4},
            "text_config": {"num_hidden_layers": 4},
        },
        2_166_142_464,
    ),
    (
        "glm46v",
        {"vision_config": {"depth": 3}, "text_config": {"num_hidden_layers": 4}},
        2_355_285_504,
    ),
    ("gpt_neo", FOUR | {"attention_layers": ["local", "global"] * 2}, 308_533_248),
    ("minimax", {"num_hidden_layers": 3}, 4_657_905_664),
    ("mistral3", {}, 23_340_272_640),
    ("nemotron_h", {"tie_word_embeddings": True}, 1_968_355_712),
    ("qwen3_5", {"tie_word_embeddings": True}, 8_390_335_216),
    ("qwen3_5_moe", {"vision_config": {"depth": 4, "hidden_size": 768}}, 34_719_941_824),
    ("vit", {"num_hidden_layers": 4, "head_dim": 48}, 26_735_618),
)
"""With keys that a class does not read, parts that are absent, and towers that do not fit what reads them."""


@pytest.mark.parametrize(
    ("model_type", "given", "parameters"),
    some([*((name, {}, parameters) for name, parameters in FURTHER.items()), *SMALLER, *ODD], 6),
)
def test_parameters_of_further_classes(model_type: str, given: dict, parameters: int):
    text = import_configuration({"model_type": model_type, **given}, model_type).text
    assert re.search(rf"^# Parameters: {parameters:,}(, and|$)", text, re.MULTILINE)


COUNTED = json.loads(Path(__file__).with_name("counted.json").read_text("utf-8"))
"""Parameters, FLOPs of 2 sequences of 128 tokens and bytes of cache for a token of classes of transformers 5.23, on its meta device,
as `tests.fidelity.configs` counts them."""


@pytest.mark.parametrize(
    ("model_type", "given", "parameters", "flops", "cache"), some(map(tuple, COUNTED), 12)
)
def test_counts_of_further_classes(
    model_type: str, given: dict, parameters: int, flops: int, cache: int
):
    imported = import_configuration({"model_type": model_type, **given}, model_type)
    assert re.search(rf"^# Parameters: {parameters:,}(, and|$)", imported.text, re.MULTILINE)
    module = lower(check(parse_text(imported.text, f"{model_type}.stg")))
    w = imported.writer
    absent = (*w.images, *w.seeing) if w.decodes else ()  # language models are given no image
    assert product_flops(module, sizes(module, imported, absent), absent) == flops
    if any(m.caches for m in imported.writer.modules.values()):
        assert cache_bytes(imported.text, model_type, own_sizes(module)) == cache


NO_HEAD = {"vision_use_head": False}


SCALED = "scores scaled by the number of their layer are not in the language"


@pytest.mark.parametrize(
    ("model_type", "given", "said"),
    [
        (
            "whisper",
            {"encoder_layers": 3, "num_hidden_layers": 5},
            "`encoder_layers` is 3 and `num_hidden_layers` is 5: they are one key of this class",
        ),
        (
            "deepseek_v3",
            {"n_routed_experts": 12},
            "4 of 8 groups of two and more cannot be chosen of 12 experts",
        ),
        ("gptj", {"n_embd": 768}, "64 of a head's 48 numbers cannot be rotated"),
        (
            "qwen3_vl",
            {"vision_config": {"depth": 4}},
            "`deepstack_visual_indexes` is [8, 16, 24] for 4 layers",
        ),
        ("helium", {"head_dim": 96}, "20 heads of 96 are not the 2560 that this class has"),
        (
            "gemma4_text",
            {"num_kv_shared_layers": 30},
            "`num_kv_shared_layers = 30`: no layer before the last 30 has keys for each of them",
        ),
        (
            "gemma3",
            {"text_config": {"max_position_embeddings": 256}, "vision_config": NO_HEAD},
            "an image of 256 tokens leaves no room for text among 256",
        ),
        (
            "gemma2",
            {"query_pre_attn_scalar": None},
            "`query_pre_attn_scalar` is null, not a number",
        ),
        (
            "gpt_neo",
            {"attention_types": 3},
            "a value is not of the form that its class reads: the last that was read is `attention_types`",
        ),
        (
            "mimo_v2_flash",
            {"hybrid_layer_pattern": [0], "moe_layer_freq": [0], "num_hidden_layers": 1}
            | {"swa_num_attention_heads": 32},
            "`swa_num_attention_heads` is 32, and 64 in this class",
        ),
        (
            "llama",
            {"num_hidden_layers": 10**8},
            "`num_hidden_layers = 100,000,000`: at most 1,000 layers are read",
        ),
        ("t5", {"vocab_size": 1e308}, "`vocab_size = 1e+308`: sizes are at most 1e+12"),
        ("roberta", {"max_position_embeddings": 1}, "of 1 positions two are those of padding"),
        (
            "gemma2",
            {"final_logit_softcapping": float("nan")},
            "`final_logit_softcapping` is NaN, not a number",
        ),
        ("deit", {"image_size": 7}, "an image of 7 rows has no patch of 16"),
        (
            "qwen3",
            {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 3},
            "`layer_types` has 3 entries for 2 layers",
        ),
        ("nemotron_h", {"mamba_num_heads": 1}, "1 heads do not divide into 8 groups"),
        ("bart", {"tie_word_embeddings": False}, "more tables of tokens than one are not imported"),
        (
            "minimax",
            {"layer_types": ["sliding_attention"] * 32},
            "layers of the kind `sliding_attention` are not known in this class",
        ),
        (
            "deepseek_v3",
            {"n_group": 7},
            "4 of 7 groups of two and more cannot be chosen of 256 experts",
        ),
        (
            "mixtral",
            {"num_experts_per_tok": 9},
            "9 experts of a token are more than 8",
        ),
        (
            "axk1",
            {"moe_layer_freq": 2},
            "`moe_layer_freq` is 1 here",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarm", "factor": 2.0}},
            '`rope_scaling` has the type "yarm", which no class has',
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {"type": "weird"}}},
            '`rope_parameters` has the type "weird", which no class has',
        ),
        ("albert", {"inner_group_num": 2}, "layers of several groups are not imported"),
        (
            "gpt_neo",
            {"attention_layers": ["global"]},
            "`attention_layers` says 1 layers, not 24",
        ),
        ("mamba2", {"num_heads": 3}, "3 heads of 64 are not 2 times the width"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, SCALED),
        (
            "internvl",
            {"vision_feature_layer": -2},
            "other features than those of patches in the last layer are not imported",
        ),
        (
            "internvl",
            {"vision_config": {"use_mask_token": True}},
            "a mask token (`use_mask_token`) is not imported in this class",
        ),
        (
            "llava",
            {"vision_feature_layer": [1, 2]},
            "`vision_feature_layer` is [1, 2], not one layer",
        ),
        (
            "t5",
            {"feed_forward_proj": "gated-sin"},
            "the activation `gated-sin` of `feed_forward_proj` is not in the language",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(model_type: str, given: dict, said: str):
    """In the text, at one of the keys that say so, or at the class whose defaults do; and with a help."""
    config = {"model_type": model_type, **given}
    text = json.dumps(config)
    with pytest.raises(CompileError) as refused:
        import_configuration(config, model_type, text=text)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.message == f"`{model_type}`: {said}"
    assert diagnostic.code == "E0802"
    assert diagnostic.helps
    assert diagnostic.span is not None
    shown = text[diagnostic.span.column - 1 :]
    keys = [*given, *given.get("vision_config", {}), *given.get("text_config", {})]
    assert shown.startswith(tuple(f'"{key}"' for key in keys) or '"model_type"'), shown


@pytest.mark.parametrize(
    ("key", "value", "shown", "help_"),
    [
        ("hidden_size", "64", '"hidden_size": "64"', "write `64`, without quotes"),
        ("hidden_size", -5, '"hidden_size": -5', "write the `hidden_size` that the model has"),
        ("hidden_size", float("nan"), '"hidden_size": NaN', "the `hidden_size` that"),
        ("hidden_size", 63, '"hidden_size": 63', "a number of heads that divides 63"),
        ("num_key_value_heads", 3, '"num_key_value_heads": 3', "of keys that divides 4"),
        ("hidden_act", "sin", '"hidden_act": "sin"', ""),
        ("quantization_config", [1], '"quantization_config"', "leave it out"),
        ("rope_scaling", {"partial_rotary_factor": []}, '"rope_scaling"', "compare it with"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_mistake_in_a_configuration_is_shown_there(
    key: str, value: object, shown: str, help_: str, indent: int | None
):
    """At the key of the text, in no words of Python."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    config |= {"inner": {key: 1}, "head_dim": None, "num_key_value_heads": 2, key: value}
    text = json.dumps(config, indent=indent)
    with pytest.raises(CompileError) as refused:
        import_configuration(config, "c.json", "c", text)
    (found,) = refused.value.diagnostics
    assert "object" not in found.message
    assert found.span is not None
    line = text.split("\n")[found.span.line - 1]
    assert line[found.span.column - 1 : found.span.end_column - 1] == shown
    assert help_ in "".join(found.helps)


@pytest.mark.parametrize("seed", range(4))
def test_keys_of_a_json_text_are_found(seed: int):
    """Each key of a random text, the last of those that stand twice: what is under it reads as its value."""
    draws = random.Random(seed)
    words = ("a", "b", "c d", 'e"f', "[", "}", ":")

    def made(depth: int) -> object:
        if depth and draws.random() < 0.7:
            if draws.random() < 0.3:
                return [made(depth - 1) for _ in range(draws.randint(0, 3))]
            return {word: made(depth - 1) for word in draws.sample(words, 3)}
        return draws.choice((1, -2.5, None, True, *words))

    data = {word: made(3) for word in words}
    text = json.dumps(data, indent=draws.choice((None, 1)))

    def look(value: object, path: tuple[str | int, ...]) -> None:
        for key, inner in value.items() if isinstance(value, dict) else ():
            span = json_key(text, "f", (*path, key))
            assert span is not None
            line = text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]
            is_scalar = not isinstance(inner, dict | list)
            assert line == json.dumps(key) + (f": {json.dumps(inner)}" if is_scalar else "")
            look(inner, (*path, key))
        for number, inner in enumerate(value) if isinstance(value, list) else ():
            look(inner, (*path, number))

    look(data, ())
    twice = json_key('{"a": 1, "b": {"a": 2}, "a": 3}', "f", ("a",))
    assert twice is not None
    assert twice.column == 25


def group(bits: int, **sizes: int | list[int]) -> dict:
    side = {"num_bits": bits, "type": "float"}
    return {"config_groups": {"group_0": {"weights": side | sizes, "input_activations": side}}}


CANNOT_SAY = "in a way that `precision` cannot say: plans have them in bf16."
IN_BLOCKS = "products = fp8_1x128, product_weights = fp8_128x128"
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("model_type", "said", "precision", "remark"),
    some(
        [
            ("qwen3_moe", BLOCKS, f", {IN_BLOCKS}, unquantized = [Router]", IN_BLOCKS),
            ("qwen3", {"quant_method": "fp8"}, ", products = fp8", "(`fp8`)"),
            (
                "qwen3",
                {"quant_method": "compressed-tensors"} | group(8),
                ", products = fp8",
                "bf16",
            ),
            (
                "qwen3",
                group(4, group_size=16)
                | {"ignore": ["lm_head", "model.language_model.layers.*.self_attn*"]}
                | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}, "quant_method": "modelopt"},
                ", products = fp4, unquantized = [Attention], cache = fp8",
                "(`modelopt`)",
            ),
            (
                "qwen3",
                BLOCKS | {"modules_to_not_convert": ["model.layers.0.mlp.down_proj"]},
                f", {IN_BLOCKS}",
                "Of some layers alone it leaves `SwiGLU.down_proj` as they are",
            ),
            (
                "qwen3",
                BLOCKS | {"ignored_layers": [r"re:.*\.q_proj"]},
                f', {IN_BLOCKS}, unquantized = ["Attention.q_proj"]',
                "",
            ),
            ("qwen3", {"quant_method": "gptq", "bits": 4}, "", f"(`gptq`) {CANNOT_SAY}"),
            ("qwen3", {"quant_method": "fp8", "weight_block_size": [64, 64]}, "", CANNOT_SAY),
            ("gpt_oss", {"quant_method": "mxfp4"}, "", f"(`mxfp4`) {CANNOT_SAY}"),
        ],
        3,
    ),
)
def test_plans_store_weights_as_the_checkpoint(
    model_type: str, said: dict, precision: str, remark: str
):
    config = {"model_type": model_type, "quantization_config": said}
    text = import_configuration(config, model_type).text
    serving = text[text.index("plan serve") :]
    assert f"precision {{ weights = bf16{precision} }}" in " ".join(serving.split())
    assert remark in text[: text.index("dim ")]
    plan = serving.split()[1]
    assert compile_text(text, "m.stg", plan, stops=Stops(unroll=False)).plan.name == plan


def test_a_quantization_that_is_no_mapping_is_refused():
    with pytest.raises(CompileError, match="`quantization_config` is 3, and no mapping"):
        import_configuration({"model_type": "qwen3", "quantization_config": 3}, "qwen3")


@pytest.mark.parametrize(("key", "window"), [("sliding_window", 128), ("sliding_window_size", 129)])
def test_a_window_may_be_said_without_the_token_itself(key: str, window: int):
    text = import_configuration({"model_type": "mimo_v2_flash", key: 128}, "m").text
    assert f"dim W = {window} " in text


@pytest.mark.parametrize(
    ("name", "ranks", "copies"),
    some(
        [
            ("Qwen/Qwen3-32B", 8, ""),
            ("Qwen/Qwen3.5-397B-A17B", 16, "shard K over tp { replicate = true }"),
            ("deepseek-ai/DeepSeek-V3", 32, ""),
        ],
        3,
    ),
)
def test_weights_fit_the_devices_that_serve(name: str, ranks: int, copies: str):
    """Two heads of keys are copied over 16 ranks; on two these would have 389 GiB each."""
    found = shipped(name)
    assert found is not None
    text = import_configuration(found[1], name).text
    plan = f"serve_tp{ranks}"
    assert f"plan {plan} {{\n  mesh tp = {ranks}\n" in text
    assert ("replicate" in text.partition(f"plan {plan} ")[2]) == bool(copies)
    assert copies in text
    (memory,) = compile_text(text, plan).memory
    assert memory.static.num_bytes[Kind.PARAMETERS] < 64e9
