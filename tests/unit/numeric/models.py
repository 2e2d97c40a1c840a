"""Small models with the parts that real ones have."""

from tests.unit.numeric.training import Model

SIZES = """
dim B = 4
dim S = 4
dim T = S
dim V = 8
dim P = 4
dim D = 4
dim F = 8
dim H = 4
dim K = 2
dim E = 2
dim L = 2
"""

LLAMA = Model(
    SIZES
    + """
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  q = rope(x @ wq)
  k = rope(x @ wk)
  return attention(q, k, x @ wv, causal = true) @ wo
}
module SwiGLU(x[B, S, D]) -> [B, S, D] {
  weight gate[D, F], up[D, F], down[F, D]
  return (silu(x @ gate) * (x @ up)) @ down
}
module Block(x[B, S, D]) -> [B, S, D] {
  weight norm1[D], norm2[D]
  h = x + Attention(rms_norm(x, norm1))
  return h + SwiGLU(rms_norm(h, norm2))
}
model Llama(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  logits = rms_norm(x, norm) @ head
  loss = cross_entropy(logits, targets)
}
"""
)

GPT = Model(
    SIZES
    + """
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], bq[H, E], wk[D, K, E], wv[D, K, E], bv[K, E], wo[H, E, D], bo[D]
  q = x @ wq + bq
  k = repeat_heads(x @ wk, heads = K, to = H)
  v = repeat_heads(x @ wv + bv, heads = K, to = H)
  scores[B, H, S, T] = q @ k[S -> T]
  p = dropout(softmax(causal_mask(scores, query = S, key = T), over = T), rate = 0.2)
  o[B, S, H, E] = p @ v[S -> T]
  return o @ wo + bo
}
module Mlp(x[B, S, D]) -> [B, S, D] {
  weight w1[D, F], b1[F], w2[F, D], b2[D]
  return gelu(x @ w1 + b1) @ w2 + b2
}
module Block(x[B, S, D]) -> [B, S, D] {
  weight norm1[D], shift1[D], norm2[D], shift2[D]
  h = x + dropout(Attention(layer_norm(x, norm1, shift1)), rate = 0.1)
  return h + Mlp(layer_norm(h, norm2, shift2))
}
model Gpt(tokens[B, S]: i32, positions[S]: i32, targets[B, S]: i32) {
  weight embed[V, D], places[P, D], norm[D], shift[D]
  x = embedding(tokens, embed) + embedding(positions, places)
  repeat L { x = Block(x) }
  loss = cross_entropy(layer_norm(x, norm, shift) @ embed, targets, fused = false)
}
"""
)

SINKS = Model(
    SIZES
    + """
model Sinks(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D], sinks[H]
  x = embedding(tokens, embed)
  y = attention(x @ wq, x @ wk, x @ wv, sinks, causal = true, window = 3) @ wo
  loss = cross_entropy((x + y) @ embed, targets)
}
"""
)

BIASED = Model(
    SIZES
    + """
dim R = 5
model Biased(tokens[B, S]: i32, targets[B, S]: i32, distances[S, T]: i32) {
  weight embed[V, D], wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D], table[R, H]
  x = embedding(tokens, embed)
  bias = embedding(distances, table)
  repeat 2 {
    weight up[D, H, E], back[H, E, D]
    y = attention(x @ up, (x @ wk)[S -> T], (x @ wv)[S -> T], bias, causal = true, scale = 0.3)
    x = x + y @ back
  }
  y = attention(x @ wq, x @ wk, x @ wv, causal = true, alibi = true) @ wo
  loss = cross_entropy((x + y) @ embed, targets)
}
"""
)

CAPPED = Model(
    SIZES
    + """
model Capped(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], bias[V]
  x = embedding(tokens, embed)
  logits[B, S, V] = tanh((x @ embed + bias) / 4) * 4
  loss = cross_entropy(logits, targets)
}
"""
)
