"""Llama 3.2 with vision: layers of the decoder that read images, and a tower that sees each image in tiles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder, LayerStack
from stagec.importing.families.common import llama_attention, llama_mlp
from stagec.importing.families.multimodal import patches_of, seeing, vit_blocks
from stagec.importing.families.rows import decoder, stream
from stagec.importing.parts import LAYER, RMS, Stream
from stagec.importing.text import Module, Writer
from stagec.importing.tower import IMAGES, linear, vision_stream

TILES = "Q"
"""The dim of the patches of all tiles of an image."""


@dataclass(frozen=True)
class CrossLayer(Block):
    """A layer whose attention reads the image; without one it is left out."""

    takes: str = ", source"

    def write(self, w: Writer) -> str:
        name = super().write(w)
        m = w.modules[name]
        source = self.mixer.source if isinstance(self.mixer, Attention) else None
        assert source is not None
        m.parameters += f", source{source.shape}"
        w.seeing.add(name)
        return name


@dataclass
class TiledTower:
    """An encoder of the patches of all tiles of an image together, and one more whose results are gated."""

    v: Config
    stem: str = "model.vision_model."
    blocks: list[Block] = field(default_factory=list)
    later: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        v = self.v
        for blocks, part, key in (
            (self.blocks, "transformer", "num_hidden_layers"),
            (self.later, "global_transformer", "num_global_layers"),
        ):
            stem = f"{self.stem}{part}.layers.{{i}}."
            gates = ("gate_attn", "gate_ffn") if blocks is self.later else ()
            name = "GlobalVisionBlock" if blocks is self.later else "VisionBlock"
            norms = ("input_layernorm", "post_attention_layernorm")
            count = v.number(key)
            blocks += vit_blocks(
                v, stem, count, LAYER, norms, {}, {}, sequence=TILES, block_name=name, gates=gates
            )

    def write(self, w: Writer) -> Module:
        """The module: of the last layer and of some before it, side by side, `[B, NS, DO]`."""
        v, stem = self.v, self.stem
        width, tiles, num = v.number("hidden_size"), v.number("max_num_tiles"), self.num_patches
        padded = -(-(num + 1) // 8) * 8  # as the class pads them
        kept = v.get("intermediate_layers_indices", [3, 7, 15, 23, 30])
        if any(i >= len(self.blocks) for i in kept):
            message = f"`intermediate_layers_indices` is {kept} for {len(self.blocks)} layers"
            help_ = f"layers are counted from 0 to {len(self.blocks) - 1}"
            raise v.unsupported(message, "intermediate_layers_indices", help=help_)
        patch, side = v.number("patch_size"), v.number("image_size")
        w.dim("DV", width, "width of the vision tower")
        w.images.append(w.dim("NT", tiles, "tiles of an image"))
        w.dim("P", num, "patches of a tile")
        w.dim("O", 1, "the class token")
        w.dim("PO", num + 1, "patches and class token", "P + O")
        w.dim(TILES, tiles * padded, "those of all tiles, padded", f"NT * {padded}")
        w.dim("NS", tiles * (num + 1), "what the language model reads of an image", "NT * PO")
        DO = w.dim("DO", (1 + len(kept)) * width, "its width", f"{1 + len(kept)} * DV")
        w.dim("C", v.number("num_channels"), "colours")
        w.dim("IY", side // patch * patch, "rows of a tile that patches cover")
        w.dim("IX", side // patch * patch, "and columns")
        w.dim("PY", patch, "rows of a patch")
        w.dim("PX", patch, "columns of a patch")
        shapes = v.get("supported_aspect_ratios") or [None] * 8
        w.dim("NA", len(shapes) + 1, "ways to cut an image into tiles, and none")
        m = w.module("Vision", f"images[{IMAGES}, NT, C, IY, IX], cut[{IMAGES}]: i32")
        m.weight("kernel", "C PY PX DV", f"{stem}patch_embedding.weight")
        m.weight("token", "O DV", f"{stem}class_embedding", join=True)
        places = f"{stem}gated_positional_embedding."
        m.weight("places", "PO DV", f"{places}embedding")
        m.weight("tile_places", "NA NT PO DV", f"{places}tile_embedding.weight", join=True)
        m.weight("place_gate", "", f"{places}gate", join=True)
        for name in ("pre", "post"):
            tensor = f"{stem}{name}_tile_positional_embedding."
            m.weight(f"{name}_tile", "NA NT DV", f"{tensor}embedding.weight")
            m.weight(f"{name}_gate", "", f"{tensor}gate", join=True)
        m.line("x = patch_embedding(images, kernel, patches = P)")
        m.line("x = x + embedding(cut, pre_tile) * tanh(pre_gate)")
        m.line("x = concat(token, x, over = [O, P], to = PO)")
        m.line("x = x + places * (1 - tanh(place_gate))")
        m.line("x = x + embedding(cut, tile_places) * tanh(place_gate)")
        m.line(f"x = {LAYER.of(m, 'x', 'first_norm', 'DV', f'{stem}layernorm_pre')}")
        rows = f"{IMAGES}, {TILES}, DV"
        self.copy(w, "side_by_tile", f"x[{IMAGES}, NT, PO, DV]", rows)
        m.line("x = side_by_tile(x)")
        s = vision_stream(width, TILES)
        after = {layer: [f"kept{i + 1} = x"] for i, layer in enumerate(kept)}
        LayerStack(self.blocks, s, after=after).write(w, m)
        m.line(f"x = {LAYER.of(m, 'x', 'last_norm', 'DV', f'{stem}layernorm_post')}")
        self.copy(w, "by_tile", f"e[{IMAGES}, NT, DV]", rows)
        m.line("x = x + by_tile(embedding(cut, post_tile) * tanh(post_gate))")
        LayerStack(self.later, s, "layers behind them").write(w, m)
        names = ["x", *(f"kept{i + 1}" for i in range(len(kept)))]
        given = ", ".join(f"{name}[{rows}]" for name in names)
        self.copy(w, "together", given, f"{IMAGES}, NS, {DO}")
        m.line(f"return together({', '.join(names)})")
        m.results = f"[{IMAGES}, NS, {DO}]"
        return m

    @property
    def num_patches(self) -> int:
        return patches_of(self.v, self.v.number("image_size"))

    @staticmethod
    def copy(w: Writer, name: str, given: str, made: str) -> None:
        """An op that puts the same numbers elsewhere."""
        moved = made.replace(", ", " * ")
        w.op(
            name,
            f"# A copy.\nop {name}({given}) -> [{made}] {{\n  flops = 0\n  bytes = 4 * {moved}\n}}\n",
        )


@dataclass
class CrossDecoder(Decoder):
    """A decoder some of whose layers read what a tower saw."""

    rows: int = 0
    """Of the embedding: tokens of images have some that the head does not make."""

    def write(self, w: Writer) -> Module:
        s = self.start(w)
        tower = self.tower.write(w)
        w.towers.append(tower.name)
        inputs = tower.parameters
        m = Module(self.name, f"tokens[B, S]: i32, {inputs}, targets[B, S]: i32")
        m.call(tower.name)
        m.line(f"seen = {tower.name}(images, cut)")
        projector = "model.multi_modal_projector"
        m.line(f"source = {linear(m, 'seen', 'projector', 'DO D', projector, True)}")
        rows = w.dim("VE", self.rows, "rows of the embedding")
        m.weight("embed", f"{rows} D", f"{self.prefix}{self.embed}.weight")
        m.line("x = embedding(tokens, embed)")
        LayerStack(self.blocks, s).write(w, m)
        m.line(f"logits = {self.logits(w, m, 'x')}")
        m.line("loss = cross_entropy(logits, targets)")
        return m


def mllama(c: Config) -> Decoder:
    t, v = c.part("text_config"), c.part("vision_config")
    more = {"num_attention_heads": v.number("attention_heads")}
    v = Config.of({**v.data, **more}, v.model_type, v.path, v.asked)
    s, mlp = stream(t), llama_mlp(t, stream(t))
    tower = TiledTower(v)
    seen = Stream(s.width, IMAGES, "NS")
    cross = llama_attention(
        t,
        s,
        name="CrossAttention",
        stem="model.layers.{i}.cross_attn.",
        source=seen,
        causal=False,
        rotary=0,
        qk_norm=RMS,
    )
    reads = CrossLayer(
        cross,
        mlp,
        RMS,
        "CrossBlock",
        gates=("cross_attn_attn_gate", "cross_attn_mlp_gate"),
        stream=s,
    )
    plain = Block(llama_attention(t, s), mlp, RMS, stream=s)
    layers = t.number("num_hidden_layers")
    at = t.get("cross_attention_layers", [3, 8, 13, 18, 23, 28, 33, 38])
    if any(i >= layers for i in at):
        message = f"`cross_attention_layers` is {at} for {layers} layers"
        help_ = f"layers are counted from 0 to {layers - 1}"
        raise t.unsupported(message, "cross_attention_layers", help=help_)
    if t.flag("tie_word_embeddings"):
        message = "a head that has fewer rows than the embedding is not tied to it"
        raise t.unsupported(message, "tie_word_embeddings", help="write `false`")
    text = decoder(t, "Mllama", [reads if i in at else plain for i in range(layers)])
    made = replace(seeing(c, text), tied=False, tower=tower)
    return CrossDecoder(**vars(made), rows=made.vocabulary + 8)


MLLAMA = {"mllama": mllama}
