"""Random plans of serving, and what to vary of them."""

from __future__ import annotations

from random import Random

from tests.differential.random_plans import Drawn

MODEL = """dim B = 8
dim S = 64
dim T = S
dim V = 40
dim D = 32
dim H = {heads}
dim K = {kv}
dim E = 8
dim Q = 16
dim U = 4
dim F = 48
dim L = {layers}
dim W = 24
dim X = 4
dim A = 2
dim R = B * S * A / X
dim N = {decoded}
dim M = {prefilled}
dim P = {new}
dim C = {context}
dim G = {shared}

{attention}

{mlp}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], n2[D]
  h = x + Attention(rms_norm(x, n1))
  return h + Mlp(rms_norm(h, n2))
}}

{model}

plan p {{
  {clauses}
}}
"""
GROUPED = """module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache k[B, T, K, E], v[B, T, K, E]
  keys = append(k, rope(x @ wk)WINDOW)
  values = append(v, x @ wvWINDOW)
  return attention(rope(x @ wq), keys, values, causal = trueWINDOW) @ wo
}"""
LATENT = """module Attention(x[B, S, D]) -> [B, S, D] {
  weight near[D, H, Q], far[D, H, E], kv[D, Q], shared[D, E], wo[H, Q, D]
  cache latents[B, T, Q], rotated[B, T, E]
  y = latent_attention(x @ near, rope(x @ far), append(latents, x @ kv), append(rotated, rope(x @ shared)), causal = true)
  return y @ wo
}"""
RECURRENT = """module Attention(x[B, S, D]) -> [B, S, D] {
  weight wu[D, H, E], filter[U, H, E], wb[D, K, Q], wc[D, K, Q], wt[D, H], rate[H], wo[H, E, D]
  cache seen[B, U, H, E], state[B, H, E, Q]: fp32
  u = silu(causal_conv(x @ wu, filter, over = S, state = seen))
  y = ssd_scan(u, softplus(x @ wt), -exp(rate), x @ wb, x @ wc, chunk = 16, state = state)
  return y @ wo
}"""
PLAIN = """model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}"""
DRAFTING = """model Net(tokens[B, S]: i32, targets[B, S]: i32, further[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  ahead = Block(x + embedding(targets, embed))
  loss = cross_entropy(x @ head, targets) + cross_entropy(ahead @ head, further)
}"""
MLP = """module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}"""
EXPERTS = """module Mlp(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  routed = dispatch(x, chosen, experts = X, tokens = R)
  h[X, R, F] = silu(routed @ up)
  y[X, R, D] = h @ down
  return combine(y, gates, chosen)
}"""


def draw_serving(rng: Random) -> Drawn:
    """A model with caches, an iteration of a few kinds of sequences, and one to three names with values; some of a pool of a plan."""
    pick = rng.choice
    has_experts = rng.random() < 0.3
    attention = pick((GROUPED, GROUPED, LATENT, RECURRENT))
    shares = attention != RECURRENT and rng.random() < 0.25
    axes = ["dp", *(a for a in ("pp", "tp") if rng.random() < 0.6), *(["cp"] if shares else [])]
    clauses = [f"mesh {', '.join(f'{a} = {pick((1, 2, 2, 4))}' for a in axes)}"]
    clauses += of_experts(rng) if has_experts else ["shard B over dp"]
    if "tp" in axes:
        heads = "H, F" if attention == LATENT else "H, K, F"
        last = f"shard {heads}{pick((', V', ''))} over tp" + (
            ", cp" if shares and attention == LATENT else ""
        )
        if attention == GROUPED:
            last = pick((last, "shard H, F over tp shard K over tp { replicate = true }"))
        clauses.append(last)
        if attention == GROUPED and not shares and rng.random() < 0.2:
            clauses.append("shard T over tp context tp { method = partial }")
    if shares:
        combine = (
            pick(("reduce_scatter", "all_to_all")) if attention == LATENT else "reduce_scatter"
        )
        clauses += [
            "shard T over cp",
            f"context cp {{ method = partial, interleave = {pick((1, 3))}, combine = {combine} }}",
        ]
    in_parts = not shares and rng.random() < 0.15
    if in_parts:
        clauses[0] += ", cp = 2"
        clauses += [
            "shard S over cp",
            f"context cp {{ method = {pick(('all_gather', 'ulysses'))}, balance = {pick(('none', 'head_tail'))} }}",
        ]
    if "pp" in axes:
        clauses.append("pipeline L over pp { schedule = forward_only }")
    widths = pick(("weights = bf16", "weights = bf16, cache = fp8", "weights = fp8, cache = fp8"))
    widths += ", dispatch = fp8" if "shard X over dp" in clauses and rng.random() < 0.3 else ""
    precision = f"precision {{ {widths} }}"
    is_drafting = rng.random() < 0.25
    served = (
        "prefill M x P, prefill N x 8 at C"
        if in_parts
        else iteration(rng, has_experts, is_drafting)
    )
    if rng.random() < 0.15:
        clauses.append("zero 3 over dp")
    clauses.append(f"serve {{ {served} }}")
    in_pool = rng.random() < 0.2
    if in_pool:
        source, pick_source = (
            "serve { prefill N x C }",
            served.replace("at C", "at C from first", 1),
        )
        clauses[-1] = f"serve {{ {pick_source} }}"
        inside = "\n    ".join(clauses)
        clauses = [
            f"{precision}\n  pool first {{ {source} }}\n  pool second {{\n    {inside}\n  }}"
        ]
    else:
        clauses.append(precision)
    window = pick(("", "", ", window = W")) if not shares else ""
    text = MODEL.format(
        heads=pick((4, 8)),
        kv=pick((2, 4)),
        layers=pick((2, 4)),
        decoded=pick((4, 8, 12)),
        prefilled=pick((2, 4)),
        new=pick((1, 8, 8, 32)),
        context=pick((1, 20, 31, 47)),
        shared=pick((1, 8, 16)),
        model=DRAFTING if is_drafting else PLAIN,
        attention=attention.replace("WINDOW", window),
        mlp=EXPERTS if has_experts else MLP,
        clauses="\n  ".join(clauses),
    )
    values = {axis: "1,2,4" for axis in axes} | {"N": "4,6,8,16", "C": "1,30,31", "L": "1..4"}
    values |= {"M": "2,3,4", "P": "1,16,32,33", "H": "4,8", "V": "39,40"}
    if attention != LATENT:
        values["K"] = "1,2,4"
    if "sharing" in served:
        values["G"] = "1,8,16,30"
    if "decode B" in served:
        values["B"] = "4,6,8,16"
    chosen = rng.sample(sorted(values), pick((1, 2, 2, 3)))
    varied = tuple(f"{name}={values[name]}" for name in chosen)
    return Drawn(text, varied, "p.second" if in_pool else "p")


def of_experts(rng: Random) -> list[str]:
    """Rules of experts, of tokens and of these once they are routed, and how they travel."""
    rules = ["shard X over dp"] if rng.random() < 0.6 else []
    rules += ["shard B over dp", "shard R over dp"]
    if rng.random() < 0.3:
        rules.append("collectives { exchange = all_gather }")
    if rng.random() < 0.2:
        rules.append("overlap { ep = true }")
    return rules


def iteration(rng: Random, has_experts: bool, is_drafting: bool) -> str:
    """What a `serve` clause says."""
    kinds = (
        f"decode {rng.choice('NNB')} at C",
        "prefill M x P",
        "decode M x 3 at C",
        "prefill M x P at C",
        "decode N at C sharing G",
    )
    entries = rng.sample(kinds, rng.choice((1, 1, 2, 3)))
    if rng.random() < 0.15:
        entries.append("decode 4 at uniform { least = 1, most = 50, seed = 3 }")
    if rng.random() < 0.3:
        entries.append(f"block = {rng.choice((4, 16))}")
    if rng.random() < 0.2:
        entries.append("logits = all")
    if is_drafting and rng.random() < 0.6:
        entries.append("drafts = true")
    if has_experts and rng.random() < 0.9:
        entries.append(f"experts = {rng.choice(('padded', 'average', 'average'))}")
    if has_experts and rng.random() < 0.2:
        entries.append("redundant = 4")
    if rng.random() < 0.2:
        entries.append(f"microbatches = 2, split = {rng.choice(('tokens', 'sequences'))}")
    return ", ".join(entries)
