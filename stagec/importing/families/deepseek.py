"""DeepSeek's decoders, and those with routers of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stagec.importing.config import Config, shown
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    biases,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    windows,
)
from stagec.importing.families.dense import EXAONE4
from stagec.importing.families.experts import dense_first, experts
from stagec.importing.families.rows import (
    BIASES,
    MLP_BIAS,
    Decoders,
    FamilyRow,
    by_rule,
    count,
    decoder,
    flag,
    number,
    of_width,
    plain_width,
    real,
    stream,
    turned,
    where,
)
from stagec.importing.latent import Indexer, LatentAttention
from stagec.importing.parts import NO_NORM, RMS, Stream
from stagec.importing.routing import Experts, Router


def deepseek_router(c: Config, scores: str = "sigmoid", correction: bool = True) -> Router:
    groups = c.count("n_group")
    if scores == "softmax" and c.get("topk_method") == "greedy":
        groups = 0
    return Router(
        scores,
        normalise=c.flag("norm_topk_prob"),
        factor=c.real("routed_scaling_factor", 1.0),
        groups=groups,
        limit=c.count("topk_group"),
        correction="gate.e_score_correction_bias" if correction else "",
    )


def deepseek_experts(
    c: Config,
    s: Stream,
    router: Router,
    many: int | None = None,
    bias: bool = False,
    key: str = "n_routed_experts",
    **more: Any,
) -> Experts:
    """Routed experts, and `many` that all tokens visit as one network."""
    many = c.count("n_shared_experts") if many is None else many
    shared = None
    if many:
        shared = llama_mlp(
            c,
            s,
            bias=bias,
            hidden=many * c.number("moe_intermediate_size"),
            name="Shared",
            stem="model.layers.{i}.mlp.shared_experts.",
            letter="FS",
            what="feed-forward width of the shared experts",
        )
    return experts(c, s, router, experts=c.number(key), shared=shared, **more)


def latent_attention(
    c: Config, s: Stream, values: int = 0, query_latent: int | None = None, **more: Any
) -> LatentAttention:
    return LatentAttention(
        s,
        c.number("num_attention_heads"),
        c.number("qk_nope_head_dim"),
        c.number("qk_rope_head_dim"),
        values or c.number("v_head_dim"),
        c.number("kv_lora_rank"),
        c.count("q_lora_rank") if query_latent is None else query_latent,
        bias=c.flag("attention_bias"),
        **more,
    )


def indexed(c: Config, name: str, full: Sequence[bool]) -> Decoder:
    """Layers with an indexer of their own, and those that use that of a layer before."""
    s = stream(c)
    keys = c.number("index_topk")
    indexer = Indexer(c.number("index_n_heads"), c.number("index_head_dim"), keys)
    router = deepseek_router(c)
    moe = deepseek_experts(c, s, router)
    mlp = llama_mlp(c, s)
    blocks = []
    mixed = len(set(full)) > 1
    for own, sparse in zip(full, dense_first(c), strict=True):
        attention = latent_attention(c, s, indexer=indexer if own else None, chosen_keys=keys)
        prefix = ""
        if mixed and not own:
            attention = replace(attention, name="LaterAttention")
            prefix = "Later"
        blocks.append(
            Block(
                attention,
                moe if sparse else mlp,
                RMS,
                name=prefix + ("Block" if sparse else "Dense"),
                stream=s,
            )
        )
    return decoder(c, name, blocks)


def deepseek_v32(c: Config) -> Decoder:
    return indexed(c, "DeepSeekV32", [True] * c.number("num_hidden_layers"))


def glm_moe_dsa(c: Config) -> Decoder:
    layers = c.number("num_hidden_layers")
    kinds = c.get("indexer_types")
    if kinds is None:
        every, offset = c.number("index_topk_freq", 1), c.count("index_skip_topk_offset", 1)
        kinds = ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(layers)]
    return indexed(c, "GlmMoeDsa", [kind == "full" for kind in kinds[:layers]])


def ernie_sparse(c: Config) -> list[bool]:
    every, first = c.number("moe_layer_interval"), c.count("moe_layer_start_index")
    layers, last = c.number("num_hidden_layers"), c.get("moe_layer_end_index")
    last = layers - 1 if last == -1 else last
    return [first <= i <= last and (i + 1) % every == 0 for i in range(layers)]


def dots_windows(c: Config) -> list[int]:
    """Layers from `max_window_layers` on have a window."""
    window, first = c.count("sliding_window"), c.count("max_window_layers")
    kinds = layer_kinds(
        c, lambda i: "sliding_attention" if window and i >= first else "full_attention"
    )
    return windows(c, kinds, window)


def mimo_v2_flash(c: Config) -> Decoder:
    s = stream(c)
    layers = c.number("num_hidden_layers")
    kinds = layer_kinds(c, lambda i: "sliding_attention" if i and (i + 1) % 6 else "full_attention")
    local = [bool(p) for p in c.get("hybrid_layer_pattern", windows(c, kinds, 1))]
    frequency = c.get("moe_layer_freq")
    sparse = [bool(f) for f in frequency] if isinstance(frequency, list) else dense_first(c, 1)
    if len(local) < layers or len(sparse) < layers:
        key = "hybrid_layer_pattern" if len(local) < layers else "moe_layer_freq"
        message = f"`{key}` has no entry for each layer"
        raise c.unsupported(message, key, help=f"list {layers} layers")
    factor = c.real("attention_value_scale", 1.0)
    width, kv_heads = head_width(c), c.number("num_key_value_heads")
    far = llama_attention(
        c,
        s,
        value_width=c.number("v_head_dim", width),
        rotary=int(width * c.real("partial_rotary_factor", 1.0)) // 2 * 2,
        value_factor=0.0 if factor == 1 else factor,
        **biases(c.flag("attention_bias"), output=False),
    )
    # Beside a token itself a query sees so many before it.
    reaches = c.get("sliding_window_size") is not None
    near = replace(
        far,
        name="LocalAttention",
        kv_heads=2 * kv_heads,
        window=c.count("sliding_window_size") + 1 if reaches else c.number("sliding_window"),
        sinks="sinks",
    )
    for key, value in (
        ("swa_num_attention_heads", far.heads),
        ("swa_num_key_value_heads", near.kv_heads),
        ("swa_head_dim", width),
        ("swa_v_head_dim", far.value_width),
        ("add_swa_attention_sink_bias", True),
        ("add_full_attention_sink_bias", False),
    ):
        if (said := c.get(key, value)) != value:
            message = f"`{key}` is {shown(said)}, and {shown(value)} in this class"
            raise c.unsupported(message, key, help="leave it out")
    moe = deepseek_experts(c, s, deepseek_router(c))
    mlp = llama_mlp(c, s)
    blocks = [
        Block(
            near if l else far,
            moe if e else mlp,
            RMS,
            name=("Local" if l else "") + ("Block" if e else "Dense"),
            stream=s,
        )
        for l, e in zip(local[:layers], sparse[:layers], strict=True)
    ]
    return decoder(c, "MiMoV2", blocks)


def afmoe_windows(c: Config) -> Callable[[int], int]:
    every = c.number("global_attn_every_n_layers")
    return lambda i: (i + 1) % every


def minicpm_residual(c: Config) -> float:
    root = c.number("num_hidden_layers") ** 0.5
    return c.real("scale_depth", root) / root


def rounded_width(c: Config) -> int:
    """Heads need not be as wide together as the model: the class rounds their width down."""
    return c.number("head_dim", c.number("hidden_size") // c.number("num_attention_heads"))


NO_OUTPUT_BIAS = biases(flag("attention_bias"), output=False)
FROM_ONE: dict[str, Any] = {"sparse": lambda c: dense_first(c, 1)}
ROUTED: dict[str, Any] = {"ffn": deepseek_experts, "sparse": dense_first}
LATENT: dict[str, Any] = {"attend": latent_attention, **ROUTED}
BY_SIGMOID = {"router": deepseek_router}
BY_SOFTMAX = {"router": lambda c: deepseek_router(c, "softmax", correction=False)}
DEEPSEEK_V3 = FamilyRow("DeepSeekV3", {}, BY_SIGMOID, **LATENT)
GLM4_MOE = FamilyRow(
    "Glm4Moe",
    {
        "width": rounded_width,
        "rotary": turned(0.5, rounded_width),
        "qk_norm": where("use_qk_norm", RMS, NO_NORM),
        **NO_OUTPUT_BIAS,
    },
    BY_SIGMOID,
    **ROUTED,
)
USE_BIAS = flag("use_bias")

DEEPSEEK: Decoders = {
    "deepseek_v2": FamilyRow("DeepSeekV2", {}, BY_SOFTMAX, **LATENT),
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "mistral4": FamilyRow("Mistral4", {}, BY_SOFTMAX, **LATENT),
    "glm4_moe_lite": FamilyRow("Glm4MoeLite", {}, BY_SIGMOID, **LATENT | FROM_ONE),
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": glm_moe_dsa,
    "glm4_moe": GLM4_MOE,
    "solar_open": FamilyRow("SolarOpen", NO_OUTPUT_BIAS, BY_SIGMOID, ffn=deepseek_experts),
    "ernie4_5_moe": FamilyRow(
        "Ernie45Moe",
        biases(USE_BIAS),
        {
            "router": Router(
                normalise=True,
                correction="gate.moe_statics.e_score_correction_bias",
                correction_is_buffer=False,
            ),
            "many": count("moe_num_shared_experts"),
            "bias": USE_BIAS,
            "key": "num_experts",
        },
        {"head_bias": USE_BIAS},
        ffn=deepseek_experts,
        sparse=ernie_sparse,
        dense={"bias": USE_BIAS},
    ),
    "youtu": FamilyRow("Youtu", attend=latent_attention),
    "axk1": FamilyRow(
        "AxK1",
        {},
        {**BY_SIGMOID, "last_norm": "post_mlp_layernorm"},
        refused=((lambda c: c.get("moe_layer_freq", 1) != 1, "`moe_layer_freq` is 1 here"),),
        **LATENT | FROM_ONE,
    ),
    "exaone_moe": replace(
        EXAONE4,
        name="ExaoneMoe",
        mlp={**BY_SIGMOID, "many": count("num_shared_experts"), "key": "num_experts"},
        block={},
        **ROUTED,
    ),
    "dots1": FamilyRow(
        "Dots1", {"qk_norm": RMS, **BIASES}, BY_SIGMOID, near=dots_windows, **ROUTED
    ),
    "mimo_v2_flash": mimo_v2_flash,
    "minicpm3": FamilyRow(
        "MiniCpm3",
        {"values": lambda c: c.number("v_head_dim", plain_width(c))},
        MLP_BIAS,
        {
            "embed_factor": real("scale_emb"),
            "logit_factor": lambda c: (
                c.number("dim_model_base", c.number("hidden_size")) / c.number("hidden_size")
            ),
        },
        block={"residual": minicpm_residual},
        attend=latent_attention,
    ),
    # Layers with a window are rotated by position, those without are not.
    "afmoe": FamilyRow(
        "Afmoe",
        {"qk_norm": RMS, "gate": "gate_proj", "rotary": 0, **BIASES},
        {
            "router": lambda c: Router(
                "sigmoid",
                normalise=True,
                factor=c.real("route_scale"),
                correction="expert_bias",
                correction_is_buffer=False,
                tensor="router.gate.weight",
            ),
            "many": count("num_shared_experts"),
            "key": "num_experts",
        },
        {"embed_factor": where("mup_enabled", of_width(lambda width: width**0.5), 1.0)},
        block={
            "form": "sandwich",
            "norms": (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_mlp_layernorm",
                "post_mlp_layernorm",
            ),
        },
        near=by_rule(afmoe_windows),
        local={"rotary": -1},
        ffn=deepseek_experts,
        sparse=lambda c: [
            i >= c.count("num_dense_layers") for i in range(c.number("num_hidden_layers"))
        ],
    ),
    "hy_v3": FamilyRow(
        "HyV3",
        {"qk_norm": RMS, **BIASES},
        {
            "router": lambda c: Router(
                "sigmoid",
                normalise=True,
                factor=c.real("router_scaling_factor"),
                correction="e_score_correction_bias",
            ),
            "many": number("num_shared_experts"),
            "bias": flag("mlp_bias"),
            "key": "num_experts",
        },
        ffn=deepseek_experts,
        dense=MLP_BIAS,
        **FROM_ONE,
    ),
}
