"""How long an operator takes by its sizes and the numbers of a device: what a table's measurements are compared with.

A rule says how time grows with sizes (tiles and waves, bytes, steps of a ring); what it leaves out (how well a library's kernels are
made) is in the tables. All sizes may be arrays, and times are in µs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stagec.devices.model import DeviceModel, Floats

Sizes = Mapping[str, Floats]

FULL_TILE = 128 * 128
"""The smallest tile that loads its operands no slower than matrix units take them (CUTLASS, "Efficient GEMM")."""
TILES = tuple(
    (rows, columns, max(1.0, (FULL_TILE / (rows * columns)) ** 0.5))
    for rows, columns in (
        *((256, 128), (128, 256), (128, 128), (64, 256)),
        *((64, 128), (128, 64), (64, 64), (16, 128)),
    )
)
"""Rows and columns of a product that one thread block makes (CUTLASS, "Efficient GEMM", and its profiler's default tiles), and how many times as long it
takes for its size."""

ELEMENT_BYTES = {
    **dict.fromkeys(("fp4", "nvfp4", "mxfp4"), 0.5),
    **dict.fromkeys(("fp8", "mxfp8", "fp8_block"), 1),
    **dict.fromkeys(("bf16", "fp16"), 2),
    "fp64": 8,
}
"""The bytes of an operand's element, by dtype; 4 for any other."""


def element_bytes(dtype: str) -> float:
    return ELEMENT_BYTES.get(dtype, 4)


def cache_part(dtype: str, cache: str) -> tuple[str, ...]:
    """What chooses a table of attention by its cache, beside the dtype that it multiplies in: nothing where both are one."""
    return () if cache == dtype else (f"{cache} cache",)


def memory_rate(device: DeviceModel) -> float:
    """Bytes per second."""
    return float(device.numbers["memory_bytes_per_s"])


def product_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """`batch` products of [m, k] by [k, n]: waves of tiles over the multiprocessors, or bytes.

    A wave lasts as long as one tile, however many of its places are taken ("wave quantization": NVIDIA, "Matrix
    Multiplication Background"). The best of the tiles a library has counts.
    """
    m, n, k, batch = s["m"], s["n"], s["k"], s.get("batch", 1.0)
    up, less = np.ceil, np.minimum
    if all(isinstance(size, float) for size in (m, n, k, batch)):
        # One product is no array: this is what most time of a timed sweep goes into.
        m, n, k, batch = float(m), float(n), float(k), float(batch)
        up, less = math.ceil, min
    peak = device.peak(dtype)
    assert peak is not None
    least: Floats = math.inf
    for rows, columns, slow in TILES:
        waves = up(up(m / rows) * up(n / columns) * batch / device.units)
        times = 2.0 * waves * device.units * rows * columns * k / peak * slow
        least = less(least, times)
    wide = element_bytes(dtype)
    moved = batch * (m * k * wide + n * k * wide + 2 * m * n)
    return 1e6 * np.maximum(least, moved / memory_rate(device)) + device.launch_us


def score_pairs(queries: Floats, keys: Floats, window: Floats) -> Floats:
    """Pairs that a causal kernel computes, of one head."""
    reach = np.where(window > 0, np.minimum(window, keys), keys)
    return queries * reach - reach * reach / 2


def attention_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """A causal prefill: q k^T and p v over the pairs that count, or the bytes of q, k, v and the output, with k and v as a cache holds them."""
    batch, heads, kv_heads = s["batch"], s["heads"], s["kv_heads"]
    seq, width, window = s["seq"], s["head_dim"], s["window"]
    pairs = score_pairs(seq, seq, window)
    flops = 4 * batch * heads * pairs * width
    wide = element_bytes(dtype)
    moved = batch * seq * width * 2 * (wide * heads + s["cache_bytes"] * kv_heads)
    peak = device.peak(dtype)
    assert peak is not None
    return 1e6 * np.maximum(flops / peak, moved / memory_rate(device)) + device.launch_us


def decode_attention_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """One new token for each sequence: the cache is read once."""
    keys = np.where(s["window"] > 0, np.minimum(s["window"], s["context"]), s["context"])
    moved = s["cache_bytes"] * s["batch"] * keys * s["kv_heads"] * 2 * s["head_dim"]
    moved = moved + element_bytes(dtype) * s["batch"] * s["heads"] * 2 * s["head_dim"]
    peak = device.peak(dtype)
    assert peak is not None
    flops = 4 * s["batch"] * s["heads"] * keys * s["head_dim"]
    return 1e6 * np.maximum(flops / peak, moved / memory_rate(device)) + device.launch_us


LATENT, ROTARY, QUERY, VALUE = 512, 64, 192, 128
"""DeepSeek-V2's widths (arXiv:2405.04434): of the latent, of the rotary part, of a head's queries and of its values."""


def latent_attention_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """Prefill of multi-head latent attention, with keys and values of all heads."""
    batch, seq, heads = s["batch"], s["context"], s["heads"]
    flops = 2 * batch * heads * seq * seq / 2 * (QUERY + VALUE)
    moved = 2 * batch * seq * heads * 2 * (QUERY + VALUE)
    peak = device.peak(dtype)
    assert peak is not None
    return 1e6 * np.maximum(flops / peak, moved / memory_rate(device)) + device.launch_us


def decode_latent_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """One token against the latent cache, which all heads share (the weights are absorbed)."""
    batch, context, heads = s["batch"], s["context"], s["heads"]
    flops = 2 * batch * heads * context * (2 * LATENT + ROTARY)
    moved = s["cache_bytes"] * batch * context * (LATENT + ROTARY)
    moved = moved + 2 * batch * heads * (2 * LATENT + ROTARY)
    peak = device.peak(dtype)
    assert peak is not None
    return 1e6 * np.maximum(flops / peak, moved / memory_rate(device)) + device.launch_us


def memory_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """Bytes read and written at the datasheet's bandwidth."""
    return 1e6 * s["bytes"] / memory_rate(device) + device.launch_us


def quantize_us(device: DeviceModel, what: str, s: Sizes) -> Floats:
    """The time of quantizing a bf16 matrix, in µs: `computescale` reads it for its scale and again to convert it, `scale_matrix` once. Both write fp8."""
    moved = s["m"] * s["k"] * (5 if what == "computescale" else 3)
    return 1e6 * moved / memory_rate(device) + device.launch_us


def experts_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """A rank's experts: two grouped products, three if gated, of the tokens that come to it, and moving rows in and out."""
    local = np.maximum(s["experts"] / s["ep"], 1)
    rows = s["tokens"] * s["topk"] / s["experts"]
    busy = np.minimum(local, np.maximum(s["tokens"] * s["topk"] / s["ep"], 1))
    inner = s["inner"] / s["tp"]
    per_expert = np.maximum(rows * local / busy, 1)
    up = {"batch": busy, "m": per_expert, "n": 2 * inner, "k": s["hidden"]}
    down = {"batch": busy, "m": per_expert, "n": s["hidden"], "k": inner}
    moved = 2 * rows * local * (4 * s["hidden"] + 3 * inner)
    return (
        product_us(device, dtype, up)
        + product_us(device, dtype, down)
        + 1e6 * moved / memory_rate(device)
        + 3 * device.launch_us
    )


DELTA_CHUNK = 64
"""`chunk_size` of flash-linear-attention's kernels."""


def delta_rule_flops(s: Sizes) -> Floats:
    """The FLOPs of the products of a gated delta rule (Yang et al., arXiv:2412.06464, section 3.3)."""
    tokens, width, key = s["batch"] * s["seq"] * s["heads"], s["width"], s["key_width"]
    return (
        2 * tokens * (np.minimum(DELTA_CHUNK, s["seq"]) * (3 * key + 2 * width) + 3 * key * width)
    )


MEASURED_STATE_BYTES = 4
"""The bytes of an element of the states that steps of a delta rule were measured with."""


def delta_rule_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """A gated delta net by chunks: its products, or the bytes that its kernels hand on, in bf16."""
    tokens, width, key = s["batch"] * s["seq"] * s["heads"], s["width"], s["key_width"]
    chunk = np.minimum(DELTA_CHUNK, s["seq"])
    between = tokens * (chunk + key + 2 * width) + tokens / chunk * key * width
    own = 2 * s["batch"] * s["seq"] * s["key_heads"] * key + tokens * (2 * width + 2)
    peak = device.peak(dtype)
    assert peak is not None
    moved = 2 * (own + 2 * between)
    seconds = np.maximum(delta_rule_flops(s) / peak, moved / memory_rate(device))
    return 1e6 * seconds + device.launch_us


def delta_step_us(device: DeviceModel, dtype: str, s: Sizes) -> Floats:
    """A step of it for each sequence: states are read and written."""
    states = s["batch"] * s["heads"] * s["key_width"] * s["width"]
    return 1e6 * 2 * s["state_bytes"] * states / memory_rate(device) + device.launch_us


def collective_us(device: DeviceModel, kind: str, s: Sizes) -> Floats:
    """A ring in one node of so many `gpus`; `bytes` are those of a rank's larger buffer (Thakur et al. 2005, section 3)."""
    ranks = s["gpus"]
    passes = 2 if kind == "all_reduce" else 1
    moved = s["bytes"] * (ranks - 1) / ranks
    speed = float(device.numbers["link_bytes_per_s"])
    latency = float(device.numbers.get("link_latency_us", 0))
    return passes * (latency * (ranks - 1) + 1e6 * moved / speed)


def exchange_us(device: DeviceModel, kind: str, s: Sizes) -> Floats:
    """Tokens to the experts of other ranks and back: over the links of the node, and over the network to other nodes.

    A token goes once to each node that has one of its experts (DeepSeek-AI 2024, section 3.2.2). `kind` says how wide it is:
    dispatched in fp8 with its scales, combined in bf16.
    """
    per = np.float64(8)
    nodes, topk = s["nodes"], s["topk"]
    token = s["hidden"] * (1.03 if kind == "dispatch" else 2.0)
    ranks = nodes * per
    copies = ranks * (1 - (1 - 1 / ranks) ** topk)
    near = s["tokens"] * token * copies * (per - 1) / per
    far = s["tokens"] * token * nodes * (1 - (1 - 1 / nodes) ** topk) * (nodes - 1) / nodes
    links = float(device.numbers["link_bytes_per_s"])
    network = float(device.numbers.get("network_bytes_per_s", links))
    return 10.0 + 1e6 * np.maximum(near / links, far / network)


def wider(*names: str) -> Callable[[Sizes], dict[str, Floats]]:
    """These sizes are the table's coordinates."""
    return lambda s: {name: s[name] for name in names}


def attention_axes(s: Sizes) -> dict[str, Floats]:
    return {
        "seq": s["seq"],
        "heads": s["batch"] * s["heads"],
        "sharing": s["heads"] / s["kv_heads"],
    }


def decode_axes(s: Sizes) -> dict[str, Floats]:
    return {
        "context": s["context"],
        "kv_heads": s["batch"] * s["kv_heads"],
        "sharing": s["heads"] / s["kv_heads"],
    }


def delta_axes(s: Sizes) -> dict[str, Floats]:
    return {"seq": s["seq"], "heads": s["batch"] * s["heads"]}


def experts_axes(s: Sizes) -> dict[str, Floats]:
    return {
        "rows": s["tokens"] * s["topk"] / s["experts"],
        "experts": np.maximum(s["experts"] / s["ep"], 1),
        "inner": s["inner"] / s["tp"],
        "hidden": s["hidden"],
    }


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator: its sizes, what a table's coordinates are made of, and its rule."""

    name: str
    title: str
    sizes: tuple[str, ...]
    rule: Callable[[DeviceModel, str, Sizes], Floats]
    axes: Callable[[Sizes], dict[str, Floats]]
    steps: Mapping[str, float]
    """The steps of the table's axes, in powers of two."""


KINDS = {
    kind.name: kind
    for kind in (
        OperatorKind(
            "product",
            "products",
            ("m", "n", "k"),
            product_us,
            wider("m", "n", "k"),
            {"m": 1, "n": 1, "k": 1},
        ),
        OperatorKind(
            "attention",
            "attention, prefill",
            ("batch", "seq", "heads", "kv_heads", "head_dim", "window", "cache_bytes"),
            attention_us,
            attention_axes,
            {"seq": 1, "heads": 1, "sharing": 2},
        ),
        OperatorKind(
            "decode_attention",
            "attention, one token",
            ("batch", "context", "heads", "kv_heads", "head_dim", "window", "cache_bytes"),
            decode_attention_us,
            decode_axes,
            {"context": 1, "kv_heads": 1, "sharing": 2},
        ),
        OperatorKind(
            "latent_attention",
            "latent attention, prefill",
            ("batch", "context", "heads"),
            latent_attention_us,
            wider("batch", "context", "heads"),
            {"batch": 2, "context": 1, "heads": 1},
        ),
        OperatorKind(
            "decode_latent_attention",
            "latent attention, one token",
            ("batch", "context", "heads", "cache_bytes"),
            decode_latent_us,
            wider("batch", "context", "heads"),
            {"batch": 1, "context": 1, "heads": 1},
        ),
        OperatorKind(
            "delta_rule",
            "gated delta rule, by chunks",
            ("batch", "seq", "key_heads", "heads", "key_width", "width"),
            delta_rule_us,
            delta_axes,
            {"seq": 1, "heads": 1},
        ),
        OperatorKind(
            "delta_step",
            "gated delta rule, one token",
            ("batch", "heads", "key_width", "width", "state_bytes"),
            delta_step_us,
            lambda s: {"heads": s["batch"] * s["heads"]},
            {"heads": 1},
        ),
        OperatorKind(
            "memory",
            "memory-bound",
            ("bytes",),
            memory_us,
            wider("bytes"),
            {"bytes": 1},
        ),
        OperatorKind(
            "quantize",
            "quantization",
            ("m", "k"),
            quantize_us,
            wider("m", "k"),
            {"m": 1, "k": 1},
        ),
        OperatorKind(
            "experts",
            "experts",
            ("tokens", "hidden", "inner", "topk", "experts", "tp", "ep"),
            experts_us,
            experts_axes,
            {"rows": 1, "experts": 2, "inner": 2, "hidden": 2},
        ),
        OperatorKind(
            "collective",
            "collectives in a node",
            ("gpus", "bytes"),
            collective_us,
            wider("gpus", "bytes"),
            {"gpus": 1, "bytes": 1},
        ),
        OperatorKind(
            "exchange",
            "exchange of experts' tokens",
            ("nodes", "hidden", "tokens", "topk", "experts"),
            exchange_us,
            wider("nodes", "hidden", "tokens", "topk"),
            {"nodes": 1, "hidden": 1, "tokens": 1, "topk": 1},
        ),
    )
}
