"""Feed-forward networks."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.importing.parts import Stream, activated, head_name, last, multiple, scaled, tower_text
from stagec.importing.text import Module, Writer


@dataclass(frozen=True)
class Mlp:
    """A feed-forward network; a gated one has three matrices."""

    stream: Stream
    hidden: int
    act: str = "silu"
    gated: bool = True
    bias: bool = False
    down_bias: bool | None = None
    name: str = ""
    about: str = ""
    stem: str = "model.layers.{i}.mlp."
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    letter: str = "F"
    what: str = "feed-forward width"
    sub_norm: str = ""
    factors: tuple[float, ...] = (1.0, 1.0)
    """What the gate, before its activation, and the result are multiplied by."""

    def write(self, w: Writer) -> str:
        s = self.stream
        F = w.dim(
            head_name(s, self.letter),
            self.hidden,
            tower_text(s, self.what),
            multiple(s.dim, s.width, self.hidden),
        )
        w.widths.append(F)
        name = self.name or ({"silu": "SwiGLU"}.get(self.act, "GeGLU") if self.gated else "Mlp")
        m = w.module(name, f"x{s.shape}", s.shape, self.about)
        stem = self.stem
        one = self.gate == self.up
        names = {"gate": "gate_proj" if one else last(self.gate)}
        up = "up_proj" if one else last(self.up)
        if self.gated:
            m.weight(names["gate"], f"{s.dim} {F}", f"{stem}{self.gate}.weight")
        down = last(self.down)
        if down == up:
            up, down = "up_proj", "down_proj"
        m.weight(up, f"{s.dim} {F}", f"{stem}{self.up}.weight", join=self.gated)
        m.weight(down, f"{F} {s.dim}", f"{stem}{self.down}.weight", join=True)
        down_bias = self.bias if self.down_bias is None else self.down_bias
        plus = {"gate": "", "up": "", "down": ""}
        if self.bias and self.gated:
            m.weight(f"{names['gate']}_bias", F, f"{stem}{self.gate}.bias")
            plus["gate"] = f" + {names['gate']}_bias"
        if self.bias:
            m.weight(f"{up}_bias", F, f"{stem}{self.up}.bias", join=self.gated)
            plus["up"] = f" + {up}_bias"
        if down_bias:
            m.weight(f"{down}_bias", s.dim, f"{stem}{self.down}.bias", join=self.bias)
            plus["down"] = f" + {down}_bias"
        if self.gated:
            gate = f"x @ {names['gate']}{plus['gate']}"
            gate = scaled(gate, self.factors[0])
            inner = f"{activated(self.act, gate, m)} * (x @ {up}{plus['up']})"
        elif self.act == "xielu":
            inner = xielu(m, f"x @ {up}{plus['up']}", f"{stem}act_fn.")
        else:
            inner = activated(self.act, f"x @ {up}{plus['up']}", m)
        if self.sub_norm:
            m.weight("sub_norm", F, f"{stem}{self.sub_norm}.weight")
            inner = f"rms_norm({inner}, sub_norm)"
        elif self.gated or self.act in ("quick_gelu", "linear", "xielu"):
            inner = f"({inner})"
        out = f"{inner} @ {down}{plus['down']}"
        m.line(f"return {scaled(out, self.factors[1])}")
        return m.name


def xielu(m: Module, x: str, stem: str) -> str:
    """xIELU (Huang and Schlag, arXiv:2411.13010, section 4): a square above 0, an exponential below, with two trained numbers.

    Each is the softplus of a parameter; the second has beta, a half, added.
    """
    above = m.weight("alpha_p", "", f"{stem}alpha_p")
    below = m.weight("alpha_n", "", f"{stem}alpha_n", join=True)
    m.line(f"inner = {x}")
    m.line("above = relu(inner)")
    m.line("below = inner - above")
    return (
        f"square(above) * softplus({above}) + (exp(below) - 1 - below) * (softplus({below}) + 0.5)"
        " + inner * 0.5"
    )
