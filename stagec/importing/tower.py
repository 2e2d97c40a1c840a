"""Towers that see: patches of images through an encoder, then a projector to the width of the language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagec.importing.decoder import Block, LayerStack
from stagec.importing.parts import NO_NORM, Norm, Stream, activated, tower_text
from stagec.importing.text import Module, Writer

IMAGES = "B"
"""The dim of images: one for each sequence."""


def vision_stream(width: int, sequence: str = "P") -> Stream:
    return Stream(width, IMAGES, sequence, "DV")


@dataclass
class Tower:
    """An encoder of the patches of images."""

    width: int
    blocks: Sequence[Block]
    num_patches: int
    kernel: str
    """The tensor that makes a vector of the pixels of a patch."""
    pixels: tuple[int, ...]
    """Channels, frames, rows and columns of a patch."""
    side: int = 0
    """Rows and columns of an image; 0 where patches come cut out, of images of any size."""
    kernel_bias: bool = False
    kernel_norm: tuple[Norm, str] = (NO_NORM, "")
    """Before positions are added."""
    class_token: str = ""
    second_token: str = ""
    """Of one more such token, behind the first."""
    mask_token: str = ""
    """Of what stands for a hidden patch: kept, and not used where none is hidden."""
    places: str = ""
    """The tensor of learned positions,"""
    num_places: int = 0
    """and how many there are: one for each patch, or a table to look them up in."""
    first_norm: tuple[Norm, str] = (NO_NORM, "")
    last_norm: tuple[Norm, str] = (NO_NORM, "")
    before: Callable[[Writer, Module], None] | None = None
    """Writes what stands before the layers, if anything does."""
    head: Callable[[Writer], str] | None = None
    """Writes the module that makes one vector of the patches, a further result."""
    keep: Sequence[int] = ()
    """Layers whose results go on, besides those of the last."""
    what: str = "layers"
    class_last: bool = False
    name: str = "Vision"
    dim: str = "DV"

    def write(self, w: Writer) -> Module:
        """The module: `[B, P, DV]` of patches, with the class token if there is one."""
        D = w.dim(
            self.dim,
            self.width,
            tower_text(Stream(1, dim=self.dim), "width") if self.dim != "D" else "model width",
        )
        w.images.append(w.dim("P", self.num_patches, "patches of an image"))
        inputs = self.inputs(w)
        m = w.module(self.name, inputs)
        sequence = "P"
        self.embed(w, m)
        if self.class_token:
            order = [w.dim("O", 1, "the class token"), "P"]
            parts = [m.weight("token", f"O {self.dim}", self.class_token), "x"]
            if self.second_token:
                order.insert(1, w.dim("OD", 1, "another such token"))
                parts.insert(1, m.weight("second", f"OD {self.dim}", self.second_token, join=True))
            if self.class_last:
                order, parts = order[::-1], parts[::-1]
            many, text = self.num_patches + len(order) - 1, " + ".join(order)
            sequence = w.dim("PO", many, "patches and class token", text)
            w.images.append(sequence)
            m.line(f"x = concat({', '.join(parts)}, over = [{', '.join(order)}], to = {sequence})")
        if self.mask_token:
            m.weight("mask", self.dim, self.mask_token)
        self.place(w, m, sequence)
        norm, tensor = self.first_norm
        if norm.kind != "none":
            m.line(f"x = {norm.of(m, 'x', 'first_norm', D, tensor)}")
        if self.before:
            self.before(w, m)
        lines = {layer: [f"kept{i + 1} = x"] for i, layer in enumerate(self.keep)}
        stream = Stream(self.width, IMAGES, sequence, self.dim)
        LayerStack(self.blocks, stream, self.what, after=lines).write(w, m)
        norm, tensor = self.last_norm
        result = norm.of(m, "x", "last_norm", D, tensor)
        m.results = ", ".join([f"[{IMAGES}, {sequence}, {D}]"] * (1 + len(self.keep)))
        kept = [f"kept{i + 1}" for i in range(len(self.keep))]
        if self.head:
            m.line(f"y = {result}")
            kept.append(f"{m.call(self.head(w))}(y)")
            m.results += f", [{IMAGES}, OP, {D}]"
            result = "y"
        m.line(f"return {', '.join([result, *kept])}")
        return m

    def inputs(self, w: Writer) -> str:
        """What the tower is given: images, or patches that are cut out of them."""
        channels, frames, rows, columns = self.pixels
        if self.side:
            w.dim("C", channels, "colours")
            w.dim("IY", self.side // rows * rows, "rows of an image that patches cover")
            w.dim("IX", self.side // columns * columns, "and columns")
            w.dim("PY", rows, "rows of a patch")
            w.dim("PX", columns, "columns of a patch")
            return f"images[{IMAGES}, C, IY, IX]"
        text = " * ".join(str(n) for n in (channels, frames, rows, columns) if n > 1)
        about = "numbers of a patch: colours, rows and columns"
        if frames > 1:
            about = "numbers of a patch: colours, frames, rows and columns"
        w.dim("PN", channels * frames * rows * columns, about, text)
        return f"patches[{IMAGES}, P, PN]"

    def embed(self, w: Writer, m: Module) -> None:
        if self.side:
            m.weight("kernel", f"C PY PX {self.dim}", f"{self.kernel}.weight")
            x = "patch_embedding(images, kernel, patches = P)"
        else:
            m.weight("kernel", f"PN {self.dim}", f"{self.kernel}.weight")
            x = "patches @ kernel"
        if self.kernel_bias:
            m.weight("kernel_bias", self.dim, f"{self.kernel}.bias", join=True)
            x += " + kernel_bias"
        norm, tensor = self.kernel_norm
        m.line(f"x = {norm.of(m, x, 'kernel_norm', self.dim, tensor)}")

    def place(self, w: Writer, m: Module, sequence: str) -> None:
        if not self.places:
            return
        if self.num_places == w.dims[sequence].value:
            m.weight("places", f"{sequence} {self.dim}", self.places)
            m.line("x = x + places")
            return
        table = w.dim("PT", self.num_places, "learned positions of patches")
        m.weight("places", f"{table} {self.dim}", self.places)
        m.parameters += f", spots[{sequence}]: i32"
        m.line("x = x + embedding(spots, places)")


@dataclass
class Projector:
    """What makes tokens of the language model out of patches."""

    write_body: Callable[[Writer, Module], str]
    """Writes lines that begin with `x`, `[B, P, DV]`; the last expression, `[B, M, D]`."""
    num_tokens: int


@dataclass
class IdleTower:
    """A tower whose sizes do not fit together: the class has its weights, reads text, and fails at an image."""

    tower: Tower
    projector: Projector
    reason: str
    deepening: Sequence[Callable[[Writer, Module], str]] = ()

    def write(self, w: Writer, m: Module) -> None:
        """Its weights, which stand in the model and are not used: their names begin with `_`."""
        drawn = Writer()
        drawn.dims |= {name: w.dims[name] for name in ("B", "S", "D")}
        drawn.dim("M", self.projector.num_tokens, "tokens of an image")
        top = self.tower.write(drawn)
        projects = []
        for number, body in enumerate((self.projector.write_body, *self.deepening)):
            projects.append(drawn.module(f"Deep{number}" if number else "Projector", ""))
            body(drawn, projects[-1])
        about = (
            f"{self.reason}. Without images the class runs; these weights are kept, and not used."
        )
        whole = self.module(w, drawn, "IdleVision", [top, *projects])
        whole.about = about
        m.line(f"x = {m.call(whole.name)}(x)")
        for name, places in drawn.layers.items():
            block = drawn.modules[name]
            parts = [block, *(drawn.modules[callee] for callee in block.calls)]
            idle = self.module(w, drawn, f"Idle{name}", parts)
            w.idle.add(idle.name)
            layers = [layer for place in places for layer in place]
            w.layers[m.call(idle.name)] = [layers]
            count = w.dim(f"L{self.tower.dim[1:]}", len(layers), "layers of the vision tower")
            m.line(f"repeat {count} {{ x = {idle.name}(x) }}")

    def module(self, w: Writer, drawn: Writer, name: str, parts: Sequence[Module]) -> Module:
        """A module with the weights of others, which hands on what it is given."""
        made = w.module(name, "x[B, S, D]", "[B, S, D]")
        for number, part in enumerate(parts):
            stem = part.name.removeprefix("Vision").lower()
            for weight in part.all_weights:
                own = f"{stem}_{weight.name}" if number and stem else weight.name
                dims = [self.dim(w, drawn, dim) for dim in weight.dims]
                made.weight(f"_{own}", " ".join(dims), *weight.tensors, join=True)
        made.line("return x")
        return made

    def dim(self, w: Writer, drawn: Writer, name: str) -> str:
        known = drawn.dims[name]
        return w.dim(name, known.value, known.about)


def linear(m: Module, x: str, name: str, dims: str, tensor: str, bias: bool, out: str = "") -> str:
    """`x @ w + b`, with its weights."""
    m.weight(name, dims, f"{tensor}.weight")
    text = f"{x} @ {name}"
    if bias:
        m.weight(f"{name}_bias", out or dims.split()[-1], f"{tensor}.bias", join=True)
        text += f" + {name}_bias"
    return text


def merge_patches(w: Writer, m: Module, x: str, together: int, tokens: str, width: int) -> str:
    """Neighbouring patches side by side: `[B, P, DV]` as `[B, M, DM]`."""
    DM = w.dim("DM", together * width, "width of patches side by side", f"{together} * DV")
    w.op(
        "side_by_side",
        f"# {together} neighbouring patches as one vector: a copy.\n"
        f"op side_by_side(x[{IMAGES}, P, DV]) -> [{IMAGES}, {tokens}, {DM}] {{\n"
        f"  flops = 0\n  bytes = 4 * {IMAGES} * P * DV\n  backward_reads = []\n}}\n",
    )
    m.line(f"m = side_by_side({x})")
    return DM


def mlp_projector(
    act: str, first: str, second: str, bias: bool, class_token: str = "", newline: str = ""
) -> Callable[[Writer, Module], str]:
    """Two products with an activation between them, for each patch. `class_token`: `first` or `last`, not a patch.

    `newline` is the tensor of a vector behind them."""

    def write(w: Writer, m: Module) -> str:
        if class_token == "first":
            m.line("_token, x = split(x, over = PO, to = [O, P])")
        elif class_token == "last":
            m.line("x, _token = split(x, over = PO, to = [P, O])")
        DH = w.dim("DH", w.dims["D"].value, "hidden width of the projector", "D")
        hidden = linear(m, "x", "linear1", f"DV {DH}", first, bias)
        out = linear(m, activated(act, hidden, m), "linear2", f"{DH} D", second, bias)
        if newline:
            one = w.dim("ON", 1, "the vector that ends an image")
            m.weight("newline", f"{one} D", newline)
            return f"concat({out}, newline, over = [P, {one}], to = M)"
        return f"({out})[P -> M]"

    return write
