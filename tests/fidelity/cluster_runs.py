"""A run of `nanotron_h100.csv`, and its model and plan as a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

LLAMA_WIDTHS = {2048: 8192, 3072: 8192, 4096: 14336, 8192: 28672, 16384: 53248}
"""Of the feed-forward layer by model width, for rows that failed and do not say it."""


@dataclass(frozen=True)
class Run:
    """What a row says of its model and plan."""

    sequence: int
    microbatch: int
    microbatches: int
    dp: int
    pp: int
    tp: int
    width: int
    feed_forward: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    is_tied: bool
    zero: int
    is_replicated: bool
    """Whether there is more than one data-parallel rank."""


def read_run(row: Mapping[str, str]) -> Run:
    """Rows that failed do not say whether tables are tied."""

    def number(name: str) -> int:
        return int(float(row[name]))

    tied = row["tie_word_embeddings"]
    heads = number("num_heads") if row["num_heads"] else number("hidden_size") // 128
    return Run(
        number("seq_len"),
        number("mbs"),
        number("batch_accum"),
        number("dp"),
        number("pp"),
        number("tp"),
        number("hidden_size"),
        number("interm_dim") if row["interm_dim"] else LLAMA_WIDTHS[number("hidden_size")],
        number("num_layers"),
        heads,
        number("num_kv_heads") if row["num_kv_heads"] else heads,
        number("vocab_size"),
        tied == "True" if tied else number("hidden_size") < 4096,
        number("zero_stage") if number("dp") > 1 else 0,
        number("dp") > 1,
    )


def for_memory(run: Run) -> Run:
    """What of a run decides its memory: microbatches beyond those that can be in flight, and replicas that share nothing, change nothing."""
    microbatches = min(run.microbatches, run.pp + 1)
    return replace(run, microbatches=microbatches, dp=run.dp if run.zero else 1)


def layers_of_stages(run: Run, counts_norms: bool = True) -> list[int]:
    """nanotron's cut: blocks in order, the next stage begins once a stage has more than its share of the work (`build_model`).

    The cost of a block is that of `get_block_compute_costs` as of pull request 222 (commit 90860f52), which counts the weights of a
    layer's norms too. Other rows are cut as by other versions (`counts_norms` false), and no column says which.
    """
    layer = 4 * run.width * run.width + 3 * run.feed_forward * run.width
    layer += 2 * run.width * counts_norms
    costs = [0, *([layer] * run.layers), 0, run.vocabulary * run.width]
    total, done, stage = sum(costs), 0, 0
    counts = [0] * run.pp
    for position, cost in enumerate(costs):
        done += cost
        counts[stage] += 1 <= position <= run.layers
        if done * run.pp > total * (stage + 1) and stage + 1 < run.pp:
            stage += 1
    return counts


def schedule_of(run: Run) -> str:
    """With fewer microbatches than stages all are in flight, whatever the schedule."""
    return "1f1b" if run.microbatches >= run.pp else "gpipe"


LAYER = """\
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  q = rope(x @ wq)
  k = rope(x @ wk)
  return attention(q, k, x @ wv, causal = true) @ wo
}

module FeedForward(x[B, S, D]) -> [B, S, D] {
  weight gate[D, F], up[D, F], down[F, D]
  return (silu(x @ gate) * (x @ up)) @ down
}"""
LAYER_AS_RUN = """\
op transposed(x[B, S, Q, E]) -> [B, S, Q, E] { flops = 0, bytes = 4 * B * S * Q * E, scalars = B * S * Q * E,
  backward_flops = 0, backward_bytes = 4 * B * S * Q * E, backward_scalars = B * S * Q * E }
op joined(k[B, S, K, E], v[B, S, K, E]) -> [B, S, K, E], [B, S, K, E] { flops = 0, bytes = 8 * B * S * K * E, kernels = 2,
  backward_bytes = 0, backward_reads = [] }
op paired(k[B, S, K, E], v[B, S, K, E]) -> [B, S, K, E], [B, S, K, E] { flops = 0, bytes = 8 * B * S * K * E, scalars = 2 * B * S * K * E,
  backward_bytes = 8 * B * S * K * E, backward_scalars = 2 * B * S * K * E, backward_kernels = 2, backward_reads = [] }

op further(x[B, S, H, E]) -> [B, S, H, E] { flops = 0, bytes = 0, backward_bytes = 4 * B * S * H * E, KERNELS, backward_reads = [] }
op by_position(x[B, S, H, E]) -> [B, S, H, E] { flops = 0, bytes = 4 * B * S * H * E, scalars = B * S * H * E,
  backward_bytes = 8 * B * S * H * E, backward_scalars = 2 * B * S * H * E, backward_kernels = 2, backward_reads = [] }

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wqkv[D, Q, E], wo[H, E, D]
  q, near, own = split(transposed(x @ wqkv), over = Q, to = [H, K, J])
  both, beside = joined(near, own[J -> K])
  k, v = paired(both, beside)
  y = attention(further(rope(q)), rope(k), v, causal = true)
  return MIXED @ wo
}

module FeedForward(x[B, S, D]) -> [B, S, D] {
  weight gate_up[D, G], down[F, D]
  gate, up = split(x @ gate_up, over = G, to = [F, U])
  return (silu(gate) * up[U -> F]) @ down
}"""
"""With the kernels of `CausalSelfAttention.forward` and `MLP.forward` (`models/llama.py` of nanotron at 67c5ebb6): queries, keys and values are one
product, whose result is transposed into memory element by element (`permute(...).contiguous()`); keys and values are joined and transposed again, and their
gradients joined, of five dims, so that PyTorch copies each by a kernel of its own (`cat_out_cuda`), backward to where it is not contiguous; both gates are one
product. Hidden states are position by position, and attention is sequence by sequence: with several sequences, what it makes is copied in front
of its last product, and in the backward pass that and its gradient (`by_position`). All kernels and strides were counted by running these lines, and those
of the loss, under PyTorch 2.13."""
LOSS_AS_RUN = """\
op widened(x[B, S, V]) -> [B, S, V]: fp32 { flops = 0, bytes = 6 * B * S * V, scalars = B * S * V,
  backward_bytes = 6 * B * S * V, backward_scalars = B * S * V, backward_reads = [] }
op shifted(x[B, S, V]: fp32) -> [B, S, V]: fp32 { flops = 2 * B * S * V, bytes = 16 * B * S * V, scalars = 2 * B * S * V, kernels = 2,
  backward_flops = 0, backward_bytes = 0, backward_reads = [] }
op in_passes(x[B, S, V]: fp32) -> [B, S, V]: fp32 { flops = 2 * B * S * V, bytes = 12 * B * S * V, kernels = 19,
  backward_flops = 0, backward_bytes = 0, backward_kernels = 9, backward_reads = [] }

"""
"""With the kernels of `_ShardedCrossEntropy` (`parallel/tensor_parallel/functional.py`): logits are converted to fp32, of which the largest is found and taken
off, exponentials are made, added up, and divided by their sum, kernel by kernel: 38 bytes each, of which a loss reads 4 itself. What takes off and divides has
a number for each row, so that it goes element by element, and so did conversions both ways in the PyTorch 2.1 that ran (`conda activate 2-1-cu121` in
`run_multinode.sh`). Seventeen more choose the logits of targets and average, and ten behind. The gradient is multiplied by one number for each row, in
memory, which takes a third longer than is said here."""
SHORT = 6, 7
"""Kernels of a layer, and of its backward pass, that move next to nothing or are no ops of a text: lengths of sequences are made and added up, for queries and
for keys (`CoreAttention.forward`: two each of `zeros`, `sum` and `cumsum`); FlashAttention's backward pass has three beside its own, and its rotary embedding
copies the gradient of queries first (`ApplyRotaryEmb.backward`: `do.clone()`); gradients of two norms' weights are added up and cast, and added to sums (six,
of which a text has two and another that is none)."""
PIECES = 2
"""Further products of a column-parallel layer, and of the gradient of a row-parallel layer's input: rows of a rank's own by themselves, then those before
and those behind (`tensor_parallel/functional.py`)."""


def run_text(run: Run, as_run: bool = False, counts_norms: bool = True) -> str:
    """`as_run`: with each kernel of a layer that nanotron has; what is kept for backward passes, and so its memory, is the same.

    All runs have `tp_async_comm`: backward, a column-parallel layer gathers what it read beside one product, and scatters the gradient of that beside the other
    (`_ColumnLinearAsyncCommunication`). Forward a rank's own rows are multiplied while the others' arrive, a share of 1 / tp, which is left out here.
    """
    forward, backward = (each + 2 * PIECES * (run.tp > 1) for each in SHORT)
    kernels = f"kernels = {forward}, backward_kernels = {backward}"
    layer = LAYER
    if as_run:
        mixed = "by_position(y)" if run.microbatch > 1 else "y"
        layer = LOSS_AS_RUN + LAYER_AS_RUN.replace("KERNELS", kernels).replace("MIXED", mixed)
    joined = "\ndim J = K\ndim Q = H + K + J\ndim U = F\ndim G = F + U" if as_run else ""
    split = "H, K, J, Q, F, U, G, V" if as_run else "H, K, F, V"
    head = "embed" if run.is_tied else "head"
    logits = f"rms_norm(x, norm) @ {head}"
    logits = f"in_passes(shifted(widened({logits})))" if as_run else f"cast({logits}, dtype = fp32)"
    tables = "embed[V, D], norm[D]" + ("" if run.is_tied else ", head[V, D]")
    overlap = "\n  overlap { tp = true, pieces = 1 }" if as_run and run.tp > 1 else ""
    pipeline = f"microbatch {run.microbatch}"
    if run.pp > 1:
        counts = ", ".join(map(str, layers_of_stages(run, counts_norms)))
        settings = (
            f"schedule = {schedule_of(run)}, microbatch = {run.microbatch}, layers = [{counts}]"
        )
        pipeline = f"pipeline L over pp {{ {settings} }}"
    return f"""
dim B = {run.dp * run.microbatch * run.microbatches}
dim S = {run.sequence}
dim V = {run.vocabulary}
dim D = {run.width}
dim F = {run.feed_forward}
dim H = {run.heads}
dim K = {run.key_heads}
dim E = D / H
dim L = {run.layers}{joined}

{layer}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm1[D], norm2[D]
  h = x + Attention(rms_norm(x, norm1))
  return h + FeedForward(rms_norm(h, norm2))
}}

model Llama(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight {tables}
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy({logits}, targets)
}}

plan run {{
  mesh pp = {run.pp}, dp = {run.dp}, tp = {run.tp}
  shard B over dp
  shard {split} over tp
  shard S over tp
  {pipeline}
  {"zero 1 over dp" if run.zero else ""}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }}
  collectives {{ keep = shard }}{overlap}
  optimizer adamw{" { clip = 1 }" if as_run else ""}
}}
"""
