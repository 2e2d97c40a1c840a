"""Models and plans of the tests of recomputation."""

from __future__ import annotations

LLAMA = """
dim B = 8
dim S = 64
dim V = 512
dim D = 256
dim F = 688
dim H = 8
dim K = 4
dim E = D / H
dim L = 2
dim T = S

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  q = rope(x @ wq)
  k = rope(x @ wk)
  v = x @ wv
{attention}  return mixed @ wo
}}

module SwiGLU(x[B, S, D]) -> [B, S, D] {{
  weight w1[D, F], w3[D, F], w2[F, D]
  gate = x @ w1
  up = x @ w3
  return (silu(gate) * up) @ w2
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm1[D], norm2[D]
  h = x + Attention(rms_norm(x, norm1))
  return h + SwiGLU(rms_norm(h, norm2))
}}

model Llama(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  logits = rms_norm(x, norm) @ head
  loss = cross_entropy(logits, targets)
}}
"""

FUSED = """  mixed[B, S, H, E] = attention(q, k, v, causal = true, count = full)
"""

UNFUSED = """  k_all = repeat_heads(k, heads = K, to = H)
  v_all = repeat_heads(v, heads = K, to = H)
  scores[B, H, S, T] = q @ k_all[S -> T]
  masked = causal_mask(scores / 5.6, query = S, key = T)
  probabilities = cast(softmax(cast(masked, dtype = fp32), over = T), dtype = fp32)
  mixed[B, S, H, E] = dropout(probabilities, rate = 0.1) @ v_all[S -> T]
"""

# Korthikanti et al. 2022, figure 2: GELU, biases, dropout after attention's softmax and after both row-parallel products.
GPT = """
dim B = 4
dim S = 2048
dim V = 51200
dim D = 6144
dim F = 4 * D
dim H = 64
dim E = D / H
dim L = 2
dim T = S

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], bq[H, E], wk[D, H, E], bk[H, E], wv[D, H, E], bv[H, E], wo[H, E, D], bo[D]
  q = x @ wq + bq
  k = x @ wk + bk
  v = x @ wv + bv
  scores[B, H, S, T] = q @ k[S -> T]
  probabilities = softmax(causal_mask(scores, query = S, key = T), over = T)
  mixed[B, S, H, E] = dropout(probabilities, rate = 0.1) @ v[S -> T]
  return mixed @ wo + bo
}

module Mlp(x[B, S, D]) -> [B, S, D] {
  weight w1[D, F], b1[F], w2[F, D], b2[D]
  return gelu(x @ w1 + b1) @ w2 + b2
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight norm1[D], shift1[D], norm2[D], shift2[D]
  h = x + dropout(Attention(layer_norm(x, norm1, shift1)), rate = 0.1)
  return h + dropout(Mlp(layer_norm(h, norm2, shift2)), rate = 0.1)
}

model Gpt(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], shift[D]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(layer_norm(x, norm, shift) @ embed, targets)
}
"""

MLP = """
dim B = 8
dim D = 16
dim F = 32
dim L = 3
dim N = 2

module Mlp(x[B, D]) -> [B, D] {{
  weight n[D], up[D, F], down[F, D]
  hidden = gelu(rms_norm(x, n) @ up)
  return x + hidden @ down
}}

model M(t[B, D]: i32, c[B]: i32) {{
  weight e[D], head[D, F]
  x = cast(t, dtype = fp32) * e
{body}  loss = cross_entropy(x @ head, c)
}}
"""

NESTED = """  repeat L {
    y = Mlp(x)
    repeat N { y = Mlp(y) }
    x = x + silu(y) * e
  }
"""
TWO_CALLS = """  repeat L {
    x = Mlp(x)
    x = Mlp(x)
  }
"""
AT_THE_TOP = """  x = Mlp(x)
  x = Mlp(x)
  repeat L { x = Mlp(x) }
"""

# Norms behind modules, as Gemma 2 has them, which read what a checkpoint returns; later layers read keys and values of an earlier one.
SHARED_KEYS = """
dim B = 8
dim S = 64
dim T = S
dim V = 512
dim D = 64
dim F = 128
dim H = 4
dim K = 2
dim E = D / H
dim L = 2

module Attention(x[B, S, D]) -> [B, S, D], [B, T, K, E], [B, T, K, E] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache keys[B, T, K, E], values[B, T, K, E]
  k[B, T, K, E] = append(keys, x @ wk)
  v[B, T, K, E] = append(values, x @ wv)
  return attention(x @ wq, k, v, causal = true) @ wo, k, v
}

module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}

module Block(x[B, S, D], k[B, T, K, E], v[B, T, K, E]) -> [B, S, D] {
  weight wq[D, H, E], wo[H, E, D], n1[D], n2[D]
  h = x + rms_norm(attention(x @ wq, k, v, causal = true) @ wo, n1)
  return h + rms_norm(Mlp(h), n2)
}

model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D]
  x = embedding(tokens, embed)
  a, k, v = Attention(x)
  x = x + rms_norm(Mlp(a), norm)
  y, _k, _v = Attention(x)
  x = x + y
  repeat L { x = Block(x, k, v) }
  loss = cross_entropy(x @ embed, targets)
}
"""

# Sums of a module that are read outside of it, with another one that nobody reads again.
SUMS = """
dim B = 8
dim D = 16
dim F = 32
dim L = 2

module Mlp(x[B, D]) -> [B, F], [B, F] {
  weight up[D, F], other[D, F]
  hidden = tanh(x @ up)
  y = hidden + x @ up
  return y, hidden + x @ other
}

module Block(x[B, D]) -> [B, D] {
  weight z[D, F], down[F, D]
  u, t = Mlp(x)
  return x + (u + t * (x @ z)) @ down
}

model M(t[B, D]: i32, c[B]: i32) {
  weight e[D], z[D, F], down[F, D]
  x = cast(t, dtype = fp32) * e
  u, w = Mlp(x)
  x = (u + w * (x @ z)) @ down
  repeat L { x = Block(x) }
  loss = mean(x, over = [B, D])
}
"""

MODELS = {
    "fused": LLAMA.format(attention=FUSED),
    "unfused": LLAMA.format(attention=UNFUSED),
    "gpt": GPT,
    "nested": MLP.format(body=NESTED),
    "two_calls": MLP.format(body=TWO_CALLS),
    "at_the_top": MLP.format(body=AT_THE_TOP),
    "shared_keys": SHARED_KEYS,
    "sums": SUMS,
}

SHARDS = {
    "fused": "H, K, F, V",
    "unfused": "H, K, F, V",
    "gpt": "H, F, V",
    "nested": "F",
    "two_calls": "F",
    "at_the_top": "F",
    "shared_keys": "H, K, F, V",
    "sums": "F",
}


def model_text(
    model: str, clauses: str = "", *, tp: int = 2, sp: bool = False, dtype: str = "fp32"
) -> str:
    """A model with a plan that has these clauses, on a (dp, tp) mesh; `sp`: sequence parallel."""
    sequence = "shard S over tp" if sp else ""
    return f"""{MODELS[model]}
plan p {{
  mesh dp = 2, tp = {tp}
  shard B over dp
  shard {SHARDS[model]} over tp
  {sequence}
  precision {{ weights = {dtype}, activations = {dtype}, optimizer = fp32 }}
  {clauses}
}}
"""
