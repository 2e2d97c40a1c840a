"""Modules that several tests put into models of their own, and a model that several put a module into."""

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


def served_experts(body: str, layers: int) -> str:
    """Layers of experts behind a cache, each a module of this body. Dims: experts `X`, of which a token has `A`; `T` tokens of each."""
    return f"""
dim B = 64
dim S = 1
dim P = S
dim D = 256
dim F = 512
dim X = 16
dim A = 2
dim T = B * S * A / X
module Experts(x[B, S, D]) -> [B, S, D] {{{body}}}
model Net(x[B, S, D]) {{
  cache past[B, P, D]
  x = x + mean(append(past, x), over = P)
  repeat {layers} {{ x = Experts(x) }}
  return x
}}
"""
