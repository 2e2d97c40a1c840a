"""Mixers that carry a state along the sequence: Mamba and Mamba-2, gated delta nets, lightning attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagec.importing.config import Unsupported, anywhere
from stagec.importing.parts import Stream, activated, scaled
from stagec.importing.text import Module, Writer
from stagec.importing.tower import linear


def filter_dim(w: Writer, length: int) -> str:
    return w.dim("KC", length, "tokens that a convolution sees")


GROUPED = ("n_groups", "mamba_n_groups", "mamba_num_heads", "mamba_n_heads", "num_heads")
"""Keys that say how many heads there are, and in how many groups."""


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2 (Dao and Gu, arXiv:2405.21060): a scan of heads by chunks."""

    stream: Stream
    heads: int
    width: int
    groups: int
    state: int
    filter: int
    chunk: int
    bias: bool = False
    filter_bias: bool = True
    norm: bool = True
    out_bias: bool | None = None
    """As `bias`, of the last product alone."""
    factors: tuple[float, ...] = (1.0,) * 5
    """What the first product's parts are multiplied by: z, x, b, c, dt."""
    name: str = "Mixer"
    stem: str = "model.layers.{i}.mixer."

    def write(self, w: Writer) -> str:
        s = self.stream
        if self.heads % self.groups:
            message = f"{self.heads} heads do not divide into {self.groups} groups"
            help_ = f"choose a number of groups that divides {self.heads}"
            raise Unsupported(message, anywhere(*GROUPED), help_)
        H = w.dim("HS", self.heads, "heads of the scan")
        E = w.dim("ES", self.width, "their width")
        w.widths.append(H)
        G = (
            w.dim("GS", self.groups, "groups of heads with a state in common")
            if self.groups > 1
            else ""
        )
        N = w.dim("NS", self.state, "width of the state")
        K = filter_dim(w, self.filter)
        gn, inner = f"{G} {N}".strip(), f"{H} {E}"
        m = w.module(self.name, f"x{s.shape}", s.shape)
        stem, into = self.stem, f"{self.stem}in_proj"
        m.weight("z_proj", f"{s.dim} {inner}", f"{into}.weight")
        m.weight("x_proj", f"{s.dim} {inner}", f"{into}.weight", join=True)
        m.weight("b_proj", f"{s.dim} {gn}", f"{into}.weight", join=True)
        m.weight("c_proj", f"{s.dim} {gn}", f"{into}.weight", join=True)
        m.weight("dt_proj", f"{s.dim} {H}", f"{into}.weight", join=True)
        plus: dict[str, str] = dict.fromkeys(("z", "x", "b", "c", "dt", "out"), "")
        if self.bias:
            for name, dims in (("z", inner), ("x", inner), ("b", gn), ("c", gn), ("dt", H)):
                m.weight(f"{name}_proj_bias", dims, f"{into}.bias", join=name != "z")
                plus[name] = f" + {name}_proj_bias"
        parts = {
            name: scaled(f"x @ {name}_proj{plus[name]}", factor)
            for name, factor in zip(("z", "x", "b", "c", "dt"), self.factors, strict=True)
        }
        convolved = {}
        for name, dims in (("x", inner), ("b", gn), ("c", gn)):
            m.weight(f"{name}_conv", f"{K} {dims}", f"{stem}conv1d.weight", join=name != "x")
            seen = m.cache(f"{name}_seen", s.batch, K, *dims.split())
            convolved[name] = (
                f"causal_conv({parts[name]}, {name}_conv, over = {s.sequence}, state = {seen})"
            )
        if self.filter_bias:
            for name, dims in (("x", inner), ("b", gn), ("c", gn)):
                bias = f"{name}_conv_bias"
                m.weight(bias, dims, f"{stem}conv1d.bias", join=name != "x")
                convolved[name] += f" + {bias}"
        m.weight("dt_bias", H, f"{stem}dt_bias")
        m.weight("a_log", H, f"{stem}A_log", join=True)
        m.weight("skip", H, f"{stem}D", join=True)
        if self.norm:
            m.weight("norm", inner, f"{stem}norm.weight", join=True)
        m.weight("out_proj", f"{inner} {s.dim}", f"{stem}out_proj.weight", join=True)
        if self.bias if self.out_bias is None else self.out_bias:
            m.weight("out_bias", s.dim, f"{stem}out_proj.bias")
            plus["out"] = " + out_bias"
        m.line(f"u = silu({convolved['x']})")
        m.line(f"b = silu({convolved['b']})")
        m.line(f"c = silu({convolved['c']})")
        m.line(f"dt = softplus({parts['dt']} + dt_bias)")
        state = m.cache("state", s.batch, H, E, N)
        scan = f"ssd_scan(u, dt, -exp(a_log), b, c, chunk = {self.chunk}, state = {state})"
        m.line(f"y = {scan} + u * skip")
        gated = f"y * silu({parts['z']})"
        out = f"rms_norm({gated}, norm)" if self.norm else f"({gated})"
        m.line(f"return {out} @ out_proj{plus['out']}")
        return m.name


@dataclass(frozen=True)
class ShortConvolution:
    """Filters along the sequence between two gates (LFM2)."""

    stream: Stream
    filter: int
    bias: bool = False
    name: str = "Convolution"
    stem: str = "model.layers.{i}.conv."

    def write(self, w: Writer) -> str:
        s = self.stream
        K = filter_dim(w, self.filter)
        DC = w.dim("DC", s.width, "channels of the filters", s.dim)
        w.widths.append(DC)
        m = w.module(self.name, f"x{s.shape}", s.shape)
        stem = self.stem
        parts = {}
        for name in "bcu":
            tensor = f"{stem}in_proj"
            parts[name] = linear(m, "x", f"{name}_proj", f"{s.dim} {DC}", tensor, self.bias)
        m.weight("filter", f"{K} {DC}", f"{stem}conv.weight")
        seen = m.cache("seen", s.batch, K, DC)
        m.line(f"u = ({parts['b']}) * ({parts['u']})")
        y = f"causal_conv(u, filter, over = {s.sequence}, state = {seen})"
        if self.bias:
            y += " + " + m.weight("filter_bias", DC, f"{stem}conv.bias", join=True)
        m.line(f"y = {y}")
        product = f"(({parts['c']}) * y)"
        out = linear(m, product, "out_proj", f"{DC} {s.dim}", f"{stem}out_proj", self.bias)
        m.line(f"return {out}")
        return m.name


@dataclass(frozen=True)
class GatedLinearRecurrence:
    """Griffin's recurrent block: filters, then a real gated recurrence of each channel (De et al., arXiv:2402.19427, section 2.4)."""

    stream: Stream
    heads: int
    """Of the gates, whose matrices are block diagonal,"""
    width: int
    """and how many channels each has."""
    filter: int
    act: str
    name: str = "Recurrence"
    stem: str = "model.layers.{i}.temporal_block."

    def write(self, w: Writer) -> str:
        s = self.stream
        H = w.dim("HR", self.heads, "blocks of channels of the recurrence")
        E = w.dim("ER", self.width, "channels of a block")
        G = w.dim("EG", self.width, "and as their gates", E)
        K = filter_dim(w, self.filter)
        w.widths.append(H)
        inner, rows = f"{H} {E}", f"{s.rows}, {H}, {E}"
        size = f"{s.rows}, {H}, {E}".replace(", ", " * ")
        w.op(
            "linear_scan",
            "# state = a * state + x, for each channel along the sequence.\n"
            f"op linear_scan(x[{rows}], a[{rows}]) -> [{rows}] {{\n"
            f"  flops = 2 * {size}\n  bytes = 6 * {size}\n"
            f"  backward_flops = 4 * {size}\n  backward_bytes = 12 * {size}\n{kept(s, H, E)}}}\n",
        )
        m = w.module(self.name, f"x{s.shape}", s.shape)
        stem = self.stem
        beside = linear(m, "x", "y_proj", f"{s.dim} {inner}", f"{stem}linear_y", True, inner)
        into = linear(m, "x", "x_proj", f"{s.dim} {inner}", f"{stem}linear_x", True, inner)
        m.weight("filter", f"{K} {inner}", f"{stem}conv_1d.weight")
        m.weight("filter_bias", inner, f"{stem}conv_1d.bias", join=True)
        seen = m.cache("seen", s.batch, K, H, E)
        m.line(f"y = {activated(self.act, beside, m)}")
        conv = f"causal_conv({into}, filter, over = {s.sequence}, state = {seen})"
        m.line(f"u = {conv} + filter_bias")
        for name, tensor in (("opened", "input_gate"), ("kept", "recurrent_gate")):
            m.weight(f"{name}_gate", f"{H} {E} {G}", f"{stem}rg_lru.{tensor}_weight")
            m.weight(f"{name}_bias", f"{H} {G}", f"{stem}rg_lru.{tensor}_bias", join=True)
            m.line(f"{name}[{s.rows}, {H}, {G}] = u @ {name}_gate")
            m.line(f"{name} = sigmoid({name} + {name}_bias)")
        m.weight("decay", inner, f"{stem}rg_lru.recurrent_param")
        m.line(f"a = exp(kept[{G} -> {E}] * softplus(decay) * (0 - 8))")
        m.line(f"z = u * opened[{G} -> {E}] * sqrt(1 - a * a)")
        scan = f"(linear_scan(z, a, state = {m.cache('state', s.batch, H, E)}) * y)"
        out = linear(m, scan, "out_proj", f"{inner} {s.dim}", f"{stem}linear_out", True)
        m.line(f"return {out}")
        return m.name


@dataclass(frozen=True)
class Mamba1:
    """Mamba (Gu and Dao, arXiv:2312.00752): a selective scan of each channel by itself."""

    stream: Stream
    inner: int
    state: int
    rank: int
    filter: int
    bias: bool = False
    filter_bias: bool = True
    norms: tuple[str, ...] = ()
    """Tensors of norms of dt, b and c."""
    name: str = "Mamba"
    stem: str = "model.layers.{i}.mamba."
    bare_norms: bool = False
    """dt, b and c are normalised without weights (Falcon Mamba)."""

    def write(self, w: Writer) -> str:
        s = self.stream
        I = w.dim("I", self.inner, "channels of the scan", f"{self.inner // s.width} * {s.dim}")
        if self.inner % s.width or self.inner == s.width:
            w.dims[I] = type(w.dims[I])(I, self.inner, str(self.inner), w.dims[I].about)
        w.widths.append(I)
        N = w.dim("NS", self.state, "width of the state")
        R = w.dim("RT", self.rank, "rank of time steps")
        K = filter_dim(w, self.filter)
        selective_scan(w, s, I, N)
        m = w.module(self.name, f"x{s.shape}", s.shape)
        stem = self.stem
        m.weight("x_proj", f"{s.dim} {I}", f"{stem}in_proj.weight")
        m.weight("z_proj", f"{s.dim} {I}", f"{stem}in_proj.weight", join=True)
        plus = {"x": "", "z": "", "out": ""}
        if self.bias:
            m.weight("x_bias", I, f"{stem}in_proj.bias")
            m.weight("z_bias", I, f"{stem}in_proj.bias", join=True)
            plus = {"x": " + x_bias", "z": " + z_bias", "out": " + out_bias"}
        m.weight("conv", f"{K} {I}", f"{stem}conv1d.weight")
        seen = m.cache("seen", s.batch, K, I)
        u = f"causal_conv(x @ x_proj{plus['x']}, conv, over = {s.sequence}, state = {seen})"
        if self.filter_bias:
            m.weight("conv_bias", I, f"{stem}conv1d.bias", join=True)
            u += " + conv_bias"
        m.weight("dt_low", f"{I} {R}", f"{stem}x_proj.weight")
        m.weight("b_proj", f"{I} {N}", f"{stem}x_proj.weight", join=True)
        m.weight("c_proj", f"{I} {N}", f"{stem}x_proj.weight", join=True)
        m.weight("dt_proj", f"{R} {I}", f"{stem}dt_proj.weight")
        m.weight("dt_bias", I, f"{stem}dt_proj.bias", join=True)
        m.weight("a_log", f"{I} {N}", f"{stem}A_log")
        m.weight("skip", I, f"{stem}D", join=True)
        m.weight("out_proj", f"{I} {s.dim}", f"{stem}out_proj.weight", join=True)
        if self.bias:
            m.weight("out_bias", s.dim, f"{stem}out_proj.bias", join=True)
        values = {"low": "u @ dt_low", "b": "u @ b_proj", "c": "u @ c_proj"}
        for (name, dims), tensor in zip((("low", R), ("b", N), ("c", N)), self.norms, strict=False):
            m.weight(f"{name}_norm", dims, f"{stem}{tensor}.weight", join=name != "low")
            values[name] = f"rms_norm({values[name]}, {name}_norm)"
        if self.bare_norms:
            values = {
                name: f"rms_norm({text}, over = {dims})"
                for (name, text), dims in zip(values.items(), (R, N, N), strict=True)
            }
        m.line(f"u = silu({u})")
        low = values["low"] if values["low"].startswith("rms") else f"({values['low']})"
        m.line(f"dt = softplus({low} @ dt_proj + dt_bias)")
        state = m.cache("state", s.batch, I, N)
        scan = f"selective_scan(u, dt, -exp(a_log), {values['b']}, {values['c']}, state = {state})"
        m.line(f"y = {scan} + u * skip")
        m.line(f"return (y * silu(x @ z_proj{plus['z']})) @ out_proj{plus['out']}")
        return m.name


def kept(s: Stream, *dims: str) -> str:
    """What a declared op says of the state that it keeps of each sequence."""
    return f"  state = [{s.batch}, {', '.join(dims)}]\n  over = {s.sequence}\n"


def selective_scan(w: Writer, s: Stream, I: str, N: str) -> None:
    """The recurrence of Mamba: 9 operations for each channel, state and token (`flops_selective_scan` of its authors' repository)."""
    rows = s.rows.replace(", ", " * ")
    w.op(
        "selective_scan",
        "# state = exp(dt * a) * state + dt * b * x and y = c * state, for each channel along the sequence.\n"
        f"op selective_scan(x[{s.rows}, {I}], dt[{s.rows}, {I}], a[{I}, {N}], b[{s.rows}, {N}], c[{s.rows}, {N}])"
        f" -> [{s.rows}, {I}] {{\n"
        f"  flops = 9 * {rows} * {I} * {N}\n"
        f"  bytes = 2 * {rows} * (3 * {I} + 2 * {N})\n"
        f"  backward_flops = 18 * {rows} * {I} * {N}\n"
        f"  backward_bytes = 4 * {rows} * (3 * {I} + 2 * {N})\n"
        f"{kept(s, I, N)}"
        "}\n",
    )


DELTA_FUSED = (*("in_proj_qkvz",) * 4, *("in_proj_ba",) * 2, "norm", "out_proj")
DELTA_SPLIT = (*("in_proj_qkv",) * 3, *(f"in_proj_{x}" for x in "zba"), "norm", "out_proj")
DELTA_ALONE = (*(f"{x}_proj" for x in "qkvgba"), "o_norm", "o_proj")
"""Tensors of queries, keys, values, of the gate of what is made, of writing and of decay, of the norm and of the last product."""


@dataclass(frozen=True)
class GatedDeltaNet:
    """A gated delta net (Yang et al., arXiv:2412.06464)."""

    stream: Stream
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    filter: int
    tensors: tuple[str, ...]
    act: str = "silu"
    writes: float = 1.0
    """What the strength of writing, less than 1, is multiplied by."""
    name: str = "DeltaNet"
    stem: str = "model.layers.{i}.linear_attn."

    def write(self, w: Writer) -> str:
        s = self.stream
        K = w.dim("KD", self.key_heads, "heads of queries and keys of the delta net")
        V = w.dim("HD", self.value_heads, "and of its values")
        E = w.dim("ED", self.key_width, "width of a key,")
        G = w.dim("GD", self.value_width, "and of a value")
        C = filter_dim(w, self.filter)
        w.heads += [K, V]
        m = w.module(self.name, f"x{s.shape}", s.shape)
        q, k, v, z, b, a, norm, out = (f"{self.stem}{name}.weight" for name in self.tensors)
        m.weight("q_proj", f"{s.dim} {K} {E}", q)
        m.weight("k_proj", f"{s.dim} {K} {E}", k, join=True)
        m.weight("v_proj", f"{s.dim} {V} {G}", v, join=True)
        m.weight("z_proj", f"{s.dim} {V} {G}", z, join=True)
        m.weight("b_proj", f"{s.dim} {V}", b)
        m.weight("a_proj", f"{s.dim} {V}", a, join=True)
        of_each = (("q", K, E), ("k", K, E), ("v", V, G))
        for name, heads, width in of_each:
            tensor = f"{self.stem}conv1d.weight"
            m.weight(f"{name}_conv", f"{C} {heads} {width}", tensor, join=name != "q")
        m.weight("dt_bias", V, f"{self.stem}dt_bias")
        m.weight("a_log", V, f"{self.stem}A_log", join=True)
        m.weight("norm", G, norm, join=True)
        m.weight("out_proj", f"{V} {G} {s.dim}", out, join=True)
        seen_through(m, s, C, self.act, of_each)
        m.line("decay = -exp(a_log) * softplus(x @ a_proj + dt_bias)")
        state = m.cache("state", s.batch, V, E, G)
        written = scaled("sigmoid(x @ b_proj)", self.writes)
        m.line(f"y = gated_delta_rule(q, k, v, decay, {written}, state = {state})")
        m.line("return (rms_norm(y, norm) * silu(x @ z_proj)) @ out_proj")
        return m.name


def seen_through(
    m: Module, s: Stream, C: str, act: str, of_each: Sequence[tuple[str, str, str]]
) -> None:
    """Queries, keys and values, filtered along the sequence; each with its heads and their width."""
    for name, heads, width in of_each:
        seen = m.cache(f"{name}_seen", s.batch, C, heads, width)
        conv = f"causal_conv(x @ {name}_proj, {name}_conv, over = {s.sequence}, state = {seen})"
        m.line(f"{name} = {activated(act, conv, m)}")


@dataclass(frozen=True)
class KimiDeltaAttention:
    """A delta net of which each channel of keys decays by itself (Kimi Linear, arXiv:2510.26692)."""

    stream: Stream
    heads: int
    width: int
    filter: int
    act: str
    narrow: bool = True
    """Whether decays and gates are made by way of narrow vectors."""
    lowest: float = 0.0
    """The logarithm of a decay is a share of this; 0: a product with `softplus`."""
    name: str = "DeltaAttention"
    stem: str = "model.layers.{i}.self_attn."

    def write(self, w: Writer) -> str:
        s, stem = self.stream, self.stem
        H = w.dim("HD", self.heads, "heads of the delta net")
        E = w.dim("ED", self.width, "width of a key,")
        G = w.dim("GD", self.width, "of a value," if self.narrow else "and of a value")
        narrow = "and of what decays and gates are made of"
        J = w.dim("JD", self.width, narrow) if self.narrow else ""
        C = filter_dim(w, self.filter)
        w.heads.append(H)
        m = w.module(self.name, f"x{s.shape}", s.shape)
        of_each = (("q", H, E), ("k", H, E), ("v", H, G))
        for name, _, width in of_each:
            m.weight(f"{name}_proj", f"{s.dim} {H} {width}", f"{stem}{name}_proj.weight")
        for name, _, width in of_each:
            tensor = f"{stem}conv1d.weight"
            m.weight(f"{name}_conv", f"{C} {H} {width}", tensor, join=name != "q")

        def made(letter: str, width: str, stem: str) -> str:
            if not J:
                m.weight(f"{letter}_proj", f"{s.dim} {H} {width}", f"{stem}{letter}_proj.weight")
                return f"x @ {letter}_proj"
            first, second = f"{letter}_a_proj", f"{letter}_b_proj"
            m.weight(first, f"{s.dim} {J}", f"{stem}{first}.weight")
            m.weight(second, f"{J} {H} {width}", f"{stem}{second}.weight", join=True)
            return f"(x @ {first}) @ {second}"

        forget = f"{stem}forget_gate."
        decay = made("f", E, forget)
        m.weight("dt_bias", f"{H} {E}", f"{forget}dt_bias", join=True)
        m.weight("a_log", H, f"{forget}A_log", join=True)
        m.weight("b_proj", f"{s.dim} {H}", f"{stem}b_proj.weight")
        gate = made("g", G, stem)
        m.weight("norm", G, f"{stem}o_norm.weight")
        m.weight("o_proj", f"{H} {G} {s.dim}", f"{stem}o_proj.weight", join=True)
        seen_through(m, s, C, self.act, of_each)
        if self.lowest:
            shares = f"sigmoid(exp(a_log) * ({decay} + dt_bias))"
            m.line(f"decay = {scaled(shares, self.lowest)}")
        else:
            m.line(f"decay = -exp(a_log) * softplus({decay} + dt_bias)")
        state = m.cache("state", s.batch, H, E, G)
        m.line(f"y = gated_delta_rule(q, k, v, decay, sigmoid(x @ b_proj), state = {state})")
        m.line(f"return (rms_norm(y, norm) * sigmoid({gate})) @ o_proj")
        return m.name


@dataclass(frozen=True)
class LightningAttention:
    """Linear attention by blocks, with a decay for each head (MiniMax-01, arXiv:2501.08313, section 2.2.1)."""

    stream: Stream
    heads: int
    width: int
    block: int
    act: str
    name: str = "LightningAttention"
    stem: str = "model.layers.{i}.self_attn."

    def write(self, w: Writer) -> str:
        s = self.stream
        H = w.dim("H", self.heads, "query heads")
        E = w.dim("E", self.width, "width of a head")
        G = w.dim("EV", self.width, "and of its values", E)
        w.heads.append(H)
        rows = s.rows.replace(", ", " * ")
        C = f"min({self.block}, {s.sequence})"
        w.op(
            "lightning_attention",
            f"# Blocks of {self.block} tokens: q k^T v within a block, q times the state of the blocks before, and k^T v, its change.\n"
            f"op lightning_attention(q[{s.rows}, {H}, {E}], k[{s.rows}, {H}, {E}], v[{s.rows}, {H}, {G}]) "
            f"-> [{s.rows}, {H}, {G}] {{\n"
            f"  flops = 2 * {rows} * {H} * ({C} * ({E} + {G}) + 2 * {E} * {G})\n"
            f"  bytes = 4 * {rows} * {H} * ({E} + {G})\n"
            f"{kept(s, H, E, G)}"
            "}\n",
        )
        m = w.module(self.name, f"x{s.shape}", s.shape)
        for name, width in zip("qkv", (E, E, G), strict=True):
            tensor = f"{self.stem}qkv_proj.weight"
            m.weight(f"{name}_proj", f"{s.dim} {H} {width}", tensor, join=name != "q")
        m.weight("gate_proj", f"{s.dim} {H} {G}", f"{self.stem}output_gate.weight")
        m.weight("norm", f"{H} {G}", f"{self.stem}norm.weight")
        m.weight("out_proj", f"{H} {G} {s.dim}", f"{self.stem}out_proj.weight", join=True)
        for name in "qkv":
            m.line(f"{name} = {activated(self.act, f'x @ {name}_proj', m)}")
        state = m.cache("state", s.batch, H, E, G)
        m.line(f"y = lightning_attention(q, k, v, state = {state})")
        m.line("return (rms_norm(y, norm) * sigmoid(x @ gate_proj)) @ out_proj")
        return m.name
