"""Decoders with routed experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stagec.importing.config import Config, Unsupported
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    plain_attention,
    rotated,
    square,
    windows,
)
from stagec.importing.families.dense import (
    POST_NORMS,
    by_window,
    decoder,
    granite_factors,
    qwen_windows,
    same,
    stream,
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


def sparse_or_dense(blocks: Sequence[bool], sparse: Block, dense: Block) -> list[Block]:
    """A block for each layer; one of the kinds has a name of its own if there are both."""
    if len(set(blocks)) > 1:
        dense = replace(dense, name="Dense")
    return [sparse if each else dense for each in blocks]


def mixtral(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, window=c.count("sliding_window"))
    moe = experts(
        c,
        s,
        Router(normalise=True),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
    )
    return decoder(c, "Mixtral", same(c, Block(attention, moe, RMS, stream=s)))


def sparse_layers(c: Config) -> list[bool]:
    """Qwen's rule: each `decoder_sparse_step`-th layer, but for those of `mlp_only_layers`."""
    every = c.number("decoder_sparse_step", 1)
    dense = c.get("mlp_only_layers", [])
    return [
        i not in dense and c.count("num_experts") > 0 and (i + 1) % every == 0
        for i in range(c.number("num_hidden_layers"))
    ]


def qwen2_moe(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("qkv_bias", True), output=False))
    moe = experts(
        c,
        s,
        Router(normalise=c.flag("norm_topk_prob")),
        shared=shared_expert(c, s),
        shared_gate="shared_expert_gate.weight",
    )
    kinds = qwen_windows(c)
    block = Block(None, moe, RMS, stream=s)
    blocks = by_window(kinds, attention, block)
    return decoder(c, "Qwen2Moe", with_dense(c, blocks, llama_mlp(c, s)))


def with_dense(c: Config, blocks: Sequence[Block], dense: Mlp) -> list[Block]:
    """Layers without experts among those that have them."""
    sparse = sparse_layers(c)
    mixed = len(set(sparse)) > 1
    return [
        b if each else replace(b, ffn=dense, name=f"Dense{b.name}" if mixed else b.name)
        for b, each in zip(blocks, sparse, strict=True)
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


def qwen3_moe(c: Config, normalise: bool | None = None) -> Decoder:
    s = stream(c)
    window = c.count("sliding_window") if c.flag("use_sliding_window") else 0
    attention = llama_attention(
        c, s, qk_norm=RMS, window=window, **biases(c.flag("attention_bias"))
    )
    normalise = c.flag("norm_topk_prob") if normalise is None else normalise
    moe = experts(c, s, Router(normalise=normalise))
    blocks = same(c, Block(attention, moe, RMS, stream=s))
    return decoder(c, "Qwen3Moe", with_dense(c, blocks, llama_mlp(c, s)))


def olmoe(c: Config) -> Decoder:
    s = stream(c)
    bias = biases(c.flag("attention_bias"))
    clip = c.real("clip_qkv", 0)
    attention = square(llama_attention(c, s, qk_norm=RMS, qk_norm_over="all", clip=clip, **bias))
    moe = experts(
        c, s, Router(normalise=c.flag("norm_topk_prob")), hidden=c.number("intermediate_size")
    )
    return decoder(c, "Olmoe", same(c, Block(attention, moe, RMS, stream=s)))


def flex_olmo(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c, s, qk_norm=RMS, qk_norm_over="all", **biases(c.flag("attention_bias"))
    )
    moe = experts(
        c, s, Router(normalise=c.flag("norm_topk_prob")), hidden=c.number("intermediate_size")
    )
    block = Block(attention, moe, RMS, form="post_only", norms=POST_NORMS, stream=s)
    return decoder(c, "FlexOlmo", same(c, block))


def hunyuan_v1_moe(c: Config) -> Decoder:
    s = stream(c)
    on: dict[str, Any] = biases(c.flag("attention_bias"))
    names = ("query_layernorm", "key_layernorm")
    attention = llama_attention(c, s, qk_norm=RMS, qk_norm_names=names, norm_after_rope=True, **on)
    chosen = c.get("moe_topk", 1)
    if isinstance(chosen, list) and len(set(chosen)) == 1:
        chosen = chosen[0]
    if not isinstance(chosen, int) or isinstance(c.get("num_experts"), list):
        raise Unsupported("experts that differ from layer to layer are not imported")
    shared = llama_mlp(
        c,
        s,
        name="Shared",
        stem="model.layers.{i}.mlp.shared_mlp.",
        letter="FS",
        what="feed-forward width of the shared expert",
    )
    moe = experts(
        c,
        s,
        Router(normalise=True, tensor="gate.wg.weight"),
        per_token=chosen,
        hidden=c.number("intermediate_size"),
        shared=shared,
    )
    return decoder(c, "HunYuanMoe", same(c, Block(attention, moe, RMS, stream=s)))


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


def granitemoe(c: Config) -> Decoder:
    return granite_moe_blocks(c, "GraniteMoe", None)


def granitemoeshared(c: Config) -> Decoder:
    s = stream(c)
    hidden = c.count("shared_intermediate_size")
    shared = granite_shared(c, s, hidden) if hidden else None
    return granite_moe_blocks(c, "GraniteMoe", shared)


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


def granite_moe_blocks(c: Config, name: str, shared: Mlp | None) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c, s, scale=c.real("attention_multiplier"), **biases(c.flag("attention_bias"))
    )
    moe = granite_experts(c, s, shared=shared)
    block = Block(attention, moe, RMS, stream=s, residual=c.real("residual_multiplier"))
    return decoder(c, name, same(c, block), **granite_factors(c))


def phimoe(c: Config) -> Decoder:
    s = stream(c)
    if c.number("num_experts_per_tok") != 2:
        raise Unsupported("the router of this class chooses two experts (`num_experts_per_tok`)")
    attention = llama_attention(
        c, s, window=c.count("sliding_window"), **biases(c.flag("attention_bias"))
    )
    moe = experts(
        c,
        s,
        Router(tensor="router.weight"),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
    )
    blocks = same(c, Block(attention, moe, LAYER, stream=s))
    return decoder(c, "PhiMoe", blocks, LAYER, head_bias=c.flag("lm_head_bias"))


def minimax_m2(c: Config) -> Decoder:
    s = stream(c)
    width = head_width(c)
    turned = c.count("rotary_dim")
    attention = llama_attention(
        c,
        s,
        qk_norm=RMS,
        qk_norm_over="all",
        rotary=turned if turned and turned != width else rotated(c, width),
    )
    router = Router("sigmoid", normalise=True, correction="e_score_correction_bias")
    moe = experts(
        c,
        s,
        router,
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
    )
    return decoder(c, "MiniMaxM2", same(c, Block(attention, moe, RMS, stream=s)))


def gpt_oss(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, sinks="sinks", **biases(c.flag("attention_bias", True)))
    moe = experts(
        c,
        s,
        Router("after", tensor="router.weight", bias="router.bias"),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
        act="gpt_oss",
        bias=True,
    )
    kinds = layer_kinds(c, lambda i: "full_attention" if i % 2 else "sliding_attention")
    block = Block(None, moe, RMS, stream=s)
    return decoder(
        c, "GptOss", by_window(windows(kinds, c.count("sliding_window")), attention, block)
    )


def dbrx(c: Config) -> Decoder:
    """What attention and experts are has parts of the file of its own."""
    s = stream(c)
    a, f = c.part("attn_config"), c.part("ffn_config")
    act = f.get("ffn_act_fn", {}).get("name", "silu")
    if act not in ACTIVATIONS:
        raise Unsupported(f"the activation `{act}` of `ffn_act_fn` is not in the language")
    stem = "transformer.blocks.{i}."
    attention = plain_attention(
        c,
        s,
        f"{stem}norm_attn_norm.attn.",
        "Wqkv",
        o="out_proj",
        kv_heads=a.number("kv_n_heads", 1),
        rotary=-1,
        clip=a.real("clip_qkv", 0),
    )
    moe = experts(
        c,
        s,
        Router(
            normalise=f.get("moe_normalize_expert_weights", 1.0) == 1, tensor="router.layer.weight"
        ),
        experts=f.number("moe_num_experts", 4),
        per_token=f.number("moe_top_k", 1),
        hidden=f.number("ffn_hidden_size", 3584),
        act=act,
        stem=f"{stem}ffn.",
        gate="experts.mlp.w1",
        gate_up="experts.mlp.v1",
        down="experts.mlp.w2",
    )
    norms = ("norm_attn_norm.norm_1", "norm_attn_norm.norm_2")
    block = Block(attention, moe, PLAIN_LAYER, norms=norms, stem=stem, stream=s)
    return decoder(
        c, "Dbrx", same(c, block), PLAIN_LAYER, prefix="transformer.", embed="wte", norm="norm_f"
    )


EXPERTS = {
    "dbrx": dbrx,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "olmoe": olmoe,
    "flex_olmo": flex_olmo,
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "granitemoe": granitemoe,
    "granitemoeshared": granitemoeshared,
    "phimoe": phimoe,
    "minimax_m2": minimax_m2,
    "gpt_oss": gpt_oss,
}
