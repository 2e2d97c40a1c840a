"""The model of a case, in the language of stagec.

Weights are written as PyTorch's linear layers store them, outputs first: FSDP shards their rows. The
order of statements is the order in which PyTorch runs them, which decides when each gradient is ready.
"""

from __future__ import annotations

from tests.fidelity.oracle import Case


class NotInTheLanguage(Exception):
    """The case has something for which the language has no words."""


def model_name(case: Case) -> str:
    return {"llama": "Llama", "gpt": "Gpt", "moe": "Moe"}[case.model["arch"]]


def model_text(case: Case) -> str:
    """Dims, modules and the model."""
    arch = case.model["arch"]
    if arch == "moe":
        raise NotInTheLanguage("experts")
    if case.model["fused_qkv"]:
        raise NotInTheLanguage("one weight for queries, keys and values")
    if case.opts.get("infer") not in (None, "prefill"):
        raise NotInTheLanguage(f"infer = {case.opts['infer']}")
    parts = [dims_text(case)]
    parts += llama_parts(case) if arch == "llama" else gpt_parts(case)
    return "\n".join(parts)


def global_batch(case: Case) -> int:
    """Sequences per optimizer step: `batch` is that of one data-parallel rank."""
    return case.model["batch"] * case.degree("dp") * case.degree("dp_shard")


def repeats_heads(case: Case) -> bool:
    """Whether K and V are repeated for the query heads that share them."""
    m = case.model
    return m["kv_heads"] != m["heads"] and (m["attn"] == "eager" or m["attn"].endswith("_rep"))


def dims_text(case: Case) -> str:
    m = case.model
    sizes: dict[str, object] = {
        "B": global_batch(case),
        "S": m["seq"],
        "V": m["vocab"],
        "D": m["dim"],
        "F": m["ffn"],
        "H": m["heads"],
    }
    if m["arch"] != "gpt":
        sizes["K"] = m["kv_heads"]
    sizes |= {"E": "D / H", "L": m["layers"]}
    if m["arch"] == "gpt":
        sizes["P"] = m["seq"]
    if m["attn"] == "eager":
        sizes["T"] = "S"
    return "".join(f"dim {name} = {size}\n" for name, size in sizes.items())


def attention_lines(case: Case, heads: str) -> list[str]:
    """From q, k and v to `mixed`, for keys and values with dim `heads`."""
    m = case.model
    causal = str(m["causal"]).lower()
    lines: list[str] = []
    k, v = "k", "v"
    if repeats_heads(case):
        lines += [f"{x}_all = repeat_heads({x}, heads = {heads}, to = H)" for x in "kv"]
        k, v = "k_all", "v_all"
    elif m["attn"] == "eager" and heads != "H":
        lines += [f"{x}_all[B, S, H, E] = {x}[{heads} -> H]" for x in "kv"]
        k, v = "k_all", "v_all"
    if m["attn"] != "eager":
        # PyTorch counts all of a masked product.
        call = f"attention(q, {k}, {v}, causal = {causal}, count = full)"
        return [*lines, f"mixed[B, S, H, E] = {call}"]
    scores = "causal_mask(scores, query = S, key = T)" if m["causal"] else "scores"
    probabilities = f"softmax(cast({scores}, dtype = fp32), over = T)"
    return [
        *lines,
        f"scores[B, H, S, T] = q @ {k}[S -> T]",
        f"probabilities = cast({probabilities}, dtype = {case.compute_dtype})",
        f"mixed[B, S, H, E] = probabilities @ {v}[S -> T]",
    ]


def module(head: str, lines: list[str]) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"{head} {{\n{body}}}\n"


def llama_parts(case: Case) -> list[str]:
    tie = case.model["tie"]
    return [
        module(
            "module Attention(x[B, S, D]) -> [B, S, D]",
            [
                "weight wq[H, E, D], wk[K, E, D], wv[K, E, D], wo[D, H, E]",
                "q = rope(x @ wq)",
                "k = rope(x @ wk)",
                "v = x @ wv",
                *attention_lines(case, "K"),
                "return mixed @ wo",
            ],
        ),
        module(
            "module SwiGLU(x[B, S, D]) -> [B, S, D]",
            [
                "weight w1[F, D], w3[F, D], w2[D, F]",
                "gate = x @ w1",
                "up = x @ w3",
                "hidden = silu(gate) * up",
                "return hidden @ w2",
            ],
        ),
        module(
            "module Block(x[B, S, D]) -> [B, S, D]",
            [
                "weight norm1[D], norm2[D]",
                "h = x + Attention(rms_norm(x, norm1))",
                "return h + SwiGLU(rms_norm(h, norm2))",
            ],
        ),
        module(
            f"model Llama({inputs(case, 'tokens[B, S]: i32')})",
            [
                "weight embed[V, D], norm[D]" + ("" if tie else ", head[V, D]"),
                "x = embedding(tokens, embed)",
                "repeat L { x = Block(x) }",
                f"logits = rms_norm(x, norm) @ {'embed' if tie else 'head'}",
                *ending(case),
            ],
        ),
    ]


def gpt_parts(case: Case) -> list[str]:
    tie = case.model["tie"]
    return [
        module(
            "module Attention(x[B, S, D]) -> [B, S, D]",
            [
                "weight wq[H, E, D], bq[H, E], wk[H, E, D], bk[H, E], wv[H, E, D], bv[H, E]",
                "weight wo[D, H, E], bo[D]",
                "q = x @ wq + bq",
                "k = x @ wk + bk",
                "v = x @ wv + bv",
                *attention_lines(case, "H"),
                "return mixed @ wo + bo",
            ],
        ),
        module(
            "module Mlp(x[B, S, D]) -> [B, S, D]",
            [
                "weight w1[F, D], b1[F], w2[D, F], b2[D]",
                "hidden = gelu(x @ w1 + b1)",
                "return hidden @ w2 + b2",
            ],
        ),
        module(
            "module Block(x[B, S, D]) -> [B, S, D]",
            [
                "weight norm1[D], shift1[D], norm2[D], shift2[D]",
                "h = x + Attention(layer_norm(x, norm1, shift1))",
                "return h + Mlp(layer_norm(h, norm2, shift2))",
            ],
        ),
        module(
            f"model Gpt({inputs(case, 'tokens[B, S]: i32, positions[S]: i32')})",
            [
                "weight embed[V, D], places[P, D], norm[D], shift[D]"
                + ("" if tie else ", head[V, D]"),
                "x = embedding(tokens, embed) + embedding(positions, places)",
                "repeat L { x = Block(x) }",
                f"logits = layer_norm(x, norm, shift) @ {'embed' if tie else 'head'}",
                *ending(case),
            ],
        ),
    ]


def inputs(case: Case, given: str) -> str:
    return f"{given}, targets[B, S]: i32" if case.is_training else given


def ending(case: Case) -> list[str]:
    return ["loss = cross_entropy(logits, targets)"] if case.is_training else ["return logits"]


ROW_BIASES: dict[str, tuple[str, ...]] = {"llama": (), "moe": (), "gpt": ("bo", "b2")}
"""Biases of linears whose inputs tensor parallelism splits."""


def row_split_tables(case: Case) -> list[tuple[int, int]]:
    """Rows and width of the tables whose rows are split over `tp`."""
    m = case.model
    if case.degree("tp") == 1 or "tp_embed" in case.parallel:
        return []
    tables = [(m["vocab"], m["dim"])]
    if m["arch"] == "gpt" and case.parallel.get("tp_mode") == "sp":
        tables.append((m["seq"], m["dim"]))
    return tables


def num_weights(case: Case, rank: int) -> int:
    """Tensors of parameters on a rank, where stages have equally many layers."""
    arch = case.model["arch"]
    in_block = {"llama": 9, "moe": 10, "gpt": 16}[arch]
    at_start = {"llama": 1, "moe": 1, "gpt": 2}[arch]
    at_end = {"llama": 2, "moe": 2, "gpt": 3}[arch] - bool(case.model["tie"])
    num_stages = case.degree("pp") * case.degree("vstages")
    stages = case.stages.get(rank, range(num_stages))
    layers = case.model["layers"] * len(stages) // num_stages
    return in_block * layers + at_start * (0 in stages) + at_end * (num_stages - 1 in stages)
