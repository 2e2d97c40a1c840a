"""Decoders with routed experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stagec.diagnostics import suggestion
from stagec.importing.config import Config
from stagec.importing.families.common import (
    activation,
    biases,
    head_width,
    layer_kinds,
    llama_mlp,
    rotated,
)
from stagec.importing.families.dense import GLM4, theta_by_layer
from stagec.importing.families.rows import (
    ALL_HEADS_NORMED,
    BESIDE,
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
    turned_as,
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
        message = f"{settings['per_token']} experts of a token are more than {settings['experts']}"
        keys = ("num_experts_per_tok", "num_experts", "num_local_experts", "n_routed_experts")
        help_ = f"choose at most {settings['experts']}"
        raise c.unsupported(message, *keys, help=help_)
    return Experts(s, router=router, **settings)


def sparse_layers(c: Config, otherwise: Sequence[int] = ()) -> list[bool]:
    """Qwen's rule: each `decoder_sparse_step`-th layer, but for those of `mlp_only_layers`."""
    every = c.number("decoder_sparse_step", 1)
    dense = c.get("mlp_only_layers", otherwise)
    return [
        i not in dense and c.count("num_experts") > 0 and (i + 1) % every == 0
        for i in range(c.number("num_hidden_layers"))
    ]


def dense_first(c: Config, otherwise: int = 0) -> list[bool]:
    """Layers from `first_k_dense_replace` on have experts."""
    given = c.get("mlp_layer_types")
    layers = c.number("num_hidden_layers")
    if isinstance(given, list):
        return [kind == "sparse" for kind in given[:layers]]
    first = c.count("first_k_dense_replace", otherwise)
    return [i >= first for i in range(layers)]


def shared_of(c: Config, s: Stream, hidden: int, stem: str, **more: Any) -> Mlp:
    """A network that all tokens visit."""
    what = "feed-forward width of the shared expert"
    return llama_mlp(c, s, hidden=hidden, name="Shared", stem=stem, letter="FS", what=what, **more)


def shared_expert(c: Config, s: Stream, stem: str = "model.layers.{i}.mlp.shared_expert.") -> Mlp:
    return shared_of(c, s, c.number("shared_expert_intermediate_size"), stem)


def qwen_experts(c: Config, s: Stream, normalise: bool) -> Experts:
    """Experts and one that all tokens visit, through a gate."""
    gate = "shared_expert_gate.weight"
    router = Router(normalise=normalise)
    return experts(c, s, router, shared=shared_expert(c, s), shared_gate=gate)


def shared(c: Config) -> Mlp:
    return shared_expert(c, stream(c))


def shared_experts(c: Config) -> Mlp:
    return shared_expert(c, stream(c), "model.layers.{i}.mlp.shared_experts.")


def flint_windows(c: Config) -> list[int]:
    last = c.number("num_hidden_layers") - 1
    return by_layer(lambda i: i > 1 and i % 4 != 1 and i != last)(c)


def heads_of(kind: str) -> Callable[[Config], int]:
    """Heads of queries in layers of a kind, which `num_attention_heads_per_layer` says for each."""

    def heads(c: Config) -> int:
        many = c.get("num_attention_heads_per_layer", [])
        kinds = layer_kinds(c, lambda i: "full_attention")
        found = {each for each, own in zip(many, kinds, strict=False) if own == kind}
        if len(found) > 1:
            message = "heads of queries that differ among layers of a kind are not imported"
            raise c.unsupported(message, "num_attention_heads_per_layer")
        return found.pop() if found else c.number("num_attention_heads")

    return heads


def gates_heads(c: Config) -> bool:
    return c.get("gating") is True or c.get("gating") == "per-head"


def averaged(c: Config) -> float:
    many = c.count("num_shared_experts")
    return 0.5 if many and c.get("shared_expert_combination_strategy") == "average" else 1.0


def cohere_router(c: Config) -> Router:
    if c.get("expert_selection_fn") == "softmax":
        return Router("after", factor=averaged(c))
    return Router("sigmoid", c.flag("norm_topk_prob"), factor=averaged(c))


def cohere_shared(c: Config) -> Mlp | None:
    many = c.count("num_shared_experts")
    hidden = many * c.number("intermediate_size")
    stem = "model.layers.{i}.mlp.shared_experts."
    own = shared_of(c, stream(c), hidden, stem, factors=(1.0, averaged(c)))
    return own if many else None


def cohere_windows(c: Config) -> list[int]:
    """Every so-manieth layer has no window; those with a dense network, which come first, are counted by themselves."""
    first = c.count("first_k_dense_replace")
    own = c.number("prefix_dense_sliding_window_pattern")
    pattern = c.number("sliding_window_pattern")
    return by_layer(lambda i: (i + 1) % own if i < first else (i - first + 1) % pattern)(c)


def cohere_turned(c: Config) -> list[bool]:
    forced = c.number("prefix_dense_sliding_window_pattern") == 1
    layers = zip(cohere_windows(c), dense_first(c), strict=True)
    return [bool(window) or (forced and not sparse) for window, sparse in layers]


def hunyuan_chosen(c: Config) -> int:
    chosen = c.get("moe_topk", 1)
    if isinstance(chosen, list) and len(set(chosen)) == 1:
        chosen = chosen[0]
    if not isinstance(chosen, int) or isinstance(c.get("num_experts"), list):
        message = "experts that differ from layer to layer are not imported"
        key = "num_experts" if isinstance(c.get("num_experts"), list) else "moe_topk"
        raise c.unsupported(message, key)
    return chosen


def hunyuan_shared(c: Config) -> Mlp:
    stem = "model.layers.{i}.mlp.shared_mlp."
    return shared_of(c, stream(c), c.number("intermediate_size"), stem)


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
    names = {"gate": "input_linear", "up": "input_linear", "down": "output_linear"}
    return shared_of(c, s, hidden, "model.layers.{i}.shared_mlp.", **names)


def minimax_turned(c: Config) -> int:
    width, some = head_width(c), c.count("rotary_dim")
    return some if some and some != width else rotated(c, width)


def dbrx_activation(c: Config) -> str:
    act = c.part("ffn_config").get("ffn_act_fn", {}).get("name", "silu")
    if act not in ACTIVATIONS:
        message = f"the activation `{act}` of `ffn_act_fn` is not in the language"
        help_ = suggestion(str(act), sorted(ACTIVATIONS))
        raise c.part("ffn_config").unsupported(message, "ffn_act_fn", help=help_)
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
    "granitemoe_swa": replace(
        GRANITE,
        name="GraniteMoeSwa",
        attention={**GRANITE_SCALES, "sinks": "sinks"},
        mlp={"shared": granitemoeshared},
        near=by_layer(lambda i: i % 4),
        turned=theta_by_layer,
    ),
    "mellum": replace(
        QWEN3_MOE,
        name="Mellum",
        attention={"qk_norm": RMS, "rotary": turned_as("full_attention"), **BIASES},
        near=by_layer(lambda i: False),
        local={"rotary": turned_as("sliding_attention")},
        sparse=dense_first,
    ),
    # Layers with a window are rotated by position, those without are not.
    "flint": FamilyRow(
        "Flint",
        {"qk_norm": RMS, "rotary": 0, "sinks": "sinks", **BIASES},
        {"router": lambda c: Router("sigmoid", c.flag("norm_topk_prob")), "shared": shared},
        near=flint_windows,
        local={"rotary": -1},
        ffn=experts,
        sparse=lambda c: sparse_layers(c, [0, 1]),
    ),
    "kolibri1": FamilyRow(
        "Kolibri",
        {"qk_norm": RMS, "rotary": 0},
        {
            "router": lambda c: Router(
                "sigmoid",
                c.flag("norm_topk_prob"),
                correction="gate.e_score_correction_bias",
            ),
            "shared": shared_experts,
        },
        block=GLM4.block,
        near=by_layer(lambda i: (i + 1) % 5),
        local={"rotary": -1},
        ffn=experts,
    ),
    "laguna": FamilyRow(
        "Laguna",
        {
            "heads": heads_of("full_attention"),
            "qk_norm": RMS,
            "rotary": turned_as("full_attention", 0.5),
            "gate": lambda c: "" if gates_heads(c) else "g_proj",
            "head_gate": lambda c: "g_proj" if gates_heads(c) else "",
            "gate_act": "softplus",
            **BIASES,
        },
        {
            "router": lambda c: Router(
                "sigmoid",
                normalise=True,
                factor=c.real("moe_routed_scaling_factor"),
                correction="gate.e_score_correction_bias",
                correction_is_buffer=False,
            ),
            "shared": shared_experts,
        },
        near=by_layer(lambda i: False),
        local={
            "heads": heads_of("sliding_attention"),
            "rotary": turned_as("sliding_attention"),
        },
        refused=(
            (flag("moe_apply_router_weight_on_input"), "weights of experts are not put on inputs"),
            (
                lambda c: c.real("moe_router_logit_softcapping", 0),
                "a cap of the router's scores is not imported",
            ),
        ),
        ffn=experts,
        sparse=lambda c: dense_first(c, 1),
    ),
    "cohere2_moe": FamilyRow(
        "Cohere2Moe",
        BIASES,
        {"router": cohere_router, "shared": cohere_shared, **WIDTH},
        {"logit_factor": real("logit_scale")},
        lambda c: PLAIN_LAYER if c.get("rms_norm_eps") is None else RMS,
        BESIDE,
        turned=cohere_turned,
        near=cohere_windows,
        ffn=experts,
        sparse=dense_first,
        dense={"hidden": number("prefix_dense_intermediate_size")},
    ),
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
