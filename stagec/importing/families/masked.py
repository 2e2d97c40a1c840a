"""Further encoders that predict tokens: MPNet and DeBERTa with scores by distance, ALBERT whose layers share their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block
from stagec.importing.families.common import (
    activation,
    biases,
    divided,
    plain_attention,
    plain_mlp,
)
from stagec.importing.families.encoders import MaskedDecoder, bert, roberta
from stagec.importing.families.rows import same, stream
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import LAYER, NO_NORM, Norm, Stream, number
from stagec.importing.text import Module, Writer
from stagec.importing.tower import linear


@dataclass(frozen=True)
class BiasedBlock(Block):
    """A layer of the form `post` whose mixer takes one thing more, which stands before the layers."""

    takes = ", nearness"
    shape: str = "[S, U, H]"
    """Of that."""

    def write(self, w: Writer) -> str:
        name = super().write(w)
        m = w.modules[name]
        m.parameters += f", nearness{self.shape}"
        called = m.calls[0]
        m.lines = [line.replace(f"{called}(x)", f"{called}(x, nearness)") for line in m.lines]
        return name


@dataclass
class Distances:
    """The table of distances that all layers share, before them."""

    attention: Attention
    buckets: int
    tensor: str

    def write(self, w: Writer, m: Module) -> None:
        R = w.dim("R", self.buckets, "buckets of relative positions")
        m.weight("near", f"{R} H", self.tensor)
        given = f"distances[S, {self.attention.keys(w)}]: i32"
        m.parameters = m.parameters.replace("targets", f"{given}, targets")
        m.line("nearness = embedding(distances, near)")


def mpnet(c: Config) -> MaskedDecoder:
    made = roberta(c, "MpNet")
    block = made.blocks[0]
    assert isinstance(block.mixer, Attention)
    stem = "mpnet.encoder.layer.{i}."
    attention = replace(
        block.mixer, stem=f"{stem}attention.attn.", q="q", k="k", v="v", o="o", biased=True
    )
    assert isinstance(block.ffn, Mlp)
    norms = ("attention.LayerNorm", "output.LayerNorm")
    biased = BiasedBlock(
        attention,
        replace(block.ffn, stem=stem),
        LAYER,
        form="post",
        norms=norms,
        stem=stem,
        stream=block.stream,
    )
    table = "mpnet.encoder.relative_attention_bias.weight"
    buckets = c.number("relative_attention_num_buckets")
    before = Distances(attention, buckets, table)
    return replace(
        made, blocks=[biased] * len(made.blocks), prefix="mpnet.", types=("", 0), before=before
    )


@dataclass(frozen=True)
class Disentangled:
    """Scores of contents, of contents with distances and of distances with contents (He et al., arXiv:2006.03654, section 3.1)."""

    stream: Stream
    heads: int
    rows: int
    """The rows of the table of distances."""
    kinds: tuple[str, ...]
    """`c2p` and `p2c`."""
    shared: bool
    """Whether distances go through the projections of contents."""
    stem: str

    def write(self, w: Writer) -> str:
        s = self.stream
        width = s.width // self.heads
        H = w.dim("H", self.heads, "heads")
        E = w.dim("E", width, "width of a head", f"D / {H}")
        R = w.dim("R", self.rows, "distances")
        U = w.dim("U", w.dims["S"].value, "tokens of `S` as keys", "S")
        w.heads.append(H)
        m = w.module("Attention", f"x{s.shape}, nearness[{R}, D]", s.shape)
        made = {}
        for letter, tensor in (("q", "query"), ("k", "key"), ("v", "value")):
            tensor = f"{self.stem}self.{tensor}_proj"
            dims = f"D {H} {E}"
            made[letter] = linear(m, "x", f"{letter}_proj", dims, tensor, True, f"{H} {E}")
        for letter in "qkv":
            m.line(f"{letter} = {made[letter]}")
        terms = []
        for kind, name in (("c2p", "key"), ("p2c", "query")):
            if kind not in self.kinds:
                continue
            other = name[0]
            if self.shared:
                far = f"nearness @ {other}_proj + {other}_proj_bias"
            else:
                tensor = f"{self.stem}self.pos_{name}_proj"
                far = linear(m, "nearness", f"pos_{name}", f"D {H} {E}", tensor, True, f"{H} {E}")
            rows = "S" if kind == "c2p" else U
            m.line(f"far_{name} = {far}")
            content = "q" if kind == "c2p" else f"k[S -> {U}]"
            m.line(f"{kind}[B, {rows}, {R}, {H}] = {content} @ far_{name}")
            w.op(
                f"pick_{kind}",
                "# For each query and key the score of their distance: a copy.\n"
                f"op pick_{kind}(scores[B, {rows}, {R}, {H}]) -> [B, S, {U}, {H}] {{\n"
                f"  flops = 0\n  bytes = 4 * B * S * {U} * {H}\n}}\n",
            )
            terms.append(f"pick_{kind}({kind})")
        scale = number((width * (1 + len(self.kinds))) ** -0.5)
        if terms:
            m.line(f"bias = ({' + '.join(terms)}) * {scale}")
        core = f"attention(q, k[S -> {U}], v[S -> {U}]{', bias' if terms else ''}, scale = {scale})"
        dims = f"{H} {E} D"
        out = linear(m, core, "o_proj", dims, f"{self.stem}output.dense", True, "D")
        m.line(f"return {out}")
        return m.name


@dataclass
class FarTable:
    """The vectors of distances that all layers read, normalised if the file says so."""

    rows: int
    norm: Norm

    def write(self, w: Writer, m: Module) -> None:
        R = w.dim("R", self.rows, "distances")
        m.weight("far", f"{R} D", "deberta.encoder.rel_embeddings.weight")
        line = self.norm.of(m, "far", "far_norm", "D", "deberta.encoder.LayerNorm")
        m.line(f"nearness = {line}")


def deberta_v2(c: Config) -> MaskedDecoder:
    s = stream(c)
    if c.count("conv_kernel_size"):
        message = "the convolution beside the first layer (`conv_kernel_size`) is not imported"
        raise c.unsupported(message, "conv_kernel_size")
    if not c.flag("relative_attention"):
        message = "`relative_attention = false` is not imported in this class"
        raise c.unsupported(message, "relative_attention")
    if c.number("embedding_size", s.width) != s.width or c.get("attention_head_size") is not None:
        message = "an embedding, or heads, of another width than the model's are not imported"
        is_narrow = c.number("embedding_size", s.width) != s.width
        raise c.unsupported(message, "embedding_size" if is_narrow else "attention_head_size")
    kinds = c.get("pos_att_type", ())
    kinds = tuple(kinds.lower().split("|") if isinstance(kinds, str) else kinds)
    span = c.get("max_relative_positions", -1)
    span = span if span >= 1 else c.number("max_position_embeddings")
    buckets = c.get("position_buckets", -1)
    rows = 2 * (buckets if buckets > 0 else span)
    stem = "deberta.encoder.layer.{i}."
    shared = c.flag("share_att_key")
    heads = c.number("num_attention_heads")
    divided(s.width, heads, "heads", c)
    attention = Disentangled(s, heads, rows, kinds, shared, f"{stem}attention.")
    names = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm")
    names += ("cls.predictions.bias", "cls.predictions.decoder")
    legacy = c.flag("legacy", True)
    if not legacy:
        stem_of_head = "lm_predictions.lm_head."
        names = (f"{stem_of_head}dense", f"{stem_of_head}LayerNorm", f"{stem_of_head}bias", "")
    made = bert(c, "deberta.", names, "DebertaV2")
    block = made.blocks[0]
    biased = BiasedBlock(
        attention,
        block.ffn,
        LAYER,
        form="post",
        norms=block.norms,
        stem=stem,
        stream=s,
        shape="[R, D]",
    )
    bare = "layer_norm" not in c.get("norm_rel_ebd", "none").lower().split("|")
    places = made.learned_positions if c.flag("position_biased_input") else None
    return replace(
        made,
        blocks=[biased] * len(made.blocks),
        learned_positions=places,
        tied=made.tied or not legacy,
        before=FarTable(rows, NO_NORM if bare else LAYER),
    )


@dataclass(frozen=True)
class SharedBlock(Block):
    """A layer whose weights are those of the model, the same in each: it takes them with what goes through the layers."""

    def write(self, w: Writer) -> str:
        name = super().write(w)
        m = w.modules[name]
        m.about = "All layers have the same weights."
        for callee in m.calls:
            part = w.modules[callee]
            weights, part.weights = part.all_weights, []
            part.parameters += "".join(f", {weight.text}" for weight in weights)
            given = "".join(f", {weight.name}" for weight in weights)
            m.weights.append(weights)
            for x in ("x", "h"):
                m.lines = [y.replace(f"{callee}({x})", f"{callee}({x}{given})") for y in m.lines]
        m.parameters += "".join(f", {weight.text}" for weight in m.all_weights)
        return name

    @property
    def takes(self) -> str:
        """The weights, as the model calls them."""
        drawn = Writer()
        name = self.write(drawn)
        return "".join(f", {weight.name}" for weight in drawn.modules[name].all_weights)


@dataclass
class Shared:
    """Weights of a layer that are those of the model, before its layers."""

    block: SharedBlock

    def write(self, w: Writer, m: Module) -> None:
        name = w.part(self.block)
        m.weights += w.modules[name].weights
        w.modules[name].weights = []


def albert(c: Config) -> MaskedDecoder:
    for key in ("num_hidden_groups", "inner_group_num"):
        if c.number(key) > 1:
            raise c.unsupported("layers of several groups are not imported", key)
    head = "predictions."
    told = (f"{head}dense", f"{head}LayerNorm", f"{head}bias", f"{head}decoder")
    made = bert(c, "albert.", told, "Albert")
    s, narrow = stream(c), c.number("embedding_size")
    stem = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    names = {"q": "query", "k": "key", "v": "value", "o": "dense"}
    attention = plain_attention(c, s, f"{stem}attention.", **names, causal=False, **biases(True))
    hidden = c.number("intermediate_size")
    mlp = plain_mlp(s, hidden, activation(c), stem, "ffn ffn_output")
    norms = ("attention.LayerNorm", "full_layer_layer_norm")
    block = SharedBlock(attention, mlp, LAYER, form="post", norms=norms, stem=stem, stream=s)
    return replace(
        made,
        blocks=same(c, block),
        before=Shared(block),
        embed_width=narrow,
        widen="albert.encoder.embedding_hidden_mapping_in",
    )


MASKED = {"mpnet": mpnet, "albert": albert, "deberta-v2": deberta_v2}
