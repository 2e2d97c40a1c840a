"""A decoder of tokens from its parts: blocks, layers, embedding and head, and the plans that one starts with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stagec.importing.config import Unsupported, anywhere
from stagec.importing.layers import RepeatedParts, calls, rolled
from stagec.importing.parts import NO_NORM, Norm, Stream, number, scaled, tower_text
from stagec.importing.text import LayerPart, Module, Writer


@dataclass(frozen=True)
class Block:
    """One layer: a mixer, a feed-forward network, norms and residuals around them."""

    mixer: LayerPart | None
    ffn: LayerPart | None
    norm: Norm
    name: str = "Block"
    form: str = "pre"
    """`pre`: each is normalised before; `sandwich`: before and after; `post_only`: after, within the residual;
    `post`: after the sum; `parallel`: both read the same input; `single`: one part alone; `normed`: residuals are of what was normalised."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Tensors of the norms, in order; an empty name is no norm."""
    stem: str = "model.layers.{i}."
    stream: Stream = field(default_factory=lambda: Stream(1))
    scales: tuple[str, ...] = ()
    """Tensors that each part's result is multiplied by, element by element (form `pre`)."""
    gates: tuple[str, ...] = ()
    """Tensors of a number for each part, by whose tanh its result is multiplied (form `pre`)."""
    residual: float = 1.0
    """What each part's result is multiplied by before it is added."""
    factors: tuple[float, ...] = ()
    """Of the form `normed`: what input and result of the mixer, and of the network, are multiplied by."""

    def write(self, w: Writer) -> str:
        s = self.stream
        mixer = w.part(self.mixer) if self.mixer else ""
        ffn = w.part(self.ffn) if self.ffn else ""
        m = w.module(self.name, f"x{s.shape}", s.shape)
        for callee in (mixer, ffn):
            if callee:
                m.call(callee)
        names = iter(self.norms)

        def norm(x: str, label: str) -> str:
            if not (tensor := next(names)):
                return x
            return self.norm.of(m, x, label, s.dim, self.stem + tensor)

        def add(x: str, y: str) -> str:
            return f"{x} + {scaled(y, self.residual)}"

        if self.form == "single":
            inner = norm("x", "norm")
            m.line(f"return {add('x', f'{mixer or ffn}({inner})')}")
        elif self.form == "pre":
            for label, tensor in zip(("scale1", "scale2"), self.scales, strict=False):
                m.weight(label, s.dim, self.stem + tensor)
            after = [" * scale1", " * scale2"] if self.scales else ["", ""]
            for label, tensor in zip(("gate1", "gate2"), self.gates, strict=False):
                m.weight(label, "", self.stem + tensor)
            after = [" * tanh(gate1)", " * tanh(gate2)"] if self.gates else after
            inner = norm("x", "norm1") + getattr(self, "takes", "")
            m.line(f"h = {add('x', f'{mixer}({inner}){after[0]}')}")
            inner = norm("h", "norm2")
            m.line(f"return {add('h', f'{ffn}({inner}){after[1]}')}")
        elif self.form == "sandwich":
            inner = f"{mixer}({norm('x', 'norm1')})"
            m.line(f"h = {add('x', norm(inner, 'norm2'))}")
            inner = f"{ffn}({norm('h', 'norm3')})"
            m.line(f"return {add('h', norm(inner, 'norm4'))}")
        elif self.form == "post_only":
            m.line(f"h = {add('x', norm(f'{mixer}(x)', 'norm1'))}")
            m.line(f"return {add('h', norm(f'{ffn}(h)', 'norm2'))}")
        elif self.form == "post":
            m.line(f"h = {norm(add('x', f'{mixer}(x)'), 'norm1')}")
            m.line(f"return {norm(add('h', f'{ffn}(h)'), 'norm2')}")
        elif self.form == "normed":
            a, b, c, d = self.factors
            m.line(f"x = {norm('x', 'norm1')}")
            m.line(f"h = {scaled('x', a)} + {scaled(f'{mixer}(x)', b)}")
            m.line(f"h = {norm('h', 'norm2')}")
            m.line(f"return {scaled('h', c)} + {scaled(f'{ffn}(h)', d)}")
        elif self.form == "parallel":
            if len(self.norms) == 1:
                m.line(f"n = {norm('x', 'norm')}")
                m.line(f"return x + {mixer}(n) + {ffn}(n)")
            else:
                first, second = norm("x", "norm1"), norm("x", "norm2")
                m.line(f"return x + {mixer}({first}) + {ffn}({second})")
        else:
            raise AssertionError(self.form)
        return m.name


@dataclass
class LayerStack:
    """Layers in a row, written into a body."""

    blocks: Sequence[Block]
    stream: Stream
    what: str = "layers"

    after: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Lines that stand after a layer, by its number."""
    ways: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What a block makes and takes besides what goes through the layers."""

    def write(self, w: Writer, m: Module, x: str = "x") -> list[str]:
        """Write the repeats; the names of the blocks."""
        names = [w.part(block) for block in self.blocks]
        self.ways = {
            name: (getattr(block, "gives", ""), getattr(block, "takes", ""))
            for name, block in zip(names, self.blocks, strict=True)
        }
        cuts = [0, *(layer + 1 for layer in sorted(self.after) if layer + 1 < len(names))]
        stretches = list(zip(cuts, [*cuts[1:], len(names)], strict=True))
        rows = [rolled(names[start:end]) for start, end in stretches]
        counts = [r.count for row in rows for r in row if isinstance(r, RepeatedParts)]
        letter = "L" + self.stream.dim[1:]
        sizes: list[str] = []
        rolls_all = (
            all(isinstance(r, RepeatedParts) for row in rows for r in row) and not self.after
        )
        for (start, end), row in zip(stretches, rows, strict=True):
            for name, layers in calls(row):
                m.call(name)
                w.layers.setdefault(name, []).append([start + layer for layer in layers])
            for each in row:
                size = ""
                if isinstance(each, RepeatedParts):
                    size = self.count_dim(w, letter if len(counts) == 1 else f"{letter}1", each)
                    sizes.append(size)
                m.lines += self.lines(w, each, x, size)
            m.lines += self.after.get(end - 1, ())
        if rolls_all and (self.stream.sequence, self.stream.dim) == ("S", "D"):
            w.stack = sizes
        return list(dict.fromkeys(names))

    def lines(self, w: Writer, row: str | RepeatedParts, x: str, size: str = "") -> list[str]:
        """The calls of a row; of several, in a repeat that runs `size` times, or as often as they are there."""
        if isinstance(row, str):
            gives, takes = self.ways[row]
            return [f"{x}{gives} = {row}({x}{takes})"]
        size = size or str(row.count)
        inner = [line for part in row.parts for line in self.lines(w, part, x)]
        if len(inner) == 1:
            return [f"repeat {size} {{ {inner[0]} }}"]
        return [f"repeat {size} {{", *(f"  {line}" for line in inner), "}"]

    def count_dim(self, w: Writer, name: str, row: RepeatedParts) -> str:
        """The dim that is how often a repeat of layers runs: numbered, where several are."""
        about = self.what if len(row.parts) == 1 else f"times that {self.what} repeat"
        kind = row.parts[0] if len(row.parts) == 1 and isinstance(row.parts[0], str) else ""
        if name.endswith("1") and kind:
            about = f"{about} of `{kind}`"
        if name.endswith("1"):
            stem, n = name[:-1], 1
            while f"{stem}{n}" in w.dims:
                n += 1
            return w.dim(f"{stem}{n}", row.count, tower_text(self.stream, about))
        return w.dim(name, row.count, tower_text(self.stream, about))


@dataclass
class Decoder:
    """A language model: tokens in, a loss out."""

    name: str
    width: int
    vocabulary: int
    blocks: Sequence[Block]
    final_norm: Norm
    positions: int
    """Tokens that it is made for."""
    prefix: str = "model."
    embed: str = "embed_tokens"
    head: str = "lm_head"
    norm: str = "norm"
    tied: bool = False
    head_bias: bool = False
    embed_factor: float = 1.0
    embed_norm: tuple[Norm, str] = (NO_NORM, "")
    learned_positions: tuple[str, int] | None = None
    """The tensor of learned positions, and how many there are."""
    embed_width: int = 0
    """The width of the embedding, if not that of the model; projections lead there and back."""
    embed_projections: tuple[str, str] = ("project_in", "project_out")
    logit_factor: float = 1.0
    logit_softcap: float = 0.0
    sequence: int = 0
    tower: Any = None
    """The `Tower` of a model that sees, and its `Projector`."""
    projector: Any = None
    before: Any = None
    """Writes what stands before the layers, if anything does."""
    deepening: Sequence[Callable[[Writer, Module], str]] = ()
    """Projectors of what the tower kept: each adds to the tokens of images, after the first layers one by one."""

    def write(self, w: Writer) -> Module:
        """The model."""
        s = self.start(w)
        m = Module(self.name, "tokens[B, S]: i32, targets[B, S]: i32")
        seen = self.see(w, m) if self.tower else []
        x = self.embedding(w, m, s)
        if seen:
            x = f"concat({seen[0]}, {x}, over = [M, U], to = S)"
        m.line(f"x = {x}")
        if self.before:
            self.before.write(w, m)
        deepening = {i: [f"x = Deepen(x, {name})"] for i, name in enumerate(seen[1:])}
        LayerStack(self.blocks, s, after=deepening).write(w, m)
        m.line(f"logits = {self.logits(w, m, 'x')}")
        m.line("loss = cross_entropy(logits, targets)")
        return m

    def see(self, w: Writer, m: Module) -> list[str]:
        """Each sequence has an image, whose tokens stand before those of the text; the names of the results."""
        seen, tokens = self.projector.num_tokens, w.dims["S"].value
        if seen >= tokens:
            message = f"an image of {seen} tokens leaves no room for text among {tokens}"
            help_ = "choose smaller images, or longer sequences"
            raise Unsupported(message, anywhere("image_size", "max_position_embeddings"), help_)
        w.images.append(w.dim("M", seen, "tokens of an image"))
        w.dim("U", tokens - seen, "tokens of text", "S - M")
        tower = self.tower.write(w)
        w.towers.append(tower.name)
        m.call(tower.name)
        shape = tower.results.split("], ")[0].rstrip("]") + "]"
        given = [p.partition("[") for p in tower.parameters.split("], ")]
        inputs = [
            f"{name}[{rest.rstrip(']')}" + ("" if rest.endswith("i32") else "]")
            for name, _, rest in given
        ]
        m.parameters = ", ".join(["tokens[B, U]: i32", *inputs, "targets[B, S]: i32"])
        kept = ["seen", *(f"kept{i + 1}" for i in range(len(self.tower.keep)))]
        if self.tower.keep and not self.deepening:  # tokens are made of a layer before the last
            kept = ["_last", "seen"]
        pooled = ["_pooled"] if self.tower.head else []
        called = f"{tower.name}({', '.join(name for name, _, _ in given)})"
        m.line(f"{', '.join([*kept, *pooled])} = {called}")
        kept = [name for name in kept if name != "_last"]
        results = []
        for i, write in enumerate((self.projector.write_body, *self.deepening)):
            project = w.module("DeepProjector" if i else "Projector", f"x{shape}", "[B, M, D]")
            project.line(f"return {write(w, project)}")
            m.call(project.name)
            name = f"deep{i}" if i else "image"
            m.line(f"{name} = {project.name}({kept[i]})")
            results.append(name)
        if self.deepening:
            deepen = w.module("Deepen", "x[B, S, D], deep[B, M, D]", "[B, S, D]")
            deepen.about = (
                "What the tower saw in an earlier layer is added to the tokens of the image."
            )
            deepen.line("image, text = split(x, over = S, to = [M, U])")
            deepen.line("return concat(image + deep, text, over = [M, U], to = S)")
            m.call(deepen.name)
        return results

    def start(self, w: Writer) -> Stream:
        """The dims that all have."""
        w.decodes, w.widens_loss = True, self.widens_loss
        w.dim("B", self.batch, "sequences in the global batch")
        tokens = self.sequence or min(self.positions, 4096)
        w.dim("S", tokens // 128 * 128 or tokens, "tokens per sequence")
        w.widths.append(w.dim("V", self.vocabulary, "vocabulary"))
        w.dim("D", self.width, "model width")
        return Stream(self.width)

    batch: int = 256
    widens_loss: bool = True
    """Whether logits are converted to fp32 for the loss, as `ForCausalLMLoss` does (transformers, `loss/loss_utils.py`)."""

    def embedding(self, w: Writer, m: Module, s: Stream) -> str:
        D = s.dim
        if self.embed_width:
            D = w.dim("DW", self.embed_width, "width of the embedding")
        m.weight("embed", f"V {D}", f"{self.prefix}{self.embed}.weight")
        x = "embedding(tokens, embed)"
        if self.embed_factor != 1:
            x += f" * {factor_text(self.embed_factor, self.width)}"
        if self.embed_width:
            m.weight("widen", f"{D} D", f"{self.prefix}{self.embed_projections[0]}.weight")
            x = f"{x} @ widen"
        if self.learned_positions:
            tensor, many = self.learned_positions
            P = w.dim("P", many, "learned positions")
            w.requirements.append(f"S <= {P}")
            m.weight("places", f"{P} D", f"{self.prefix}{tensor}.weight")
            m.parameters = m.parameters.replace("targets", "positions[S]: i32, targets")
            x = f"{x} + embedding(positions, places)"
        norm, tensor = self.embed_norm
        return norm.of(m, x, "embed_norm", "D", f"{self.prefix}{tensor}")

    def logits(self, w: Writer, m: Module, x: str) -> str:
        normal = self.final_norm.of(m, x, "norm", "D", f"{self.prefix}{self.norm}")
        if self.embed_width:
            m.weight("narrow", "D DW", f"{self.prefix}{self.embed_projections[1]}.weight")
            normal = f"{normal} @ narrow"
        head = "embed"
        if not self.tied:
            head = m.weight("head", f"V {'DW' if self.embed_width else 'D'}", f"{self.head}.weight")
        logits = f"{normal} @ {head}"
        if self.head_bias:
            m.weight("head_bias", "V", f"{self.head}.bias", join=True)
            logits += f" + {m.weights[-1][-1].name}"
        if self.logit_factor != 1:
            logits = f"{logits} * {number(self.logit_factor)}"
        if self.logit_softcap:
            cap = number(self.logit_softcap)
            return f"tanh(({logits}) / {cap}) * {cap}"
        return logits


def factor_text(factor: float, width: int) -> str:
    return "sqrt(D)" if abs(factor - width**0.5) < 1e-9 else number(factor)
