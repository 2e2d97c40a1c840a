"""The parts that layers are made of, as data, and how each is written: norms, attention, feed-forward networks.

Each is a frozen dataclass: equal parts are one module of the text. `stem` is where a checkpoint has the tensors of a part,
`model.layers.{i}.self_attn.` for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stagec.importing.text import Module, Writer


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


def activated(name: str, x: str) -> str:
    if name == "quick_gelu":
        return f"{x} * sigmoid({x} * 1.702)"
    return ACTIVATIONS[name].format(x)


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped or multi-query attention."""

    stream: Stream
    heads: int
    kv_heads: int
    width: int
    """Of a head's queries and keys."""
    value_width: int = 0
    """Of a head's values; 0 if the same."""
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
    norm_after_rope: bool = False
    v_norm: Norm = NO_NORM
    sub_norm: Norm = NO_NORM
    """Of what attention makes, before its last product."""
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    scale: float = 0.0
    """What scores are multiplied by, if it is not 1 / sqrt(width)."""
    clip: float = 0.0
    gate: str = ""
    """A gate for what attention makes: `fused` with the queries, or the tensor's name: one for each element."""
    head_gate: str = ""
    """The tensor of a gate for each head."""
    repeated: bool = False
    """Keys and values are repeated for all heads before they are kept (falcon's class)."""
    keys_are_values: bool = False
    shared_keys: bool = False
    """Keys and values are those of an earlier layer."""
    sinks: str = ""
    """The tensor of attention sinks: a score for each head that no value goes with."""
    value_factor: float = 0.0

    def write(self, w: Writer) -> str:
        s = self.stream
        H = w.dim(head_name(s, "H"), self.heads, self.said("query heads", "heads"))
        K = (
            H
            if self.kv_heads == self.heads
            else w.dim(head_name(s, "K"), self.kv_heads, self.said("key and value heads"))
        )
        about = self.said("width of a head")
        E = w.dim(
            head_name(s, "E"), self.width, about, quotient_text(s, self.heads, self.width, H)
        )
        G = E
        if self.value_width and self.value_width != self.width:
            G = w.dim(head_name(s, "G"), self.value_width, self.said("width of a head's values"))
        m = w.module(self.name, f"x{s.shape}", s.shape, self.about)
        fused_gate = self.gate == "fused"
        stem = self.stem
        tensor = stem + self.q
        q = m.weight(short(self.q, "q"), f"{s.dim} {H} {E}", f"{tensor}.weight")
        extra = ""
        if fused_gate:
            extra = m.weight("gate_proj", f"{s.dim} {H} {E}", f"{tensor}.weight", join=True)
        elif self.gate:
            extra = m.weight("gate_proj", f"{s.dim} {H} {G}", f"{stem}{self.gate}.weight")
        if not self.shared_keys:
            k = m.weight(
                short(self.k, "k"), f"{s.dim} {K} {E}", f"{stem}{self.k}.weight", join=True
            )
            if not self.keys_are_values:
                v = m.weight(
                    short(self.v, "v"), f"{s.dim} {K} {G}", f"{stem}{self.v}.weight", join=True
                )
        o = m.weight(short(self.o, "o"), f"{H} {G} {s.dim}", f"{stem}{self.o}.weight", join=True)
        biases: dict[str, str] = {}
        for letter, on, dims, name in (
            ("q", self.q_bias, f"{H} {E}", self.q),
            ("k", self.k_bias and not self.shared_keys, f"{K} {E}", self.k),
            ("v", self.v_bias and not self.shared_keys, f"{K} {G}", self.v),
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
            return f"x @ {weight}" + (f" + {bias}" if bias else "")

        cos = self.rotary
        query = self.position(w, m, "q", projected("q", q), H, E, 0)
        m.line(f"q[{s.rows}, {H}, {E}] = {query}")
        if self.rotary > 0 and self.rotary != self.width:
            rotate_part(w, m, s, "q", E, self.rotary, self.width)
        del cos
        if not self.shared_keys:
            raw = projected("k", k)
            if self.keys_are_values:
                m.line(f"kv[{s.rows}, {K}, {E}] = {raw}")
                raw = "kv"
            key = self.position(w, m, "k", raw, K, E, 1)
            m.line(f"k[{s.rows}, {K}, {E}] = {key}")
            if self.rotary > 0 and self.rotary != self.width:
                rotate_part(w, m, s, "k", E, self.rotary, self.width)
            value = "kv" if self.keys_are_values else projected("v", v)
            if self.v_norm.kind != "none":
                value = self.v_norm.of(m, value, "v_norm", E, stem + "v_norm")
            m.line(f"v[{s.rows}, {K}, {G}] = {value}")
            if self.value_factor:
                m.line(f"v = v * {number(self.value_factor)}")
            if self.repeated and K != H:
                m.line(f"k = repeat_heads(k, heads = {K}, to = {H})")
                m.line(f"v = repeat_heads(v, heads = {K}, to = {H})")
            m.cached += ["k", "v"]
        else:
            m.parameters += f", k[{s.rows}, {K}, {E}], v[{s.rows}, {K}, {G}]"
        core = self.core(w, m, s, H, K, E, G)
        if self.sub_norm.kind != "none":
            core = self.sub_norm.of(m, core, "sub_norm", f"{H} {G}", stem + "sub_norm")
        if extra:
            m.line(f"mixed = {core}")
            gate = f"x @ {extra}" + (f" + {gate_bias}" if gate_bias else "")
            core = f"(mixed * sigmoid({gate}))"
        if self.head_gate:
            m.weight("head_gate", f"{s.dim} {H}", f"{stem}{self.head_gate}.weight")
            m.line(f"mixed = {core}")
            core = "(mixed * sigmoid(x @ head_gate))"
        out = f"{core} @ {o}" + (f" + {biases['o']}" if "o" in biases else "")
        if self.shared_keys or not self.returns_keys:
            m.line(f"return {out}")
        else:
            m.results += f", [{s.rows}, {K}, {E}], [{s.rows}, {K}, {G}]"
            m.line(f"return {out}, k, v")
        return m.name

    returns_keys: bool = False
    """Later layers use its keys and values."""

    def core(
        self, w: Writer, m: Module, s: Stream, H: str, K: str, E: str, G: str
    ) -> str:
        """Scores, softmax and their product with the values."""
        if self.scale:
            factor = self.scale * self.width**0.5
            if abs(factor - 1) > 1e-6:
                m.line(f"q = q * {number(factor)}    # scores are multiplied by {number(self.scale)}")
        options = ["causal = true"] if self.causal else []
        if self.window:
            W = window_dim(w, s, self.window)
            options.append(f"window = {W}")
        if self.softcap:
            options.append(f"softcap = {number(self.softcap)}")
        operands = "q, k, v"
        if self.sinks:
            m.weight("sinks", H, f"{self.stem}{self.sinks}")
            operands = sink_operands(w, m, s, H, K, E, G, self.causal, self.window)
            return operands
        return f"attention({', '.join([operands, *options])})"

    def said(self, about: str, plain: str = "") -> str:
        """What a dim is: `query heads`, or `heads` where keys have as many."""
        if plain and self.kv_heads == self.heads:
            about = plain
        return tower_text(self.stream, about)

    def position(
        self, w: Writer, m: Module, letter: str, x: str, heads: str, width: str, index: int
    ) -> str:
        """Norm and rotation of queries or keys."""
        name = self.qk_norm_names[index]
        dims = width if self.qk_norm_over == "head" else f"{heads} {width}"
        whole = self.rotary in (-1, self.width)
        if self.clip:
            m.about += f"Queries, keys and values are clipped to {self.clip:g}." if index == 0 else ""
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
            m.weight(weight, dims, f"{self.stem}{name}.weight")
            return f"{function}({x}, over = {width}) * {weight}"
        return self.qk_norm.of(m, x, weight, dims, self.stem + name)


def head_name(s: Stream, letter: str) -> str:
    """Dims of towers beside the main one end in its letter."""
    return letter + s.dim[1:]


def tower_text(s: Stream, about: str) -> str:
    return about if s.dim == "D" else f"{about} of the {TOWERS.get(s.dim, s.dim)}"


TOWERS = {"DV": "vision tower", "DE": "encoder", "DA": "audio tower", "DX": "text tower"}
"""Widths of other towers, and what the towers are."""


def quotient_text(s: Stream, heads: int, width: int, H: str) -> str:
    return f"{s.dim} / {H}" if heads * width == s.width else str(width)


def short(name: str, letter: str) -> str:
    """The name of a projection: that of the checkpoint, or the usual one where the checkpoint fuses several."""
    last = name.rpartition(".")[2]
    fused = ("qkv", "c_attn", "query_key_value", "in_proj", "Wqkv", "wqkv", "kv_proj")
    if any(f in last for f in fused) or last in ("dense", "c_proj", "proj", "out_proj", "query", "key", "value", "out_lin", "q_lin", "k_lin", "v_lin", "output_linear", "wo"):
        return f"{letter}_proj"
    return last if last.startswith(letter) or letter == "o" else f"{letter}_proj"


def number(value: float) -> str:
    """As it is written in a model."""
    text = f"{value:.10g}"
    return text if "e" not in text else f"{value:.12f}".rstrip("0")


def window_dim(w: Writer, s: Stream, window: int) -> str:
    return w.dim("W", window, tower_text(s, "tokens that a query of a local layer looks back"))


def rotate_part(
    w: Writer, m: Module, s: Stream, x: str, E: str, rotated: int, width: int
) -> None:
    """Rotate the first part of a head's width."""
    R = w.dim(head_name(s, "R"), rotated, tower_text(s, "width that is rotated by position,"))
    N = w.dim(head_name(s, "N"), width - rotated, tower_text(s, "and that is not"))
    m.line(f"far, near = split({x}, over = {E}, to = [{R}, {N}])")
    m.line(f"{x} = concat(rope(far), near, over = [{R}, {N}], to = {E})")


def sink_operands(
    w: Writer,
    m: Module,
    s: Stream,
    H: str,
    K: str,
    E: str,
    G: str,
    causal: bool,
    window: int,
) -> str:
    """A call of an op that is attention with sinks, which the file declares."""
    keys = f"min({window_dim(w, s, window)}, {s.sequence})" if window else s.sequence
    name = "windowed_sink_attention" if window else "sink_attention"
    pairs = f"{keys} * {s.sequence}"
    pairs += f" - {keys} * {keys} / 2" if window else " / 2"
    flops = f"2 * {s.batch} * {H} * ({pairs}) * ({E} + {G})"
    moved = f"2 * {s.rows.replace(', ', ' * ')} * ({H} * ({E} + {G}) + {K} * ({E} + {G}))"
    del m, causal
    for number_ in ("", *map(str, range(2, 9))):
        text = (
            f"# softmax over the scores of a query and one more, which no value goes with.\n"
            f"op {name}{number_}(q[{s.rows}, {H}, {E}], k[{s.rows}, {K}, {E}], v[{s.rows}, {K}, {G}], "
            f"sinks[{H}]) -> [{s.rows}, {H}, {G}] {{\n"
            f"  flops = {flops}\n"
            f"  bytes = {moved}\n"
            f"  backward_flops = 5 * {s.batch} * {H} * ({pairs}) * ({E} + {G})\n"
            "}\n"
        )
        if w.ops.setdefault(name + number_, text) == text:
            return f"{name}{number_}(q, k, v, sinks)"
    raise AssertionError(name)


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

    def write(self, w: Writer) -> str:
        s = self.stream
        F = w.dim(
            head_name(s, self.letter),
            self.hidden,
            tower_text(s, self.what),
            multiple(s.dim, s.width, self.hidden),
        )
        name = self.name or ({"silu": "SwiGLU"}.get(self.act, "GeGLU") if self.gated else "Mlp")
        m = w.module(name, f"x{s.shape}", s.shape, self.about)
        stem = self.stem
        one = self.gate == self.up
        names = {"gate": "gate_proj" if one else last(self.gate)}
        up = "up_proj" if one else last(self.up)
        if self.gated:
            m.weight(names["gate"], f"{s.dim} {F}", f"{stem}{self.gate}.weight")
        m.weight(up, f"{s.dim} {F}", f"{stem}{self.up}.weight", join=self.gated)
        down = last(self.down)
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
            inner = f"{activated(self.act, gate)} * (x @ {up}{plus['up']})"
        elif self.act == "quick_gelu":
            m.line(f"h = x @ {up}{plus['up']}")
            inner = activated(self.act, "h")
        else:
            inner = activated(self.act, f"x @ {up}{plus['up']}")
        if self.sub_norm:
            m.weight("sub_norm", F, f"{stem}{self.sub_norm}.weight")
            inner = f"rms_norm({inner}, sub_norm)"
        elif self.gated or self.act in ("quick_gelu", "linear"):
            inner = f"({inner})"
        m.line(f"return {inner} @ {down}{plus['down']}")
        return m.name


def last(name: str) -> str:
    return name.rpartition(".")[2]


def multiple(whole: str, value: int, result: int) -> str:
    times, rest = divmod(result, value)
    return f"{times} * {whole}" if not rest and 1 < times <= 8 else str(result)


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
    down: str = "experts.down_proj"
    bias: bool = False
    shared: Mlp | None = None
    shared_gate: str = ""
    """The tensor of a gate for the shared expert."""
    latent: int = 0
    """The width that tokens have for the experts, if not that of the model."""
    latent_names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")
    separate: tuple[str, str, str] = field(default=("", "", ""))

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
            f"{rows} * {A} / {X}" if self.per_token != 1 else f"{rows} * {A} / {X}",
        )
        router = self.write_router(w, X, A)
        shared = w.part(self.shared) if self.shared else ""
        m = w.module(self.name, f"x{s.shape}", s.shape, self.about)
        m.call(router)
        D = s.dim
        if self.latent:
            D = w.dim(head_name(s, "Z"), self.latent, tower_text(s, "width of a token for experts"))
            m.weight("squeeze", f"{s.dim} {D}", f"{self.stem}{self.latent_names[0]}.weight")
            m.weight("widen", f"{D} {s.dim}", f"{self.stem}{self.latent_names[1]}.weight", join=True)
        gate_up = self.stem + self.gate_up
        if self.gated:
            m.weight("gate_proj", f"{X} {D} {F}", gate_up)
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
        plus = (lambda name: f" + {name}_bias") if self.bias else (lambda name: "")
        if self.gated:
            m.line(f"g[{X}, {T}, {F}] = r @ gate_proj{plus('gate')}")
            m.line(f"u[{X}, {T}, {F}] = r @ up_proj{plus('up')}")
            inner = f"({gated(self.act)})"
        else:
            m.line(f"u[{X}, {T}, {F}] = r @ up_proj{plus('up')}")
            inner = activated(self.act, "u")
        m.line(f"y[{X}, {T}, {D}] = {inner} @ down_proj{plus('down')}")
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
        m.line(f"return {out}")
        return m.name

    def write_router(self, w: Writer, X: str, A: str) -> str:
        s, r = self.stream, self.router
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
