"""T5: an encoder and a decoder whose scores are biased by the distance of query and key."""

from __future__ import annotations

from typing import Any

from stagec.diagnostics import suggestion
from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.families.encoders import Written
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import ACTIVATIONS, RMS, Stream
from stagec.importing.text import Module, Writer


def t5(c: Config, name: str = "T5", each: bool = False) -> Written:
    """The head is that of the embedding unless the file says otherwise. `each`: every layer has a table of distances of its own."""
    width, heads = c.number("d_model"), c.number("num_heads")
    said = str(c.get("feed_forward_proj"))
    # The two that the class makes of it may also stand in the file, and then count.
    gated = c.flag("is_gated_act", said.startswith("gated-"))
    act = c.get("dense_act_fn", said.removeprefix("gated-"))
    if act not in ACTIVATIONS:
        message = f"the activation `{said}` of `feed_forward_proj` is not in the language"
        help_ = suggestion(str(act), sorted(ACTIVATIONS))
        raise c.unsupported(message, "dense_act_fn", "feed_forward_proj", help=help_)
    tied = c.flag("tie_word_embeddings", True)
    encoder_layers = c.number("num_layers")
    decoder_layers = c.number("num_decoder_layers", encoder_layers)
    target, source = Stream(width), Stream(width, "B", "SE", "D")
    table = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    def attention(s: Stream, name: str, stem: str, **more: Any) -> Attention:
        """Scores have no factor."""
        names = {letter: letter for letter in "qkvo"}
        settings = {"name": name, "stem": stem, "rotary": 0, "scale": 1.0, "causal": False, **more}
        return Attention(s, heads, heads, c.number("d_kv"), **names, **settings)

    def network(s: Stream, side: str, layer: int, name: str) -> Mlp:
        return Mlp(
            s,
            c.number("d_ff"),
            act,
            gated=gated,
            name=name,
            stem=f"{side}.block.{{i}}.layer.{layer}.DenseReluDense.",
            gate="wi_0",
            up="wi_1" if gated else "wi",
            down="wo",
        )

    def dims(w: Writer) -> None:
        w.dim("B", 256, "pairs of sequences in the global batch")
        w.dim("S", 512, "tokens of a target sequence")
        w.dim("SE", 512, "tokens of a source sequence")
        w.widths.append(w.dim("V", c.number("vocab_size"), "vocabulary"))
        w.dim("D", width, "model width")
        w.dim("R", c.number("relative_attention_num_buckets"), "buckets of relative positions")
        w.lengths = ["S", "SE"]

    def given(dims: str) -> str:
        """What a block is given of positions."""
        return f"distances[{dims}]: i32" if each else f"bias[{dims}, H]"

    def own_table(m: Module, side: str) -> None:
        if each:
            m.weight("near", "R H", f"{side}.{table.replace('0', '{i}', 1)}")
            m.line("bias = embedding(distances, near)")

    def encoder_block(w: Writer) -> str:
        stem = "encoder.block.{i}.layer."
        mixer = attention(source, "EncoderAttention", f"{stem}0.SelfAttention.", biased=True)
        names = [w.part(mixer), w.part(network(source, "encoder", 1, "EncoderMlp"))]
        m = w.module("EncoderBlock", f"x[B, SE, D], {given(f'SE, {mixer.keys(w)}')}", "[B, SE, D]")
        own_table(m, "encoder")
        m.calls += names
        first = RMS.of(m, "x", "norm1", "D", f"{stem}0.layer_norm")
        m.line(f"h = x + {names[0]}({first}, bias)")
        m.line(f"return h + {names[1]}({RMS.of(m, 'h', 'norm2', 'D', f'{stem}1.layer_norm')})")
        return m.name

    def decoder_block(w: Writer) -> str:
        stem = "decoder.block.{i}.layer."
        own = f"{stem}0.SelfAttention."
        mixer = attention(target, "DecoderAttention", own, biased=True, causal=True)
        cross = attention(target, "CrossAttention", f"{stem}1.EncDecAttention.", source=source)
        names = [w.part(mixer), w.part(cross)]
        names.append(w.part(network(target, "decoder", 2, "DecoderMlp")))
        bias = given(f"S, {mixer.keys(w)}")
        m = w.module("DecoderBlock", f"x[B, S, D], source[B, SE, D], {bias}", "[B, S, D]")
        own_table(m, "decoder")
        m.calls += names
        first = RMS.of(m, "x", "norm1", "D", f"{stem}0.layer_norm")
        m.line(f"h = x + {names[0]}({first}, bias)")
        second = RMS.of(m, "h", "norm2", "D", f"{stem}1.layer_norm")
        m.line(f"h = h + {names[1]}({second}, source)")
        m.line(f"return h + {names[2]}({RMS.of(m, 'h', 'norm3', 'D', f'{stem}2.layer_norm')})")
        return m.name

    def layers(w: Writer, m: Module, block: str, count: int, name: str, about: str) -> str:
        m.call(block)
        w.layers.setdefault(block, []).append(list(range(count)))
        return w.dim(name, count, about)

    def body(w: Writer, m: Module) -> None:
        m.weight("embed", "V D", "shared.weight")
        near, past = "distances", "delays"
        if not each:
            m.weight("near", "R H", f"encoder.{table}")
            m.weight("past", "R H", f"decoder.{table}", join=True)
            m.line("bias = embedding(distances, near)")
            near = past = "bias"
        m.line("x = embedding(source_tokens, embed)")
        block = encoder_block(w)
        count = layers(w, m, block, encoder_layers, "L", "layers of the encoder")
        m.line(f"repeat {count} {{ x = {block}(x, {near}) }}")
        m.line(f"source = {RMS.of(m, 'x', 'source_norm', 'D', 'encoder.final_layer_norm')}")
        if not each:
            m.line("bias = embedding(delays, past)")
        m.line("y = embedding(tokens, embed)")
        block = decoder_block(w)
        count = layers(w, m, block, decoder_layers, "LT", "layers of the decoder")
        m.line(f"repeat {count} {{ y = {block}(y, source, {past}) }}")
        normal = RMS.of(m, "y", "norm", "D", "decoder.final_layer_norm")
        if tied:
            m.line(f"loss = cross_entropy(({normal} / sqrt(D)) @ embed, targets)")
        else:
            m.weight("head", "V D", "lm_head.weight")
            m.line(f"loss = cross_entropy({normal} @ head, targets)")

    inputs = (
        "source_tokens[B, SE]: i32, tokens[B, S]: i32, distances[SE, UE]: i32, delays[S, TC]: i32, "
        "targets[B, S]: i32"
    )
    return Written(name, body, inputs, dims)


def umt5(c: Config) -> Written:
    return t5(c, "UMT5", each=True)


T5 = {"t5": t5, "mt5": t5, "umt5": umt5}
