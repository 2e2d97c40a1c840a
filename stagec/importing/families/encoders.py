"""Encoders, and encoders with a decoder: BERT, ViT, CLIP, T5, Whisper and their kin."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder, LayerStack
from stagec.importing.families.common import (
    activation,
    biases,
    divided,
    head_width,
    layer_kinds,
    llama_mlp,
    plain_attention,
    plain_mlp,
    windows,
)
from stagec.importing.families.multimodal import clip_tower, patches_of, siglip_tower, vit_blocks
from stagec.importing.families.rows import by_window, stream
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import LAYER, NO_NORM, Norm, Stream, activated
from stagec.importing.text import Module, Writer
from stagec.importing.tower import Tower, linear


@dataclass
class Written:
    """An architecture whose model a function writes."""

    name: str
    body: Callable[[Writer, Module], None]
    parameters: str
    dims: Callable[[Writer], None]

    def write(self, w: Writer) -> Module:
        self.dims(w)
        m = Module(self.name, self.parameters)
        self.body(w, m)
        return m


# BERT


@dataclass
class MaskedDecoder(Decoder):
    """An encoder that predicts tokens: embeddings are summed and normalised, and a transform stands before the head. Its class has PyTorch's loss itself."""

    widens_loss: bool = False
    types: tuple[str, int] = ("", 0)
    """The tensor of embeddings of types of tokens, and how many there are."""
    widen: str = ""
    """What leads from the width of the embedding to that of the model, where they differ."""
    transform: str = ""
    transform_bias: bool = True
    transform_norm: str = ""
    norm_kind: Norm = LAYER
    act: str = "gelu"
    bias: str = ""

    def embedding(self, w: Writer, m: Module, s: Stream) -> str:
        D = self.own_width(w)
        m.weight("embed", f"V {D}", f"{self.prefix}{self.embed}.weight")
        x = "embedding(tokens, embed)"
        if self.learned_positions:
            tensor, many = self.learned_positions
            P = w.dim("P", many, "learned positions")
            w.requirements.append(f"S <= {P}")
            m.weight("places", f"{P} {D}", f"{self.prefix}{tensor}.weight")
            m.parameters = m.parameters.replace("targets", "positions[S]: i32, targets")
            x += " + embedding(positions, places)"
        tensor, many = self.types
        if many:
            Y = w.dim("Y", many, "types of tokens")
            m.weight("types", f"{Y} {D}", f"{self.prefix}{tensor}.weight")
            m.parameters = m.parameters.replace("targets", "kinds[B, S]: i32, targets")
            x += " + embedding(kinds, types)"
        norm, tensor = self.embed_norm
        x = norm.of(m, x, "embed_norm", D, f"{self.prefix}{tensor}")
        return linear(m, x, "widen", f"{D} D", self.widen, True) if self.embed_width else x

    def own_width(self, w: Writer) -> str:
        about = "width of the embedding"
        return w.dim("DW", self.embed_width, about) if self.embed_width else "D"

    def logits(self, w: Writer, m: Module, x: str) -> str:
        D = self.own_width(w)
        DH = w.dim("DH", self.embed_width or self.width, "width before the head", D)
        x = self.final_norm.of(m, x, "last_norm", "D", f"{self.prefix}{self.norm}")
        hidden = linear(m, x, "transform", f"D {DH}", self.transform, self.transform_bias)
        out = activated(self.act, hidden, m)
        m.line(f"y = {self.norm_kind.of(m, out, 'norm', DH, self.transform_norm)}")
        if self.tied:
            y = f"y[{DH} -> {D}] @ embed"
            return f"{y} + {m.weight('bias', 'V', self.bias)}" if self.bias else y
        own = f"{self.head}.bias"
        if self.bias:
            m.weight("bias", "V", self.bias)
        m.weight("head", f"V {DH}", f"{self.head}.weight")
        if not self.bias:
            return "y @ head"
        if own == self.bias:
            return "y @ head + bias"
        m.weight("head_bias", "V", own)  # the class has both, and uses that of the head
        return "y @ head + head_bias"


def bert(
    c: Config,
    prefix: str = "bert.",
    transform: tuple[str, str, str, str] = (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder",
    ),
    name: str = "Bert",
    post: bool = True,
) -> MaskedDecoder:
    """`post`: norms stand after the sums; without them before the parts, and one behind the layers."""
    if c.flag("is_decoder") or c.flag("add_cross_attention"):
        message = "this class as a decoder is not imported"
        key = "is_decoder" if c.flag("is_decoder") else "add_cross_attention"
        raise c.unsupported(message, key, help="leave it out")
    s = stream(c)
    stem = f"{prefix}encoder.layer.{{i}}."
    attention = plain_attention(
        c,
        s,
        stem + "attention.",
        q="self.query",
        k="self.key",
        v="self.value",
        o="output.dense",
        causal=False,
        **biases(True),
    )
    act = activation(c)
    hidden = c.number("intermediate_size")
    mlp = plain_mlp(s, hidden, act, stem, "intermediate.dense output.dense")
    norms = ("attention.output.LayerNorm", "output.LayerNorm")
    if not post:
        norms = ("attention.self_attn_layer_norm", "LayerNorm")
    form = "post" if post else "pre"
    block = Block(attention, mlp, LAYER, form=form, norms=norms, stem=stem, stream=s)
    positions = c.number("max_position_embeddings")
    return MaskedDecoder(
        name,
        s.width,
        c.number("vocab_size"),
        [block] * c.number("num_hidden_layers"),
        NO_NORM if post else LAYER,
        positions,
        prefix=prefix,
        embed="embeddings.word_embeddings",
        learned_positions=("embeddings.position_embeddings", positions),
        embed_norm=(LAYER if post else NO_NORM, "embeddings.LayerNorm"),
        norm="encoder.LayerNorm",
        tied=c.flag("tie_word_embeddings"),
        types=("embeddings.token_type_embeddings", c.count("type_vocab_size")),
        transform=transform[0],
        transform_norm=transform[1],
        bias=transform[2],
        head=transform[3],
        act=act,
    )


def roberta(c: Config, name: str = "Roberta", post: bool = True) -> MaskedDecoder:
    names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder")
    made = bert(c, "roberta.", names, name, post)
    made.sequence = made.positions - 2
    if made.sequence < 1:
        message = f"of {made.positions} positions two are those of padding"
        raise c.unsupported(message, "max_position_embeddings", help="choose more than two")
    return made


def xlm_roberta_xl(c: Config) -> MaskedDecoder:
    return roberta(c, "XlmRobertaXl", post=False)


def electra(c: Config) -> MaskedDecoder:
    """As BERT, with an embedding that is narrower than the model."""
    head = "generator_predictions."
    names = (f"{head}dense", f"{head}LayerNorm", "generator_lm_head.bias", "generator_lm_head")
    made = bert(c, "electra.", names, "Electra")
    narrow = c.number("embedding_size")
    made.embed_width = narrow if narrow != made.width else 0
    made.widen = "electra.embeddings_project"
    made.act = "gelu"
    return made


def modernbert(c: Config) -> MaskedDecoder:
    """Rotated by position, with windows, and no norm before the first part."""
    s = stream(c)
    norm = Norm("layer", bias=c.flag("norm_bias"))
    act = activation(c, "hidden_activation")
    layer = "model.layers.{i}."
    attention = plain_attention(
        c,
        s,
        f"{layer}attn.",
        "Wqkv",
        o="Wo",
        rotary=-1,
        causal=False,
        **biases(c.flag("attention_bias")),
    )
    mlp = llama_mlp(
        c,
        s,
        act=act,
        bias=c.flag("mlp_bias"),
        gate="Wi",
        up="Wi",
        down="Wo",
    )
    every = c.number("global_attn_every_n_layers", 3)
    kinds = layer_kinds(c, lambda i: "sliding_attention" if i % every else "full_attention")
    near = windows(c, kinds, 2 * (c.number("local_attention") // 2) + 1)
    block = Block(None, mlp, norm, norms=("attn_norm", "mlp_norm"), stream=s)
    blocks = by_window(near, attention, block)
    blocks[0] = replace(blocks[0], norms=("", "mlp_norm"), name="FirstBlock")
    return MaskedDecoder(
        "ModernBert",
        s.width,
        c.number("vocab_size"),
        blocks,
        norm,
        c.number("max_position_embeddings"),
        embed="embeddings.tok_embeddings",
        embed_norm=(norm, "embeddings.norm"),
        norm="final_norm",
        tied=c.flag("tie_word_embeddings"),
        transform="head.dense",
        transform_bias=c.flag("classifier_bias"),
        transform_norm="head.norm",
        norm_kind=norm,
        bias="decoder.bias" if c.flag("decoder_bias") else "",
        head="decoder",
        act=activation(c, "classifier_activation"),
    )


def distilbert(c: Config) -> MaskedDecoder:
    s = stream(c)
    stem = "distilbert.transformer.layer.{i}."
    names = {letter: f"{letter}_lin" for letter in "qkv"}
    attention = plain_attention(
        c, s, stem + "attention.", **names, o="out_lin", causal=False, **biases(True)
    )
    act = activation(c, "activation")
    mlp = plain_mlp(s, c.number("hidden_dim"), act, stem + "ffn.", "lin1 lin2")
    norms = ("sa_layer_norm", "output_layer_norm")
    block = Block(attention, mlp, LAYER, form="post", norms=norms, stem=stem, stream=s)
    positions = c.number("max_position_embeddings")
    return MaskedDecoder(
        "DistilBert",
        s.width,
        c.number("vocab_size"),
        [block] * c.number("num_hidden_layers"),
        NO_NORM,
        positions,
        prefix="distilbert.",
        embed="embeddings.word_embeddings",
        learned_positions=("embeddings.position_embeddings", positions),
        embed_norm=(LAYER, "embeddings.LayerNorm"),
        tied=c.flag("tie_word_embeddings"),
        transform="vocab_transform",
        transform_norm="vocab_layer_norm",
        bias="vocab_projector.bias",
        head="vocab_projector",
        act=act,
    )


# Images


@dataclass
class Classifier:
    """A tower of patches, and a head that names what is in an image."""

    name: str
    tower: Tower
    classes: int
    mean: bool = False
    """Whether the head reads the mean of the patches besides the class token."""
    pooled: str = ""
    """The tensor of a norm of that mean, where the head reads it alone."""

    def write(self, w: Writer) -> Module:
        w.dim("B", 256, "images in the global batch")
        w.dim("NC", self.classes, "classes")
        m = Module(self.name, "")
        encoder = self.tower.write(w)
        m.parameters = f"{encoder.parameters}, labels[{'B' if self.pooled else 'B, O'}]: i32"
        m.call(encoder.name)
        given = ", ".join(re.findall(r"(\w+)\[", encoder.parameters))
        m.line(f"x = {encoder.name}({given})")
        tokens = ["O", *(["OD"] if self.tower.second_token else []), "P"]
        reads = self.mean or self.pooled
        names = ["_token" if self.pooled else "token"]
        names += [*(["_second"] if self.tower.second_token else [])]
        names += ["patches" if reads else "_patches"]
        m.line(f"{', '.join(names)} = split(x, over = PO, to = [{', '.join(tokens)}])")
        if reads:
            m.line("mean = sum(patches, over = P) / P")
        x = LAYER.of(m, "mean", "norm", "D", self.pooled) if self.pooled else "token"
        out = linear(m, x, "head", "D NC", "classifier", True)
        if self.mean:
            m.weight("mean_head", "D NC", "classifier.weight")
            out += " + mean @ mean_head"
        m.line(f"loss = cross_entropy({out}, labels)")
        return m


def num_labels(c: Config) -> int:
    labels = c.get("id2label")
    return len(labels) if isinstance(labels, dict) else c.number("num_labels", 2)


def vit(c: Config, name: str = "ViT", prefix: str = "vit.", second: bool = False) -> Classifier:
    """`second`: a token to distil into stands beside the class token (DeiT)."""
    stem = f"{prefix}layers.{{i}}."
    blocks = vit_blocks(
        c,
        stem,
        c.number("num_hidden_layers"),
        LAYER,
        ("layernorm_before", "layernorm_after"),
        {
            "stem": f"{stem}attention.",
            "name": "Attention",
            "width": head_width(c),
            **biases(c.flag("qkv_bias", True), output=True),
        },
        {"name": "Mlp"},
        sequence="PO",
        dim="D",
        block_name="Block",
    )
    more = {"second_token": f"{prefix}embeddings.distillation_token"} if second else {}
    return Classifier(name, image_encoder(c, blocks, prefix, **more), num_labels(c))


def image_encoder(c: Config, blocks: Sequence[Block], prefix: str, **more: Any) -> Tower:
    patch, side = c.number("patch_size"), c.number("image_size")
    num, stem = patches_of(c, side), f"{prefix}embeddings."
    return Tower(
        c.number("hidden_size"),
        blocks,
        num,
        f"{stem}patch_embeddings.projection",
        (c.number("num_channels"), 1, patch, patch),
        side=side,
        kernel_bias=True,
        class_token=f"{stem}cls_token",
        places=f"{stem}position_embeddings",
        num_places=num + 1 + ("second_token" in more),
        last_norm=(LAYER, f"{prefix}layernorm"),
        name="Encoder",
        dim="D",
        **more,
    )


@dataclass(frozen=True)
class TabledBlock(Block):
    """A layer whose scores are biased by what it looks up for each pair of patches, in a table of its own or one for all."""

    takes = ", nearness"
    table: str = ""

    def write(self, w: Writer) -> str:
        name = super().write(w)
        m, mixer = w.modules[name], self.mixer
        assert isinstance(mixer, Attention)
        pairs = f"{self.stream.sequence}, {mixer.keys(w)}"
        if not self.table:
            m.parameters += f", nearness[{pairs}, H]"
            return name
        m.parameters += f", nearness[{pairs}]: i32"
        m.weight("table", "R H", self.table)
        m.lines.insert(0, "nearness = embedding(nearness, table)")
        return name


def beit(c: Config) -> Classifier:
    """Scores are biased by the distance of patches (Bao et al., arXiv:2106.08254)."""
    stem, side = "beit.layers.{i}.", c.number("image_size") // c.number("patch_size")
    each, shared = (c.flag(f"use_{kind}relative_position_bias") for kind in ("", "shared_"))
    if each and shared:
        message = "tables of distances of each layer beside one for all are not imported"
        raise c.unsupported(
            message, "use_shared_relative_position_bias", help="leave one of the two out"
        )
    blocks = vit_blocks(
        c,
        stem,
        c.number("num_hidden_layers"),
        LAYER,
        ("layernorm_before", "layernorm_after"),
        {
            "stem": f"{stem}attention.",
            "name": "Attention",
            "biased": each or shared,
            **biases(True),
            "k_bias": False,
        },
        {"name": "Mlp"},
        sequence="PO",
        dim="D",
        block_name="Block",
        scales=("lambda_1", "lambda_2") if c.real("layer_scale_init_value") > 0 else (),
    )
    tensor = "relative_position_bias.relative_position_bias_table"
    attention = blocks[0].mixer
    assert isinstance(attention, Attention)

    def before(w: Writer, m: Module) -> None:
        R = w.dim("R", (2 * side - 1) ** 2 + 3, "distances of patches, and of the class token")
        m.parameters += f", distances[PO, {attention.keys(w)}]: i32"
        if each:
            m.line("nearness = distances")
            return
        m.weight("table", f"{R} H", f"beit.shared_position_bias.{tensor.partition('.')[2]}")
        m.line("nearness = embedding(distances, table)")

    if each or shared:
        block = blocks[0]
        told = {f.name: getattr(block, f.name) for f in fields(block)}
        blocks = [TabledBlock(**told, table=stem + tensor if each else "")] * len(blocks)
    mean = c.flag("use_mean_pooling")
    encoder = image_encoder(
        c,
        blocks,
        "beit.",
        mask_token="beit.embeddings.mask_token" if c.flag("use_mask_token") else "",
        before=before if each or shared else None,
    )
    encoder = replace(
        encoder,
        places=encoder.places if c.flag("use_absolute_position_embeddings") else "",
        last_norm=(NO_NORM if mean else LAYER, "beit.layernorm"),
    )
    pooled = "beit.pooler.layernorm" if mean else ""
    return Classifier("BEiT", encoder, num_labels(c), pooled=pooled)


def deit(c: Config) -> Classifier:
    return vit(c, "DeiT", "deit.", second=True)


def dinov2(c: Config) -> Classifier:
    """Parts are scaled element by element; the head reads the mean of patches too (Oquab et al., arXiv:2304.07193)."""
    stem = "dinov2.encoder.layer.{i}."
    hidden = int(c.number("hidden_size") * c.real("mlp_ratio"))
    network: dict[str, Any] = {"name": "Mlp", "hidden": hidden}
    if c.flag("use_swiglu_ffn"):
        names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        network |= {"gated": True, "act": "silu", "hidden": hidden, **names}
    blocks = vit_blocks(
        c,
        stem,
        c.number("num_hidden_layers"),
        LAYER,
        ("norm1", "norm2"),
        {
            "stem": f"{stem}attention.",
            "name": "Attention",
            **biases(c.flag("qkv_bias", True), output=True),
        },
        network,
        sequence="PO",
        dim="D",
        block_name="Block",
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    )
    mask = "dinov2.embeddings.mask_token" if c.flag("use_mask_token") else ""
    encoder = image_encoder(c, blocks, "dinov2.", mask_token=mask)
    return Classifier("DinoV2", encoder, num_labels(c), mean=True)


def text_block(t: Config, s: Stream, causal: bool) -> Block:
    """A layer of the text towers of CLIP and SigLIP."""
    heads = t.number("num_attention_heads")
    stem = "text_model.encoder.layers.{i}."
    attention = Attention(
        s,
        heads,
        heads,
        divided(s.width, heads, "heads", t),
        name="TextAttention",
        stem=stem + "self_attn.",
        o="out_proj",
        rotary=0,
        causal=causal,
        cached=False,
        **biases(True),
    )
    mlp = Mlp(
        s,
        t.number("intermediate_size"),
        activation(t),
        gated=False,
        bias=True,
        name="TextMlp",
        stem=stem + "mlp.",
        up="fc1",
        down="fc2",
    )
    norms = ("layer_norm1", "layer_norm2")
    return Block(attention, mlp, LAYER, "TextBlock", norms=norms, stem=stem, stream=s)


@dataclass
class TwoTowers:
    """A tower of patches and one of tokens, whose results are compared for all pairs of the batch."""

    name: str
    tower: Tower
    text: Config
    causal: bool
    pairs: str
    """Which belong together, as the model is given it."""
    body: Callable[[Writer, Module, str, str], None]
    """Writes the rest, given the names of both towers."""

    def write(self, w: Writer) -> Module:
        t = self.text
        text = Stream(t.number("hidden_size"), "B", "S", "DX")
        length = t.number("max_position_embeddings")
        w.dim("B", 4096, "pairs of an image and a text in the global batch")
        w.dim("N", 4096, "texts that an image is compared with", "B")
        w.dim("S", length, "tokens of a text")
        w.dim("V", t.number("vocab_size"), "vocabulary")
        w.dim("DX", text.width, "width of the text tower")
        w.lengths = []
        w.whole_batch = True
        inputs = f"images[B, C, IY, IX], tokens[B, S]: i32, pairs[{self.pairs}"
        m = Module(self.name, inputs)
        seen = self.tower.write(w)
        m.call(seen.name)
        x = w.module("Text", "tokens[B, S]: i32", "[B, S, DX]")
        m.call(x.name)
        x.weight("embed", "V DX", "text_model.embeddings.token_embedding.weight")
        x.weight("places", "S DX", "text_model.embeddings.position_embedding.weight")
        x.line("x = embedding(tokens, embed) + places")
        block = text_block(t, text, self.causal)
        LayerStack([block] * t.number("num_hidden_layers"), text).write(w, x)
        x.line(f"return {LAYER.of(x, 'x', 'norm', 'DX', 'text_model.final_layer_norm')}")
        one = w.dim("O", 1, "the class token")
        w.dim("SR", length - 1, "tokens before the last of a text", f"S - {one}")
        self.body(w, m, seen.name, x.name)
        return m


def clip(c: Config) -> TwoTowers:
    tower = clip_tower(c.part("vision_config", "clip_vision_model"), "vision_model.")

    def body(w: Writer, m: Module, seen: str, read: str) -> None:
        w.dim("J", c.number("projection_dim"), "width that both are compared in")
        m.weight("image_projection", "DV J", "visual_projection.weight")
        m.weight("text_projection", "DX J", "text_projection.weight", join=True)
        m.weight("temperature", "", "logit_scale", join=True)
        m.line(f"token, _patches = split({seen}(images), over = PO, to = [O, P])")
        m.line(f"_before, end = split({read}(tokens), over = S, to = [SR, O])")
        m.line("image = rms_norm(sum(token, over = O) @ image_projection, over = J)")
        m.line("text = rms_norm(sum(end, over = O) @ text_projection, over = J)")
        m.line("alike[B, N] = image @ text[B -> N]")
        m.line("loss = cross_entropy(alike * exp(temperature), pairs)")

    text = c.part("text_config", "clip_text_model")
    return TwoTowers("Clip", tower, text, True, "B]: i32", body)


def siglip(c: Config) -> TwoTowers:
    """Each pair by itself, right or wrong (Zhai et al., arXiv:2303.15343, section 3.2)."""
    v, t = (
        c.part("vision_config", "siglip_vision_model"),
        c.part("text_config", "siglip_text_model"),
    )
    width = v.number("hidden_size")
    if not v.flag("vision_use_head", True):
        message = (
            "without the pooling head (`vision_use_head`) this class makes nothing of an image"
        )
        raise v.unsupported(message, "vision_use_head", help="leave it out")
    if t.number("projection_size", t.number("hidden_size")) != width:
        message = "texts and images of different widths cannot be compared"
        raise t.unsupported(message, "projection_size", "hidden_size", help=f"write {width}")
    tower = siglip_tower(v, "vision_model.")

    def body(w: Writer, m: Module, seen: str, read: str) -> None:
        w.dim("J", width, "width that both are compared in", "DV")
        text = linear(m, "sum(end, over = O)", "text_head", "DX J", "text_model.head", True)
        m.weight("temperature", "", "logit_scale")
        m.weight("shift", "", "logit_bias", join=True)
        m.line(f"_patches, token = {seen}(images)")
        m.line(f"_before, end = split({read}(tokens), over = S, to = [SR, O])")
        m.line("image = rms_norm(sum(token, over = OP)[DV -> J], over = J)")
        m.line(f"text = rms_norm({text}, over = J)")
        m.line("alike[B, N] = image @ text[B -> N]")
        m.line("scores = alike * exp(temperature) + shift")
        m.line("loss = mean(softplus(0 - scores * pairs), over = [B, N])")

    return TwoTowers("Siglip", tower, t, False, "B, N]", body)


# An encoder and a decoder


@dataclass(frozen=True)
class CrossBlock:
    """A layer of a decoder that reads an encoder: attention to itself, to the encoder, and a network."""

    mixer: Attention
    cross: Attention
    ffn: Mlp
    norm: Norm
    norms: tuple[str, str, str]
    stem: str
    stream: Stream
    source: Stream
    post: bool = False
    name: str = "DecoderBlock"

    def write(self, w: Writer) -> str:
        s = self.stream
        mixer, cross, ffn = (w.part(p) for p in (self.mixer, self.cross, self.ffn))
        m = w.module(self.name, f"x{s.shape}, source{self.source.shape}", s.shape)
        m.calls += [mixer, cross, ffn]

        def norm(x: str, i: int) -> str:
            return self.norm.of(m, x, f"norm{i + 1}", s.dim, self.stem + self.norms[i])

        if self.post:
            m.line(f"h = {norm(f'x + {mixer}(x)', 0)}")
            m.line(f"h = {norm(f'h + {cross}(h, source)', 1)}")
            m.line(f"return {norm(f'h + {ffn}(h)', 2)}")
        else:
            m.line(f"h = x + {mixer}({norm('x', 0)})")
            m.line(f"h = h + {cross}({norm('h', 1)}, source)")
            m.line(f"return h + {ffn}({norm('h', 2)})")
        return m.name


def both_sides(w: Writer, m: Module, encoder: Sequence[Block], source: Stream, final: str) -> None:
    """The layers of an encoder, in the body of the model."""
    LayerStack(encoder, source, "layers of the encoder").write(w, m)
    m.line(f"source = {final}")


def blocks_of_sides(c: Config, post: bool = False, k_bias: bool = True) -> tuple[Block, CrossBlock]:
    """A layer of the encoder, and one of the decoder that reads it."""
    width = c.number("d_model")
    target, source = Stream(width), Stream(width, "B", "SE", "D")
    act = activation(c, "activation_function")
    on = biases(True) | {"k_bias": k_bias, "rotary": 0, "o": "out_proj"}

    def attention(s: Stream, side: str, name: str, **more: Any) -> Attention:
        heads = c.number(f"{side}_attention_heads")
        stem = f"model.{side}.layers.{{i}}.self_attn."
        settings = {"name": name, "stem": stem, **on, **more}
        return Attention(s, heads, heads, divided(width, heads, "heads", c, "d_model"), **settings)

    def network(s: Stream, side: str, name: str) -> Mlp:
        return Mlp(
            s,
            c.number(f"{side}_ffn_dim"),
            act,
            gated=False,
            bias=True,
            name=name,
            stem=f"model.{side}.layers.{{i}}.",
            up="fc1",
            down="fc2",
        )

    encoder = Block(
        attention(source, "encoder", "EncoderAttention", causal=False),
        network(source, "encoder", "EncoderMlp"),
        LAYER,
        "EncoderBlock",
        form="post" if post else "pre",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        stem="model.encoder.layers.{i}.",
        stream=source,
    )
    stem = "model.decoder.layers.{i}."
    cross = attention(
        target,
        "decoder",
        "CrossAttention",
        causal=False,
        source=source,
        stem=f"{stem}encoder_attn.",
    )
    decoder = CrossBlock(
        attention(target, "decoder", "DecoderAttention"),
        cross,
        network(target, "decoder", "DecoderMlp"),
        LAYER,
        ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
        stem,
        target,
        source,
        post=post,
    )
    return encoder, decoder


def bart(
    c: Config,
    name: str = "Bart",
    post: bool = True,
    embed_norm: bool = True,
    offset: int | None = 2,
) -> Written:
    """`post`: norms stand after the sums, and none behind the layers. `offset`: rows of the positions' tables beyond those of
    tokens; without one positions are no parameters."""
    if c.flag("is_decoder") and not c.flag("is_encoder_decoder", True):
        message = "the decoder of this class alone is not imported"
        raise c.unsupported(message, "is_decoder", "is_encoder_decoder", help="leave it out")
    shared = c.flag("tie_word_embeddings") and c.flag("share_encoder_decoder_embeddings", True)
    if not shared or c.get("decoder_vocab_size", rows := c.number("vocab_size")) != rows:
        message = "more tables of tokens than one are not imported"
        keys = ("decoder_vocab_size", "share_encoder_decoder_embeddings", "tie_word_embeddings")
        raise c.unsupported(message, *keys[shared - 1 :])
    encoder, decoder = blocks_of_sides(c, post)
    length = c.number("max_position_embeddings")
    factor = " * sqrt(D)" if c.flag("scale_embedding") else ""

    def dims(w: Writer) -> None:
        w.dim("B", 256, "pairs of sequences in the global batch")
        w.dim("S", min(length, 512), "tokens of a target sequence")
        w.dim("SE", min(length, 512), "tokens of a source sequence")
        w.widths.append(w.dim("V", c.number("vocab_size"), "vocabulary"))
        w.dim("D", c.number("d_model"), "model width")
        w.lengths = ["S", "SE"]
        if offset is not None:
            w.requirements += [
                f"{n} <= {w.dim('P', length + offset, 'positions')}" for n in w.lengths
            ]

    def embedded(m: Module, side: str, tokens: str, places: str) -> str:
        x = f"embedding({tokens}, embed){factor}"
        if offset is not None:
            m.weight(f"{side}_places", "P D", f"model.{side}.embed_positions.weight")
            x += f" + embedding({places}, {side}_places)"
        norm = LAYER if embed_norm else Norm("none")
        return norm.of(m, x, f"{side}_first_norm", "D", f"model.{side}.layernorm_embedding")

    def body(w: Writer, m: Module) -> None:
        last = Norm("none") if post else LAYER
        m.weight("embed", "V D", "model.shared.weight")
        m.line(f"x = {embedded(m, 'encoder', 'source_tokens', 'source_positions')}")
        final = last.of(m, "x", "encoder_norm", "D", "model.encoder.layer_norm")
        both_sides(w, m, [encoder] * c.number("encoder_layers"), encoder.stream, final)
        m.line(f"x = {embedded(m, 'decoder', 'tokens', 'positions')}")
        decode(w, m, decoder, c.number("decoder_layers"), decoder.stream)
        final = last.of(m, "x", "decoder_norm", "D", "model.decoder.layer_norm")
        m.line(f"loss = cross_entropy({final} @ embed, targets)")

    places = "source_positions[SE]: i32, positions[S]: i32, " if offset is not None else ""
    inputs = f"source_tokens[B, SE]: i32, tokens[B, S]: i32, {places}targets[B, S]: i32"
    return Written(name, body, inputs, dims)


def mbart(c: Config) -> Written:
    return bart(c, "MBart", post=False)


def pegasus(c: Config) -> Written:
    return bart(c, "Pegasus", post=False, embed_norm=False, offset=0)


def blenderbot(c: Config) -> Written:
    return bart(c, "Blenderbot", post=False, embed_norm=False, offset=0)


def blenderbot_small(c: Config) -> Written:
    return bart(c, "BlenderbotSmall", offset=0)


def marian(c: Config) -> Written:
    return bart(c, "Marian", embed_norm=False, offset=0)


def m2m_100(c: Config) -> Written:
    return bart(c, "M2M100", post=False, embed_norm=False, offset=None)


def whisper(c: Config) -> Written:
    width = c.number("d_model")
    encoder, block = blocks_of_sides(c, k_bias=False)
    source, target = encoder.stream, block.stream

    def dims(w: Writer) -> None:
        w.dim("B", 256, "recordings in the global batch")
        w.dim("S", c.number("max_target_positions"), "tokens of a text")
        w.dim("P", c.number("max_target_positions"), "learned positions of tokens")
        w.dim("SE", c.number("max_source_positions"), "frames that the encoder sees")
        w.dim("SF", 2 * c.number("max_source_positions"), "frames of a recording", "2 * SE")
        w.dim("ME", c.number("num_mel_bins"), "bands of the spectrogram")
        w.dim("KF", 3, "frames that a filter sees")
        w.widths.append(w.dim("V", c.number("vocab_size"), "vocabulary"))
        w.dim("D", width, "model width")
        w.dim("DF", width, "width between the filters", "D")
        w.requirements.append("S <= P")
        w.op("filter", convolution("filter", "SF", "ME", "SF", "DF", "Filters along the frames."))
        about = "Filters along the frames that move on by two."
        w.op("halve", convolution("halve", "SF", "DF", "SE", "D", about))

    def body(w: Writer, m: Module) -> None:
        m.weight("filter1", "KF ME DF", "model.encoder.conv1.weight")
        m.weight("filter1_bias", "DF", "model.encoder.conv1.bias", join=True)
        m.weight("filter2", "KF DF D", "model.encoder.conv2.weight")
        m.weight("filter2_bias", "D", "model.encoder.conv2.bias", join=True)
        m.weight("source_places", "SE D", "model.encoder.embed_positions.weight")
        m.line("h = gelu(filter(sound, filter1) + filter1_bias)")
        m.line("x = gelu(halve(h, filter2) + filter2_bias) + source_places")
        norm = LAYER.of(m, "x", "source_norm", "D", "model.encoder.layer_norm")
        both_sides(w, m, [encoder] * c.number("encoder_layers"), source, norm)
        m.weight("embed", "V D", "model.decoder.embed_tokens.weight")
        m.weight("places", "P D", "model.decoder.embed_positions.weight", join=True)
        m.line("x = embedding(tokens, embed) + embedding(positions, places)")
        decode(w, m, block, c.number("decoder_layers"), target)
        normal = LAYER.of(m, "x", "norm", "D", "model.decoder.layer_norm")
        head = "embed"
        if not c.flag("tie_word_embeddings", True):
            head = m.weight("head", "V D", "proj_out.weight")
        m.line(f"loss = cross_entropy({normal} @ {head}, targets)")

    inputs = "sound[B, SF, ME], tokens[B, S]: i32, positions[S]: i32, targets[B, S]: i32"
    return Written("Whisper", body, inputs, dims)


def convolution(name: str, before: str, into: str, after: str, out: str, about: str) -> str:
    return (
        f"# {about}\n"
        f"op {name}(x[B, {before}, {into}], kernel[KF, {into}, {out}]) -> [B, {after}, {out}] {{\n"
        f"  flops = 2 * B * {after} * KF * {into} * {out}\n"
        f"  bytes = 2 * (B * {before} * {into} + B * {after} * {out} + KF * {into} * {out})\n"
        "}\n"
    )


def decode(w: Writer, m: Module, block: CrossBlock, layers: int, s: Stream) -> None:
    """The layers of a decoder, each of which reads the encoder."""
    name = w.part(block)
    m.call(name)
    w.layers.setdefault(name, []).append(list(range(layers)))
    count = w.dim("LT", layers, "layers of the decoder")
    m.line(f"repeat {count} {{ x = {name}(x, source) }}")


ENCODERS = {
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "xlm-roberta-xl": xlm_roberta_xl,
    "electra": electra,
    "modernbert": modernbert,
    "distilbert": distilbert,
    "vit": vit,
    "beit": beit,
    "deit": deit,
    "dinov2": dinov2,
    "clip": clip,
    "siglip": siglip,
    "whisper": whisper,
    "bart": bart,
    "mbart": mbart,
    "pegasus": pegasus,
    "blenderbot": blenderbot,
    "blenderbot-small": blenderbot_small,
    "marian": marian,
    "m2m_100": m2m_100,
}
