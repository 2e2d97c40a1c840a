"""State-space models, and decoders that mix them, or linear attention, with attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    by_kind,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    rotated,
)
from stagec.importing.families.deepseek import (
    deepseek_experts,
    deepseek_router,
    latent_attention,
)
from stagec.importing.families.experts import dense_first, experts, qwen_experts, sparse_layers
from stagec.importing.families.multimodal import qwen3_tower, seeing
from stagec.importing.families.rows import (
    ALL_HEADS_NORMED,
    POST_ONLY,
    decoder,
    same,
    stream,
    with_dense,
)
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import RMS, Stream
from stagec.importing.recurrent import (
    DELTA_ALONE,
    DELTA_FUSED,
    DELTA_SPLIT,
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
)
from stagec.importing.routing import Router
from stagec.importing.text import LayerPart


def mamba2(c: Config) -> Decoder:
    s = stream(c)
    heads, width = c.number("num_heads"), c.number("head_dim")
    if heads * width != c.number("expand") * s.width:
        times = c.number("expand")
        message = f"{heads} heads of {width} are not {times} times the width"
        help_ = f"{heads} heads of {times * s.width} / {heads} are"
        raise c.unsupported(message, "num_heads", "head_dim", "expand", help=help_)
    mixer = Mamba2(
        s,
        heads,
        width,
        c.number("n_groups"),
        c.number("state_size"),
        c.number("conv_kernel"),
        c.number("chunk_size"),
        bias=c.flag("use_bias"),
        filter_bias=c.flag("use_conv_bias"),
        stem="backbone.layers.{i}.mixer.",
    )
    return state_spaces(c, "Mamba2", mixer, s)


def state_spaces(c: Config, name: str, mixer: LayerPart, s: Stream) -> Decoder:
    stem = "backbone.layers.{i}."
    block = Block(mixer, None, RMS, form="single", norms=("norm",), stem=stem, stream=s)
    return decoder(
        c,
        name,
        same(c, block),
        positions=2048,
        prefix="backbone.",
        embed="embeddings",
        norm="norm_f",
    )


def time_step_rank(c: Config, key: str, width: int) -> int:
    rank = c.get(key)
    return -(-width // 16) if rank == "auto" else c.number(key)


def mamba(c: Config, name: str = "Mamba", bare_norms: bool = False) -> Decoder:
    s = stream(c)
    inner = c.number("intermediate_size", int(c.get("expand") * s.width))
    mixer = Mamba1(
        s,
        inner,
        c.number("state_size"),
        time_step_rank(c, "time_step_rank", s.width),
        c.number("conv_kernel"),
        bias=c.flag("use_bias"),
        filter_bias=c.flag("use_conv_bias"),
        bare_norms=bare_norms,
        name="Mixer",
        stem="backbone.layers.{i}.mixer.",
    )
    return state_spaces(c, name, mixer, s)


def falcon_mamba(c: Config) -> Decoder:
    return mamba(c, "FalconMamba", bare_norms=True)


def jamba(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, rotary=0)
    inner = c.number("mamba_expand") * s.width
    mixer = Mamba1(
        s,
        inner,
        c.number("mamba_d_state"),
        time_step_rank(c, "mamba_dt_rank", s.width),
        c.number("mamba_d_conv"),
        bias=c.flag("mamba_proj_bias"),
        filter_bias=c.flag("mamba_conv_bias"),
        norms=("dt_layernorm", "b_layernorm", "c_layernorm"),
    )
    stem = "model.layers.{i}.feed_forward."
    mlp = llama_mlp(c, s, stem=stem)
    moe = experts(
        c,
        s,
        Router(tensor="router.weight"),
        hidden=c.number("intermediate_size"),
        stem=stem,
    )
    kinds = layer_kinds(
        c,
        lambda i: (
            "full_attention"
            if i % c.number("attn_layer_period") == c.count("attn_layer_offset")
            else "linear_attention"
        ),
    )
    period, offset = c.number("expert_layer_period"), c.count("expert_layer_offset")
    many = c.number("num_experts")
    blocks = []
    known = {"full_attention": True, "attention": True, "linear_attention": False, "mamba": False}
    for i, attends in enumerate(by_kind(c, kinds, known)):
        sparse = many > 1 and i % period == offset
        name = ("Attention" if attends else "Mamba") + ("ExpertsBlock" if sparse else "Block")
        blocks.append(
            Block(
                attention if attends else mixer,
                moe if sparse else mlp,
                RMS,
                name=name,
                norms=("input_layernorm", "pre_ff_layernorm"),
                stream=s,
            )
        )
    return decoder(c, "Jamba", blocks, norm="final_layernorm")


NEMOTRON_KINDS = {
    "M": "linear_attention",
    "mamba": "linear_attention",
    "linear_attention": "linear_attention",
    "*": "full_attention",
    "attention": "full_attention",
    "full_attention": "full_attention",
    "E": "moe",
    "moe": "moe",
    "-": "mlp",
    "mlp": "mlp",
}


def nemotron_h(c: Config) -> Decoder:
    s = stream(c)
    pattern = c.get("layers_block_type") or c.get("hybrid_override_pattern")
    if pattern is None:
        pattern = ["linear_attention", "moe", "full_attention", "mlp"]
    stem = "model.layers.{i}."
    mixer_stem = f"{stem}mixer."
    act = activation(c, "mlp_hidden_act")
    bias = c.flag("mlp_bias")

    def mlp(hidden: int, **more: Any) -> Mlp:
        settings: dict[str, Any] = {"stem": mixer_stem, **more}
        return Mlp(s, hidden, act, gated=False, bias=bias, **settings)

    def part(kind: str) -> LayerPart:
        if kind == "linear_attention":
            return Mamba2(
                s,
                c.number("mamba_num_heads"),
                c.number("mamba_head_dim"),
                c.number("mamba_n_groups", c.number("n_groups")),
                c.number("ssm_state_size"),
                c.number("mamba_d_conv", c.number("conv_kernel")),
                c.number("mamba_chunk_size", c.number("chunk_size")),
                bias=c.flag("use_bias"),
                filter_bias=c.flag("use_conv_bias"),
            )
        if kind == "full_attention":
            window = c.count("sliding_window")
            return llama_attention(c, s, rotary=0, stem=mixer_stem, window=window)
        if kind == "mlp":
            return mlp(c.number("intermediate_size"))
        many = c.count("n_shared_experts")
        shared = None
        if many:
            shared = mlp(
                c.number("moe_shared_expert_intermediate_size"),
                name="Shared",
                stem=f"{mixer_stem}shared_experts.",
                letter="FS",
                what="feed-forward width of the shared expert",
            )
        return experts(
            c,
            s,
            deepseek_router(c),
            experts=c.number("n_routed_experts"),
            act=act,
            gated=False,
            gate_up="experts.up_proj",
            stem=mixer_stem,
            shared=shared,
            latent=c.count("moe_latent_size"),
        )

    names = {
        "linear_attention": "MambaBlock",
        "full_attention": "AttentionBlock",
        "moe": "ExpertsBlock",
        "mlp": "MlpBlock",
    }
    kinds = by_kind(c, pattern, NEMOTRON_KINDS)
    made = {kind: part(kind) for kind in dict.fromkeys(kinds)}
    blocks = [
        Block(
            made[kind],
            None,
            RMS,
            name=names[kind],
            form="single",
            norms=("norm",),
            stem=stem,
            stream=s,
        )
        for kind in kinds
    ]
    return decoder(c, "NemotronH", blocks, embed="embeddings", norm="norm_f", tied=False)


# Gated delta nets


def delta_net(c: Config, s: Stream, tensors: tuple[str, ...], **more: Any) -> GatedDeltaNet:
    heads = c.number("num_attention_heads")
    key_heads = c.number("linear_num_key_heads", heads)
    width = c.number("linear_key_head_dim", int(0.75 * s.width / key_heads))
    return GatedDeltaNet(
        s,
        key_heads,
        c.number("linear_num_value_heads", heads),
        width,
        c.number("linear_value_head_dim", 2 * width),
        c.number("linear_conv_kernel_dim"),
        tensors,
        **more,
    )


def gated_attention(c: Config, s: Stream) -> Attention:
    """Attention whose result is multiplied by a gate that comes with the queries."""
    width = head_width(c)
    return llama_attention(
        c,
        s,
        gate="fused",
        qk_norm=RMS,
        rotary=rotated(c, width, 0.25),
        **biases(c.flag("attention_bias")),
    )


def delta_blocks(c: Config, s: Stream, ffn: LayerPart, tensors: tuple[str, ...]) -> list[Block]:
    every = c.number("full_attention_interval", 4)
    kinds = layer_kinds(
        c, lambda i: "full_attention" if (i + 1) % every == 0 else "linear_attention"
    )
    attention, linear = gated_attention(c, s), delta_net(c, s, tensors)
    known = {
        "full_attention": Block(attention, ffn, RMS, name="AttentionBlock", stream=s),
        "linear_attention": Block(linear, ffn, RMS, name="DeltaBlock", stream=s),
    }
    return by_kind(c, kinds, known)


def qwen3_next(c: Config) -> Decoder:
    s = stream(c)
    moe = qwen_experts(c, s, c.flag("norm_topk_prob"))
    blocks = with_dense(sparse_layers(c), delta_blocks(c, s, moe, DELTA_FUSED), llama_mlp(c, s))
    return decoder(c, "Qwen3Next", blocks)


def qwen3_5_text(c: Config) -> Decoder:
    s = stream(c)
    return decoder(c, "Qwen35", delta_blocks(c, s, llama_mlp(c, s), DELTA_SPLIT))


def qwen3_5_moe_text(c: Config) -> Decoder:
    s = stream(c)
    return decoder(c, "Qwen35Moe", delta_blocks(c, s, qwen_experts(c, s, True), DELTA_SPLIT))


def olmo_hybrid(c: Config) -> Decoder:
    """Norms stand after attention, and before delta nets."""
    s = stream(c)
    turned = {} if c.rope().get("rope_theta") else {"rotary": 0}
    attention = llama_attention(
        c, s, **ALL_HEADS_NORMED, **biases(c.flag("attention_bias")), **turned
    )
    writes = 2.0 if c.flag("linear_allow_neg_eigval") else 1.0
    linear = delta_net(c, s, DELTA_ALONE, act=activation(c), writes=writes)
    mlp = llama_mlp(c, s)
    known = {
        "full_attention": Block(attention, mlp, RMS, stream=s, name="AttentionBlock", **POST_ONLY),
        "linear_attention": Block(linear, mlp, RMS, stream=s, name="DeltaBlock"),
    }
    last = c.number("num_hidden_layers") - 1
    kinds = layer_kinds(
        c, lambda i: "full_attention" if i % 4 == 3 or i == last < 3 else "linear_attention"
    )
    return decoder(c, "OlmoHybrid", by_kind(c, kinds, known))


def qwen3_5(c: Config) -> Decoder:
    text = qwen3_5_text(c.part("text_config", "qwen3_5_text"))
    return qwen3_tower(c, "qwen3_5_vision", seeing(c, text), "Qwen35VL")


def qwen3_5_moe(c: Config) -> Decoder:
    text = qwen3_5_moe_text(c.part("text_config", "qwen3_5_moe_text"))
    return qwen3_tower(c, "qwen3_5_moe_vision", seeing(c, text), "Qwen35MoeVL")


def kimi_linear(c: Config) -> Decoder:
    s = stream(c)
    own = c.part("linear_attn_config")
    kinds = layer_kinds(c, lambda i: "full_attention" if i and i % 4 == 0 else "linear_attention")
    if c.layer_types() is None and own.has("full_attn_layers") and own.has("kda_layers"):
        # Counted from 1.
        full, deltas = (own.get(key) for key in ("full_attn_layers", "kda_layers"))
        if sorted([*full, *deltas]) != list(range(1, len(kinds) + 1)):
            message = "`full_attn_layers` and `kda_layers` do not have each layer once"
            raise own.unsupported(message, "kda_layers", help="list each layer, counted from 1")
        kinds = [
            "full_attention" if i in full else "linear_attention" for i in range(1, 1 + len(kinds))
        ]
    linear = KimiDeltaAttention(
        s,
        own.number("num_heads", c.number("linear_num_heads")),
        own.number("head_dim", c.number("linear_head_dim")),
        own.number("short_conv_kernel_size", c.number("linear_conv_kernel_dim")),
        activation(c),
    )
    blocks = kimi_blocks(c, kinds, latent_attention(c, s, rotary=False), linear, 1)
    return decoder(c, "KimiLinear", blocks, tied=False)


def kimi_blocks(
    c: Config, kinds: list[str], attention: LayerPart, linear: LayerPart, first: int
) -> list[Block]:
    """Layers of either kind, the first with a dense network."""
    s = stream(c)
    moe = deepseek_experts(c, s, deepseek_router(c), key="num_local_experts")
    known = {
        "full_attention": Block(attention, moe, RMS, name="AttentionBlock", stream=s),
        "linear_attention": Block(linear, moe, RMS, name="DeltaBlock", stream=s),
    }
    return with_dense(dense_first(c, first), by_kind(c, kinds, known), llama_mlp(c, s))


def bailing_hybrid(c: Config) -> Decoder:
    s = stream(c)
    every = c.number("layer_group_size")
    kinds = layer_kinds(c, lambda i: "linear_attention" if (i + 1) % every else "full_attention")
    linear = KimiDeltaAttention(
        s,
        c.number("num_attention_heads"),
        head_width(c),
        c.number("short_conv_kernel_size"),
        activation(c),
        narrow=False,
        lowest=c.real("kda_lower_bound") if c.flag("kda_safe_gate") else 0.0,
    )
    attention = latent_attention(c, s, query_latent=0, head_gate="g_proj")
    blocks = kimi_blocks(c, kinds, attention, linear, 2)
    return decoder(c, "BailingHybrid", blocks, tied=False)


def minimax(c: Config) -> Decoder:
    s = stream(c)
    heads, width = c.number("num_attention_heads"), head_width(c)
    attention = llama_attention(c, s, window=c.count("sliding_window"))
    turned = c.count("rotary_dim")
    if turned and turned != width:
        attention = replace(attention, rotary=turned)
    linear = LightningAttention(s, heads, width, c.number("block_size"), activation(c))
    moe = experts(
        c,
        s,
        Router(normalise=True),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
    )
    kinds = layer_kinds(c, lambda i: "linear_attention" if i % 2 else "full_attention")
    if c.get("attn_type_list"):
        kinds = [
            "full_attention" if kind else "linear_attention" for kind in c.get("attn_type_list")
        ]
    beside = (c.real("mlp_alpha_factor"), c.real("mlp_beta_factor"))

    def block(prefix: str) -> Block:
        full = prefix == "full"
        factors = (
            c.real(f"{prefix}_attn_alpha_factor"),
            c.real(f"{prefix}_attn_beta_factor"),
            *beside,
        )
        return Block(
            attention if full else linear,
            moe,
            RMS,
            name="AttentionBlock" if full else "LightningBlock",
            form="normed",
            factors=factors,
            stream=s,
        )

    made = {f"{prefix}_attention": block(prefix) for prefix in ("full", "linear")}
    return decoder(c, "MiniMax", by_kind(c, kinds, made))


HYBRID = {
    "mamba": mamba,
    "falcon_mamba": falcon_mamba,
    "mamba2": mamba2,
    "jamba": jamba,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
    "olmo_hybrid": olmo_hybrid,
    "bailing_hybrid": bailing_hybrid,
    "qwen3_5": qwen3_5,
    "qwen3_5_text": qwen3_5_text,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_5_moe_text": qwen3_5_moe_text,
    "minimax": minimax,
    "kimi_linear": kimi_linear,
}
