"""Further dense decoders, most of them one step away from Llama or GPT-2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stagec.importing.attention import Attention
from stagec.importing.config import Config, Unsupported
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    divided,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    plain_attention,
    plain_mlp,
    rotated,
    square,
    windows,
)
from stagec.importing.families.dense import POST_NORMS, by_window, decoder, llama, same, stream
from stagec.importing.parts import LAYER, NO_NORM, PLAIN_LAYER, RMS, Norm


def stablelm(c: Config) -> Decoder:
    s = stream(c)
    bias = c.flag("use_qkv_bias")
    on: dict[str, Any] = biases(bias, output=False)
    if c.flag("qk_layernorm"):
        names = ("q_layernorm", "k_layernorm")
        on |= {"qk_norm": PLAIN_LAYER, "qk_norm_over": "heads", "qk_norm_names": names}
        on |= {"qk_norm_parts": True}
    attention = llama_attention(c, s, rotary=rotated(c, head_width(c), 0.25), **on)
    beside = c.flag("use_parallel_residual")
    norms = ("input_layernorm",) if beside else ("input_layernorm", "post_attention_layernorm")
    form = "parallel" if beside else "pre"
    block = Block(attention, llama_mlp(c, s), LAYER, form=form, norms=norms, stream=s)
    return decoder(c, "StableLm", same(c, block), LAYER)


def starcoder2(c: Config) -> Decoder:
    s = stream(c)
    bias = c.flag("use_bias", True)
    attention = llama_attention(c, s, window=c.count("sliding_window"), **biases(bias))
    mlp = llama_mlp(c, s, gated=False, bias=bias, up="c_fc", down="c_proj")
    return decoder(c, "StarCoder2", same(c, Block(attention, mlp, LAYER, stream=s)), LAYER)


def cohere_block(c: Config) -> tuple[Attention, Block]:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    block = Block(
        attention,
        llama_mlp(c, s),
        PLAIN_LAYER,
        form="parallel",
        norms=("input_layernorm",),
        stream=s,
    )
    return attention, block


def cohere(c: Config) -> Decoder:
    attention, block = cohere_block(c)
    if c.flag("use_qk_norm"):
        attention = replace(attention, qk_norm=PLAIN_LAYER, qk_norm_over="heads")
    blocks = same(c, replace(block, mixer=attention))
    return decoder(c, "Cohere", blocks, PLAIN_LAYER, logit_factor=c.real("logit_scale"))


def cohere2(c: Config) -> Decoder:
    """Layers with a window are rotated by position, those without are not."""
    attention, block = cohere_block(c)
    every = c.number("sliding_window_pattern", 4)
    kinds = layer_kinds(c, lambda i: "sliding_attention" if (i + 1) % every else "full_attention")
    far = replace(attention, rotary=0)
    near = windows(kinds, c.count("sliding_window"))
    blocks = by_window(near, far, block, {"rotary": -1})
    return decoder(c, "Cohere2", blocks, PLAIN_LAYER, logit_factor=c.real("logit_scale"))


def gptj(c: Config, name: str = "GptJ", fused: bool = False) -> Decoder:
    s = stream(c)
    width = divided(s.width, c.number("num_attention_heads"), "heads")
    turned = c.count("rotary_dim")
    stem = "transformer.h.{i}."
    attention = plain_attention(
        c,
        s,
        stem + "attn.",
        "qkv_proj" if fused else "",
        o="out_proj",
        rotary=turned if turned and turned != width else -1,
    )
    act = activation(c, "activation_function")
    mlp = plain_mlp(s, c.number("n_inner", 4 * s.width), act, stem + "mlp.", "fc_in fc_out")
    block = Block(attention, mlp, LAYER, form="parallel", norms=("ln_1",), stem=stem, stream=s)
    return decoder(
        c,
        name,
        same(c, block),
        LAYER,
        prefix="transformer.",
        embed="wte",
        norm="ln_f",
        head_bias=True,
    )


def codegen(c: Config) -> Decoder:
    return gptj(c, "CodeGen", fused=True)


def mpt(c: Config) -> Decoder:
    s = stream(c)
    stem = "transformer.blocks.{i}."
    attention = plain_attention(c, s, stem + "attn.", "Wqkv", alibi=True, o="out_proj")
    mlp = plain_mlp(s, 4 * s.width, "gelu", stem + "ffn.", "up_proj down_proj", bias=False)
    block = Block(attention, mlp, PLAIN_LAYER, norms=("norm_1", "norm_2"), stem=stem, stream=s)
    return decoder(
        c,
        "Mpt",
        same(c, block),
        PLAIN_LAYER,
        positions=c.number("max_seq_len", 2048),
        prefix="transformer.",
        embed="wte",
        norm="norm_f",
    )


def persimmon(c: Config) -> Decoder:
    s = stream(c)
    width = divided(s.width, c.number("num_attention_heads"), "heads")
    attention = plain_attention(
        c,
        s,
        "model.layers.{i}.self_attn.",
        "query_key_value",
        o="dense",
        rotary=rotated(c, width, 0.5),
        qk_norm=LAYER if c.flag("qk_layernorm") else NO_NORM,
        qk_norm_names=("q_layernorm", "k_layernorm"),
        **biases(True),
    )
    mlp = llama_mlp(c, s, gated=False, bias=True, up="dense_h_to_4h", down="dense_4h_to_h")
    block = Block(attention, mlp, LAYER, stream=s)
    return decoder(c, "Persimmon", same(c, block), LAYER, norm="final_layernorm")


def seed_oss(c: Config) -> Decoder:
    s = stream(c)
    on = biases(c.flag("attention_bias"), output=c.flag("attention_out_bias"))
    mlp = llama_mlp(c, s, bias=c.flag("mlp_bias"))
    return decoder(c, "SeedOss", same(c, Block(llama_attention(c, s, **on), mlp, RMS, stream=s)))


def exaone4(c: Config) -> Decoder:
    """With a window, layers without one are not rotated by position."""
    s = stream(c)
    window = c.count("sliding_window")
    pattern = c.get("sliding_window_pattern")
    every = len(pattern) if isinstance(pattern, str) else int(pattern or 0)

    def kind(i: int) -> str:
        last = i == c.number("num_hidden_layers") - 1
        return (
            "sliding_attention"
            if window and every and (i + 1) % every and not last
            else "full_attention"
        )

    attention = llama_attention(c, s, qk_norm=RMS)
    far = replace(attention, rotary=0) if window else attention
    block = Block(None, llama_mlp(c, s), RMS, form="post_only", norms=POST_NORMS, stream=s)
    kinds = windows(layer_kinds(c, kind), window)
    return decoder(c, "Exaone4", by_window(kinds, far, block, {"rotary": -1}))


def arcee(c: Config) -> Decoder:
    s = stream(c)
    mlp = llama_mlp(c, s, gated=False, bias=c.flag("mlp_bias"))
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    return decoder(c, "Arcee", same(c, Block(attention, mlp, RMS, stream=s)))


def helium(c: Config) -> Decoder:
    s = stream(c)
    mlp = llama_mlp(c, s, bias=c.flag("mlp_bias"))
    attention = square(llama_attention(c, s, **biases(c.flag("attention_bias"), output=False)))
    return decoder(c, "Helium", same(c, Block(attention, mlp, RMS, stream=s)))


def ernie4_5(c: Config) -> Decoder:
    s = stream(c)
    bias = c.flag("use_bias")
    block = Block(llama_attention(c, s, **biases(bias)), llama_mlp(c, s, bias=bias), RMS, stream=s)
    return decoder(c, "Ernie45", same(c, block))


def hunyuan_v1_dense(c: Config) -> Decoder:
    s = stream(c)
    on: dict[str, Any] = biases(c.flag("attention_bias"))
    attention = llama_attention(
        c,
        s,
        qk_norm=RMS,
        qk_norm_names=("query_layernorm", "key_layernorm"),
        norm_after_rope=True,
        **on,
    )
    return decoder(c, "HunYuan", same(c, Block(attention, llama_mlp(c, s), RMS, stream=s)))


def gpt_neo(c: Config) -> Decoder:
    s = stream(c)
    stem = "transformer.h.{i}."
    attention = plain_attention(
        c, s, stem + "attn.attention.", o="out_proj", o_bias=True, scale=1.0
    )
    act = activation(c, "activation_function")
    hidden = c.number("intermediate_size", 4 * s.width)
    mlp = plain_mlp(s, hidden, act, stem + "mlp.", "c_fc c_proj")
    layers = c.number("num_hidden_layers")
    kinds = list(c.get("attention_layers", []))
    for names, times in c.get("attention_types", [[["global", "local"], layers // 2]]):
        kinds += [] if c.has("attention_layers") else list(names) * times
    if len(kinds) != layers:
        raise Unsupported(f"`attention_types` says {len(kinds)} layers, not {layers}")
    near = [c.number("window_size") if kind == "local" else 0 for kind in kinds]
    block = Block(None, mlp, LAYER, norms=("ln_1", "ln_2"), stem=stem, stream=s)
    return decoder(
        c,
        "GptNeo",
        by_window(near, attention, block),
        LAYER,
        prefix="transformer.",
        embed="wte",
        norm="ln_f",
        learned_positions=("wpe", c.number("max_position_embeddings")),
    )


def nanochat(c: Config) -> Decoder:
    s = stream(c)
    bare = Norm("rms", affine=False)
    attention = llama_attention(
        c, s, qk_norm=bare, norm_after_rope=True, **biases(c.flag("attention_bias"))
    )
    mlp = llama_mlp(c, s, gated=False, up="fc1", down="fc2")
    return decoder(
        c,
        "NanoChat",
        same(c, Block(attention, mlp, bare, stream=s)),
        bare,
        embed_norm=(bare, ""),
        logit_softcap=c.real("final_logit_softcapping", 0),
    )


def apertus(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, qk_norm=RMS, **biases(c.flag("attention_bias")))
    act = "xielu" if c.get("hidden_act") == "xielu" else activation(c)
    norms = ("attention_layernorm", "feedforward_layernorm")
    block = Block(attention, llama_mlp(c, s, gated=False, act=act), RMS, norms=norms, stream=s)
    return decoder(c, "Apertus", same(c, block))


def fairseq_decoder(
    c: Config, name: str, prefix: str, hidden: int, act: str, **more: Any
) -> Decoder:
    """A decoder as fairseq has it: BART's layers without an encoder, norms before the parts."""
    s = stream(c)
    stem = f"{prefix}layers.{{i}}."
    attention = plain_attention(c, s, stem + "self_attn.", o="out_proj", **biases(True))
    norms = ("self_attn_layer_norm", "final_layer_norm")
    mlp = plain_mlp(s, hidden, act, stem, "fc1 fc2")
    block = Block(attention, mlp, LAYER, norms=norms, stem=stem, stream=s)
    factor = s.width**0.5 if c.flag("scale_embedding") else 1.0
    settings = {"prefix": prefix, "norm": "layer_norm", "embed_factor": factor, **more}
    return decoder(c, name, same(c, block), LAYER, **settings)


def xglm(c: Config) -> Decoder:
    """Positions are those of sines, and no parameters."""
    if c.flag("add_cross_attention"):
        raise Unsupported("cross-attention in a decoder alone is not imported")
    hidden, act = c.number("ffn_dim"), activation(c, "activation_function")
    return fairseq_decoder(c, "Xglm", "model.", hidden, act)


def biogpt(c: Config) -> Decoder:
    places = ("embed_positions", c.number("max_position_embeddings") + 2)
    hidden, act = c.number("intermediate_size"), activation(c)
    return fairseq_decoder(
        c,
        "BioGpt",
        "biogpt.",
        hidden,
        act,
        learned_positions=places,
        head="output_projection",
    )


MORE = {
    "nanochat": nanochat,
    "apertus": apertus,
    "internlm3": llama,
    "xglm": xglm,
    "biogpt": biogpt,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "cohere": cohere,
    "cohere2": cohere2,
    "gptj": gptj,
    "codegen": codegen,
    "mpt": mpt,
    "persimmon": persimmon,
    "seed_oss": seed_oss,
    "exaone4": exaone4,
    "arcee": arcee,
    "helium": helium,
    "ernie4_5": ernie4_5,
    "hunyuan_v1_dense": hunyuan_v1_dense,
    "gpt_neo": gpt_neo,
}
