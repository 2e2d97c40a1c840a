"""Decoders of attention beside Mamba-2 or short convolutions: Granite 4, Bamba, Falcon-H1, LFM2, RecurrentGemma."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stagec.diagnostics import suggestion
from stagec.importing.config import Config, shown
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    by_kind,
    divided,
    layer_kinds,
    llama_attention,
    llama_mlp,
    rotated,
)
from stagec.importing.families.deepseek import deepseek_router
from stagec.importing.families.experts import experts, granite_experts, granite_shared
from stagec.importing.families.rows import (
    GRANITE_FACTORS,
    asked,
    by_window,
    decoder,
    same,
    stream,
    turned_as,
)
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import RMS, Stream, scaled
from stagec.importing.recurrent import GatedLinearRecurrence, Mamba2, ShortConvolution
from stagec.importing.text import LayerPart, Writer

ATTENDS = {
    "full_attention": True,
    "attention": True,
    "linear_attention": False,
    "mamba": False,
    "conv": False,
}


def mamba_mixer(c: Config, s: Stream, inner: int, **more: Any) -> Mamba2:
    """Mamba-2 with the usual keys, `inner` wide."""
    heads = c.number("mamba_n_heads")
    width = c.get("mamba_d_head")
    width = (
        divided(inner, heads, "heads", c, "mamba_n_heads")
        if width == "auto"
        else c.number("mamba_d_head")
    )
    if heads * width != inner:
        message = f"{heads} heads of {width} are not the {inner} of the mixer"
        keys = ("mamba_d_head", "mamba_n_heads")
        raise c.unsupported(message, *keys, help=f"{heads} heads of {inner} / {heads} are")
    return Mamba2(
        s,
        heads,
        width,
        c.number("mamba_n_groups"),
        c.number("mamba_d_state"),
        c.number("mamba_d_conv"),
        c.number("mamba_chunk_size"),
        bias=c.flag("mamba_proj_bias"),
        filter_bias=c.flag("mamba_conv_bias"),
        stem="model.layers.{i}.mamba.",
        **more,
    )


def granitemoehybrid(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c,
        s,
        scale=c.real("attention_multiplier"),
        **({} if c.get("position_embedding_type") == "rope" else {"rotary": 0}),
        **biases(c.flag("attention_bias")),
    )
    mamba = mamba_mixer(c, s, c.number("mamba_expand") * s.width)
    shared = granite_shared(c, s, c.number("shared_intermediate_size"))
    ffn = granite_experts(c, s, shared=shared) if c.count("num_local_experts") else shared
    block = Block(attention, ffn, RMS, stream=s, residual=c.real("residual_multiplier"))
    attends = by_kind(c, layer_kinds(c, lambda i: "mamba"), ATTENDS)
    blocks = with_mixers(attends, block, mamba, "MambaBlock")
    return decoder(c, "GraniteMoeHybrid", blocks, **asked(c, GRANITE_FACTORS))


def with_mixers(attends: list[bool], block: Block, other: LayerPart, name: str) -> list[Block]:
    return [block if each else replace(block, mixer=other, name=name) for each in attends]


def bamba(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    turned = rotated(c, attention.width, 0.5)
    mlp = llama_mlp(c, s, bias=c.flag("mlp_bias"), stem="model.layers.{i}.feed_forward.")
    norms = ("input_layernorm", "pre_ff_layernorm")
    block = Block(replace(attention, rotary=turned), mlp, RMS, norms=norms, stream=s)
    chosen = c.get("attn_layer_indices", [])
    attends = [i in chosen for i in range(c.number("num_hidden_layers"))]
    mamba = mamba_mixer(c, s, c.number("mamba_expand") * s.width)
    blocks = with_mixers(attends, block, mamba, "MambaBlock")
    return decoder(c, "Bamba", blocks, norm="final_layernorm")


@dataclass(frozen=True)
class Beside:
    """Two mixers that read the same; what they make is added. `factors`: of what goes in and comes out, for each."""

    stream: Stream
    first: LayerPart
    second: LayerPart
    factors: tuple[float, float, float, float]

    def write(self, w: Writer) -> str:
        s = self.stream
        names = w.part(self.first), w.part(self.second)
        m = w.module("Mixers", f"x{s.shape}", s.shape)
        m.calls += names
        a, b, c, d = self.factors
        first, second = (
            scaled(f"{name}({scaled('x', into)})", out)
            for name, into, out in ((names[0], a, b), (names[1], c, d))
        )
        m.line(f"return {first} + {second}")
        return m.name


def factors(c: Config, key: str, many: int) -> tuple[float, ...]:
    """A list of so many numbers; ones if there is none."""
    given = c.get(key, [1.0] * many)
    if not isinstance(given, list) or len(given) != many:
        message = f"`{key}` is {shown(given)}, not {many} numbers"
        raise c.unsupported(message, key, help=f"list {many} numbers, or leave it out")
    return tuple(float(each) for each in given)


def falcon_h1(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    # A factor of the keys is one of the scores.
    attention = replace(attention, scale=c.real("key_multiplier") * attention.width**-0.5)
    mamba = mamba_mixer(
        c,
        s,
        c.count("mamba_d_ssm") or c.number("mamba_expand") * s.width,
        norm=c.flag("mamba_rms_norm"),
        factors=factors(c, "ssm_multipliers", 5),
        out_bias=c.flag("projectors_bias"),
    )
    sides = ("attention_in", "attention_out", "ssm_in", "ssm_out")
    a, b, d, e = (c.real(f"{side}_multiplier") for side in sides)
    mixers = Beside(s, attention, mamba, (a, b, d, e))
    mlp = llama_mlp(
        c,
        s,
        bias=c.flag("mlp_bias"),
        stem="model.layers.{i}.feed_forward.",
        factors=factors(c, "mlp_multipliers", 2),
    )
    block = Block(mixers, mlp, RMS, norms=("input_layernorm", "pre_ff_layernorm"), stream=s)
    return decoder(
        c,
        "FalconH1",
        same(c, block),
        norm="final_layernorm",
        embed_factor=c.real("embedding_multiplier"),
        logit_factor=c.real("lm_head_multiplier"),
    )


def liquid_mlp(c: Config, s: Stream, hidden: int) -> Mlp:
    stem = "model.layers.{i}.feed_forward."
    return llama_mlp(c, s, hidden=hidden, act="silu", gate="w1", up="w3", down="w2", stem=stem)


def liquid_blocks(c: Config, s: Stream, kinds: list[str]) -> list[Block]:
    attention = llama_attention(
        c, s, o="out_proj", qk_norm=RMS, qk_norm_names=("q_layernorm", "k_layernorm")
    )
    filter = ShortConvolution(s, c.number("conv_L_cache"), c.flag("conv_bias"))
    norms = ("operator_norm", "ffn_norm")
    block = Block(attention, None, RMS, norms=norms, stream=s)
    return with_mixers(by_kind(c, kinds, ATTENDS), block, filter, "ConvolutionBlock")


def liquid(c: Config, name: str, blocks: list[Block]) -> Decoder:
    tied = c.flag("tie_embedding", c.flag("tie_word_embeddings"))
    return decoder(c, name, blocks, norm="embedding_norm", tied=tied)


def lfm2(c: Config) -> Decoder:
    s = stream(c)
    attending = c.get("full_attn_idxs", range(c.number("num_hidden_layers")))
    kinds = layer_kinds(c, lambda i: "full_attention" if i in attending else "conv")
    hidden = c.number("block_ff_dim", c.number("intermediate_size"))
    if c.flag("block_auto_adjust_ff_dim"):
        hidden = int(2 * hidden / 3)
        if c.get("block_ffn_dim_multiplier") is not None:
            multiple = c.number("block_multiple_of")
            hidden = int(c.real("block_ffn_dim_multiplier") * hidden)
            hidden = -(-hidden // multiple) * multiple
    mlp = liquid_mlp(c, s, hidden)
    return liquid(c, "Lfm2", [replace(b, ffn=mlp) for b in liquid_blocks(c, s, kinds)])


def lfm2_moe(c: Config) -> Decoder:
    s = stream(c)
    router = replace(
        deepseek_router(c), correction="expert_bias" if c.flag("use_expert_bias") else ""
    )
    moe = experts(c, s, router, act="silu", stem="model.layers.{i}.feed_forward.")
    mlp = liquid_mlp(c, s, c.number("intermediate_size"))
    first = c.count("num_dense_layers")
    given = c.layer_types()
    if given is None:
        raise c.unsupported("`layer_types` is absent", "layer_types", help="list all layers")
    blocks = [
        replace(b, ffn=mlp, name=f"Dense{b.name}") if i < first else replace(b, ffn=moe)
        for i, b in enumerate(liquid_blocks(c, s, layer_kinds(c, lambda i: "conv")))
    ]
    return liquid(c, "Lfm2Moe", blocks)


def lfm3(c: Config) -> Decoder:
    """Filters, attention with a window and attention without."""
    s = stream(c)
    kinds = layer_kinds(
        c,
        lambda i: (
            "full_attention" if i % 4 == 2 else "sliding_attention" if i and i % 4 == 0 else "conv"
        ),
    )
    on = {"qk_norm": RMS, **biases(c.flag("attention_bias"))}
    if c.flag("use_attention_gate"):
        on["head_gate"] = "g_proj"
    attention = llama_attention(c, s, rotary=turned_as("full_attention", 0.5)(c), **on)
    stem = "model.layers.{i}.feed_forward."
    mlp = llama_mlp(c, s, act="silu", gate="w1", up="w3", down="w2", stem=stem)
    norms = ("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm")
    wide = c.flag("use_sandwich_norm")
    block = Block(
        None,
        mlp,
        RMS,
        form="sandwich" if wide else "pre",
        norms=norms if wide else norms[::2],
        stream=s,
    )
    near = [c.count("sliding_window") if kind == "sliding_attention" else 0 for kind in kinds]
    blocks = by_window(near, attention, block, {"rotary": turned_as("sliding_attention")(c)})
    filter = ShortConvolution(s, c.number("conv_L_cache"), c.flag("conv_bias"))
    for i, kind in enumerate(kinds):
        if kind == "conv":
            blocks[i] = replace(block, mixer=filter, name="ConvolutionBlock")
        elif kind not in ATTENDS and kind != "sliding_attention":
            message = f"layers of the kind `{kind}` are not known in this class"
            help_ = suggestion(kind, ("conv", *ATTENDS, "sliding_attention"))
            raise c.unsupported(message, "layer_types", help=help_)
    return decoder(c, "Lfm3", blocks, norm="embedding_norm")


def recurrent_gemma(c: Config) -> Decoder:
    s = stream(c)
    heads, stem = c.number("num_attention_heads"), "model.layers.{i}."
    on = biases(c.flag("attention_bias"), output=True)
    width = divided(s.width, heads, "heads", c)
    attention = llama_attention(
        c,
        s,
        stem=f"{stem}temporal_block.",
        width=width,
        rotary=rotated(c, width, 0.5),
        window=c.number("sliding_window"),
        **on,
    )
    act = activation(c, "hidden_activation")
    channels = divided(c.number("lru_width", s.width), heads, "heads", c, "lru_width")
    recurrence = GatedLinearRecurrence(s, heads, channels, c.number("conv1d_width"), act)
    mlp = llama_mlp(
        c,
        s,
        hidden=c.number("intermediate_size") // 2,
        act=act,
        bias=True,
        stem=f"{stem}mlp_block.",
    )
    block = Block(attention, mlp, RMS, norms=("temporal_pre_norm", "channel_pre_norm"), stream=s)
    pattern = list(c.get("block_types"))
    layers = c.number("num_hidden_layers")
    attends = [pattern[i % len(pattern)] != "recurrent" for i in range(layers)]
    blocks = with_mixers(attends, block, recurrence, "RecurrentBlock")
    return decoder(
        c,
        "RecurrentGemma",
        blocks,
        norm="final_norm",
        positions=8192,
        embed_factor=s.width**0.5,
        logit_softcap=c.real("logits_soft_cap"),
    )


MIXED = {
    "recurrent_gemma": recurrent_gemma,
    "granitemoehybrid": granitemoehybrid,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
    "lfm3": lfm3,
}
