"""Decoders with routed experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stagec.importing.config import Config, Unsupported
from stagec.importing.families.common import (
    activation,
    biases,
    head_width,
    llama_mlp,
    rotated,
)
from stagec.importing.families.rows import (
    ALL_HEADS_NORMED,
    BIASES,
    GRANITE_FACTORS,
    GRANITE_RESIDUAL,
    GRANITE_SCALES,
    POST_ONLY,
    WINDOW,
    Decoders,
    FamilyRow,
    by_layer,
    count,
    flag,
    number,
    qwen_windows,
    real,
    stream,
    where,
)
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import ACTIVATIONS, LAYER, PLAIN_LAYER, RMS, Stream
from stagec.importing.routing import Experts, Router


def experts(c: Config, s: Stream, router: Router, **more: Any) -> Experts:
    """Experts with the usual keys."""
    settings = dict(more)
    for name, key in (
        ("experts", "num_experts"),
        ("per_token", "num_experts_per_tok"),
        ("hidden", "moe_intermediate_size"),
    ):
        if name not in settings:
            settings[name] = c.number(key)
    if "act" not in settings:
        settings["act"] = activation(c)
    if settings["per_token"] > settings["experts"]:
        raise Unsupported(
            f"{settings['per_token']} experts of a token are more than {settings['experts']}"
        )
    return Experts(s, router=router, **settings)


def sparse_layers(c: Config) -> list[bool]:
    """Qwen's rule: each `decoder_sparse_step`-th layer, but for those of `mlp_only_layers`."""
    every = c.number("decoder_sparse_step", 1)
    dense = c.get("mlp_only_layers", [])
    return [
        i not in dense and c.count("num_experts") > 0 and (i + 1) % every == 0
        for i in range(c.number("num_hidden_layers"))
    ]


def shared_expert(c: Config, s: Stream, stem: str = "model.layers.{i}.mlp.shared_expert.") -> Mlp:
    return llama_mlp(
        c,
        s,
        hidden=c.number("shared_expert_intermediate_size"),
        name="Shared",
        stem=stem,
        letter="FS",
        what="feed-forward width of the shared expert",
    )


def qwen_experts(c: Config, s: Stream, normalise: bool) -> Experts:
    """Experts and one that all tokens visit, through a gate."""
    gate = "shared_expert_gate.weight"
    router = Router(normalise=normalise)
    return experts(c, s, router, shared=shared_expert(c, s), shared_gate=gate)


def hunyuan_chosen(c: Config) -> int:
    chosen = c.get("moe_topk", 1)
    if isinstance(chosen, list) and len(set(chosen)) == 1:
        chosen = chosen[0]
    if not isinstance(chosen, int) or isinstance(c.get("num_experts"), list):
        raise Unsupported("experts that differ from layer to layer are not imported")
    return chosen


def hunyuan_shared(c: Config) -> Mlp:
    return llama_mlp(
        c,
        stream(c),
        name="Shared",
        stem="model.layers.{i}.mlp.shared_mlp.",
        letter="FS",
        what="feed-forward width of the shared expert",
    )


def granite_experts(c: Config, s: Stream, **more: Any) -> Experts:
    return experts(
        c,
        s,
        Router("after", tensor="router.weight"),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
        stem="model.layers.{i}.block_sparse_moe.",
        **more,
    )


def granitemoeshared(c: Config) -> Mlp | None:
    hidden = c.count("shared_intermediate_size")
    return granite_shared(c, stream(c), hidden) if hidden else None


def granite_shared(c: Config, s: Stream, hidden: int) -> Mlp:
    return llama_mlp(
        c,
        s,
        hidden=hidden,
        name="Shared",
        stem="model.layers.{i}.shared_mlp.",
        gate="input_linear",
        up="input_linear",
        down="output_linear",
        letter="FS",
        what="feed-forward width of the shared expert",
    )


def minimax_turned(c: Config) -> int:
    width, some = head_width(c), c.count("rotary_dim")
    return some if some and some != width else rotated(c, width)


def dbrx_activation(c: Config) -> str:
    act = c.part("ffn_config").get("ffn_act_fn", {}).get("name", "silu")
    if act not in ACTIVATIONS:
        raise Unsupported(f"the activation `{act}` of `ffn_act_fn` is not in the language")
    return act


def dbrx_router(c: Config) -> Router:
    whole = c.part("ffn_config").get("moe_normalize_expert_weights", 1.0) == 1
    return Router(normalise=whole, tensor="router.layer.weight")


def norm_topk(c: Config) -> Router:
    return Router(normalise=c.flag("norm_topk_prob"))


DBRX = "transformer.blocks.{i}."
WIDTH = {"hidden": number("intermediate_size")}
LOCAL = {"experts": number("num_local_experts"), **WIDTH}
GRANITE = FamilyRow(
    "GraniteMoe", GRANITE_SCALES, model=GRANITE_FACTORS, block=GRANITE_RESIDUAL, ffn=granite_experts
)
QWEN3_MOE = FamilyRow(
    "Qwen3Moe",
    {"qk_norm": RMS, "window": where("use_sliding_window", count("sliding_window"), 0), **BIASES},
    {"router": norm_topk},
    ffn=experts,
    sparse=sparse_layers,
)

EXPERTS: Decoders = {
    # What attention and experts are has parts of the file of its own.
    "dbrx": FamilyRow(
        "Dbrx",
        {
            "stem": f"{DBRX}norm_attn_norm.attn.",
            "fused": "Wqkv",
            "o": "out_proj",
            "kv_heads": lambda c: c.part("attn_config").number("kv_n_heads", 1),
            "rotary": -1,
            "clip": lambda c: c.part("attn_config").real("clip_qkv", 0),
        },
        {
            "router": dbrx_router,
            "experts": lambda c: c.part("ffn_config").number("moe_num_experts", 4),
            "per_token": lambda c: c.part("ffn_config").number("moe_top_k", 1),
            "hidden": lambda c: c.part("ffn_config").number("ffn_hidden_size", 3584),
            "act": dbrx_activation,
            "stem": f"{DBRX}ffn.",
            "gate": "experts.mlp.w1",
            "gate_up": "experts.mlp.v1",
            "down": "experts.mlp.w2",
        },
        {"prefix": "transformer.", "embed": "wte", "norm": "norm_f"},
        PLAIN_LAYER,
        {"norms": ("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"), "stem": DBRX},
        ffn=experts,
    ),
    "mixtral": FamilyRow(
        "Mixtral", WINDOW, {"router": Router(normalise=True), **LOCAL}, ffn=experts
    ),
    "qwen2_moe": FamilyRow(
        "Qwen2Moe",
        biases(flag("qkv_bias", True), output=False),
        {"normalise": flag("norm_topk_prob")},
        near=qwen_windows,
        ffn=qwen_experts,
        sparse=sparse_layers,
    ),
    "qwen3_moe": QWEN3_MOE,
    "olmoe": FamilyRow(
        "Olmoe",
        {**ALL_HEADS_NORMED, "clip": real("clip_qkv", 0), **BIASES},
        {"router": norm_topk, **WIDTH},
        ffn=experts,
        square=True,
    ),
    "flex_olmo": FamilyRow(
        "FlexOlmo",
        {**ALL_HEADS_NORMED, **BIASES},
        {"router": norm_topk, **WIDTH},
        block=POST_ONLY,
        ffn=experts,
    ),
    "hunyuan_v1_moe": FamilyRow(
        "HunYuanMoe",
        {
            "qk_norm": RMS,
            "qk_norm_names": ("query_layernorm", "key_layernorm"),
            "norm_after_rope": True,
            **BIASES,
        },
        {
            "router": Router(normalise=True, tensor="gate.wg.weight"),
            "per_token": hunyuan_chosen,
            "shared": hunyuan_shared,
            **WIDTH,
        },
        ffn=experts,
    ),
    "granitemoe": GRANITE,
    "granitemoeshared": replace(GRANITE, mlp={"shared": granitemoeshared}),
    "phimoe": FamilyRow(
        "PhiMoe",
        {**WINDOW, **BIASES},
        {"router": Router(tensor="router.weight"), **LOCAL},
        {"head_bias": flag("lm_head_bias")},
        LAYER,
        refused=(
            (
                lambda c: c.number("num_experts_per_tok") != 2,
                "the router of this class chooses two experts (`num_experts_per_tok`)",
            ),
        ),
        ffn=experts,
    ),
    "minimax_m2": FamilyRow(
        "MiniMaxM2",
        {**ALL_HEADS_NORMED, "rotary": minimax_turned},
        {
            "router": Router("sigmoid", normalise=True, correction="e_score_correction_bias"),
            **LOCAL,
        },
        ffn=experts,
    ),
    "gpt_oss": FamilyRow(
        "GptOss",
        {"sinks": "sinks", **biases(flag("attention_bias", True))},
        {
            "router": Router("after", tensor="router.weight", bias="router.bias"),
            "act": "gpt_oss",
            "bias": True,
            **LOCAL,
        },
        near=by_layer(lambda i: i % 2 == 0),
        ffn=experts,
    ),
}
