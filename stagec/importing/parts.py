"""What all parts of layers share: the stream that goes through them, norms, activations, names of dims.

Each is a frozen dataclass: equal parts are one module of the text. `stem` is where a checkpoint has the tensors of a part,
`model.layers.{i}.self_attn.` for one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagec.importing.text import Module


@dataclass(frozen=True)
class Stream:
    """What goes through layers: `[B, S, D]`, under names of its own for each tower."""

    width: int
    batch: str = "B"
    sequence: str = "S"
    dim: str = "D"

    @property
    def rows(self) -> str:
        return f"{self.batch}, {self.sequence}"

    @property
    def shape(self) -> str:
        return f"[{self.rows}, {self.dim}]"


@dataclass(frozen=True)
class Norm:
    """A norm and its weights. `kind`: `rms`, `layer`, or `none` for no norm at all."""

    kind: str = "rms"
    bias: bool = False
    affine: bool = True

    def of(self, module: Module, x: str, name: str, dims: str, tensor: str) -> str:
        """Declare its weights; the expression of `x` normalised."""
        if self.kind == "none":
            return x
        function = "rms_norm" if self.kind == "rms" else "layer_norm"
        if not self.affine:
            return f"{function}({x}, over = {listed(dims)})"
        names = [module.weight(name, dims, f"{tensor}.weight")]
        if self.bias:
            names.append(module.weight(f"{name}_bias", dims, f"{tensor}.bias", join=True))
        return f"{function}({', '.join([x, *names])})"


def listed(dims: str) -> str:
    """The value of an option that names dims."""
    names = dims.split()
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


RMS = Norm("rms")
LAYER = Norm("layer", bias=True)
PLAIN_LAYER = Norm("layer")
NO_NORM = Norm("none")

ACTIVATIONS = {
    "silu": "silu({})",
    "swish": "silu({})",
    "swiglu": "silu({})",
    "gelu": "gelu({})",
    "gelu_new": "gelu({})",
    "gelu_fast": "gelu({})",
    "gelu_pytorch_tanh": "gelu({})",
    "gelu_python": "gelu({})",
    "gegelu": "gelu({})",
    "relu": "relu({})",
    "relu2": "square(relu({}))",
    "sigmoid": "sigmoid({})",
    "tanh": "tanh({})",
    "linear": "{}",
}
"""Of transformers, as the language writes them. The variants of GELU differ in how they are approximated."""


def activated(name: str, x: str, module: Module | None = None) -> str:
    """An activation of an expression, which gets a name in a module where it is needed twice."""
    if name == "quick_gelu":
        if module and not x.isidentifier():
            module.line(f"inner = {x}")
            x = "inner"
        return f"{x} * sigmoid({x} * 1.702)"
    return ACTIVATIONS[name].format(x)


def head_name(s: Stream, letter: str) -> str:
    """Dims of towers beside the main one end in its letter."""
    return letter + s.dim[1:]


def tower_text(s: Stream, about: str) -> str:
    return about if s.dim == "D" else f"{about} of the {TOWERS.get(s.dim, s.dim)}"


TOWERS = {"DV": "vision tower", "DE": "encoder", "DA": "audio tower", "DX": "text tower"}
"""Widths of other towers, and what the towers are."""


def number(value: float) -> str:
    """As it is written in a model."""
    text = f"{value:.10g}"
    return text if "e" not in text else f"{value:.12f}".rstrip("0")


def scaled(x: str, factor: float) -> str:
    """An expression, multiplied by a factor."""
    if factor == 1:
        return x
    return f"({x}) * {number(factor)}" if " + " in x else f"{x} * {number(factor)}"


def last(name: str) -> str:
    """What a checkpoint calls a projection, without the modules around it."""
    return name.removesuffix(".linear").rpartition(".")[2]


def multiple(whole: str, value: int, result: int) -> str:
    times, rest = divmod(result, value)
    return f"{times} * {whole}" if not rest and 1 < times <= 8 else str(result)
