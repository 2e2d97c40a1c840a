"""GPT-2 and its kin: biases everywhere, learned positions or ALiBi."""

from __future__ import annotations

from stagec.importing.config import Config, Unsupported
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    divided,
    plain_attention,
    plain_mlp,
    rotated,
)
from stagec.importing.families.dense import decoder, same, stream
from stagec.importing.parts import LAYER, Norm


def gpt2(c: Config, name: str = "Gpt2", kv_heads: int = 0) -> Decoder:
    if c.flag("add_cross_attention"):
        raise Unsupported("cross-attention in a decoder alone is not imported")
    s = stream(c)
    stem = "transformer.h.{i}."
    attention = plain_attention(
        c,
        s,
        stem + "attn.",
        "c_attn",
        o="c_proj",
        scale=0.0 if c.get("scale_attn_weights", True) else 1.0,
        **({"kv_heads": kv_heads} if kv_heads else {}),
        **biases(True),
    )
    act = activation(c, "activation_function")
    mlp = plain_mlp(s, c.number("n_inner", 4 * s.width), act, stem + "mlp.", "c_fc c_proj")
    if c.flag("scale_attn_by_inverse_layer_idx"):
        raise Unsupported("scores scaled by the number of their layer are not in the language")
    block = Block(attention, mlp, LAYER, norms=("ln_1", "ln_2"), stem=stem, stream=s)
    return decoder(
        c,
        name,
        same(c, block),
        LAYER,
        prefix="transformer.",
        embed="wte",
        norm="ln_f",
        learned_positions=("wpe", c.number("max_position_embeddings")),
    )


def gpt_bigcode(c: Config) -> Decoder:
    if not c.flag("multi_query"):
        return gpt2(c, "GptBigCode")
    return gpt2(c, "GptBigCode", 1)


def gpt_neox(c: Config) -> Decoder:
    s = stream(c)
    stem = "gpt_neox.layers.{i}."
    width = divided(s.width, c.number("num_attention_heads"), "heads")
    attention = plain_attention(
        c,
        s,
        stem + "attention.",
        "query_key_value",
        o="dense",
        rotary=rotated(c, width, 0.25),
        **biases(c.flag("attention_bias", True)),
    )
    hidden, act = c.number("intermediate_size"), activation(c)
    mlp = plain_mlp(s, hidden, act, stem + "mlp.", "dense_h_to_4h dense_4h_to_h")
    form = "parallel" if c.flag("use_parallel_residual") else "pre"
    block = Block(attention, mlp, LAYER, form=form, stem=stem, stream=s)
    return decoder(
        c,
        "GptNeoX",
        same(c, block),
        LAYER,
        prefix="gpt_neox.",
        embed="embed_in",
        norm="final_layer_norm",
    )


def bloom(c: Config) -> Decoder:
    s = stream(c)
    if c.flag("apply_residual_connection_post_layernorm"):
        raise Unsupported("residuals taken after a norm are not imported")
    stem = "transformer.h.{i}."
    attention = plain_attention(
        c, s, stem + "self_attention.", "query_key_value", alibi=True, o="dense", **biases(True)
    )
    mlp = plain_mlp(s, 4 * s.width, "gelu", stem + "mlp.", "dense_h_to_4h dense_4h_to_h")
    return decoder(
        c,
        "Bloom",
        same(c, Block(attention, mlp, LAYER, stem=stem, stream=s)),
        LAYER,
        positions=c.number("seq_length", 2048),
        prefix="transformer.",
        embed="word_embeddings",
        embed_norm=(LAYER, "word_embeddings_layernorm"),
        norm="ln_f",
    )


def falcon(c: Config) -> Decoder:
    s = stream(c)
    heads = c.number("num_attention_heads")
    new = c.flag("new_decoder_architecture")
    parallel = c.flag("parallel_attn")
    bias = c.flag("bias")
    alibi = c.flag("alibi")
    if c.flag("apply_residual_connection_post_layernorm"):
        raise Unsupported("residuals taken after a norm are not imported")
    if new:
        kv_heads = c.number("num_kv_heads", heads)
    else:
        kv_heads = 1 if c.flag("multi_query", True) else heads
    stem = "transformer.h.{i}."
    about = "Transformers keeps keys and values of all query heads." if new else ""
    attention = plain_attention(
        c,
        s,
        stem + "self_attention.",
        "query_key_value",
        kv_heads=kv_heads,
        about=about,
        o="dense",
        rotary=0 if alibi else -1,
        alibi=alibi,
        repeated=new,
        **biases(bias),
    )
    hidden, act = c.number("ffn_hidden_size", 4 * s.width), activation(c, "activation")
    mlp = plain_mlp(s, hidden, act, stem + "mlp.", "dense_h_to_4h dense_4h_to_h", bias)
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    if new and c.get("num_ln_in_parallel_attn", 2) == 2:
        norms = ("ln_attn", "ln_mlp")
    elif parallel or new:
        norms = ("input_layernorm",)
    form = "parallel" if parallel or new else "pre"
    block = Block(attention, mlp, LAYER, form=form, norms=norms, stem=stem, stream=s)
    return decoder(
        c,
        "Falcon",
        same(c, block),
        LAYER,
        positions=c.number("max_position_embeddings", 2048),
        prefix="transformer.",
        embed="word_embeddings",
        norm="ln_f",
    )


def opt(c: Config) -> Decoder:
    s = stream(c)
    stem = "model.decoder.layers.{i}."
    bias = c.flag("enable_bias", True)
    norm = LAYER if c.flag("layer_norm_elementwise_affine", True) else Norm("layer", affine=False)
    attention = plain_attention(c, s, stem + "self_attn.", o="out_proj", **biases(bias))
    act = activation(c, "activation_function")
    mlp = plain_mlp(s, c.number("ffn_dim"), act, stem, "fc1 fc2", bias)
    before = c.flag("do_layer_norm_before", True)
    block = Block(
        attention,
        mlp,
        norm,
        form="pre" if before else "post",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        stem=stem,
        stream=s,
    )
    narrow = c.number("word_embed_proj_dim", s.width)
    final = norm if before and not c.flag("_remove_final_layer_norm") else Norm("none")
    return decoder(
        c,
        "Opt",
        same(c, block),
        final,
        prefix="model.decoder.",
        norm="final_layer_norm",
        learned_positions=("embed_positions", c.number("max_position_embeddings") + 2),
        embed_width=narrow if narrow != s.width else 0,
    )


CLASSIC = {
    "gpt2": gpt2,
    "gpt-sw3": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neox": gpt_neox,
    "bloom": bloom,
    "falcon": falcon,
    "opt": opt,
}
