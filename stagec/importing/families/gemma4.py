"""Gemma 4: heads of two widths, keys that are values, experts beside the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import activation, biases, by_kind
from stagec.importing.families.multimodal import pooled, seeing, vit_blocks
from stagec.importing.families.rows import SANDWICH, decoder, stream
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import RMS, Norm, Stream, activated
from stagec.importing.routing import Experts, Router
from stagec.importing.text import Module, Writer
from stagec.importing.tower import Projector, Tower, linear

BARE = Norm("rms", affine=False)


@dataclass(frozen=True)
class OwnInputs:
    """Inputs of their own for each layer: a narrow embedding of the tokens, and of what the layers start from."""

    width: int
    vocabulary: int
    act: str
    table: str = "model.embed_tokens_per_layer.weight"
    projection: str = "model.per_layer_model_projection.weight"
    norm: str = "model.per_layer_projection_norm.weight"

    def write(self, w: Writer, m: Module) -> None:
        """In the model: what each layer is given for them."""
        DL = w.dim("DL", self.width, "width of a layer's own inputs")
        m.weight("own_norm", DL, self.norm)
        m.parameters = m.parameters.replace("targets", "ids[B, S]: i32, targets")
        m.line("start = x")

    def add(self, w: Writer, m: Module, stem: str) -> None:
        """In a layer: its inputs through a gate, onto `h`."""
        DL = w.dim("DL", self.width, "width of a layer's own inputs")
        same = "V" if self.vocabulary == w.dims["V"].value else ""
        VL = w.dim("VL", self.vocabulary, "vocabulary of a layer's own inputs", same)
        m.weight("own_table", f"{VL} {DL}", self.table)
        m.weight("own_proj", f"D {DL}", self.projection, join=True)
        m.weight("own_gate", f"D {DL}", f"{stem}per_layer_input_gate.weight")
        m.weight("own_out", f"{DL} D", f"{stem}per_layer_projection.weight", join=True)
        norm = RMS.of(m, "y", "norm5", "D", f"{stem}post_per_layer_input_norm")
        m.line(f"own = embedding(ids, own_table) * sqrt({DL})")
        m.line("own = (own + rms_norm(start @ own_proj, own_norm)) * rsqrt(2)")
        m.line(f"y = ({activated(self.act, 'h @ own_gate', m)} * own) @ own_out")
        m.line(f"h = h + {norm}")


@dataclass(frozen=True)
class Gemma4Block:
    """A layer: attention and network between norms, experts beside the network."""

    mixer: Attention
    ffn: Mlp
    experts: Experts | None
    stream: Stream
    name: str = "Block"
    stem: str = "model.layers.{i}."
    own: OwnInputs | None = None

    @property
    def kept(self) -> str:
        """The names that keys and values have, where later layers use them."""
        return ", local_keys, local_values" if self.mixer.window else ", keys, values"

    @property
    def gives(self) -> str:
        return self.kept if self.mixer.returns_keys else ""

    @property
    def takes(self) -> str:
        own = ", ids, start, own_norm" if self.own else ""
        return own + (self.kept if self.mixer.shared_keys else "")

    def write(self, w: Writer) -> str:
        s, stem = self.stream, self.stem
        mixer, ffn = w.part(self.mixer), w.part(self.ffn)
        given = f"x{s.shape}"
        if self.own:
            DL = w.dim("DL", self.own.width, "width of a layer's own inputs")
            given += f", ids[{s.rows}]: i32, start{s.shape}, own_norm[{DL}]"
        attention = w.modules[mixer]
        given += attention.parameters.removeprefix(f"x{s.shape}")
        m = w.module(self.name, given, attention.results)
        m.calls += [mixer, ffn]

        def norm(x: str, label: str, tensor: str) -> str:
            return RMS.of(m, x, label, s.dim, stem + tensor)

        first = norm("x", "norm1", SANDWICH[0])
        keys = ", k, v" if self.mixer.shared_keys else ""
        made = ", k, v" if self.mixer.returns_keys else ""
        m.line(f"a{made} = {mixer}({first}{keys})")
        m.line(f"h = x + {norm('a', 'norm2', SANDWICH[1])}")
        y = f"{ffn}({norm('h', 'norm3', SANDWICH[2])})"
        if self.experts:
            experts = w.part(replace(self.experts, name="Experts"))
            m.calls.append(experts)
            near = norm(y, "norm_near", "post_feedforward_layernorm_1")
            before = norm("h", "norm_far1", "pre_feedforward_layernorm_2")
            far = norm(f"{experts}({before}, h)", "norm_far2", "post_feedforward_layernorm_2")
            m.line(f"y = {near} + {far}")
            y = "y"
        m.line(f"h = h + {norm(y, 'norm4', SANDWICH[3])}")
        if self.own:
            self.own.add(w, m, stem)
        m.line(f"return h{made}")
        return m.name


@dataclass(frozen=True)
class GemmaExperts(Experts):
    """Experts that read one norm of the input, while their router reads another."""

    def write(self, w: Writer) -> str:
        name = super().write(w)
        m = w.modules[name]
        m.parameters += f", h{self.stream.shape}"
        m.lines = [line.replace("Router(x)", "Router(h)") for line in m.lines]
        return name

    def write_router(self, w: Writer, X: str, A: str) -> str:
        s = self.stream
        m = w.module("Router", f"x{s.shape}", f"[{s.rows}, {A}], [{s.rows}, {A}]: i32")
        m.weight("scale", "D", f"{self.stem}router.scale")
        m.weight("router", f"D {X}", f"{self.stem}router.proj.weight", join=True)
        O = w.dim("O", 1, "a factor for each")
        m.weight("factors", f"{X} {O}", f"{self.stem}router.per_expert_scale", join=True)
        m.line("n = rms_norm(x, over = D) * scale / sqrt(D)")
        options = f"over = {X}, to = {A}, normalise = true"
        m.line(f"gates, chosen = topk(softmax(n @ router, over = {X}), {options})")
        m.line(f"return gates * sum(embedding(chosen, factors), over = {O}), chosen")
        return m.name


def gemma4_text(c: Config) -> Decoder:
    s = stream(c)
    layers = c.number("num_hidden_layers")
    given = c.layer_types()
    kinds = list(
        given or ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)]
    )
    kinds = kinds[:layers]
    kinds[-1] = "full_attention"
    heads = c.number("num_attention_heads")
    equal = c.flag("attention_k_eq_v")
    shared = c.count("num_kv_shared_layers")
    on: dict[str, Any] = {
        "qk_norm": RMS,
        "v_norm": BARE,
        "scale": 1.0,
        **biases(c.flag("attention_bias")),
    }
    near = Attention(
        s,
        heads,
        c.number("num_key_value_heads"),
        c.number("head_dim"),
        name="LocalAttention",
        window=c.count("sliding_window"),
        **on,
    )
    far_heads = c.number("num_key_value_heads")
    if equal:
        far_heads = c.number("num_global_key_value_heads", far_heads)
    width = c.number("global_head_dim", 512)
    far = Attention(
        s,
        heads,
        far_heads,
        width,
        keys_are_values=equal,
        rotary=int(width * 0.25),
        **on,
    )
    act = activation(c, "hidden_activation")
    mlp = Mlp(s, c.number("intermediate_size"), act)
    moe = None
    if c.flag("enable_moe_block"):
        moe = GemmaExperts(
            s,
            c.number("num_experts"),
            c.number("top_k_experts"),
            c.number("moe_intermediate_size"),
            Router(),
            act=act,
            stem="model.layers.{i}.",
        )
    known = {"sliding_attention": near, "full_attention": far}
    by_kind(c, kinds, known)
    own = None
    if c.count("hidden_size_per_layer_input"):
        vocabulary = c.number("vocab_size_per_layer_input", c.number("vocab_size"))
        own = OwnInputs(c.number("hidden_size_per_layer_input"), vocabulary, act)
    wide = mlp
    if c.flag("use_double_wide_mlp"):
        wide = replace(mlp, hidden=2 * mlp.hidden, name="WideGeGLU")
    blocks = [
        Gemma4Block(
            attention,
            wide if attention.shared_keys else mlp,
            moe,
            s,
            name=block_name(attention),
            own=own,
        )
        for attention in sharing(c, kinds, known, shared)
    ]
    return decoder(
        c,
        "Gemma4",
        cast(list[Block], blocks),
        embed_factor=s.width**0.5,
        logit_softcap=c.real("final_logit_softcapping", 0),
        before=own,
    )


def sharing(
    c: Config, kinds: Sequence[str], known: dict[str, Attention], shared: int
) -> list[Attention]:
    """The attention of each layer: the last ones use keys and values of the last of their kind before them."""
    first = len(kinds) - shared
    if shared and not {*kinds[first:]} <= {*kinds[: max(first, 0)]}:
        message = f"`num_kv_shared_layers = {shared}`: no layer before the last {shared} has keys for each of them"
        raise c.unsupported(message, "num_kv_shared_layers", help="choose a smaller number")
    sources = {kinds[:first][::-1].index(kind): kind for kind in {*kinds[first:]}} if shared else {}
    sources = {first - 1 - back: kind for back, kind in sources.items()}
    found = []
    for i, kind in enumerate(kinds):
        attention = known[kind]
        if i >= first:
            attention = replace(attention, shared_keys=True, name=f"Later{attention.name}")
        elif i in sources:
            attention = replace(attention, returns_keys=True, name=f"Last{attention.name}")
        found.append(attention)
    return found


def block_name(attention: Attention) -> str:
    """`LocalBlock`, `LaterBlock`, ...: as its attention is called."""
    return attention.name.replace("Attention", "Block")


def gemma4(c: Config) -> Decoder:
    text = seeing(c, gemma4_text(c.part("text_config", "gemma4_text")))
    v = c.part("vision_config", "gemma4_vision")
    if isinstance(c.get("audio_config"), dict):
        message = "a tower that hears (`audio_config`) is not imported"
        raise c.unsupported(message, "audio_config", help="leave it out")
    if not isinstance(c.data.get("vision_config"), dict):
        message = "without `vision_config` this class is not imported"
        help_ = "the class of the language model alone is `gemma4_text`"
        raise c.unsupported(message, "vision_config", "model_type", help=help_)
    stem = "model.vision_tower.encoder.layers.{i}."
    names = {letter: f"{letter}_proj.linear" for letter in "qkvo"}
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        RMS,
        SANDWICH,
        {
            "kv_heads": v.number("num_key_value_heads"),
            "width": v.number("head_dim"),
            "rotary": -1,
            "qk_norm": RMS,
            "v_norm": BARE,
            "scale": 1.0,
            **names,
        },
        {
            "gated": True,
            "bias": False,
            "act": activation(v, "hidden_activation"),
            "name": "VisionGeGLU",
            "gate": "gate_proj.linear",
            "up": "up_proj.linear",
            "down": "down_proj.linear",
        },
        form="sandwich",
    )
    patch, pool = v.number("patch_size"), v.number("pooling_kernel_size")
    tokens = v.number("default_output_length", 280)
    tower = Tower(
        v.number("hidden_size"),
        blocks,
        tokens * pool**2,
        "model.vision_tower.patch_embedder.input_proj",
        (3, 1, patch, patch),
        places="model.vision_tower.patch_embedder.position_embedding_table",
        num_places=2 * v.number("position_embedding_size"),
    )

    def project(w: Writer, m: Module) -> str:
        m.line(f"m = rms_norm({pooled(w, 'x', pool**2)}, over = DV)")
        return linear(m, "m", "linear", "DV D", "model.embed_vision.embedding_projection", False)

    return replace(text, tower=tower, projector=Projector(project, tokens))


GEMMA4 = {"gemma4": gemma4, "gemma4_text": gemma4_text}
