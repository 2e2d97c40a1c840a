"""The models of measured steps, as texts of the language."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int
    head_width: int = 0
    gated: bool = True
    experts: int = 0
    topk: int = 0
    dense_layers: int = 0
    adapters: int = 0
    """Rank of adapters on the projections of attention; nothing else learns then (LoRA, arXiv:2106.09685)."""
    biased: int = 0
    """Experts of a rank whose last product has a bias that Megatron-LM adds expert by expert; 0: no bias, or none by itself."""
    window: int = 0
    """Positions that every other layer's queries look back, from the first layer on, beside a sink for each head in all layers; 0: all layers look back to the
    beginning."""
    on_host: int = 0
    """Of how many layers, the first, what they save is kept on the host."""
    stages: int = 1
    """Into how many parts layers are cut that take turns in that: a part may begin or end with either kind."""
    normed: bool = False
    """Whether queries and keys are normed, head by head."""
    turns_at_once: bool = False
    """Whether one kernel takes queries, keys and values apart and rotates the first two (`fused_single_qkv_rope` of Megatron-LM)."""
    keys_of_rank: int = 0
    """Heads of keys that a rank has, where one product makes queries, keys and values (Megatron-LM); 0: each has its own."""
    sorts: bool = False
    """Whether a dispatcher sorts tokens by expert once they have come, and back before they go (`sort_chunks_by_idxs`)."""
    counts: bool = False
    """Whether kernels of a router and a dispatcher that move next to nothing are launched one by one."""
    pads: bool = False
    """Whether tokens of each expert are copied to where there is room for a whole number of blocks, and back (`Fp8Padding`, `Fp8Unpadding`)."""
    stretched: bool = False
    """Whether rotary embeddings reach further than a model was trained for and scale what they turn (YaRN), which no fused kernel of Megatron-LM's does."""
    adds_bias: bool = False
    """Whether attention's last product has a bias that a kernel of its own adds (`bias_dropout_fusion` off)."""
    clamps: bool = False
    """Whether both halves of what experts activate are clamped by kernels of their own."""
    routes_in_fp32: bool = False
    """Whether the backward pass of a router is products in fp32 (`moe_router_dtype`)."""
    narrows: bool = False
    """Whether what an activation reads is kept in 8 bits, written and read by kernels of their own (`activation_func_fp8_input_store`)."""

    @property
    def joins(self) -> bool:
        """Whether one product makes queries, keys and values, and one both gates (`linear_qkv` and `linear_fc1` of Megatron-LM)."""
        return self.keys_of_rank > 0


LLAMA3 = 128256
MODELS = {
    "llama3_8b": Model(32, 4096, 14336, 32, 8, LLAMA3),
    "llama3_70b": Model(80, 8192, 28672, 64, 8, LLAMA3),
    "llama3_405b": Model(126, 16384, 53248, 128, 8, LLAMA3),
    "llama2_70b": Model(80, 8192, 28672, 64, 8, 32000),
    "llama2_70b_lora": Model(80, 8192, 28672, 64, 8, 32000, adapters=16),
    "gpt3": Model(96, 12288, 4 * 12288, 96, 96, 51200, gated=False),
    "qwen3_30b_a3b": Model(
        *(48, 2048, 768, 32, 4, 151936),
        head_width=128,
        experts=128,
        topk=8,
        normed=True,
        routes_in_fp32=True,
    ),
    "qwen3_235b_a22b": Model(
        *(94, 4096, 1536, 64, 4, 151936),
        head_width=128,
        experts=128,
        topk=8,
        normed=True,
        routes_in_fp32=True,
    ),
    "gpt_oss_120b": Model(
        36,
        2880,
        2880,
        64,
        8,
        201088,
        head_width=64,
        experts=128,
        topk=4,
        window=128,
        stretched=True,
        adds_bias=True,
    ),
}
"""By their papers, model cards and the configurations in Megatron-Bridge and MLCommons' training repository."""


def dims(model: Model, batch: int, sequence: int) -> str:
    lines = [
        f"dim B = {batch}",
        f"dim S = {sequence}",
        f"dim V = {model.vocabulary}",
        f"dim D = {model.width}",
        f"dim F = {model.inner}",
        f"dim H = {model.heads}",
        f"dim K = {model.key_heads}",
        f"dim E = {model.head_width or 'D / H'}",
        *(f"dim {each.name} = {each.times}" for each in repeats(model)),
    ]
    if model.experts:
        lines += [
            f"dim X = {model.experts}",
            f"dim A = {model.topk}",
            "dim N = B",
            "dim C = B * S * A / X",
        ]
    if model.experts or (model.gated and model.joins):
        lines += ["dim FU = F", "dim FB = F + FU"]
    return "\n".join(lines)


@dataclass(frozen=True)
class Repeat:
    """Of layers, one or two in turn."""

    name: str
    times: int
    blocks: tuple[str, ...] = ("Block",)


def repeats(model: Model) -> list[Repeat]:
    """All layers alike, those kept on the host before the others, or in pairs of one with a window and one without, part by part."""
    if model.on_host:
        return [
            Repeat("L0", model.on_host, ("HostBlock",)),
            Repeat("L1", model.layers - model.on_host),
        ]
    if not model.window:
        return [Repeat("L", model.layers)]
    found: list[Repeat] = []
    pairs, single = divmod(model.layers // model.stages, 2)
    for stage in range(model.stages):
        turns = ("LocalBlock", "Block")
        turns = turns[::-1] if single and stage % 2 else turns
        found.append(Repeat(f"L{len(found)}", pairs, turns))
        if single:
            found.append(Repeat(f"L{len(found)}", 1, turns[:1]))
    return found


def taken_apart(model: Model) -> str:
    """What takes queries, keys and values out of what one product made, head of keys by head of keys: `queries_apart` and `values_apart`.

    `get_query_key_value_tensors` of Megatron-LM (core 0.15) copies queries where a rank has several heads of keys, each with its queries beside it
    (`query.reshape`). Keys are views that rotation reads, but that Transformer Engine copies where they are normed first; values it copies, as their
    strides are not those of keys (`get_qkv_layout` of 2.9: `x.contiguous()`). PyTorch copies what is not contiguous element by element. Behind the backward
    pass gradients of all three are joined again (`torch.cat` in `SplitAlongDim.backward`): that is the text's `split`.
    """
    shared = "B, S, K, E"
    sizes = (
        ("queries", "B, S, H, E", model.keys_of_rank > 1),
        ("values", shared, True),
        *((("keys", shared, True),) if model.normed else ()),
    )
    return "".join(
        f"op {name}_apart(x[{dims}]) -> [{dims}] {{ flops = 0, bytes = {4 * copies} * {size}, scalars = {copies:d} * {size},\n"
        "  backward_bytes = 0, backward_reads = [] }\n"
        for name, dims, copies in sizes
        for size in (dims.replace(", ", " * "),)
    )


def turned_at_once() -> str:
    """One kernel that reads what the product made, and writes queries and keys, rotated, and values, each by itself (`fused_qkv_rope_forward` of Transformer
    Engine, `apply_fused_qkv_rotary_pos_emb` of Megatron-LM): four bytes of each element. Its backward kernel reads the gradients of all three and writes that
    of the product's result: that is the text's `split`.
    """
    return "".join(
        f"op {name}_taken(x[{dims}]) -> [{dims}] {{ flops = {flops} * {size}, bytes = 4 * {size}, backward_bytes = 0, backward_reads = [] }}\n"
        for name, dims, flops in (
            *(("queries", "B, S, H, E", 3), ("keys", "B, S, K, E", 3)),
            ("values", "B, S, K, E", 0),
        )
        for size in (dims.replace(", ", " * "),)
    )


def turned() -> str:
    """Rotary embeddings that scale, of queries and keys: `_apply_rotary_pos_emb_bshd` of Megatron-LM (core 0.15 to 0.18), kernel by kernel.

    "mscale is not supported by TE's fused RoPE" (`apply_rotary_pos_emb`). PyTorch runs six kernels that read and write twelve times what is turned
    (two products, a negated half, two joins, a sum) behind six on angles alone, and seven in the backward pass, fourteen times. Of these both products, whose
    angles are the same for all heads, the negation of half an element's heads and the join of both halves compute element by element (`..._scaled`).
    """
    return "".join(
        f"op {name}_scaled(x[{dims}]) -> [{dims}] {{ flops = 2 * {size}, bytes = 14 * {size}, scalars = 3.5 * {size}, kernels = 10,\n"
        f"  backward_flops = 3 * {size}, backward_bytes = 14 * {size}, backward_scalars = 3.5 * {size}, backward_kernels = 4, backward_reads = [] }}\n"
        f"op {name}_turned(x[{dims}]) -> [{dims}] {{ flops = {size}, bytes = 10 * {size}, kernels = 2,\n"
        f"  backward_flops = {size}, backward_bytes = 14 * {size}, backward_kernels = 3, backward_reads = [] }}\n"
        for name, dims in (("queries", "B, S, H, E"), ("keys", "B, S, K, E"))
        for size in (dims.replace(", ", " * "),)
    )


def attention(model: Model, unfused: bool) -> str:
    """With the scores written out, or in one op."""
    normed, window = model.normed, model.window
    q, k, v, ops = "x @ wq", "x @ wk", "x @ wv", ""
    weights = "wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]"
    if model.joins:
        weights = "wqkv[D, Q, E], wo[H, E, D]"
        q, k, v = "q", "k[K -> H]", "v[J -> H]"
        if model.heads != model.key_heads:
            k, v = "k", "v[J -> K]"
            q, v, ops = f"queries_apart({q})", f"values_apart({v})", taken_apart(model)
    if normed:
        k = f"keys_apart({k})" if ops else k
        q, k = f"rms_norm({q}, norm_q)", f"rms_norm({k}, norm_k)"
        weights += ", norm_q[E], norm_k[E]"
    if model.stretched:
        q, k = f"queries_turned(queries_scaled({q}))", f"keys_turned(keys_scaled({k}))"
        ops += turned()
    elif model.turns_at_once:
        q, k, v = "queries_taken(q)", "keys_taken(k)", "values_taken(v[J -> K])"
        ops = turned_at_once()
    elif model.gated:
        q, k = f"rope({q})", f"rope({k})"
    mixed = "  mixed[B, S, H, E] = attention(q, k, v, causal = true)"
    if unfused:
        mixed = """  scores[B, H, S, T] = q @ k[S -> T]
  weighed = softmax(causal_mask(scores, query = S, key = T), over = T)
  probabilities = dropout(weighed, rate = 0.1)
  mixed[B, S, H, E] = probabilities @ v[S -> T]"""
    made, local = "mixed @ wo", ""
    if model.adds_bias:
        made, ops = f"bias_added({made})", ops + BIAS_ADDED
    if window:
        weights += ", sinks[H]"
        mixed = mixed.replace("v, causal", "v, sinks, causal")
        looks_back = mixed.replace("= true", f"= true, window = {window}")
        local = module("LocalAttention", weights, q, k, v, looks_back, made)
    return ops + local + module("Attention", weights, q, k, v, mixed, made)


def module(name: str, weights: str, q: str, k: str, v: str, mixed: str, made: str) -> str:
    apart = "  q, k, v = split(x @ wqkv, over = Q, to = [H, K, J])\n" if "wqkv" in weights else ""
    return f"""module {name}(x[B, S, D]) -> [B, S, D] {{
  weight {weights}
{apart}  q[B, S, H, E] = {q}
  k[B, S, K, E] = {k}
  v[B, S, K, E] = {v}
{mixed}
  return {made}
}}
"""


BIAS_ADDED = """op bias_added(x[B, S, D]) -> [B, S, D] { flops = B * S * D, bytes = 4 * B * S * D, scalars = B * S * D,
  backward_flops = B * S * D, backward_bytes = 2 * B * S * D, backward_reads = [] }
"""
"""A bias that is added in front of the residual one (`_bias_dropout_add_func` of Megatron-LM, core 0.15 to 0.19, where it is not compiled: recipes of GPT-OSS
turn `bias_dropout_fusion` off, as `TEGroupedMLP` has none with biases), for each token again; its gradient is a sum over tokens."""


def adapted(model: Model) -> str:
    """Attention with adapters on its projections, which alone learn: of queries, keys and values in common, and of what comes out.

    As NeMo runs them (`LoRALinear` and `ParallelLinearAdapter` of `collections/llm/peft` at 8cfedd72): Megatron-LM's own linear layers, which multiply in bf16
    whatever the projections do; scaling and adding are kernels of their own. A product by a weight that is made, not stored, keeps its dtype.
    """
    whole, out = "B * S * Q * E", "B * S * D"
    ops = [
        f"op {name}(x[{dims}]) -> [{dims}] {{ flops = {size}, bytes = 4 * {size}, backward_flops = {size}, backward_bytes = 4 * {size} }}\n"
        f"op {name}_added(x[{dims}], y[{dims}]) -> [{dims}] {{ flops = {size}, bytes = 6 * {size}, backward_flops = 0, backward_bytes = 0 }}\n"
        for name, dims, size in (("projected", "B, S, Q, E", whole), ("mixed", "B, S, D", out))
    ]
    return f"""{"".join(ops)}{taken_apart(model)}
module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wqkv[D, Q, E], wo[H, E, D]
  weight a[D, R], b[R, Q, E], ao[H, E, R], bo[R, D]
  r = dropout(x, rate = 0.1) @ (a * 1)
  all = projected_added(x @ wqkv, projected(r @ (b * 1)))
  q, k, v = split(all, over = Q, to = [H, K, J])
  y = attention(rope(queries_apart(q)), rope(k), values_apart(v[J -> K]), causal = true)
  return mixed_added(y @ wo, mixed(dropout(y, rate = 0.1) @ (ao * 1) @ (bo * 1)))
}}
"""


def with_bias(experts: int) -> str:
    """`TEGroupedMLP._apply_bias` of Megatron-LM (core 0.15 and 0.16, `megatron/core/transformer/moe/experts.py`), with so many experts on a rank.

    For each expert `b * p` and `t + b * p`, both fp32, then all joined, in fp32, and cast to bf16: 4, 10, 8 and 6 bytes of an element. Behind it a cast to
    fp32 (6), of each expert the gradient of `t` in bf16 (6), that of `b` by a product and a sum (12), that of `p` likewise (12), and those of `t` joined (4);
    besides what adds up elements, a cast of the gradient of `b` and its addition to those of other microbatches. Element by element go what multiplies by
    biases or probabilities, which are repeated, and what reads bf16 to make fp32 (`with_bias`); the rest loads vectors (`joined`).
    """
    elements = "X * C * D"
    return (
        f"op with_bias(x[X, C, D]) -> [X, C, D] {{ flops = 2 * {elements}, bytes = 14 * {elements}, scalars = 2 * {elements}, kernels = {2 * experts},\n"
        f"  backward_flops = 2 * {elements}, backward_bytes = 22 * {elements}, backward_scalars = 3 * {elements}, backward_kernels = {2 * experts + 1} }}\n"
        f"op joined(x[X, C, D]) -> [X, C, D] {{ flops = 0, bytes = 14 * {elements}, kernels = 2,\n"
        f"  backward_flops = 2 * {elements}, backward_bytes = 18 * {elements}, backward_kernels = {5 * experts + 2}, backward_reads = [] }}\n"
    )


CLAMPED = """op clamped(x[X, C, F]) -> [X, C, F] { flops = 2 * X * C * F, bytes = 8 * X * C * F, scalars = 2 * X * C * F, kernels = 2,
  backward_flops = 2 * X * C * F, backward_bytes = 19 * X * C * F, backward_scalars = 5 * X * C * F, backward_kernels = 7 }
op rejoined(x[X, C, F]) -> [X, C, F] { flops = 0, bytes = 8 * X * C * F,
  backward_bytes = 11 * X * C * F, backward_kernels = 2, backward_reads = [] }
"""
"""Both halves of what a gated activation reads, each clamped and both joined, in front of the kernel that activates (`weighted_bias_quick_geglu_impl` of
Megatron-LM, core 0.15 to 0.18): 16 bytes for an element of a half, and behind the backward pass 30, with the comparisons that PyTorch makes. A half is no
contiguous memory, so that its clamps, comparisons and choices compute element by element; joins load vectors."""


ROUTED = """op widened(s[B, S, X]) -> [B, S, X] { flops = 0, bytes = 0, backward_bytes = 6 * B * S * D, backward_scalars = B * S * D }
op routed_in_fp32(s[B, S, X]) -> [B, S, X] { flops = 0, bytes = 0, backward_bytes = 10 * B * S * D }
"""
"""What products in fp32 of a router's backward pass move besides (`RouterGatingLinearFunction` of Megatron-LM, core 0.14 to 0.19).

What it reads is cast (6 bytes of an element, one by one) and read so (2 more), the gradient of that is made in fp32 (2 more) and cast (6)."""


COUNTED = """op counted(s[B, S, X]) -> [B, S, X] { flops = 0, bytes = 0, kernels = 12, backward_bytes = 0, backward_reads = [] }
"""
"""What a host launches besides in a forward pass for Megatron-LM's router and its all-to-all dispatcher, fused (`moe_permute_fusion`, `moe_router_fusion`).

Of `router.py`, `token_dispatcher.py` and `moe_utils.py` (core 0.18) and `triton/permutation.py` of Transformer Engine: logits copied and made random (2,
`moe_router_force_load_balancing`), counts of tokens summed and cut (6), maps of rows (3) and of chunks (2), probabilities exchanged (1); less 2, as
cast, softmax and top-k are one kernel there. Its backward pass exchanges probabilities and has one kernel for the three that are priced here."""


def copied(name: str, dims: str, moved: int = 4, one_by_one: bool = False) -> str:
    """An op that copies a tensor, and in the backward pass one as large, with so many bytes for an element: two read and two written, or one in 8 bits.

    `one_by_one`: it is a copy of PyTorch's from or to memory that is not contiguous."""
    elements = dims.replace(", ", " * ")
    bytes_ = f"{moved} * {elements}"
    besides = f", scalars = {elements}, backward_scalars = {elements}" if one_by_one else ""
    return f"op {name}(x[{dims}]) -> [{dims}] {{ flops = 0, bytes = {bytes_}, backward_bytes = {bytes_}{besides}, backward_reads = [] }}\n"


def feed_forward(model: Model) -> str:
    if model.experts:
        ops, came, made, active = "", "routed", "y", "g"
        for name, does in (("sorted", model.sorts), ("padded", model.pads)):
            if does:
                ops += copied(name, "X, C, D")
                came, made = f"{name}({came})", f"{name}({made})"
        if model.clamps:
            ops, active = ops + CLAMPED, "rejoined(clamped(g))"
        if model.biased:
            ops += with_bias(model.biased)
            made = made.replace("y", "joined(with_bias(y))")
        logits = "x @ router"
        if model.routes_in_fp32:
            ops, logits = ops + ROUTED, f"routed_in_fp32(widened({logits}))"
        if model.counts:
            ops, logits = ops + COUNTED, f"counted({logits})"
        # Both gates are one product (`linear_fc1`), whose backward pass makes one gradient of what it reads.
        return f"""{ops}module FeedForward(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], both[X, D, FB], down[X, F, D]
  scores = softmax(cast({logits}, dtype = fp32), over = X)
  gates, chosen = topk(scores, over = X, to = A, normalise = true)
  routed = dispatch(x, chosen, experts = X, tokens = C, dropless = true)
  own = {came}
  halves[X, C, FB] = own @ both
  g, u = split(halves, over = FB, to = [F, FU])
  y[X, C, D] = (silu({active}) * u[FU -> F]) @ down
  return combine({made}, gates, chosen)
}}
"""
    if model.gated:
        op, g, u = "", "g", "u[FU -> F]"
        weights, apart = "both[D, FB]", "  g, u = split(x @ both, over = FB, to = [F, FU])\n"
        if not model.joins:
            g, u, weights, apart = "x @ gate", "(x @ up)", "gate[D, F], up[D, F]", ""
        if model.narrows:
            op, g, u = copied("narrowed", "B, S, F", 3), f"narrowed({g})", f"narrowed({u})"
        return f"""{op}module FeedForward(x[B, S, D]) -> [B, S, D] {{
  weight {weights}, down[F, D]
{apart}  return (silu({g}) * {u}) @ down
}}
"""
    return """module FeedForward(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}
"""


def text(
    model: Model, batch: int, sequence: int, unfused: bool = False, whole_again: bool = False
) -> str:
    """A decoder's text.

    `whole_again`: blocks end in an elementwise op that reads the last product, as dropout before the addition does in time. So a recomputation
    runs that product too, as Megatron-LM's `CheckpointFunction` does, which runs all of a block's forward pass again.

    Norms before each half of a block; RMS norms and rotation where the feed-forward layer is gated, else layer norms."""
    if model.gated:
        norms, call = "norm1[D], norm2[D]", "rms_norm({0}, {1})"
    else:
        norms, call = "norm1[D], bias1[D], norm2[D], bias2[D]", "layer_norm({0}, {1}, {2})"
    first, second = call.format("x", "norm1", "bias1"), call.format("h", "norm2", "bias2")
    top = call.format("x", "norm", "bias")
    last = "norm[D]" if model.gated else "norm[D], bias[D]"
    # A head that is not tied to the table has weights of its own; GPT-3's is.
    head, tables = ("head", ", head[D, V]") if model.gated else ("embed", "")
    sizes = dims(model, batch, sequence)
    if unfused:
        sizes += "\ndim T = S"
    if model.adapters or model.joins:
        sizes += "\ndim J = K\ndim Q = H + K + J"
    if model.adapters:
        sizes += f"\ndim R = {model.adapters}"
    shape = adapted(model) if model.adapters else attention(model, unfused)
    if model.heads == model.key_heads:
        shape = shape.replace("K, E", "H, E")
    ending = f"FeedForward({second})"
    if whole_again:
        ending = f"gelu({ending})"
    kinds = [("", "")]
    if model.window:
        kinds = [("Local", "Local"), *kinds]
    elif model.on_host:
        kinds = [("Host", ""), *kinds]
    blocks = "\n".join(
        f"""module {kind}Block(x[B, S, D]) -> [B, S, D] {{
  weight {norms}
  h = x + {attends}Attention({first})
  return h + {ending}
}}
"""
        for kind, attends in kinds
    )
    layers = "\n".join(
        "\n    ".join([f"  repeat {each.name} {{", *(f"x = {block}(x)" for block in each.blocks)])
        + "\n  }"
        for each in repeats(model)
    )
    return f"""{sizes}

{shape}
{feed_forward(model)}
{blocks}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], {last}{tables}
  x = embedding(tokens, embed)
{layers}
  loss = cross_entropy({top} @ {head}, targets)
}}
"""
