"""Modules that several tests put into models of their own."""

EXPERTS = """module Experts(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  routed = dispatch(x, chosen, experts = X, tokens = N)
  h[X, N, F] = silu(routed @ up)
  y[X, N, D] = h @ down
  return combine(y, gates, chosen)
}"""
"""Dims: experts `X`, of which a token has `A`; `N` tokens of each."""

FEED_FORWARD = """module Block(x[B, S, D]) -> [B, S, D] {
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}"""
