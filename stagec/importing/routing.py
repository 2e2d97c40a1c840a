"""Routed experts and their routers."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.importing.config import Unsupported, anywhere
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import Stream, activated, head_name, number, tower_text
from stagec.importing.text import Writer


@dataclass(frozen=True)
class Router:
    """How the experts of a token are chosen."""

    scores: str = "softmax"
    """`softmax`, `sigmoid`, `sqrtsoftplus` before the choice, or `after`: softmax over those that are chosen."""
    normalise: bool = False
    factor: float = 1.0
    groups: int = 0
    limit: int = 0
    correction: str = ""
    """The tensor of a bias for the choice alone."""
    correction_is_buffer: bool = True
    tensor: str = "gate.weight"
    bias: str = ""
    """The tensor of a bias of the scores."""


@dataclass(frozen=True)
class Experts:
    """Routed experts, and those that all tokens visit."""

    stream: Stream
    experts: int
    per_token: int
    hidden: int
    router: Router
    act: str = "silu"
    gated: bool = True
    name: str = "Experts"
    about: str = ""
    stem: str = "model.layers.{i}.mlp."
    gate_up: str = "experts.gate_up_proj"
    gate: str = ""
    """The tensor of the gate, if it is not one with `gate_up`."""
    down: str = "experts.down_proj"
    bias: bool = False
    shared: Mlp | None = None
    shared_gate: str = ""
    """The tensor of a gate for the shared expert."""
    latent: int = 0
    """The width that tokens have for the experts, if not that of the model."""
    last_norm: str = ""
    """The tensor of a norm of the result."""
    latent_names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")

    def write(self, w: Writer) -> str:
        s = self.stream
        X = w.dim(head_name(s, "X"), self.experts, tower_text(s, "experts"))
        A = w.dim(head_name(s, "A"), self.per_token, tower_text(s, "of them for each token"))
        F = w.dim(head_name(s, "M"), self.hidden, tower_text(s, "feed-forward width of an expert"))
        rows = f"{s.batch} * {s.sequence}"
        T = w.dim(
            head_name(s, "T"),
            0,
            tower_text(s, "tokens of an expert"),
            f"{rows} * {A} / {X}",
        )
        w.shares.append((self.per_token, self.experts))
        w.experts.append((X, T))
        w.widths.append(F)
        router = self.write_router(w, X, A)
        w.modules[router].is_router = True
        shared = w.part(self.shared) if self.shared else ""
        m = w.module(self.name, f"x{s.shape}", s.shape, self.about)
        m.call(router)
        D = s.dim
        if self.latent:
            D = w.dim(head_name(s, "Z"), self.latent, tower_text(s, "width of a token for experts"))
            m.weight("squeeze", f"{s.dim} {D}", f"{self.stem}{self.latent_names[0]}.weight")
            m.weight(
                "widen", f"{D} {s.dim}", f"{self.stem}{self.latent_names[1]}.weight", join=True
            )
        gate_up = self.stem + self.gate_up
        if self.gated:
            gate = self.stem + self.gate if self.gate else gate_up
            m.weight("gate_proj", f"{X} {D} {F}", gate)
        m.weight("up_proj", f"{X} {D} {F}", gate_up, join=self.gated)
        m.weight("down_proj", f"{X} {F} {D}", self.stem + self.down, join=True)
        if self.bias:
            if self.gated:
                m.weight("gate_bias", f"{X} {F}", f"{gate_up}_bias")
            m.weight("up_bias", f"{X} {F}", f"{gate_up}_bias", join=self.gated)
            m.weight("down_bias", f"{X} {D}", f"{self.stem}{self.down}_bias", join=True)
        if self.shared_gate:
            O = w.dim(head_name(s, "O"), 1, tower_text(s, "a gate for a token"))
            m.weight("shared_gate", f"{s.dim} {O}", self.stem + self.shared_gate)
        m.line(f"gates, chosen = {router}(x)")
        source = "x @ squeeze" if self.latent else "x"
        m.line(f"r = dispatch({source}, chosen, experts = {X}, tokens = {T})")
        if self.gated:
            m.line(f"g[{X}, {T}, {F}] = r @ gate_proj")
        m.line(f"u[{X}, {T}, {F}] = r @ up_proj")
        if self.bias:
            if self.gated:
                m.line("g = g + gate_bias")
            m.line("u = u + up_bias")
        inner = f"({gated(self.act)})" if self.gated else activated(self.act, "u")
        m.line(f"y[{X}, {T}, {D}] = {inner} @ down_proj")
        if self.bias:
            m.line("y = y + down_bias")
        out = "combine(y, gates, chosen)"
        if self.latent:
            out += " @ widen"
        if shared:
            m.call(shared)
            if self.shared_gate:
                O = w.dim(head_name(s, "O"), 1, tower_text(s, "a gate for a token"))
                m.line(f"always = {shared}(x) * sum(sigmoid(x @ shared_gate), over = {O})")
                out += " + always"
            else:
                out += f" + {shared}(x)"
        if self.last_norm:
            m.weight("norm", s.dim, f"{self.stem}{self.last_norm}.weight")
            out = f"rms_norm({out}, norm)"
        m.line(f"return {out}")
        return m.name

    def write_router(self, w: Writer, X: str, A: str) -> str:
        s, r = self.stream, self.router
        if r.groups > 1 and (
            self.experts % r.groups or self.experts < 2 * r.groups or not 1 <= r.limit <= r.groups
        ):
            raise Unsupported(
                f"{r.limit} of {r.groups} groups of two and more cannot be chosen of {self.experts} experts",
                anywhere("n_group", "topk_group", "n_routed_experts", "num_experts"),
                f"choose a number of groups that divides {self.experts}, and of these some or all",
            )
        m = w.module("Router", f"x{s.shape}", f"[{s.rows}, {A}], [{s.rows}, {A}]: i32")
        m.weight("router", f"{s.dim} {X}", self.stem + r.tensor)
        logits = "x @ router"
        if r.bias:
            m.weight("router_bias", X, self.stem + r.bias, join=True)
            logits += " + router_bias"
        operands = ""
        if r.correction:
            m.about = "A bias, which no gradient trains, balances the load."
            m.weight(
                "correction",
                X,
                self.stem + r.correction,
                join=True,
                buffer=r.correction_is_buffer,
            )
            operands = ", correction"
        scores = {
            "softmax": f"softmax({logits}, over = {X})",
            "sigmoid": f"sigmoid({logits})",
            "sqrtsoftplus": f"sqrt(softplus({logits}))",
            "after": logits,
        }[r.scores]
        options = [f"over = {X}", f"to = {A}"]
        if r.groups > 1:
            options += [f"groups = {r.groups}", f"limit = {r.limit}"]
        if r.normalise:
            options.append("normalise = true")
        m.line(f"gates, chosen = topk({scores}{operands}, {', '.join(options)})")
        result = "gates"
        if r.scores == "after":
            result = f"softmax(gates, over = {A})"
        if r.factor != 1.0:
            result += f" * {number(r.factor)}"
        m.line(f"return {result}, chosen")
        return m.name


def gated(act: str) -> str:
    """What comes of the two halves of a gated network."""
    if act == "gpt_oss":
        return "g * sigmoid(g * 1.702) * (u + 1)"
    return f"{activated(act, 'g')} * u"
