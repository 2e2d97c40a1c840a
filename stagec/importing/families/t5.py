"""T5: an encoder and a decoder whose scores are biased by the distance of query and key."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.importing.config import Config, Unsupported
from stagec.importing.families.encoders import Written
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import RMS, Stream
from stagec.importing.text import Module, Writer


@dataclass(frozen=True)
class BiasedAttention:
    """Attention written out, with a bias for each pair of positions, and without a factor of the scores."""

    stream: Stream
    keys: str
    """The dim of keys."""
    heads: int
    width: int
    name: str
    stem: str
    causal: bool = False
    source: Stream | None = None

    def write(self, w: Writer) -> str:
        s, src = self.stream, self.source or self.stream
        H, E, U = "H", "E", self.keys
        w.heads.append(H)
        given = f"x{s.shape}" + (f", source{src.shape}" if self.source else "")
        given += "" if self.source else f", bias[{s.sequence}, {U}, {H}]"
        m = w.module(self.name, given, s.shape)
        x = "source" if self.source else "x"
        m.weight("q_proj", f"D {H} {E}", f"{self.stem}q.weight")
        m.weight("k_proj", f"D {H} {E}", f"{self.stem}k.weight", join=True)
        m.weight("v_proj", f"D {H} {E}", f"{self.stem}v.weight", join=True)
        m.weight("o_proj", f"{H} {E} D", f"{self.stem}o.weight", join=True)
        turned = f"[{src.sequence} -> {U}]" if src.sequence != U and not self.causal else ""
        k, v = f"{x} @ k_proj", f"{x} @ v_proj"
        rows = src.rows
        if self.causal:
            rows = f"{s.batch}, {U}"
            k = f"append({m.cache('keys', s.batch, U, H, E)}, {k})"
            v = f"append({m.cache('values', s.batch, U, H, E)}, {v})"
        elif self.source:
            k = f"once({m.cache('keys', s.batch, U, H, E)}, {k})"
            v = f"once({m.cache('values', s.batch, U, H, E)}, {v})"
        m.line(f"k[{rows}, {H}, {E}] = {k}")
        m.line(f"v[{rows}, {H}, {E}] = {v}")
        m.line(f"scores[B, {H}, {s.sequence}, {U}] = (x @ q_proj) @ k{turned}")
        scores = "scores" if self.source else "scores + bias"
        if self.causal:
            scores = f"causal_mask({scores}, query = {s.sequence}, key = {U})"
        m.line(f"mixed[B, {s.sequence}, {H}, {E}] = softmax({scores}, over = {U}) @ v{turned}")
        m.line("return mixed @ o_proj")
        return m.name


def t5(c: Config, published_tie: bool = True) -> Written:
    """`published_tie`: the head is that of the embedding unless the file says otherwise."""
    width, heads = c.number("d_model"), c.number("num_heads")
    said = str(c.get("feed_forward_proj"))
    gated = said.startswith("gated-")
    act = said.removeprefix("gated-")
    if act not in ("relu", "gelu", "silu"):
        raise Unsupported(f"the activation `{said}` of `feed_forward_proj` is not in the language")
    tied = c.flag("tie_word_embeddings", published_tie)
    encoder_layers = c.number("num_layers")
    decoder_layers = c.number("num_decoder_layers", encoder_layers)
    target, source = Stream(width), Stream(width, "B", "SE", "D")

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
        w.dim("UE", 512, "source tokens as keys", "SE")
        w.dim("U", 512, "target tokens as keys", "S")
        w.widths.append(w.dim("V", c.number("vocab_size"), "vocabulary"))
        w.dim("D", width, "model width")
        w.dim("H", heads, "heads")
        text = "D / H" if heads * c.number("d_kv") == width else str(c.number("d_kv"))
        w.dim("E", c.number("d_kv"), "width of a head", text)
        w.dim("R", c.number("relative_attention_num_buckets"), "buckets of relative positions")
        w.lengths = ["S", "SE"]

    def encoder_block(w: Writer) -> str:
        stem = "encoder.block.{i}.layer."
        mixer = BiasedAttention(
            source, "UE", heads, c.number("d_kv"), "EncoderAttention", f"{stem}0.SelfAttention."
        )
        names = [w.part(mixer), w.part(network(source, "encoder", 1, "EncoderMlp"))]
        m = w.module("EncoderBlock", "x[B, SE, D], bias[SE, UE, H]", "[B, SE, D]")
        m.calls += names
        first = RMS.of(m, "x", "norm1", "D", f"{stem}0.layer_norm")
        m.line(f"h = x + {names[0]}({first}, bias)")
        m.line(f"return h + {names[1]}({RMS.of(m, 'h', 'norm2', 'D', f'{stem}1.layer_norm')})")
        return m.name

    def decoder_block(w: Writer) -> str:
        stem = "decoder.block.{i}.layer."
        width_of_head = c.number("d_kv")
        mixer = BiasedAttention(
            target, "U", heads, width_of_head, "DecoderAttention", f"{stem}0.SelfAttention.", True
        )
        cross = BiasedAttention(
            target,
            "SE",
            heads,
            width_of_head,
            "CrossAttention",
            f"{stem}1.EncDecAttention.",
            source=source,
        )
        names = [w.part(mixer), w.part(cross)]
        names.append(w.part(network(target, "decoder", 2, "DecoderMlp")))
        given = "x[B, S, D], source[B, SE, D], bias[S, U, H]"
        m = w.module("DecoderBlock", given, "[B, S, D]")
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
        table = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        m.weight("embed", "V D", "shared.weight")
        m.weight("near", "R H", f"encoder.{table}")
        m.weight("past", "R H", f"decoder.{table}", join=True)
        m.line("bias = embedding(distances, near)")
        m.line("x = embedding(source_tokens, embed)")
        block = encoder_block(w)
        count = layers(w, m, block, encoder_layers, "L", "layers of the encoder")
        m.line(f"repeat {count} {{ x = {block}(x, bias) }}")
        m.line(f"source = {RMS.of(m, 'x', 'source_norm', 'D', 'encoder.final_layer_norm')}")
        m.line("bias = embedding(delays, past)")
        m.line("y = embedding(tokens, embed)")
        block = decoder_block(w)
        count = layers(w, m, block, decoder_layers, "LT", "layers of the decoder")
        m.line(f"repeat {count} {{ y = {block}(y, source, bias) }}")
        normal = RMS.of(m, "y", "norm", "D", "decoder.final_layer_norm")
        if tied:
            m.line(f"loss = cross_entropy(({normal} / sqrt(D)) @ embed, targets)")
        else:
            m.weight("head", "V D", "lm_head.weight")
            m.line(f"loss = cross_entropy({normal} @ head, targets)")

    inputs = (
        "source_tokens[B, SE]: i32, tokens[B, S]: i32, distances[SE, UE]: i32, delays[S, U]: i32, "
        "targets[B, S]: i32"
    )
    return Written("T5", body, inputs, dims)


def mt5(c: Config) -> Written:
    return t5(c)


T5 = {"t5": t5, "mt5": mt5}
