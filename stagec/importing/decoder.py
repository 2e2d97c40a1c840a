"""A decoder of tokens from its parts: blocks, layers, embedding and head, and the plans that one starts with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stagec.importing.layers import Times, calls, rolled
from stagec.importing.parts import NO_NORM, Norm, Stream, number, tower_text
from stagec.importing.text import Module, Part, Writer


@dataclass(frozen=True)
class Block:
    """One layer: a mixer, a feed-forward network, norms and residuals around them."""

    mixer: Part | None
    ffn: Part | None
    norm: Norm
    name: str = "Block"
    form: str = "pre"
    """`pre`: each is normalised before; `sandwich`: before and after; `post_only`: after, within the residual;
    `post`: after the sum; `parallel`: both read the same input; `single`: one part alone."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Tensors of the norms, in order."""
    stem: str = "model.layers.{i}."
    stream: Stream = field(default_factory=lambda: Stream(1))
    residual: float = 1.0
    """What each part's result is multiplied by before it is added."""
    beside: Part | None = None
    """A second mixer that reads what the first reads."""

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
            tensor = next(names)
            return self.norm.of(m, x, label, s.dim, self.stem + tensor)

        def add(x: str, y: str) -> str:
            return f"{x} + {y}" if self.residual == 1 else f"{x} + {y} * {number(self.residual)}"

        if self.form == "single":
            inner = norm("x", "norm")
            m.line(f"return {add('x', f'{mixer or ffn}({inner})')}")
        elif self.form == "pre":
            inner = norm("x", "norm1")
            m.line(f"h = {add('x', f'{mixer}({inner})')}")
            inner = norm("h", "norm2")
            m.line(f"return {add('h', f'{ffn}({inner})')}")
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
class Stack:
    """Layers in a row, written into a body."""

    blocks: Sequence[Block]
    stream: Stream
    what: str = "layers"

    def write(self, w: Writer, m: Module, x: str = "x") -> list[str]:
        """Write the repeats; the names of the blocks."""
        names = [w.part(block) for block in self.blocks]
        rows = rolled(names)
        letter = "L" + self.stream.dim[1:]
        for name, layers in calls(rows):
            m.call(name)
            w.layers.setdefault(name, []).append(layers)
        counts = [r.count for r in rows if isinstance(r, Times)]
        for row in rows:
            m.lines += self.lines(w, row, x, letter if len(counts) == 1 else letter + "1")
        return list(dict.fromkeys(names))

    def lines(self, w: Writer, row: str | Times, x: str, count: str = "") -> list[str]:
        if isinstance(row, str):
            return [f"{x} = {row}({x})"]
        if count:
            about = self.what if len(row.parts) == 1 else f"times that {self.what} repeat"
            size = self.count_dim(w, count, row, about)
        else:
            size = str(row.count)
        inner = [line for part in row.parts for line in self.lines(w, part, x)]
        if len(inner) == 1:
            return [f"repeat {size} {{ {inner[0]} }}"]
        return [f"repeat {size} {{", *(f"  {line}" for line in inner), "}"]

    def count_dim(self, w: Writer, name: str, row: Times, about: str) -> str:
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
    causal: bool = True
    sequence: int = 0

    def write(self, w: Writer) -> Module:
        """The model."""
        s = self.start(w)
        m = Module(self.name, "tokens[B, S]: i32, targets[B, S]: i32")
        x = self.embedding(w, m, s)
        m.line(f"x = {x}")
        Stack(self.blocks, s).write(w, m)
        m.line(f"loss = cross_entropy({self.logits(w, m, 'x')}, targets)")
        return m

    def start(self, w: Writer) -> Stream:
        """The dims that all have."""
        w.dim("B", self.batch, "sequences in the global batch")
        w.dim("S", self.sequence or min(self.positions, 4096), "tokens per sequence")
        w.widths.append(w.dim("V", self.vocabulary, "vocabulary"))
        w.dim("D", self.width, "model width")
        return Stream(self.width)

    batch: int = 256

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
            m.line(f"logits = tanh(({logits}) / {cap}) * {cap}")
            return "logits"
        return logits


def factor_text(factor: float, width: int) -> str:
    return "sqrt(D)" if abs(factor - width**0.5) < 1e-9 else number(factor)
