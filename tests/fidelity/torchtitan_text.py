"""What torchtitan runs of a decoder beside what a text says: its `models/llama/model.py` and `parallelize_llama.py` (December 2024, 004b3148)."""

from __future__ import annotations

ELEMENTWISE = "rms_norm, rope, silu, mul, keys_repeated, values_repeated"
APART = "norm_apart, norm_scaled, queries_turned, keys_turned"
AGAIN = {
    "bf16": ("Attention.k", "FeedForward.u"),
    "fp8": ("Attention.q", "Attention.k", "Attention.v", "FeedForward.g", "FeedForward.u"),
}
"""Products that selective checkpoints by op run again (`selective_ac_option = "op"`, the default of its configs).

`_save_list` has attention and `aten.mm`, but of every second one of a block, in the order of `wq, wk, wv, wo, w1, w3, w2`. `aten._scaled_mm`, which multiplies
in fp8, is not in it."""


def recomputed(said: str, products: str, eager: bool, tp: int) -> str:
    """Of `wo` what is kept under tensor parallelism is the result of its reduce-scatter, which the list has; what `w2` makes nobody reads."""
    if said in ("", "full"):
        return f"{said} in Block" if said else "none"
    parts = (ELEMENTWISE, *AGAIN[products])
    if tp == 1:
        parts += ("Block.h",)
    if eager:
        parts += (APART,)
    return ", ".join(parts)


def ops(eager: bool) -> str:
    """`repeat_kv` copies keys and values for each head of queries, element by element where eager: two bytes read and eight written for four heads that share,
    and as much for the sum of gradients. Compiled, keys are written so where they are turned.

    Op by op, a norm is eight kernels that move 36 bytes for an element and sixteen that move 92 in the backward pass (`RMSNorm`: a cast to fp32, square, mean,
    root, two products, a cast), and a rotation three and three, 20 bytes each (`apply_rotary_emb`: casts around a product of complex numbers). Element by
    element go a norm's cast to fp32 and both products, whose factors are those of a row or a column (18 bytes), four of its backward pass (22), and of a
    rotation its cast to fp32 and the product of half as many numbers by angles that all heads have in common. All were counted by running these lines under
    PyTorch. A text has one and two of a norm, 4 and 10 bytes, and one and one of a rotation, 4 and 4."""
    keys = 10 if eager else 6
    scalars = f", scalars = {SHARING} * B * S * K * E" if eager else ""
    found = "".join(
        f"op {name}(s[B, S, K, E]) -> [B, S, K, E] {{ flops = 0, bytes = {moved} * B * S * K * E{scalars},\n"
        f"  backward_bytes = {moved} * B * S * K * E, backward_reads = [] }}\n"
        for name, moved in (("keys_repeated", keys), ("values_repeated", 10))
    )
    if not eager:
        return found
    return (
        found
        + "op norm_scaled(s[B, S, D]) -> [B, S, D] { flops = 0, bytes = 18 * B * S * D, scalars = 3 * B * S * D, kernels = 3,\n"
        "  backward_bytes = 22 * B * S * D, backward_scalars = 4 * B * S * D, backward_kernels = 4, backward_reads = [] }\n"
        "op norm_apart(s[B, S, D]) -> [B, S, D] { flops = 0, bytes = 14 * B * S * D, kernels = 4,\n"
        "  backward_bytes = 60 * B * S * D, backward_kernels = 10, backward_reads = [] }\n"
        + "".join(
            f"op {name}(s[B, S, {heads}, E]) -> [B, S, {heads}, E] {{ flops = 0, bytes = 16 * {size}, scalars = 1.5 * {size}, kernels = 2,\n"
            f"  backward_bytes = 16 * {size}, backward_scalars = 1.5 * {size}, backward_kernels = 2, backward_reads = [] }}\n"
            for name, heads in (("queries_turned", "H"), ("keys_turned", "K"))
            for size in (f"B * S * {heads} * E",)
        )
    )


SHARING = 4
"""Heads of queries that share one of keys, in Llama 3."""


def as_torchtitan(text: str, eager: bool) -> str:
    """The text of a model and a plan with torchtitan's ops in it."""
    changes = [
        ("\nmodule Attention", f"\n{ops(eager)}\nmodule Attention"),
        ("attention(q, k, v,", "attention(q, keys_repeated(k), values_repeated(v),"),
        (
            "  return (silu(x @ gate) * (x @ up)) @ down",
            "  g[B, S, F] = x @ gate\n  u[B, S, F] = x @ up\n  return (silu(g) * u) @ down",
        ),
    ]
    if eager:
        changes += [
            ("rope(x @ wq)", "queries_turned(rope(x @ wq))"),
            ("rope(x @ wk)", "keys_turned(rope(x @ wk))"),
            *((f"rms_norm({x})", f"norm_scaled(norm_apart(rms_norm({x})))") for x in NORMED),
            # `F.cross_entropy`: log-probabilities are written, and so is a gradient of them.
            ("@ head, targets)", "@ head, targets, fused = false)"),
        ]
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"`{old.strip()}` is not once in the text")
        text = text.replace(old, new)
    return text


NORMED = ("x, norm1", "h, norm2", "x, norm")
