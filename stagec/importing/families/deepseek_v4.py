"""DeepSeek-V4: residual streams that are mixed, keys that are values, and attention to compressed keys beside a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import by_kind
from stagec.importing.families.deepseek import deepseek_experts
from stagec.importing.families.rows import decoder, stream
from stagec.importing.parts import Stream
from stagec.importing.routing import Experts, Router
from stagec.importing.text import Module, Writer

POOLS = {
    "Compressor": "pool_windows",
    "IndexCompressor": "pool_narrow_windows",
    "StrongCompressor": "pool_long_windows",
}
"""What compressors call the op that makes one key of several tokens."""

STREAMS = "[B, S, HC, D]"


@dataclass(frozen=True)
class Mix:
    """Weights for the streams: of what a part reads, of where its result goes, and of streams among each other (mHC: a matrix whose
    rows and columns are made to add up to 1)."""

    streams: int
    rounds: int
    stem: str
    name: str

    def write(self, w: Writer) -> str:
        stream_dims(w, self.streams)
        about = "Weights of the streams: of what is read, of what is written, and among each other, whose rows and columns add up to 1."
        m = w.module(self.name, f"x{STREAMS}", "[B, S, D], [B, S, HO], [B, S, HO, HI]", about)
        for name, dims in (("read", "HO"), ("write", "HO"), ("mix", "HO HI")):
            m.weight(f"{name}_proj", f"HC D {dims}", f"{self.stem}fn", join=name != "read")
        for name, dims in (("read", "HO"), ("write", "HO"), ("mix", "HO HI")):
            m.weight(f"{name}_base", dims, f"{self.stem}base", join=name != "read")
        for name in ("read", "write", "mix"):
            m.weight(f"{name}_scale", "", f"{self.stem}scale", join=name != "read")
        m.line("n = rms_norm(x, over = [HC, D])")
        m.line("read = sigmoid((n @ read_proj) * read_scale + read_base)")
        m.line("write = sigmoid((n @ write_proj) * write_scale + write_base) * 2")
        m.line("mix = softmax((n @ mix_proj) * mix_scale + mix_base, over = HI)")
        m.line("mix = mix / sum(mix, over = HO)")
        if self.rounds > 1:
            m.line(f"repeat {self.rounds - 1} {{")
            m.line("  mix = mix / sum(mix, over = HI)")
            m.line("  mix = mix / sum(mix, over = HO)")
            m.line("}")
        m.line("return sum(x * read[HO -> HC], over = HC), write, mix")
        return m.name


def stream_dims(w: Writer, streams: int) -> None:
    w.dim("HC", streams, "residual streams")
    w.dim("HO", streams, "what each gets a weight for", "HC")
    w.dim("HI", streams, "streams after they are mixed", "HC")


@dataclass(frozen=True)
class Compressor:
    """One key for several tokens: a mean, weighted by gates (the paper's section 2.3)."""

    width: int
    letter: str
    rate: int
    overlaps: bool
    """Windows are twice as long as the steps between them, with values of their own for either half."""
    name: str
    stem: str

    def write(self, w: Writer) -> str:
        E, T, R = self.letter, positions(w, self.rate), f"CR{self.rate}"
        w.dim(R, self.rate, "tokens that become one key")
        wide = E
        if self.overlaps:
            wide = w.dim(f"{E}2", 2 * self.width, "both halves of overlapping windows", f"2 * {E}")
        op = POOLS[self.name]
        before = " and those before" if self.overlaps else ""
        w.op(
            op,
            f"# Means over windows of {self.rate} tokens{before}, weighted by a softmax of gates.\n"
            "# Its cost is what it moves.\n"
            f"op {op}(x[B, S, {wide}], gates[B, S, {wide}], bias[{R}, {wide}]) -> [B, {T}, {E}] {{\n"
            f"  flops = 0\n  bytes = 4 * B * S * {wide} + 2 * B * {T} * {E}\n}}\n",
        )
        m = w.module(self.name, "x[B, S, D]", f"[B, {T}, {E}]", "One key for several tokens.")
        m.weight("kv_proj", f"D {wide}", f"{self.stem}kv_proj.weight")
        m.weight("gate_proj", f"D {wide}", f"{self.stem}gate_proj.weight", join=True)
        m.weight("position_bias", f"{R} {wide}", f"{self.stem}position_bias")
        m.weight("kv_norm", E, f"{self.stem}kv_norm.weight", join=True)
        m.line(f"c = rms_norm({op}(x @ kv_proj, x @ gate_proj, position_bias), kv_norm)")
        m.line(f"return {turned(w, m, 'c', E, self.width)}")
        return m.name


def positions(w: Writer, rate: int) -> str:
    return w.dim(f"S{rate}", 0, f"keys of {rate} tokens each", f"S / {rate}")


def turned(w: Writer, m: Module, x: str, E: str, width: int) -> str:
    """With the last part of its width rotated."""
    rotated = w.dims["R"].value
    N = w.dim(f"N{E}" if E != "E" else "N", width - rotated, "the rest of the width", f"{E} - R")
    m.line(f"near, far = split({x}, over = {E}, to = [{N}, R])")
    return f"concat(near, rope(far), over = [{N}, R], to = {E})"


@dataclass(frozen=True)
class StreamAttention:
    """Many heads of queries over one of keys that are values too; beside a window, compressed keys of all that came before."""

    heads: int
    width: int
    rotated: int
    query_latent: int
    groups: int
    output_latent: int
    window: int
    rate: int = 0
    """How many tokens become one key; 0: there is the window alone."""
    index: tuple[int, int, int] | None = None
    """Heads of an indexer, their width, and how many compressed keys it chooses."""
    name: str = "Attention"
    stem: str = "model.layers.{i}.self_attn."

    def write(self, w: Writer) -> str:
        stem = self.stem
        H = w.dim("H", self.heads, "heads of queries")
        K = w.dim("K", 1, "head of keys and values")
        w.heads.append(K)  # one head is split over nothing
        E = w.dim("E", self.width, "width of a head,")
        w.dim("R", self.rotated, "its rotated part,")
        Q = w.dim("Q", self.query_latent, "width of the latent queries")
        W = w.dim("W", self.window, "tokens that a query of a local layer looks back")
        T = w.positions(W)
        self.grouped(w)
        about = "Keys are values too. The results of heads leave by groups, through narrow vectors."
        m = w.module(self.name, "x[B, S, D]", "[B, S, D]", about)
        m.weight("q_a_proj", f"D {Q}", f"{stem}q_a_proj.weight")
        m.weight("q_a_norm", Q, f"{stem}q_a_norm.weight", join=True)
        m.weight("q_b_proj", f"{Q} {H} {E}", f"{stem}q_b_proj.weight", join=True)
        m.weight("kv_proj", f"D {K} {E}", f"{stem}kv_proj.weight")
        m.weight("kv_norm", E, f"{stem}kv_norm.weight", join=True)
        m.weight("o_a_proj", "OG HE OR", f"{stem}o_a_proj.weight")
        m.weight("o_b_proj", "OG OR D", f"{stem}o_b_proj.weight", join=True)
        m.weight("sinks", H, f"{stem}sinks", join=True)
        m.cache("keys", "B", T, K, E)
        m.cache("values", "B", T, K, E)
        m.line("narrow = rms_norm(x @ q_a_proj, q_a_norm)")
        m.line(f"q = rms_norm(narrow @ q_b_proj, over = {E})")
        m.line(f"q = {turned(w, m, 'q', E, self.width)}")
        m.line("kv = rms_norm(x @ kv_proj, kv_norm)")
        m.line(f"kv = {turned(w, m, 'kv', E, self.width)}")
        m.line(f"k = append(keys, kv, window = {W})")
        m.line(f"v = append(values, kv, window = {W})")
        if self.rate:
            op = self.attention_op(w, T)
            overlaps = self.index is not None
            name = "Compressor" if overlaps else "StrongCompressor"
            part = Compressor(self.width, E, self.rate, overlaps, name, f"{stem}compressor.")
            m.line(f"c = {m.call(w.part(part))}(x)")
            if self.index:
                m.line(f"_chosen = {m.call(self.write_indexer(w))}(x, narrow)")
            m.line(f"mixed = {op}(q, k, v, c, sinks)")
        else:
            m.line(f"mixed = attention(q, k, v, sinks, causal = true, window = {W})")
        m.line(f"mixed = {turned(w, m, 'mixed', E, self.width)}")
        m.line("return by_groups(mixed, o_a_proj) @ o_b_proj")
        return m.name

    def grouped(self, w: Writer) -> None:
        """The product that makes narrow vectors of groups of heads."""
        w.dim("OG", self.groups, "groups of heads")
        w.dim("HE", self.heads * self.width // self.groups, "what a group makes", "H * E / OG")
        w.dim("OR", self.output_latent, "width of what becomes of it")
        w.op(
            "by_groups",
            "# The results of each group of heads times a matrix of its own.\n"
            "op by_groups(x[B, S, H, E], w[OG, HE, OR]) -> [B, S, OG, OR] {\n"
            "  flops = 2 * B * S * H * E * OR\n"
            "  bytes = 2 * (B * S * H * E + OG * HE * OR + B * S * OG * OR)\n"
            "  backward_flops = 4 * B * S * H * E * OR\n"
            "  backward_bytes = 4 * (B * S * H * E + OG * HE * OR + B * S * OG * OR)\n}\n",
        )

    def attention_op(self, w: Writer, T: str) -> str:
        """Fused attention to a window and to compressed keys under one softmax."""
        C = positions(w, self.rate)
        name = "sparse_attention" if self.index else "compressed_attention"
        seen = f"min({self.index[2]}, {C})" if self.index else C
        pairs = f"B * S * H * (min(W, S) + {seen})"
        chosen = "chosen " if self.index else ""
        moved = f"(B * S * H * E + B * {T} * K * E + B * {C} * E)"
        w.op(
            name,
            f"# A query sees the last tokens and {chosen}compressed keys: two products, of which backward has five.\n"
            f"op {name}(q[B, S, H, E], k[B, {T}, K, E], v[B, {T}, K, E], c[B, {C}, E], sinks[H]) -> [B, S, H, E] {{\n"
            f"  flops = 4 * {pairs} * E\n"
            f"  bytes = 4 * {moved}\n"
            f"  backward_flops = 10 * {pairs} * E\n"
            f"  backward_bytes = 8 * {moved}\n}}\n",
        )
        return name

    def write_indexer(self, w: Writer) -> str:
        """Scores of compressed keys by narrow heads; those with the largest are seen."""
        assert self.index is not None
        heads, width, chosen = self.index
        I = w.dim("I", heads, "heads of the indexer")
        J = w.dim("J", width, "their width")
        C = positions(w, self.rate)
        Y = w.dim("Y", 0, "compressed keys that a query sees", f"min({chosen}, {C})")
        stem = f"{self.stem}compressor.indexer."
        inner = w.part(Compressor(width, J, self.rate, True, "IndexCompressor", stem))
        m = w.module("Indexer", "x[B, S, D], narrow[B, S, Q]", f"[B, S, {Y}]: i32")
        m.about = "Scores of narrow heads say which compressed keys a query sees."
        m.weight("q_b_proj", f"Q {I} {J}", f"{stem}q_b_proj.weight")
        m.weight("weights_proj", f"D {I}", f"{stem}scorer.weights_proj.weight", join=True)
        m.line(f"keys = {m.call(inner)}(x)")
        m.line("q = narrow @ q_b_proj")
        m.line(f"q = {turned(w, m, 'q', J, width)}")
        m.line(f"scores[B, S, {C}, {I}] = q @ keys")
        m.line(f"scores = sum(relu(scores) * (x @ weights_proj), over = {I})")
        m.line(f"_, chosen = topk(scores, over = {C}, to = {Y})")
        m.line("return chosen")
        return m.name


@dataclass(frozen=True)
class StreamBlock:
    """A layer between streams: attention and experts each read one mix of them and are added to all."""

    mixer: StreamAttention
    ffn: Experts
    streams: int
    rounds: int
    name: str
    stem: str = "model.layers.{i}."

    def write(self, w: Writer) -> str:
        w.carries_state = True
        before = [
            w.part(Mix(self.streams, self.rounds, f"{self.stem}{part}_hc.", f"{name}Mix"))
            for part, name in (("attn", "Attention"), ("ffn", "Experts"))
        ]
        w.op(
            "onto_streams",
            "# A result, weighted for each stream, added to it: its cost is what it moves.\n"
            "op onto_streams(y[B, S, D], write[B, S, HO], x[B, S, HI, D]) -> [B, S, HC, D] {\n"
            "  flops = 0\n  bytes = 2 * B * S * (D + HO + 2 * HC * D)\n}\n",
        )
        inner = [w.part(self.mixer), w.part(self.ffn)]
        m = w.module(self.name, f"x{STREAMS}", STREAMS)
        m.calls += [*before, *inner]
        m.weight("norm1", "D", f"{self.stem}input_layernorm.weight")
        m.weight("norm2", "D", f"{self.stem}post_attention_layernorm.weight", join=True)
        for i, (mix, part) in enumerate(zip(before, inner, strict=True)):
            m.line(f"h, write, mix = {mix}(x)")
            m.line("mixed[B, S, HI, D] = mix[HO -> HC] @ x")
            m.line(f"x = onto_streams({part}(rms_norm(h, norm{i + 1})), write, mixed)")
        m.line("return x")
        return m.name


@dataclass
class StreamDecoder(Decoder):
    """A decoder whose layers have several residual streams."""

    streams: int = 1

    def embedding(self, w: Writer, m: Module, s: Stream) -> str:
        stream_dims(w, self.streams)
        w.op(
            "to_streams",
            "# The same in each stream: a copy.\n"
            "op to_streams(x[B, S, D]) -> [B, S, HC, D] {\n"
            "  flops = 0\n  bytes = 2 * B * S * (D + HC * D)\n  backward_reads = []\n}\n",
        )
        return f"to_streams({super().embedding(w, m, s)})"

    def logits(self, w: Writer, m: Module, x: str) -> str:
        m.weight("read_proj", "HC D HO", f"{self.prefix}hc_head.hc_fn")
        m.weight("read_base", "HO", f"{self.prefix}hc_head.hc_base", join=True)
        m.weight("read_scale", "", f"{self.prefix}hc_head.hc_scale", join=True)
        m.line("read = sigmoid((rms_norm(x, over = [HC, D]) @ read_proj) * read_scale + read_base)")
        m.line("x = sum(x * read[HO -> HC], over = HC)")
        return super().logits(w, m, "x")


KINDS = {
    "sliding_attention": "Local",
    "compressed_sparse_attention": "Sparse",
    "heavily_compressed_attention": "",
}


def attention_kinds(c: Config, rates: dict[str, int]) -> list[str]:
    """`layer_types`, or the rate of each layer as the published files say it."""
    layers = c.number("num_hidden_layers")
    given, ratios = c.layer_types(), c.get("compress_ratios")
    if given is None and isinstance(ratios, list):
        known = {0: "sliding_attention"} | {rate: kind for kind, rate in rates.items()}
        unknown = [r for r in ratios if r not in known]
        if unknown:
            message = f"keys of {unknown[0]} tokens (`compress_ratios`) are not imported"
            known_ratios = " and ".join(map(str, sorted(known)))
            raise c.unsupported(message, "compress_ratios", help=f"there are {known_ratios}")
        given = [known[r] for r in ratios]
    if given is None:
        sparse, strong = "compressed_sparse_attention", "heavily_compressed_attention"
        given = [strong, strong, *(sparse if i % 2 else strong for i in range(2, layers))]
    by_kind(c, given, KINDS)
    return list(given[:layers])


def deepseek_v4(c: Config) -> Decoder:
    s = stream(c)
    width = c.number("head_dim")
    rotated = c.count("qk_rope_head_dim") or int(width * c.get("partial_rotary_factor", 0.125))
    if c.count("num_key_value_heads", 1) != 1:
        message = "more than one head of keys (`num_key_value_heads`) is not imported"
        raise c.unsupported(message, "num_key_value_heads")
    if c.get("scoring_func") != "sqrtsoftplus":
        message = f"scores `{c.get('scoring_func')}` of this class are not imported"
        raise c.unsupported(message, "scoring_func", help="there are `sqrtsoftplus`")
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    for kind, key in zip(rates, ("compress_rate_csa", "compress_rate_hca"), strict=True):
        rates[kind] = c.number(key, rates[kind])
    rates |= c.get("compress_rates", {})
    chooses = (c.number("index_n_heads"), c.number("index_head_dim"), c.number("index_topk"))
    if rotated >= min(width, chooses[1]):
        message = f"{rotated} rotated numbers leave none of a head that are not"
        help_ = f"choose less than {min(width, chooses[1])}"
        raise c.unsupported(message, "qk_rope_head_dim", "partial_rotary_factor", help=help_)

    def attention(kind: str) -> StreamAttention:
        return StreamAttention(
            c.number("num_attention_heads"),
            width,
            rotated,
            c.number("q_lora_rank"),
            c.number("o_groups"),
            c.number("o_lora_rank"),
            c.number("sliding_window"),
            rates.get(kind, 0),
            chooses if kind == "compressed_sparse_attention" else None,
            name=f"{KINDS[kind]}Attention",
        )

    def router(correction: str) -> Router:
        return Router(
            "sqrtsoftplus",
            normalise=True,
            factor=c.real("routed_scaling_factor"),
            correction=correction,
        )

    always: dict[str, Any] = {"many": 1, "bias": c.flag("mlp_bias")}
    moe = deepseek_experts(c, s, router("gate.e_score_correction_bias"), **always)
    about = "The experts of a token stand in a table by its number; scores weight what they make."
    by_table = deepseek_experts(c, s, router(""), name="TableExperts", about=about, **always)
    layers = c.number("num_hidden_layers")
    hashed = c.count("num_hash_layers", 3)
    networks = c.get("mlp_layer_types") or ["hash_moe"] * hashed + ["moe"] * layers
    blocks = [
        StreamBlock(
            attention(kind),
            by_table if network == "hash_moe" else moe,
            c.number("hc_mult"),
            c.number("hc_sinkhorn_iters"),
            name=KINDS[kind] + ("TableBlock" if network == "hash_moe" else "Block"),
        )
        for kind, network in zip(attention_kinds(c, rates), networks, strict=False)
    ]
    made = decoder(c, "DeepSeekV4", cast(list[Block], blocks))
    return StreamDecoder(**vars(made), streams=c.number("hc_mult"))


DEEPSEEK_V4 = {"deepseek_v4": deepseek_v4}
