"""DeepSeek's decoders, and those with routers of that kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stagec.importing.config import Config, Unsupported
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    biases,
    divided,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    rotated,
    windows,
)
from stagec.importing.families.experts import experts, sparse_or_dense
from stagec.importing.families.rows import by_window, decoder, same, stream
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


def latent_attention(c: Config, s: Stream, values: int = 0, **more: Any) -> LatentAttention:
    return LatentAttention(
        s,
        c.number("num_attention_heads"),
        c.number("qk_nope_head_dim"),
        c.number("qk_rope_head_dim"),
        values or c.number("v_head_dim"),
        c.number("kv_lora_rank"),
        c.count("q_lora_rank"),
        bias=c.flag("attention_bias"),
        **more,
    )


def dense_first(c: Config, otherwise: int = 0) -> list[bool]:
    """Layers from `first_k_dense_replace` on have experts."""
    given = c.get("mlp_layer_types")
    layers = c.number("num_hidden_layers")
    if isinstance(given, list):
        return [kind == "sparse" for kind in given[:layers]]
    first = c.count("first_k_dense_replace", otherwise)
    return [i >= first for i in range(layers)]


def deepseek(c: Config, name: str, router: Router, first: int = 0) -> Decoder:
    s = stream(c)
    attention = latent_attention(c, s)
    moe = deepseek_experts(c, s, router)
    sparse = Block(attention, moe, RMS, stream=s)
    dense = Block(attention, llama_mlp(c, s), RMS, stream=s)
    return decoder(c, name, sparse_or_dense(dense_first(c, first), sparse, dense))


def deepseek_v2(c: Config) -> Decoder:
    return deepseek(c, "DeepSeekV2", deepseek_router(c, "softmax", correction=False))


def deepseek_v3(c: Config) -> Decoder:
    return deepseek(c, "DeepSeekV3", deepseek_router(c))


def mistral4(c: Config) -> Decoder:
    return deepseek(c, "Mistral4", deepseek_router(c, "softmax", correction=False))


def glm4_moe_lite(c: Config) -> Decoder:
    return deepseek(c, "Glm4MoeLite", deepseek_router(c), first=1)


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


def glm4_moe(c: Config) -> Decoder:
    """Heads need not be as wide together as the model: the class rounds their width down."""
    s = stream(c)
    width = c.number("head_dim", s.width // c.number("num_attention_heads"))
    attention = llama_attention(
        c,
        s,
        width=width,
        rotary=rotated(c, width, 0.5),
        qk_norm=RMS if c.flag("use_qk_norm") else NO_NORM,
        **biases(c.flag("attention_bias"), output=False),
    )
    moe = deepseek_experts(c, s, deepseek_router(c))
    sparse = Block(attention, moe, RMS, stream=s)
    dense = Block(attention, llama_mlp(c, s), RMS, stream=s)
    return decoder(c, "Glm4Moe", sparse_or_dense(dense_first(c), sparse, dense))


def solar_open(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("attention_bias"), output=False))
    moe = deepseek_experts(c, s, deepseek_router(c))
    return decoder(c, "SolarOpen", same(c, Block(attention, moe, RMS, stream=s)))


def ernie4_5_moe(c: Config) -> Decoder:
    s = stream(c)
    bias = c.flag("use_bias")
    attention = llama_attention(c, s, **biases(bias))
    router = Router(
        normalise=True,
        correction="gate.moe_statics.e_score_correction_bias",
        correction_is_buffer=False,
    )
    always = c.count("moe_num_shared_experts")
    moe = deepseek_experts(c, s, router, always, bias, key="num_experts")
    every, first = c.number("moe_layer_interval"), c.count("moe_layer_start_index")
    layers, last = c.number("num_hidden_layers"), c.get("moe_layer_end_index")
    last = layers - 1 if last == -1 else last
    sparse = [first <= i <= last and (i + 1) % every == 0 for i in range(layers)]
    blocks = [Block(attention, ffn, RMS, stream=s) for ffn in (moe, llama_mlp(c, s, bias=bias))]
    return decoder(c, "Ernie45Moe", sparse_or_dense(sparse, *blocks), head_bias=bias)


def dots1(c: Config) -> Decoder:
    s = stream(c)
    on: dict[str, Any] = {"qk_norm": RMS, **biases(c.flag("attention_bias"))}
    attention = llama_attention(c, s, **on)
    window = c.count("sliding_window")
    first = c.count("max_window_layers")
    kinds = layer_kinds(
        c, lambda i: "sliding_attention" if window and i >= first else "full_attention"
    )
    moe = deepseek_experts(c, s, deepseek_router(c))
    blocks = sparse_or_dense(
        dense_first(c),
        Block(attention, moe, RMS, stream=s),
        Block(attention, llama_mlp(c, s), RMS, stream=s),
    )
    if any(windows(kinds, window)):
        raise Unsupported("windows of this class (`layer_types`) are not imported")
    return decoder(c, "Dots1", blocks)


def mimo_v2_flash(c: Config) -> Decoder:
    s = stream(c)
    layers = c.number("num_hidden_layers")
    kinds = layer_kinds(c, lambda i: "sliding_attention" if i and (i + 1) % 6 else "full_attention")
    local = [bool(p) for p in c.get("hybrid_layer_pattern", windows(kinds, 1))]
    frequency = c.get("moe_layer_freq")
    sparse = [bool(f) for f in frequency] if isinstance(frequency, list) else dense_first(c, 1)
    if len(local) < layers or len(sparse) < layers:
        raise Unsupported(
            "`hybrid_layer_pattern` and `moe_layer_freq` have an entry for each layer"
        )
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
            raise Unsupported(f"`{key}` is {said!r}, and {value!r} in this class")
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


def minicpm3(c: Config) -> Decoder:
    s = stream(c)
    layers, heads = c.number("num_hidden_layers"), c.number("num_attention_heads")
    values = c.number("v_head_dim", divided(s.width, heads, "heads"))
    attention = latent_attention(c, s, values)
    block = Block(attention, llama_mlp(c, s, bias=c.flag("mlp_bias")), RMS, stream=s)
    return decoder(
        c,
        "MiniCpm3",
        same(c, replace(block, residual=c.real("scale_depth", layers**0.5) / layers**0.5)),
        embed_factor=c.real("scale_emb"),
        logit_factor=c.number("dim_model_base", s.width) / s.width,
    )


def afmoe(c: Config) -> Decoder:
    """Layers with a window are rotated by position, those without are not."""
    s = stream(c)
    attention = llama_attention(
        c, s, qk_norm=RMS, gate="gate_proj", rotary=0, **biases(c.flag("attention_bias"))
    )
    every = c.number("global_attn_every_n_layers")
    kinds = layer_kinds(c, lambda i: "sliding_attention" if (i + 1) % every else "full_attention")
    router = Router(
        "sigmoid",
        normalise=True,
        factor=c.real("route_scale"),
        correction="expert_bias",
        correction_is_buffer=False,
        tensor="router.gate.weight",
    )
    moe = deepseek_experts(c, s, router, c.count("num_shared_experts"), key="num_experts")
    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_mlp_layernorm",
        "post_mlp_layernorm",
    )
    block = Block(None, moe, RMS, form="sandwich", norms=norms, stream=s)
    near = windows(kinds, c.count("sliding_window"))
    blocks = by_window(near, attention, block, {"rotary": -1})
    mlp, first = llama_mlp(c, s), c.count("num_dense_layers")
    dense = [replace(b, ffn=mlp, name=f"Dense{b.name}") for b in blocks[:first]]
    factor = s.width**0.5 if c.flag("mup_enabled") else 1.0
    return decoder(c, "Afmoe", [*dense, *blocks[first:]], embed_factor=factor)


def hy_v3(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, qk_norm=RMS, **biases(c.flag("attention_bias")))
    router = Router(
        "sigmoid",
        normalise=True,
        factor=c.real("router_scaling_factor"),
        correction="e_score_correction_bias",
    )
    bias = c.flag("mlp_bias")
    moe = deepseek_experts(c, s, router, c.number("num_shared_experts"), bias, key="num_experts")
    sparse = Block(attention, moe, RMS, stream=s)
    dense = Block(attention, llama_mlp(c, s, bias=bias), RMS, stream=s)
    return decoder(c, "HyV3", sparse_or_dense(dense_first(c, 1), sparse, dense))


DEEPSEEK = {
    "hy_v3": hy_v3,
    "minicpm3": minicpm3,
    "afmoe": afmoe,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": glm_moe_dsa,
    "glm4_moe": glm4_moe,
    "mistral4": mistral4,
    "glm4_moe_lite": glm4_moe_lite,
    "solar_open": solar_open,
    "ernie4_5_moe": ernie4_5_moe,
    "dots1": dots1,
    "mimo_v2_flash": mimo_v2_flash,
}
