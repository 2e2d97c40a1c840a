"""Models of measured serving as texts, with a plan that serves so many sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fidelity.serving import Row

DENSE = """
dim B = 8
dim S = 64
dim T = S
dim V = {vocabulary}
dim D = {width}
dim F = {hidden}
dim H = {heads}
dim K = {kv_heads}
dim E = {head_width}

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]{norms}
  cache keys[B, T, K, E], values[B, T, K, E]
  q[B, S, H, E] = rope({query})
  k[B, T, K, E] = append(keys, rope({key}))
  v[B, T, K, E] = append(values, x @ wv)
  return attention(q, k, v, causal = true) @ wo
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm1[D], norm2[D], gate[D, F], up[D, F], down[F, D]
  h = x + Attention(rms_norm(x, norm1))
  y = rms_norm(h, norm2)
  return h + (silu(y @ gate) * (y @ up)) @ down
}}

model Decoder(tokens[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat {layers} {{ x = Block(x) }}
  return rms_norm(x, norm) @ head
}}
"""

SIZES = {
    "Qwen/Qwen3-32B": (151936, 5120, 25600, 64, 8, 128, 64, True),
    "nvidia/Llama-3.1-8B-Instruct-FP8": (128256, 4096, 14336, 32, 8, 128, 32, False),
    "Llama-3.3-70B-Instruct": (128256, 8192, 28672, 64, 8, 128, 80, False),
}
"""Vocabulary, width, feed-forward width, heads, heads of keys, their width, layers, and whether queries and keys are normed: published configurations."""


def text_of_model(row: Row, sequences: str) -> str:
    if row.model not in SIZES:
        raise ValueError(f"no text of {row.model}")
    vocabulary, width, hidden, heads, kv_heads, head_width, layers, normed = SIZES[row.model]
    text = DENSE.format(
        vocabulary=vocabulary,
        width=width,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        layers=layers,
        norms=", nq[E], nk[E]" if normed else "",
        query="rms_norm(x @ wq, nq)" if normed else "x @ wq",
        key="rms_norm(x @ wk, nk)" if normed else "x @ wk",
    )
    return (
        text
        + f"""
plan serve {{
  mesh tp = {row.tp}
  shard H, K, F, V over tp
  precision {{ weights = bf16, activations = bf16, cache = bf16, products = {row.products} }}
  serve {{ {sequences} }}
  device {row.device} {{ kernels = compiled }}
}}
"""
    )
