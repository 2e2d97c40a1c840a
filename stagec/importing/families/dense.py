"""Decoders with dense layers: Llama and what follows it."""

from __future__ import annotations

from dataclasses import replace

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    layer_kinds,
    llama_attention,
    llama_mlp,
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
    by_window,
    decoder,
    flag,
    of_width,
    qwen_windows,
    real,
    stream,
    turned,
    where,
)
from stagec.importing.parts import LAYER, NO_NORM, PLAIN_LAYER, RMS, Norm

BARE_LAYER, BARE_RMS = Norm("layer", affine=False), Norm("rms", affine=False)
FUSED_GATE = {"gate": "gate_up_proj", "up": "gate_up_proj"}
USE_BIAS = flag("use_bias")

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


def smollm3(c: Config) -> Decoder:
    s = stream(c)
    layers = c.number("num_hidden_layers")
    every = c.number("no_rope_layer_interval", 4)
    turned = c.get("no_rope_layers")
    if turned is None:
        turned = [int((i + 1) % every != 0) for i in range(layers)]
    window = c.count("sliding_window") if c.flag("use_sliding_window") else 0
    kinds = layer_kinds(
        c, lambda i: "sliding_attention" if window and not turned[i] else "full_attention"
    )
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    block = Block(attention, llama_mlp(c, s, bias=c.flag("mlp_bias")), RMS, stream=s)
    blocks = by_window(windows(kinds, window), attention, block)
    for i, rope in enumerate(turned[:layers]):
        if not rope:
            part = blocks[i].mixer
            assert isinstance(part, Attention)
            part = replace(part, rotary=0, name=f"{part.name}WithoutPosition")
            blocks[i] = replace(blocks[i], mixer=part, name="BlockWithoutPosition")
    return decoder(c, "SmolLM3", blocks)


def exaone4_windows(c: Config) -> list[int]:
    window, pattern = c.count("sliding_window"), c.get("sliding_window_pattern")
    each = len(pattern) if isinstance(pattern, str) else int(pattern or 0)
    last = c.number("num_hidden_layers") - 1

    def kind(i: int) -> str:
        is_local = window and each and (i + 1) % each and i != last
        return "sliding_attention" if is_local else "full_attention"

    return windows(layer_kinds(c, kind), window)


LLAMA = FamilyRow("Llama", BIASES, MLP_BIAS)

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
    "granite": FamilyRow(
        "Granite", GRANITE_SCALES, MLP_BIAS, GRANITE_FACTORS, block=GRANITE_RESIDUAL
    ),
    "olmo": FamilyRow("Olmo", {"clip": real("clip_qkv", 0), **BIASES}, norm=BARE_LAYER),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, name="Olmo3", near=by_layer(lambda i: (i + 1) % 4)),
    "smollm3": smollm3,
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
    # With a window, layers without one are not rotated by position.
    "exaone4": FamilyRow(
        "Exaone4",
        {"qk_norm": RMS, "rotary": where("sliding_window", 0, turned(1))},
        block=POST_ONLY,
        near=exaone4_windows,
        local={"rotary": -1},
    ),
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
