"""The model of a case, in the language of stagec.

Weights are written as PyTorch's modules store them, outputs first; the bar stands after dim 0, which FSDP shards. The
order of statements is the order in which PyTorch runs them, which decides when each gradient is ready.
"""

from __future__ import annotations

from tests.fidelity.attention_text import (
    attention_dims,
    attention_lines,
    own_ops,
    product,
    projection_lines,
    query_heads,
    with_adapters,
)
from tests.fidelity.oracle import Case
from tests.fidelity.sublayers import (
    block_lines,
    further_dims,
    has_part,
    part_modules,
    reads_source,
    steps_of,
)

EXPERT_PRODUCT = "expert_product"
"""The op that multiplies each token with the weights of an expert of its."""

GROUPED = "GroupedExperts"
"""The module of the experts' own weights."""

SQUARES = "squares"
"""What the second term of the loss is the mean of."""

WIDE_LOGITS = "wide"
"""The logits in fp32, where others compute in less."""


def model_name(case: Case) -> str:
    return {"llama": "Llama", "gpt": "Gpt", "moe": "Moe"}[case.model["arch"]]


def model_text(case: Case) -> str:
    """Dims, ops, modules and the model."""
    arch = case.model["arch"]
    modules = gpt_modules(case) if arch == "gpt" else llama_modules(case)
    return "\n".join([dims_text(case), *own_ops(case), *modules, top_text(case)])


def global_batch(case: Case) -> int:
    """Sequences per optimizer step: `batch` is that of one data-parallel rank."""
    return case.model["batch"] * case.degree("dp") * case.degree("dp_shard")


def dims_text(case: Case) -> str:
    m = case.model
    sizes: dict[str, object] = {
        "B": global_batch(case),
        "S": m["seq"],
        "V": m["vocab"],
        "D": m["dim"],
        "F": m["ffn"],
        "L": m["layers"],
        **attention_dims(case),
        **further_dims(case),
    }
    if m["arch"] == "gpt":
        sizes["P"] = m["seq"]
    if m["arch"] == "moe":
        sizes |= {"X": m["experts"], "A": m["top_k"], "M": m["moe_ffn"]}
        if not has_few_tokens(case):
            sizes["C"] = "B * S * A / X"
    return "".join(f"dim {name} = {size}\n" for name, size in sizes.items())


def module(head: str, lines: list[str]) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"{head} {{\n{body}}}\n"


def llama_modules(case: Case) -> list[str]:
    if steps_of(case):
        source = ", source[B, S, D]" if reads_source(case) else ""
        head = f"module Block(x[B, S, D]{source}) -> [B, S, D]"
        block = module(head, block_lines(case, norm_name(case)))
        experts = [ffn_module(case)] if has_part(case, "experts") else []
        return [*norm_modules(case), *experts, *part_modules(case), block]
    return [
        *norm_modules(case),
        module(
            "module Attention(x[B, S, D]) -> [B, S, D]",
            [
                *projection_lines(case, biases=bool(case.model.get("qkv_bias")), rotary=True),
                *attention_lines(case),
                f"weight {', '.join(with_adapters(case, 'wo', 'D', f'{query_heads(case)}, E'))}",
                f"attended = {product(case, 'mixed', 'wo')}",
                "return attended",
            ],
        ),
        ffn_module(case),
        module(
            "module Block(x[B, S, D]) -> [B, S, D]",
            [
                "weight norm1[D], norm2[D]",
                f"n1 = {norm_name(case)}(x, norm1)",
                "h = x + Attention(n1)",
                f"n2 = {norm_name(case)}(h, norm2)",
                f"return h + {'Experts' if case.model['arch'] == 'moe' else 'SwiGLU'}(n2)",
            ],
        ),
    ]


def norm_name(case: Case) -> str:
    """RMSNorm as one op, or op by op: as a module of that name, or as fake tensors take PyTorch's function apart."""
    return "RmsNorm" if case.model["norm"] == "module" or case.is_fake else "rms_norm"


def norm_modules(case: Case) -> list[str]:
    """Op by op, x, its products with 1 / rms in fp32, and 1 / rms are kept; one op keeps x and 1 / rms."""
    if case.model["arch"] == "gpt" or norm_name(case) == "rms_norm":
        return []
    wide, back = "x", "x * scale * w"
    if case.compute_dtype != "fp32":
        dtype, wide = case.compute_dtype, "cast(x, dtype = fp32)"
        back = f"cast(y * scale * w, dtype = {dtype})"
    return [
        module(
            "module RmsNorm(x[B, S, D], w[D]) -> [B, S, D]",
            [
                *([f"y = {wide}"] if wide != "x" else []),
                f"scale = rsqrt(mean(square({'y' if wide != 'x' else 'x'}), over = D))",
                f"return {back}",
            ],
        )
    ]


def swiglu_module() -> str:
    return module(
        "module SwiGLU(x[B, S, D]) -> [B, S, D]",
        [
            "weight w1[F, D], w3[F, D], w2[D, F]",
            "gate = x @ w1",
            "up = x @ w3",
            "hidden = silu(gate) * up",
            "fed = hidden @ w2",
            "return fed",
        ],
    )


def ffn_module(case: Case) -> str:
    if case.model["arch"] != "moe":
        return swiglu_module()
    return few_tokens_module() if has_few_tokens(case) else experts_module()


def has_few_tokens(case: Case) -> bool:
    """An iteration of inference in which the tokens of a rank are no whole number for each expert, and the rank has all experts."""
    m = case.model
    tokens = m["batch"] * case.new_positions * m["top_k"]
    return case.is_served and case.degree("ep") == 1 and tokens % m["experts"] != 0


def few_tokens_module() -> str:
    """Which experts get tokens is in the data; products are of as many rows as there are choices."""
    free = "{ flops = 0, bytes = 0 }"
    product = "{ flops = 2 * B * S * A * D * M, bytes = 0 }"
    ops = [
        f"op routed_to(x[B, S, D], chosen[B, S, A]: i32) -> [B, S, A, D] {free}",
        f"op {EXPERT_PRODUCT}(x[B, S, A, D], w[X, M, D]) -> [B, S, A, M] {product}",
        f"op {EXPERT_PRODUCT}_back(x[B, S, A, M], w[X, D, M]) -> [B, S, A, D] {product}",
        f"op combined(x[B, S, A, D], gates[B, S, A]) -> [B, S, D] {free}",
    ]
    grouped = module(
        f"module {GROUPED}(routed[B, S, A, D]) -> [B, S, A, D]",
        [
            "weight w1[X | M, D], w3[X | M, D], w2[X | D, M]",
            f"gate = {EXPERT_PRODUCT}(routed, w1)",
            f"up = {EXPERT_PRODUCT}(routed, w3)",
            "hidden = silu(gate) * up",
            f"return {EXPERT_PRODUCT}_back(hidden, w2)",
        ],
    )
    routing = module(
        "module Experts(x[B, S, D]) -> [B, S, D]",
        [
            "weight router[X, D]",
            "gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A, normalise = true)",
            f"return combined({GROUPED}(routed_to(x, chosen)), gates)",
        ],
    )
    return "".join(f"{op}\n" for op in ops) + grouped + routing


def experts_module() -> str:
    """Without drops: each of the A experts of each token gets it, all equally many."""
    grouped = module(
        f"module {GROUPED}(routed[X, C, D]) -> [X, C, D]",
        [
            "weight w1[X | M, D], w3[X | M, D], w2[X | D, M]",
            "gate[X, C, M] = routed @ w1",
            "up[X, C, M] = routed @ w3",
            "hidden = silu(gate) * up",
            "fed[X, C, D] = hidden @ w2",
            "return fed",
        ],
    )
    return grouped + module(
        "module Experts(x[B, S, D]) -> [B, S, D]",
        [
            "weight router[X, D]",
            "routes = x @ router",
            "scores = softmax(routes, over = X)",
            "gates, chosen = topk(scores, over = X, to = A, normalise = true)",
            "routed = dispatch(x, chosen, experts = X, tokens = C, dropless = true)",
            f"returned = {GROUPED}(routed)",
            "return combine(returned, gates, chosen)",
        ],
    )


def gpt_modules(case: Case) -> list[str]:
    return [
        module(
            "module Attention(x[B, S, D]) -> [B, S, D]",
            [
                *projection_lines(case, biases=True, rotary=False),
                *attention_lines(case),
                f"weight wo[D | {query_heads(case)}, E], bo[D]",
                "attended = mixed @ wo + bo",
                "return attended",
            ],
        ),
        module(
            "module Mlp(x[B, S, D]) -> [B, S, D]",
            [
                "weight w1[F, D], b1[F], w2[D, F], b2[D]",
                "up = x @ w1 + b1",
                "hidden = gelu(up)",
                "fed = hidden @ w2 + b2",
                "return fed",
            ],
        ),
        module(
            "module Block(x[B, S, D]) -> [B, S, D]",
            [
                "weight norm1[D], shift1[D], norm2[D], shift2[D]",
                "n1 = layer_norm(x, norm1, shift1)",
                "h = x + Attention(n1)",
                "n2 = layer_norm(h, norm2, shift2)",
                "return h + Mlp(n2)",
            ],
        ),
    ]


def top_text(case: Case) -> str:
    """The model itself: embedding, blocks, head and loss."""
    is_gpt = case.model["arch"] == "gpt"
    inputs, tables = ["tokens[B, S]: i64"], ["embed[V, D]"]
    embedded = "embedding(tokens, embed)"
    norm, affine = norm_name(case), ["norm"]
    if is_gpt:
        inputs.append("positions[S]: i64")
        tables.append("places[P, D]")
        embedded += " + embedding(positions, places)"
        norm, affine = "layer_norm", ["norm", "shift"]
    head, ends = "embed", []
    if not case.is_tied:
        head, ends = "head", ["head[V, D]"]
    ending = ["return logits"]
    if case.is_training:
        inputs.append("targets[B, S]: i64")
        ending = loss_lines(case)
    if case.has_unit_of_head:
        return "\n".join(
            [
                module(
                    "module Embedding(tokens[B, S]: i64) -> [B, S, D]",
                    ["weight embed[V, D]", "return embedding(tokens, embed)"],
                ),
                module(
                    "module Head(x[B, S, D]) -> [B, S, V]",
                    [
                        f"weight {', '.join([*(f'{name}[D]' for name in affine), *ends])}",
                        f"return {norm}(x, {', '.join(affine)}) @ {head}",
                    ],
                ),
                module(
                    f"model {model_name(case)}({', '.join(inputs)})",
                    [
                        *(f"weight {table}" for table in tables[1:]),
                        f"x = {embedded.replace('embedding(tokens, embed)', 'Embedding(tokens)')}",
                        *layer_lines(case),
                        "logits = Head(x)",
                        *ending,
                    ],
                ),
            ]
        )
    weights = [*tables, *(f"{name}[D]" for name in affine), *ends]
    return module(
        f"model {model_name(case)}({', '.join(inputs)})",
        [
            f"weight {', '.join(weights)}",
            f"x = {embedded}",
            *layer_lines(case),
            f"logits = {norm}(x, {', '.join(affine)}) @ {head}",
            *ending,
        ],
    )


def layer_lines(case: Case) -> list[str]:
    """Of the model: what all layers read, if anything, and the layers."""
    if not reads_source(case):
        return ["repeat L { x = Block(x) }"]
    source = f"source = {norm_name(case)}(x, norm_of_source)"
    return ["weight norm_of_source[D]", source, "repeat L { x = Block(x, source) }"]


def has_penalty(case: Case) -> bool:
    """Whether the loss has a second term: large logits cost something."""
    return case.model.get("losses", 1) > 1


def loss_lines(case: Case) -> list[str]:
    """In fp32, and in two kernels: log-probabilities and what they are at the targets."""
    logits, lines = "logits", []
    if case.compute_dtype != "fp32":
        logits, lines = WIDE_LOGITS, [f"{WIDE_LOGITS} = cast(logits, dtype = fp32)"]
    penalty = ""
    if has_penalty(case):
        lines.append(f"{SQUARES} = square({logits})")
        penalty = f" + 0.01 * mean({SQUARES}, over = [B, S, V])"
    return [*lines, f"loss = cross_entropy({logits}, targets, fused = false){penalty}"]


def row_split_tables(case: Case) -> list[tuple[int, int]]:
    """Rows and width of the tables whose rows are split over `tp`."""
    m = case.model
    if case.degree("tp") == 1 or "tp_embed" in case.parallel:
        return []
    tables = [(m["vocab"], m["dim"])]
    if m["arch"] == "gpt" and case.parallel.get("tp_mode") == "sp":
        tables.append((m["seq"], m["dim"]))
    return tables
