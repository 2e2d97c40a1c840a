"""Decoders with dense layers: Llama and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stagec.importing.config import Config
from stagec.importing.decoder import Block
from stagec.importing.families.common import (
    activation,
    biases,
    layer_kinds,
    windows,
)
from stagec.importing.families.rows import (
    ALL_HEADS_NORMED,
    BESIDE,
    BIASES,
    GRANITE_FACTORS,
    GRANITE_RESIDUAL,
    GRANITE_SCALES,
    MLP_BIAS,
    POST_ONLY,
    SANDWICH,
    WINDOW,
    Decoders,
    FamilyRow,
    acts,
    all_but_each,
    by_layer,
    flag,
    of_width,
    qwen_windows,
    real,
    turned,
    where,
)
from stagec.importing.parts import LAYER, NO_NORM, PLAIN_LAYER, RMS, Norm

BARE_LAYER, BARE_RMS = Norm("layer", affine=False), Norm("rms", affine=False)
FUSED_GATE = {"gate": "gate_up_proj", "up": "gate_up_proj"}
USE_BIAS = flag("use_bias")
HYPER_NORMS = ("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2")

GEMMA2 = FamilyRow(
    "Gemma2",
    {
        "scale": lambda c: c.real("query_pre_attn_scalar") ** -0.5,
        "softcap": real("attn_logit_softcapping", 0),
        **BIASES,
    },
    {"act": acts("hidden_activation")},
    {
        "embed_factor": of_width(lambda width: width**0.5),
        "logit_softcap": real("final_logit_softcapping", 0),
    },
    block={"form": "sandwich", "norms": SANDWICH},
    near=by_layer(lambda i: i % 2 == 0),
)
GLM = FamilyRow(
    "Glm", {"rotary": turned(0.5), **biases(flag("attention_bias"), output=False)}, FUSED_GATE
)
GLM4 = replace(
    GLM,
    name="Glm4",
    block={
        "form": "sandwich",
        "norms": (
            "input_layernorm",
            "post_self_attn_layernorm",
            "post_attention_layernorm",
            "post_mlp_layernorm",
        ),
    },
)
GLM4V_TEXT = replace(
    GLM4, attention={**GLM.attention, **biases(flag("attention_bias", True), output=False)}
)
MISTRAL = FamilyRow("Mistral", WINDOW)
OLMO2 = FamilyRow("Olmo2", {**ALL_HEADS_NORMED, **BIASES}, block=POST_ONLY)


def smollm_turned(c: Config) -> Sequence[Any]:
    every = c.number("no_rope_layer_interval", 4)
    layers = range(c.number("num_hidden_layers"))
    return c.get("no_rope_layers", [(i + 1) % every for i in layers])


def smollm_windows(c: Config) -> list[int]:
    window = c.count("sliding_window") if c.flag("use_sliding_window") else 0
    turned = smollm_turned(c)
    kinds = layer_kinds(
        c, lambda i: "sliding_attention" if window and not turned[i] else "full_attention"
    )
    return windows(c, kinds, window)


def theta_by_layer(c: Config) -> Sequence[Any]:
    """Layers without a base are not rotated."""
    return c.get("layer_rope_theta", ())


def exaone4_windows(c: Config) -> list[int]:
    window, pattern = c.count("sliding_window"), c.get("sliding_window_pattern")
    each = len(pattern) if isinstance(pattern, str) else int(pattern or 0)
    last = c.number("num_hidden_layers") - 1

    def kind(i: int) -> str:
        is_local = window and each and (i + 1) % each and i != last
        return "sliding_attention" if is_local else "full_attention"

    return windows(c, layer_kinds(c, kind), window)


LLAMA = FamilyRow("Llama", BIASES, MLP_BIAS)
GRANITE = FamilyRow("Granite", GRANITE_SCALES, MLP_BIAS, GRANITE_FACTORS, block=GRANITE_RESIDUAL)
# With a window, layers without one are not rotated by position.
EXAONE4 = FamilyRow(
    "Exaone4",
    {"qk_norm": RMS, "rotary": where("sliding_window", 0, turned(1))},
    block=POST_ONLY,
    near=exaone4_windows,
    local={"rotary": -1},
)

DENSE: Decoders = {
    "llama": LLAMA,
    "internlm3": LLAMA,
    "mistral": MISTRAL,
    "ministral3": MISTRAL,
    "ministral": FamilyRow("Ministral", near=by_layer(lambda i: True)),
    "cwm": FamilyRow("Cwm", {}, MLP_BIAS, near=by_layer(lambda i: i % 4)),
    "qwen2": FamilyRow("Qwen2", biases(True, output=False), near=qwen_windows),
    "qwen3": FamilyRow("Qwen3", {"qk_norm": RMS, **BIASES}, near=qwen_windows),
    "phi": FamilyRow(
        "Phi",
        {
            "o": "dense",
            "qk_norm": where("qk_layernorm", LAYER, NO_NORM),
            "qk_norm_names": ("q_layernorm", "k_layernorm"),
            **biases(True),
        },
        {"gated": False, "bias": True, "up": "fc1", "down": "fc2"},
        {"norm": "final_layernorm", "head_bias": True},
        LAYER,
        BESIDE,
    ),
    "phi3": FamilyRow("Phi3", {**dict.fromkeys("qkv", "qkv_proj"), **WINDOW}, FUSED_GATE),
    "gemma": FamilyRow(
        "Gemma", BIASES, {"act": "gelu"}, {"embed_factor": GEMMA2.model["embed_factor"]}
    ),
    "gemma2": GEMMA2,
    "gemma3_text": replace(
        GEMMA2,
        name="Gemma3",
        attention={**GEMMA2.attention, "qk_norm": RMS},
        near=all_but_each("sliding_window_pattern", 6),
    ),
    "vaultgemma": replace(
        GEMMA2, name="VaultGemma", block={"norms": ("input_layernorm", "pre_feedforward_layernorm")}
    ),
    "bitnet": FamilyRow(
        "BitNet", {"sub_norm": RMS, **BIASES}, {"sub_norm": "ffn_sub_norm"}, square=True
    ),
    "glm": GLM,
    "glm4": GLM4,
    "granite": GRANITE,
    "granite_swa": replace(
        GRANITE,
        name="GraniteSwa",
        attention={**GRANITE_SCALES, "sinks": "sinks"},
        near=by_layer(lambda i: i % 4),
        turned=theta_by_layer,
    ),
    "hyperclovax": FamilyRow(
        "HyperClovaX",
        {**GRANITE_SCALES, "scale": real("attention_multiplier", 0)},
        MLP_BIAS,
        {**GRANITE_FACTORS, "logit_factor": real("logits_scaling")},
        block={
            **GRANITE_RESIDUAL,
            "form": where("use_post_norm", "sandwich", "pre"),
            "norms": where("use_post_norm", HYPER_NORMS, HYPER_NORMS[::2]),
        },
    ),
    "olmo": FamilyRow("Olmo", {"clip": real("clip_qkv", 0), **BIASES}, norm=BARE_LAYER),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, name="Olmo3", near=by_layer(lambda i: (i + 1) % 4)),
    "smollm3": FamilyRow("SmolLM3", BIASES, MLP_BIAS, turned=smollm_turned, near=smollm_windows),
    "nemotron": FamilyRow(
        "Nemotron", {"rotary": turned(0.5), **BIASES}, {"gated": False, **MLP_BIAS}, norm=LAYER
    ),
    "nanochat": FamilyRow(
        "NanoChat",
        {"qk_norm": BARE_RMS, "norm_after_rope": True, **BIASES},
        {"gated": False, "up": "fc1", "down": "fc2"},
        {"embed_norm": (BARE_RMS, ""), "logit_softcap": real("final_logit_softcapping", 0)},
        BARE_RMS,
    ),
    "apertus": FamilyRow(
        "Apertus",
        {"qk_norm": RMS, **BIASES},
        {
            "gated": False,
            "act": lambda c: "xielu" if c.get("hidden_act") == "xielu" else activation(c),
        },
        block={"norms": ("attention_layernorm", "feedforward_layernorm")},
    ),
    "stablelm": FamilyRow(
        "StableLm",
        {
            "rotary": turned(0.25),
            "qk_norm": where("qk_layernorm", PLAIN_LAYER, NO_NORM),
            "qk_norm_over": "heads",
            "qk_norm_names": ("q_layernorm", "k_layernorm"),
            "qk_norm_parts": True,
            **biases(flag("use_qkv_bias"), output=False),
        },
        norm=LAYER,
        block={
            "form": where("use_parallel_residual", "parallel", "pre"),
            "norms": where("use_parallel_residual", BESIDE["norms"], Block.norms),
        },
    ),
    "starcoder2": FamilyRow(
        "StarCoder2",
        {**WINDOW, **biases(flag("use_bias", True))},
        {"gated": False, "bias": flag("use_bias", True), "up": "c_fc", "down": "c_proj"},
        norm=LAYER,
    ),
    "cohere": FamilyRow(
        "Cohere",
        {"qk_norm": where("use_qk_norm", PLAIN_LAYER, NO_NORM), "qk_norm_over": "heads", **BIASES},
        model={"logit_factor": real("logit_scale")},
        norm=PLAIN_LAYER,
        block=BESIDE,
    ),
    # Layers with a window are rotated by position, those without are not.
    "cohere2": FamilyRow(
        "Cohere2",
        {"rotary": 0, **BIASES},
        model={"logit_factor": real("logit_scale")},
        norm=PLAIN_LAYER,
        block=BESIDE,
        near=all_but_each("sliding_window_pattern", 4),
        local={"rotary": -1},
    ),
    "seed_oss": FamilyRow(
        "SeedOss", biases(flag("attention_bias"), flag("attention_out_bias")), MLP_BIAS
    ),
    "exaone4": EXAONE4,
    "iquestcoder": replace(LLAMA, name="IQuestCoder"),
    "jais2": FamilyRow("Jais2", BIASES, {"gated": False, **MLP_BIAS}, norm=LAYER),
    "arcee": FamilyRow("Arcee", BIASES, {"gated": False, **MLP_BIAS}),
    "helium": FamilyRow(
        "Helium", biases(flag("attention_bias"), output=False), MLP_BIAS, square=True
    ),
    "ernie4_5": FamilyRow("Ernie45", biases(USE_BIAS), {"bias": USE_BIAS}),
    "hunyuan_v1_dense": FamilyRow(
        "HunYuan",
        {
            "qk_norm": RMS,
            "qk_norm_names": ("query_layernorm", "key_layernorm"),
            "norm_after_rope": True,
            **BIASES,
        },
    ),
}
