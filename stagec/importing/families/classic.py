"""GPT-2 and its kin: biases everywhere, learned positions or ALiBi."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stagec.importing.config import Config
from stagec.importing.families.common import biases
from stagec.importing.families.rows import (
    NO_DECODER,
    Decoders,
    FamilyRow,
    acts,
    flag,
    number,
    of_width,
    plain_network,
    plain_width,
    turned,
    where,
)
from stagec.importing.parts import LAYER, NO_NORM, PLAIN_LAYER, Norm

LAYERS = "transformer.h.{i}."
WTE = {"prefix": "transformer.", "embed": "wte", "norm": "ln_f"}
LN = {"norms": ("ln_1", "ln_2"), "stem": LAYERS}
FOUR_H = "dense_h_to_4h dense_4h_to_h"
FOUR_WIDTHS = of_width(lambda width: 4 * width)
POST_NORMED = (
    flag("apply_residual_connection_post_layernorm"),
    "residuals taken after a norm are not imported",
)


def inner(key: str) -> Any:
    return lambda c: c.number(key, 4 * c.number("hidden_size"))


def places(tensor: str, beyond: int = 0) -> Any:
    return lambda c: (tensor, c.number("max_position_embeddings") + beyond)


GPT2 = FamilyRow(
    "Gpt2",
    {
        "stem": f"{LAYERS}attn.",
        "fused": "c_attn",
        "o": "c_proj",
        "scale": lambda c: 0.0 if c.get("scale_attn_weights", True) else 1.0,
        **biases(True),
    },
    plain_network(f"{LAYERS}mlp.", "c_fc c_proj", inner("n_inner")),
    {**WTE, "learned_positions": places("wpe")},
    LAYER,
    LN,
    refused=(
        NO_DECODER,
        (
            flag("scale_attn_by_inverse_layer_idx"),
            "scores scaled by the number of their layer are not in the language",
        ),
    ),
)


def gptj_turned(c: Config) -> int:
    some = c.count("rotary_dim")
    return some if some and some != plain_width(c) else -1


GPTJ = FamilyRow(
    "GptJ",
    {"stem": f"{LAYERS}attn.", "o": "out_proj", "rotary": gptj_turned},
    plain_network(f"{LAYERS}mlp.", "fc_in fc_out", inner("n_inner")),
    {**WTE, "head_bias": True},
    LAYER,
    {"form": "parallel", "norms": ("ln_1",), "stem": LAYERS},
)


def falcon_heads(c: Config) -> int:
    heads = c.number("num_attention_heads")
    if c.flag("new_decoder_architecture"):
        return c.number("num_kv_heads", heads)
    return 1 if c.flag("multi_query", True) else heads


def falcon_beside(c: Config) -> bool:
    return c.flag("parallel_attn") or c.flag("new_decoder_architecture")


def falcon_norms(c: Config) -> tuple[str, ...]:
    if c.flag("new_decoder_architecture") and c.get("num_ln_in_parallel_attn", 2) == 2:
        return ("ln_attn", "ln_mlp")
    norms = ("input_layernorm", "post_attention_layernorm")
    return norms[:1] if falcon_beside(c) else norms


def gpt_neo_windows(c: Config) -> list[int]:
    layers = c.number("num_hidden_layers")
    kinds = list(c.get("attention_layers", []))
    for names, times in c.get("attention_types", [[["global", "local"], layers // 2]]):
        kinds += [] if c.has("attention_layers") else list(names) * times
    if len(kinds) != layers:
        key = "attention_layers" if c.has("attention_layers") else "attention_types"
        message = f"`{key}` says {len(kinds)} layers, not {layers}"
        raise c.unsupported(message, key, "num_layers", help=f"list {layers} layers")
    return [c.number("window_size") if kind == "local" else 0 for kind in kinds]


def fairseq(name: str, prefix: str, hidden: str, act: str = "hidden_act", **more: Any) -> FamilyRow:
    """A decoder as fairseq has it: BART's layers without an encoder, norms before the parts."""
    stem = f"{prefix}layers.{{i}}."
    root = of_width(lambda width: width**0.5)
    factor = where("scale_embedding", root, 1.0)
    return FamilyRow(
        name,
        {"stem": f"{stem}self_attn.", "o": "out_proj", **biases(True)},
        plain_network(stem, "fc1 fc2", number(hidden), acts(act)),
        {"prefix": prefix, "norm": "layer_norm", "embed_factor": factor, **more},
        LAYER,
        {"norms": ("self_attn_layer_norm", "final_layer_norm"), "stem": stem},
    )


def opt_norm(c: Config) -> Norm:
    return LAYER if c.flag("layer_norm_elementwise_affine", True) else Norm("layer", affine=False)


def opt_final_norm(c: Config) -> Norm:
    is_last = c.flag("do_layer_norm_before", True) and not c.flag("_remove_final_layer_norm")
    return opt_norm(c) if is_last else NO_NORM


def opt_embed_width(c: Config) -> int:
    width = c.number("hidden_size")
    narrow = c.number("word_embed_proj_dim", width)
    return narrow if narrow != width else 0


ENABLE_BIAS = flag("enable_bias", True)
BLOCKS, OPT = "transformer.blocks.{i}.", "model.decoder.layers.{i}."

CLASSIC: Decoders = {
    "gpt2": GPT2,
    "gpt-sw3": GPT2,
    "gpt_bigcode": replace(
        GPT2,
        name="GptBigCode",
        attention={
            **GPT2.attention,
            "kv_heads": where("multi_query", 1, number("num_attention_heads")),
        },
    ),
    "gpt_neox": FamilyRow(
        "GptNeoX",
        {
            "stem": "gpt_neox.layers.{i}.attention.",
            "fused": "query_key_value",
            "o": "dense",
            "rotary": turned(0.25, plain_width),
            **biases(flag("attention_bias", True)),
        },
        plain_network(
            "gpt_neox.layers.{i}.mlp.", FOUR_H, number("intermediate_size"), acts("hidden_act")
        ),
        {"prefix": "gpt_neox.", "embed": "embed_in", "norm": "final_layer_norm"},
        LAYER,
        {"form": where("use_parallel_residual", "parallel", "pre"), "stem": "gpt_neox.layers.{i}."},
    ),
    "bloom": FamilyRow(
        "Bloom",
        {
            "stem": f"{LAYERS}self_attention.",
            "fused": "query_key_value",
            "alibi": True,
            "o": "dense",
            **biases(True),
        },
        plain_network(f"{LAYERS}mlp.", FOUR_H, FOUR_WIDTHS, "gelu"),
        {
            "positions": number("seq_length", 2048),
            "prefix": "transformer.",
            "embed": "word_embeddings",
            "embed_norm": (LAYER, "word_embeddings_layernorm"),
            "norm": "ln_f",
        },
        LAYER,
        {"stem": LAYERS},
        refused=(POST_NORMED,),
    ),
    "falcon": FamilyRow(
        "Falcon",
        {
            "stem": f"{LAYERS}self_attention.",
            "fused": "query_key_value",
            "kv_heads": falcon_heads,
            "about": where(
                "new_decoder_architecture",
                "Transformers keeps keys and values of all query heads.",
                "",
            ),
            "o": "dense",
            "rotary": where("alibi", 0, -1),
            "alibi": flag("alibi"),
            "repeated": flag("new_decoder_architecture"),
            **biases(flag("bias")),
        },
        plain_network(
            f"{LAYERS}mlp.", FOUR_H, inner("ffn_hidden_size"), acts("activation"), flag("bias")
        ),
        {
            "positions": number("max_position_embeddings", 2048),
            "prefix": "transformer.",
            "embed": "word_embeddings",
            "norm": "ln_f",
        },
        LAYER,
        {
            "form": lambda c: "parallel" if falcon_beside(c) else "pre",
            "norms": falcon_norms,
            "stem": LAYERS,
        },
        refused=(POST_NORMED,),
    ),
    "opt": FamilyRow(
        "Opt",
        {"stem": f"{OPT}self_attn.", "o": "out_proj", **biases(ENABLE_BIAS)},
        plain_network(OPT, "fc1 fc2", number("ffn_dim"), bias=ENABLE_BIAS),
        {
            "final": opt_final_norm,
            "prefix": "model.decoder.",
            "norm": "final_layer_norm",
            "learned_positions": places("embed_positions", 2),
            "embed_width": opt_embed_width,
        },
        opt_norm,
        {
            "form": lambda c: "pre" if c.flag("do_layer_norm_before", True) else "post",
            "norms": ("self_attn_layer_norm", "final_layer_norm"),
            "stem": OPT,
        },
    ),
    "gptj": GPTJ,
    "codegen": replace(GPTJ, name="CodeGen", attention={**GPTJ.attention, "fused": "qkv_proj"}),
    "mpt": FamilyRow(
        "Mpt",
        {"stem": f"{BLOCKS}attn.", "fused": "Wqkv", "alibi": True, "o": "out_proj"},
        plain_network(f"{BLOCKS}ffn.", "up_proj down_proj", FOUR_WIDTHS, "gelu", False),
        {**WTE, "positions": number("max_seq_len", 2048), "norm": "norm_f"},
        PLAIN_LAYER,
        {"norms": ("norm_1", "norm_2"), "stem": BLOCKS},
    ),
    "persimmon": FamilyRow(
        "Persimmon",
        {
            "stem": "model.layers.{i}.self_attn.",
            "fused": "query_key_value",
            "o": "dense",
            "rotary": turned(0.5, plain_width),
            "qk_norm": where("qk_layernorm", LAYER, NO_NORM),
            "qk_norm_names": ("q_layernorm", "k_layernorm"),
            **biases(True),
        },
        {"gated": False, "bias": True, "up": "dense_h_to_4h", "down": "dense_4h_to_h"},
        {"norm": "final_layernorm"},
        LAYER,
    ),
    "gpt_neo": FamilyRow(
        "GptNeo",
        {"stem": f"{LAYERS}attn.attention.", "o": "out_proj", "o_bias": True, "scale": 1.0},
        plain_network(f"{LAYERS}mlp.", "c_fc c_proj", inner("intermediate_size")),
        {**WTE, "learned_positions": places("wpe")},
        LAYER,
        LN,
        gpt_neo_windows,
    ),
    # Positions are those of sines, and no parameters.
    "xglm": replace(
        fairseq("Xglm", "model.", "ffn_dim", "activation_function"), refused=(NO_DECODER,)
    ),
    "biogpt": fairseq(
        "BioGpt",
        "biogpt.",
        "intermediate_size",
        learned_positions=places("embed_positions", 2),
        head="output_projection",
    ),
}
