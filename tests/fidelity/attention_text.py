"""The attention of a case's model: from `x` to `mixed`, with the weights in the order of PyTorch's."""

from __future__ import annotations

from tests.fidelity.oracle import Case

JOINED = "joined"
"""The op that copies: PyTorch's model reads `torch.cat` of a cache and what is new."""


class NotInTheLanguage(Exception):
    """The case has something for which the language has no words."""


def key_heads(case: Case) -> str:
    """The dim of key and value heads: that of the query heads unless queries share them."""
    return "H" if case.model["kv_heads"] == case.model["heads"] else "K"


def repeats_heads(case: Case) -> bool:
    """Whether K and V are repeated for the query heads that share them."""
    attn = case.model["attn"]
    return key_heads(case) == "K" and (attn == "eager" or attn.endswith("_rep"))


def attention_dims(case: Case) -> dict[str, object]:
    m = case.model
    sizes: dict[str, object] = {"H": m["heads"]}
    if key_heads(case) == "K":
        sizes["K"] = m["kv_heads"]
    sizes["E"] = "D / H"
    if m["attn"] == "eager" or case.is_served:
        sizes["T"] = "S"
    if m["fused_qkv"]:
        sizes |= {"C": 3} if key_heads(case) == "H" else {"G": "(H + 2 * K) * E"}
    return sizes


def own_ops(case: Case) -> list[str]:
    """Ops of the model's own, and free: what joins a cache and new positions to a copy; the parts of what one weight makes for q, k and v."""
    free = "{ flops = 0, bytes = 0 }\n"
    keys = f"[B, T, {key_heads(case)}, E]"
    joined = [f"op {JOINED}(past{keys}) -> {keys} {free}"] if case.context else []
    return joined + fused_ops(case, free)


def fused_ops(case: Case, free: str) -> list[str]:
    if not case.model["fused_qkv"]:
        return []
    if key_heads(case) == "H":
        return [f"op part(y[B, S, C, H, E]) -> [B, S, H, E] {free}"]
    if case.degree("tp") > 1:
        raise NotInTheLanguage("one weight for grouped queries, keys and values, split over tp")
    return [
        f"op queries(y[B, S, G]) -> [B, S, H, E] {free}op heads(y[B, S, G]) -> [B, S, K, E] {free}"
    ]


def projection_lines(case: Case, *, biases: bool, rotary: bool) -> list[str]:
    """From x to q, k and v. What is rotated has a name before, too."""
    parts = fused_parts(case) if case.model["fused_qkv"] else separate_parts(case, biases)
    lines = [weights_line(case, biases)]
    if case.model["fused_qkv"]:
        rows = fused_rows(case)
        lines.append(f"y[B, S, {rows}] = x @ wqkv" + (" + bqkv" if biases else ""))
    for name, part in parts.items():
        if rotary and name != "v":
            lines += [f"{name}_raw = {part}", f"{name} = rope({name}_raw)"]
        else:
            lines.append(f"{name} = {part}")
    return lines


def fused_rows(case: Case) -> str:
    return "C, H, E" if key_heads(case) == "H" else "G"


def fused_parts(case: Case) -> dict[str, str]:
    if key_heads(case) == "H":
        return dict.fromkeys("qkv", "part(y)")
    return {"q": "queries(y)", "k": "heads(y)", "v": "heads(y)"}


def separate_parts(case: Case, biases: bool) -> dict[str, str]:
    return {name: f"x @ w{name}" + (f" + b{name}" if biases else "") for name in "qkv"}


def weights_line(case: Case, biases: bool) -> str:
    """Weights of the projections, outputs first."""
    keys = f"{key_heads(case)}, E"
    rows = {"q": "H, E", "k": keys, "v": keys}
    if case.model["fused_qkv"]:
        rows = {"qkv": fused_rows(case)}
    weights: list[str] = []
    for name, dims in rows.items():
        weights.append(f"w{name}[{dims} | D]")
        weights += [f"b{name}[{dims} |]"] if biases else []
    return f"weight {', '.join(weights)}"


def attention_lines(case: Case) -> list[str]:
    """From q, k and v to `mixed`."""
    m = case.model
    lines: list[str] = []
    k, v, renamed = "k", "v", "[S -> T]"
    if case.is_served:
        keys = f"B, T, {key_heads(case)}, E"
        lines.append(f"cache past_k[{keys}], past_v[{keys}]")
        joined = f"{JOINED}(append(past_{{0}}, {{0}}))" if case.context else "append(past_{0}, {0})"
        lines += [f"{x}_seen = {joined.format(x)}" for x in "kv"]
        k, v, renamed = "k_seen", "v_seen", ""
    if repeats_heads(case):
        lines += [
            f"{x}_all = repeat_heads({name}, heads = K, to = H)" for x, name in (("k", k), ("v", v))
        ]
        k, v = "k_all", "v_all"
    if m["attn"] != "eager":
        # PyTorch counts all of a masked product.
        causal = str(m["causal"]).lower()
        call = f"attention(q, {k}, {v}, causal = {causal}, count = full)"
        return [*lines, f"mixed[B, S, H, E] = {call}"]
    scores = "causal_mask(scores, query = S, key = T)" if m["causal"] else "scores"
    probabilities = f"softmax({scores}, over = T)"
    if case.compute_dtype != "fp32":
        wide = f"softmax(cast({scores}, dtype = fp32), over = T)"
        probabilities = f"cast({wide}, dtype = {case.compute_dtype})"
    return [
        *lines,
        f"scores[B, H, S, T] = q @ {k}{renamed}",
        f"probabilities = {probabilities}",
        f"mixed[B, S, H, E] = probabilities @ {v}{renamed}",
    ]
