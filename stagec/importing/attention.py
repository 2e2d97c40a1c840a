"""Attention with heads: multi-head, grouped or multi-query, with what families add to it."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.importing.config import Unsupported, anywhere
from stagec.importing.parts import (
    NO_NORM,
    Norm,
    Stream,
    head_name,
    last as last_part,
    number,
    tower_text,
)
from stagec.importing.text import Module, Writer

ROTATED = (
    *("partial_rotary_factor", "rotary_pct", "rotary_dim", "rope_parameters", "rope_scaling"),
    *("head_dim", "num_attention_heads", "n_head", "hidden_size", "n_embd"),
)
"""Keys that say how much of a head is rotated, and how wide it is."""


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped or multi-query attention."""

    stream: Stream
    heads: int
    kv_heads: int
    width: int
    """The width of a head's queries and keys."""
    value_width: int = 0
    """The width of a head's values; 0 if it is the same."""
    name: str = "Attention"
    about: str = ""
    stem: str = "model.layers.{i}.self_attn."
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    o: str = "o_proj"
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    rotary: int = -1
    """How much of a head's width is rotated: all (-1), none (0) or so many."""
    qk_norm: Norm = NO_NORM
    qk_norm_over: str = "head"
    """`head`: a weight for the width of a head; `all`: for all heads together; `heads`: a head has one of its own."""
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_norm_parts: bool = False
    """Whether a checkpoint has the weights of each head by themselves."""
    norm_after_rope: bool = False
    v_norm: Norm = NO_NORM
    sub_norm: Norm = NO_NORM
    """The norm of what attention makes, before its last product."""
    causal: bool = True
    window: int = 0
    chunked: bool = False
    """Whether `window` is the length of a chunk, and a query sees its own."""
    softcap: float = 0.0
    alibi: bool = False
    """Scores are biased by a slope of each head times the distance of query and key."""
    biased: bool = False
    """Scores are biased by what the layer is given for each query, key and head."""
    scale: float = 0.0
    """What scores are multiplied by, if it is not 1 / sqrt(width)."""
    clip: float = 0.0
    gate: str = ""
    """A gate for what attention makes: `fused` with the queries, or the tensor's name: one for each element."""
    head_gate: str = ""
    """The tensor of a gate for each head."""
    gate_act: str = "sigmoid"
    repeated: bool = False
    """Keys and values are repeated for all heads before they are kept (falcon's class)."""
    keys_are_values: bool = False
    shared_keys: bool = False
    """Keys and values are those of an earlier layer."""
    sinks: str = ""
    """The tensor of attention sinks: a score for each head that no value goes with."""
    value_factor: float = 0.0
    source: Stream | None = None
    """Where keys and values come from, if not from what queries come from."""

    def write(self, w: Writer) -> str:
        s = self.stream
        if self.rotary > self.width:
            message = f"{self.rotary} of a head's {self.width} numbers cannot be rotated"
            help_ = f"choose a part of a head, at most {self.width} numbers"
            raise Unsupported(message, anywhere(*ROTATED), help_)
        H = w.dim(head_name(s, "H"), self.heads, self.said("query heads", "heads"))
        K = (
            H
            if self.kv_heads == self.heads
            else w.dim(head_name(s, "K"), self.kv_heads, self.said("key and value heads"))
        )
        w.heads += [H, K]
        w.key_heads += [K] * (K != H)
        about = self.said("width of a head")
        E = w.dim(head_name(s, "E"), self.width, about, quotient_text(s, self.heads, self.width, H))
        G = E
        if self.value_width and self.value_width != self.width:
            G = w.dim(head_name(s, "G"), self.value_width, self.said("width of a head's values"))
        src = self.source or s
        given = f"x{s.shape}" + (f", source{src.shape}" if self.source else "")
        if self.biased:
            given += f", bias[{s.sequence}, {self.keys(w)}, {H}]"
        m = w.module(self.name, given, s.shape, self.about)
        fused_gate = self.gate == "fused"
        stem = self.stem
        tensor = stem + self.q
        q = m.weight(short(self.q, "q"), f"{s.dim} {H} {E}", f"{tensor}.weight")
        extra = ""
        if fused_gate:
            extra = m.weight("gate_proj", f"{s.dim} {H} {E}", f"{tensor}.weight", join=True)
        elif self.gate:
            extra = m.weight("gate_proj", f"{s.dim} {H} {G}", f"{stem}{self.gate}.weight")
        k = v = ""
        has_values = not self.shared_keys and not self.keys_are_values
        if not self.shared_keys:
            k = m.weight(
                short(self.k, "k"), f"{src.dim} {K} {E}", f"{stem}{self.k}.weight", join=True
            )
        if has_values:
            v = m.weight(
                short(self.v, "v"), f"{src.dim} {K} {G}", f"{stem}{self.v}.weight", join=True
            )
        o = m.weight(short(self.o, "o"), f"{H} {G} {s.dim}", f"{stem}{self.o}.weight", join=True)
        biases: dict[str, str] = {}
        for letter, on, dims, name in (
            ("q", self.q_bias, f"{H} {E}", self.q),
            ("k", self.k_bias and not self.shared_keys, f"{K} {E}", self.k),
            ("v", self.v_bias and has_values, f"{K} {G}", self.v),
            ("o", self.o_bias, s.dim, self.o),
        ):
            if on:
                biases[letter] = m.weight(
                    f"{short(name, letter)}_bias", dims, f"{stem}{name}.bias", join=bool(biases)
                )
        gate_bias = ""
        if fused_gate and self.q_bias:
            gate_bias = m.weight("gate_bias", f"{H} {E}", f"{tensor}.bias", join=True)

        def projected(letter: str, weight: str) -> str:
            bias = biases.get(letter)
            x = "source" if self.source and letter != "q" else "x"
            return f"{x} @ {weight}" + (f" + {bias}" if bias else "")

        query = self.position(m, "q", projected("q", q), H, E, 0)
        m.line(f"q[{s.rows}, {H}, {E}] = {query}")
        if self.turns_part:
            m.line(f"q = {rotate_part(w, m, s, 'q', E, self.rotary, self.width)}")
        if not self.shared_keys:
            raw = projected("k", k)
            if self.keys_are_values:
                m.line(f"kv[{s.rows}, {K}, {E}] = {raw}")
                raw = "kv"
            key = self.position(m, "k", raw, K, E, 1)
            if self.turns_part:
                m.line(f"k[{src.rows}, {K}, {E}] = {key}")
                key = rotate_part(w, m, s, "k", E, self.rotary, self.width)
            value = "kv" if self.keys_are_values else projected("v", v)
            if self.v_norm.kind != "none":
                value = self.v_norm.of(m, value, "v_norm", E, stem + "v_norm")
            if self.value_factor:
                value = f"{value} * {number(self.value_factor)}"
            self.keep(w, m, "k", key, K, E, H)
            self.keep(w, m, "v", value, K, G, H)
        else:
            rows = f"{s.batch}, {self.positions(w)}"
            m.parameters += f", k[{rows}, {K}, {E}], v[{rows}, {K}, {G}]"
        core = self.core(w, m, s, H)
        if self.sub_norm.kind != "none":
            core = self.sub_norm.of(m, core, "sub_norm", f"{H} {G}", stem + "attn_sub_norm")
        if extra:
            m.line(f"mixed = {core}")
            gate = f"x @ {extra}" + (f" + {gate_bias}" if gate_bias else "")
            core = f"(mixed * {self.gate_act}({gate}))"
        if self.head_gate:
            m.weight("head_gate", f"{s.dim} {H}", f"{stem}{self.head_gate}.weight")
            m.line(f"mixed = {core}")
            core = f"(mixed * {self.gate_act}(x @ head_gate))"
        out = f"{core} @ {o}" + (f" + {biases['o']}" if "o" in biases else "")
        if self.shared_keys or not self.returns_keys:
            m.line(f"return {out}")
        else:
            rows = f"{s.batch}, {self.positions(w)}"
            m.results += f", [{rows}, {K}, {E}], [{rows}, {K}, {G}]"
            m.line(f"return {out}, k, v")
        return m.name

    returns_keys: bool = False
    """Later layers use its keys and values."""
    cached: bool = True
    """Whether keys and values are kept for the tokens that follow, if it is causal."""

    @property
    def turns_part(self) -> bool:
        return self.rotary > 0 and self.rotary != self.width

    def positions(self, w: Writer) -> str:
        """The dim of keys and values."""
        if not (self.cached and self.causal) or self.source:
            return (self.source or self.stream).sequence
        return w.positions(self.window_dim(w) if self.local else "")

    def keys(self, w: Writer) -> str:
        """The dim of keys under a name of its own, where scores are biased."""
        name = self.positions(w)
        if name != self.stream.sequence:
            return name
        return w.dim(f"U{name[1:]}", w.dims[name].value, f"tokens of `{name}` as keys", name)

    def window_dim(self, w: Writer) -> str:
        about = "tokens that a query of a local layer looks back"
        about = (
            "tokens of a chunk, which a query of a local layer looks at" if self.chunked else about
        )
        return w.dim("W", self.window, tower_text(self.stream, about))

    @property
    def local(self) -> bool:
        """Whether what is behind the window is forgotten."""
        return bool(self.window)

    def keep(self, w: Writer, m: Module, name: str, x: str, K: str, width: str, H: str) -> None:
        """Keys or values: those of all positions so far where they are cached, and those of another stream, which do not change, since they were computed."""
        rows = (self.source or self.stream).rows
        if self.repeated and K != H:
            m.line(f"{name}[{rows}, {K}, {width}] = {x}")
            x, K = f"repeat_heads({name}, heads = {K}, to = {H})", H
        named = "keys" if name == "k" else "values"
        if self.source:
            x = f"once({m.cache(named, self.source.batch, self.source.sequence, K, width)}, {x})"
        elif self.cached and self.causal:
            T = self.positions(w)
            cache = m.cache(named, self.stream.batch, T, K, width)
            window = f", window = {self.window_dim(w)}" if self.local else ""
            rows, x = f"{self.stream.batch}, {T}", f"append({cache}, {x}{window})"
        m.line(f"{name}[{rows}, {K}, {width}] = {x}")

    def core(self, w: Writer, m: Module, s: Stream, H: str) -> str:
        """Scores, softmax and their product with the values."""
        options = ["causal = true"] if self.causal else []
        if self.scale and abs(self.scale * self.width**0.5 - 1) > 1e-6:
            options.append(f"scale = {number(self.scale)}")
        if self.alibi:
            options.append("alibi = true")
        if self.window:
            options.append(f"{'chunk' if self.chunked else 'window'} = {self.window_dim(w)}")
        if self.softcap:
            options.append(f"softcap = {number(self.softcap)}")
        operands = "q, k, v"
        if self.sinks:
            operands += f", {m.weight('sinks', H, self.stem + self.sinks)}"
        if self.biased:
            own = f"[{s.sequence} -> {self.keys(w)}]" if self.keys(w) != self.positions(w) else ""
            operands = f"q, k{own}, v{own}, bias"
        return f"attention({', '.join([operands, *options])})"

    def said(self, about: str, plain: str = "") -> str:
        """What a dim is: `query heads`, or `heads` where keys have as many."""
        if plain and self.kv_heads == self.heads:
            about = plain
        return tower_text(self.stream, about)

    def position(self, m: Module, letter: str, x: str, heads: str, width: str, index: int) -> str:
        """Norm and rotation of queries or keys."""
        name = self.qk_norm_names[index]
        dims = width if self.qk_norm_over == "head" else f"{heads} {width}"
        whole = self.rotary in (-1, self.width)
        if self.clip:
            m.about += (
                f"Queries, keys and values are clipped to {self.clip:g}." if index == 0 else ""
            )
        if self.norm_after_rope:
            x = f"rope({x})" if whole else x
            return self.normed(m, x, f"{letter}_norm", dims, name, width)
        x = self.normed(m, x, f"{letter}_norm", dims, name, width)
        return f"rope({x})" if whole else x

    def normed(self, m: Module, x: str, weight: str, dims: str, name: str, width: str) -> str:
        if self.qk_norm.kind == "none":
            return x
        if self.qk_norm_over == "heads":
            # Each head is normalised by itself, with a weight of its own.
            function = "rms_norm" if self.qk_norm.kind == "rms" else "layer_norm"
            heads = self.heads if name == self.qk_norm_names[0] else self.kv_heads
            parts = [f"{self.stem}{name}.norms.{j}.weight" for j in range(heads)]
            tensors = parts if self.qk_norm_parts else [f"{self.stem}{name}.weight"]
            m.weight(weight, dims, *tensors)
            return f"{function}({x}, over = {width}) * {weight}"
        return self.qk_norm.of(m, x, weight, dims, self.stem + name)


def quotient_text(s: Stream, heads: int, width: int, H: str) -> str:
    return f"{s.dim} / {H}" if heads * width == s.width else str(width)


def short(name: str, letter: str) -> str:
    """The name of a projection: that of the checkpoint, or the usual one where the checkpoint fuses several."""
    last = last_part(name)
    fused = ("qkv", "c_attn", "query_key_value", "in_proj", "Wqkv", "wqkv", "kv_proj")
    if any(f in last for f in fused) or last in (
        "dense",
        "c_proj",
        "proj",
        "out_proj",
        "query",
        "key",
        "value",
        "out_lin",
        "q_lin",
        "k_lin",
        "v_lin",
        "output_linear",
        "wo",
    ):
        return f"{letter}_proj"
    is_own = last != letter and (last.startswith(letter) or letter == "o")
    return last if is_own else f"{letter}_proj"


def rotate_part(w: Writer, m: Module, s: Stream, x: str, E: str, rotated: int, width: int) -> str:
    """Rotate the first part of a head's width; the expression of the whole."""
    R = w.dim(head_name(s, "R"), rotated, tower_text(s, "width that is rotated by position,"))
    N = w.dim(head_name(s, "N"), width - rotated, tower_text(s, "and that is not"))
    m.line(f"far, near = split({x}, over = {E}, to = [{R}, {N}])")
    return f"concat(rope(far), near, over = [{R}, {N}], to = {E})"
