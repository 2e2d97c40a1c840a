"""The attention of a case's model: from `x` to `mixed`, with the weights in the order of PyTorch's."""

from __future__ import annotations

from tests.fidelity.oracle import Case

JOINED = "joined"
"""The op that copies: PyTorch's model reads `torch.cat` of a cache and what is new."""


def key_heads(case: Case) -> str:
    """The dim of key and value heads: that of the query heads unless queries share them."""
    return "H" if case.model["kv_heads"] == case.model["heads"] else "K"


def repeats_heads(case: Case) -> bool:
    """Whether K and V are repeated for the query heads that share them."""
    attn = case.model["attn"]
    return key_heads(case) == "K" and (attn == "eager" or attn.endswith("_rep"))


def is_grouped(case: Case) -> bool:
    """Whether one weight makes grouped queries, keys and values. Its rows lie by group, as in Megatron-LM: that is how they are split."""
    return bool(case.model["fused_qkv"]) and key_heads(case) == "K"


def attention_dims(case: Case) -> dict[str, object]:
    m = case.model
    if is_grouped(case):
        # A group has R heads of queries and one of keys and values each.
        times = m["heads"] // m["kv_heads"]
        sizes: dict[str, object] = {"K": m["kv_heads"], "R": times, "O": 1, "G": times + 2}
        sizes["E"] = "D / (K * R)"
    else:
        sizes = {"H": m["heads"]}
        if key_heads(case) == "K":
            sizes["K"] = m["kv_heads"]
        sizes["E"] = "D / H"
        if m["fused_qkv"]:
            sizes["G"] = 3
    if m["attn"] == "eager" or case.is_served:
        sizes["T"] = "S"
    if case.adapted:
        sizes["Z"] = m["lora"]
    return sizes


def query_heads(case: Case) -> str:
    return "K, R" if is_grouped(case) else "H"


def of_queries(case: Case) -> str:
    """The dims of queries, and of what attention makes of them."""
    return "B, K, S, R, E" if is_grouped(case) else "B, S, H, E"


def of_keys(case: Case, sequence: str) -> str:
    """The dims of keys and values."""
    return f"B, K, {sequence}, O, E" if is_grouped(case) else f"B, {sequence}, {key_heads(case)}, E"


def own_ops(case: Case) -> list[str]:
    """Ops of the model's own, and free: what joins a cache and new positions to a copy; the parts of what one weight makes for q, k and v."""
    free = "{ flops = 0, bytes = 0 }\n"
    keys = f"[{of_keys(case, 'T')}]"
    joined = [f"op {JOINED}(past{keys}) -> {keys} {free}"] if case.context else []
    return joined + fused_ops(case, free)


def fused_ops(case: Case, free: str) -> list[str]:
    if not case.model["fused_qkv"]:
        return []
    made = f"y[B, S, {fused_rows(case)}]"
    parts = {"queries": of_queries(case)}
    if is_grouped(case):
        parts["heads"] = of_keys(case, "S")
    return ["".join(f"op {name}({made}) -> [{dims}] {free}" for name, dims in parts.items())]


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
    return f"{key_heads(case)}, G, E"


def fused_parts(case: Case) -> dict[str, str]:
    others = "heads" if is_grouped(case) else "queries"
    return {"q": "queries(y)", "k": f"{others}(y)", "v": f"{others}(y)"}


def separate_parts(case: Case, biases: bool) -> dict[str, str]:
    return {
        name: product(case, "x", f"w{name}") + (f" + b{name}" if biases else "") for name in "qkv"
    }


def product(case: Case, x: str, weight: str) -> str:
    """With a weight, and beside it with its adapters."""
    adapter = f" + {x} @ {weight}_a @ {weight}_b * 2" if weight in case.adapted else ""
    return f"{x} @ {weight}{adapter}"


def with_adapters(case: Case, weight: str, made: str, read: str) -> list[str]:
    """A weight that reads and makes these dims, and what is trained beside it."""
    adapters = [f"{weight}_a[Z | {read}]", f"{weight}_b[{made} | Z]"]
    return [f"{weight}[{made} | {read}]", *(adapters if weight in case.adapted else [])]


def weights_line(case: Case, biases: bool) -> str:
    """Weights of the projections, outputs first."""
    keys = f"{key_heads(case)}, E"
    rows = {"q": "H, E", "k": keys, "v": keys}
    if case.model["fused_qkv"]:
        rows = {"qkv": fused_rows(case)}
    weights: list[str] = []
    for name, dims in rows.items():
        weights += with_adapters(case, f"w{name}", dims, "D")
        weights += [f"b{name}[{dims} |]"] if biases else []
    return f"weight {', '.join(weights)}"


def attention_lines(case: Case) -> list[str]:
    """From q, k and v to `mixed`."""
    m = case.model
    lines: list[str] = []
    k, v, renamed = "k", "v", "[S -> T]"
    if case.is_served:
        keys = of_keys(case, "T")
        lines.append(f"cache past_k[{keys}], past_v[{keys}]")
        joined = f"{JOINED}(append(past_{{0}}, {{0}}))" if case.context else "append(past_{0}, {0})"
        lines += [f"{x}_seen = {joined.format(x)}" for x in "kv"]
        k, v, renamed = "k_seen", "v_seen", ""
    if repeats_heads(case):
        shared, each = ("O", "R") if is_grouped(case) else ("K", "H")
        lines += [
            f"{x}_all = repeat_heads({name}, heads = {shared}, to = {each})"
            for x, name in (("k", k), ("v", v))
        ]
        k, v = "k_all", "v_all"
    if m["attn"] != "eager":
        # PyTorch counts all of a masked product.
        causal = str(m["causal"]).lower()
        call = f"attention(q, {k}, {v}, causal = {causal}, count = full)"
        return [*lines, f"mixed[{of_queries(case)}] = {call}"]
    scores = "causal_mask(scores, query = S, key = T)" if m["causal"] else "scores"
    probabilities = f"softmax({scores}, over = T)"
    if case.compute_dtype != "fp32":
        wide = f"softmax(cast({scores}, dtype = fp32), over = T)"
        probabilities = f"cast({wide}, dtype = {case.compute_dtype})"
    return [
        *lines,
        f"scores[B, {query_heads(case)}, S, T] = q @ {k}{renamed}",
        f"probabilities = {probabilities}",
        f"mixed[{of_queries(case)}] = probabilities @ {v}{renamed}",
    ]
