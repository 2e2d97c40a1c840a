"""Decoders with dense layers: Llama and what follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    rotated,
    square,
    tied,
    windows,
)
from stagec.importing.parts import LAYER, RMS, Norm, Stream

SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def decoder(c: Config, name: str, blocks: list[Block], final: Norm = RMS, **more: Any) -> Decoder:
    settings: dict[str, Any] = {
        "vocabulary": c.number("vocab_size"),
        "positions": c.number("max_position_embeddings", 4096),
        "tied": tied(c),
    }
    return Decoder(
        name, c.number("hidden_size"), blocks=blocks, final_norm=final, **(settings | more)
    )


def stream(c: Config) -> Stream:
    return Stream(c.number("hidden_size"))


def same(c: Config, block: Block) -> list[Block]:
    """All layers of one kind."""
    return [block] * c.number("num_hidden_layers")


def by_window(
    kinds: list[int], attention: Attention, block: Block, local: dict[str, Any] | None = None
) -> list[Block]:
    """A block for each layer: those with a window are called `LocalBlock` if there are others."""
    mixed = len(set(kinds)) > 1
    blocks = []
    for window in kinds:
        if not window:
            blocks.append(replace(block, mixer=attention))
            continue
        part = replace(attention, window=window)
        name = block.name
        if mixed:
            part = replace(part, name=f"Local{attention.name}", **(local or {}))
            name = f"Local{block.name}"
        blocks.append(replace(block, mixer=part, name=name))
    return blocks


def llama(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    mlp = llama_mlp(c, s, bias=c.flag("mlp_bias"))
    return decoder(c, "Llama", same(c, Block(attention, mlp, RMS, stream=s)))


def mistral(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, window=c.count("sliding_window"))
    return decoder(c, "Mistral", same(c, Block(attention, llama_mlp(c, s), RMS, stream=s)))


def ministral(c: Config) -> Decoder:
    s = stream(c)
    window = c.count("sliding_window")
    kinds = layer_kinds(c, lambda i: "sliding_attention" if window else "full_attention")
    block = Block(None, llama_mlp(c, s), RMS, stream=s)
    return decoder(c, "Ministral", by_window(windows(kinds, window), llama_attention(c, s), block))


def cwm(c: Config) -> Decoder:
    s = stream(c)
    window = c.count("sliding_window")
    kinds = layer_kinds(c, lambda i: "sliding_attention" if i % 4 else "full_attention")
    block = Block(None, llama_mlp(c, s, bias=c.flag("mlp_bias")), RMS, stream=s)
    attention = llama_attention(c, s)
    return decoder(c, "Cwm", by_window(windows(kinds, window), attention, block))


def qwen_windows(c: Config) -> list[int]:
    """Layers from `max_window_layers` on have a window, if `use_sliding_window`."""
    window = c.count("sliding_window") if c.flag("use_sliding_window") else 0
    first = c.count("max_window_layers")
    kinds = layer_kinds(
        c, lambda i: "sliding_attention" if window and i >= first else "full_attention"
    )
    return windows(kinds, window)


def qwen2(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(True, output=False))
    block = Block(None, llama_mlp(c, s), RMS, stream=s)
    return decoder(c, "Qwen2", by_window(qwen_windows(c), attention, block))


def qwen3(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, qk_norm=RMS, **biases(c.flag("attention_bias")))
    block = Block(None, llama_mlp(c, s), RMS, stream=s)
    return decoder(c, "Qwen3", by_window(qwen_windows(c), attention, block))


def phi3(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c,
        s,
        q="qkv_proj",
        k="qkv_proj",
        v="qkv_proj",
        window=c.count("sliding_window"),
    )
    mlp = llama_mlp(c, s, gate="gate_up_proj", up="gate_up_proj")
    return decoder(c, "Phi3", same(c, Block(attention, mlp, RMS, stream=s)))


def phi(c: Config) -> Decoder:
    s = stream(c)
    norm = LAYER if c.flag("qk_layernorm") else Norm("none")
    attention = llama_attention(
        c, s, o="dense", qk_norm=norm, qk_norm_names=("q_layernorm", "k_layernorm"), **biases(True)
    )
    mlp = llama_mlp(c, s, gated=False, bias=True, up="fc1", down="fc2")
    block = Block(attention, mlp, LAYER, form="parallel", norms=("input_layernorm",), stream=s)
    return decoder(c, "Phi", same(c, block), LAYER, norm="final_layernorm", head_bias=True)


def gemma(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(c, s, **biases(c.flag("attention_bias")))
    mlp = llama_mlp(c, s, act="gelu")
    blocks = same(c, Block(attention, mlp, RMS, stream=s))
    return decoder(c, "Gemma", blocks, embed_factor=s.width**0.5)


def gemma2(c: Config) -> Decoder:
    return gemma_windows(
        c, "Gemma2", layer_kinds(c, lambda i: "full_attention" if i % 2 else "sliding_attention")
    )


def gemma3_text(c: Config) -> Decoder:
    every = c.number("sliding_window_pattern", 6)
    kinds = layer_kinds(c, lambda i: "sliding_attention" if (i + 1) % every else "full_attention")
    return gemma_windows(c, "Gemma3", kinds, qk_norm=RMS)


def gemma_windows(c: Config, name: str, kinds: list[str], **more: Any) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c,
        s,
        scale=c.real("query_pre_attn_scalar") ** -0.5,
        softcap=c.real("attn_logit_softcapping", 0),
        **biases(c.flag("attention_bias")),
        **more,
    )
    mlp = llama_mlp(c, s, act=activation(c, "hidden_activation"))
    block = Block(None, mlp, RMS, form="sandwich", norms=SANDWICH, stream=s)
    return decoder(
        c,
        name,
        by_window(windows(kinds, c.count("sliding_window")), attention, block),
        embed_factor=s.width**0.5,
        logit_softcap=c.real("final_logit_softcapping", 0),
    )


def vaultgemma(c: Config) -> Decoder:
    kinds = layer_kinds(c, lambda i: "full_attention" if i % 2 else "sliding_attention")
    made = gemma_windows(c, "VaultGemma", kinds)
    norms = ("input_layernorm", "pre_feedforward_layernorm")
    return replace(made, blocks=[replace(b, form="pre", norms=norms) for b in made.blocks])


def bitnet(c: Config) -> Decoder:
    s = stream(c)
    attention = square(llama_attention(c, s, sub_norm=RMS, **biases(c.flag("attention_bias"))))
    mlp = llama_mlp(c, s, sub_norm="ffn_sub_norm")
    return decoder(c, "BitNet", same(c, Block(attention, mlp, RMS, stream=s)))


def glm(c: Config) -> Decoder:
    return glm_blocks(c, "Glm", form="pre")


def glm4(c: Config, bias: bool = False) -> Decoder:
    norms = (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    )
    return glm_blocks(c, "Glm4", bias, form="sandwich", norms=norms)


def glm_blocks(c: Config, name: str, bias: bool = False, **more: Any) -> Decoder:
    """`bias`: queries, keys and values have them, if the file does not say."""
    s = stream(c)
    width = head_width(c)
    on = biases(c.flag("attention_bias", bias), output=False)
    attention = llama_attention(c, s, rotary=rotated(c, width, 0.5), **on)
    mlp = llama_mlp(c, s, gate="gate_up_proj", up="gate_up_proj")
    return decoder(c, name, same(c, Block(attention, mlp, RMS, stream=s, **more)))


def granite(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c, s, scale=c.real("attention_multiplier"), **biases(c.flag("attention_bias"))
    )
    mlp = llama_mlp(c, s, bias=c.flag("mlp_bias"))
    block = Block(attention, mlp, RMS, stream=s, residual=c.real("residual_multiplier"))
    return decoder(c, "Granite", same(c, block), **granite_factors(c))


def granite_factors(c: Config) -> dict[str, Any]:
    return {
        "embed_factor": c.real("embedding_multiplier"),
        "logit_factor": 1 / c.real("logits_scaling"),
    }


def olmo(c: Config) -> Decoder:
    s = stream(c)
    attention = llama_attention(
        c, s, clip=c.real("clip_qkv", 0), **biases(c.flag("attention_bias"))
    )
    bare = Norm("layer", affine=False)
    return decoder(c, "Olmo", same(c, Block(attention, llama_mlp(c, s), bare, stream=s)), bare)


POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def olmo2(c: Config) -> Decoder:
    s = stream(c)
    block = Block(None, llama_mlp(c, s), RMS, form="post_only", norms=POST_NORMS, stream=s)
    attention = llama_attention(
        c, s, qk_norm=RMS, qk_norm_over="all", **biases(c.flag("attention_bias"))
    )
    return decoder(c, "Olmo2", same(c, replace(block, mixer=attention)))


def olmo3(c: Config) -> Decoder:
    s = stream(c)
    block = Block(None, llama_mlp(c, s), RMS, form="post_only", norms=POST_NORMS, stream=s)
    attention = llama_attention(
        c, s, qk_norm=RMS, qk_norm_over="all", **biases(c.flag("attention_bias"))
    )
    kinds = layer_kinds(c, lambda i: "sliding_attention" if (i + 1) % 4 else "full_attention")
    return decoder(
        c, "Olmo3", by_window(windows(kinds, c.count("sliding_window")), attention, block)
    )


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


def nemotron(c: Config) -> Decoder:
    s = stream(c)
    width = head_width(c)
    attention = llama_attention(
        c, s, rotary=rotated(c, width, 0.5), **biases(c.flag("attention_bias"))
    )
    mlp = llama_mlp(c, s, gated=False, bias=c.flag("mlp_bias"))
    return decoder(c, "Nemotron", same(c, Block(attention, mlp, LAYER, stream=s)), LAYER)


DENSE = {
    "llama": llama,
    "mistral": mistral,
    "ministral": ministral,
    "ministral3": mistral,
    "cwm": cwm,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "phi": phi,
    "phi3": phi3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
    "vaultgemma": vaultgemma,
    "bitnet": bitnet,
    "glm": glm,
    "glm4": glm4,
    "granite": granite,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "smollm3": smollm3,
    "nemotron": nemotron,
}
