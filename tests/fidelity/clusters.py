"""`python -m tests.fidelity.clusters FILE [--every N]`: plan the memory of training runs that were measured with nanotron.

Each row is compiled to rank classes, not to files. Both figures of a row are those of world rank 0, on the first stage
(`write_to_csv` in nanotron's `helpers.py`). What nanotron keeps beside the states of mixed precision is read off its code:
`kept_bytes`, whose terms are printed with the result.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stagec.driver import compile_text
from stagec.memory import Kind

GIB = 1 << 30

KEPT = """\
beside the plan's static bytes a rank has, while it updates its parameters (the peak is counted from the end of the backward passes on):
- the buckets of DistributedDataParallel, gradients in bf16, if dp > 1 (`FP32GradBucketManager` adds them to others in fp32)
- under ZeRO 1 the flat input and output of the gather of updated parameters (`all_gather_coalesced`)
- if tp > 1 two buffers for gathered hidden states of a microbatch (`MemoryBuffer`: "allgather", "allgather2")
- rotary tables of each layer in bf16 (`FlashRotaryEmbedding`)
- two workspaces of cuBLAS of 32 MiB, of the forward and the backward thread (PyTorch's `CublasHandlePool.cpp`, on H100)"""
CUBLAS_BYTES = 2 * (32 << 20)

ALLOWANCE = 24 * GIB
"""Of the 80 GiB of a device: what context, communicators and fragmentation are let to take."""
DEVICE_BYTES = 80 * GIB

LLAMA_WIDTHS = {2048: 8192, 3072: 8192, 4096: 14336, 8192: 28672, 16384: 53248}
"""Of the feed-forward layer by model width, for rows that failed and do not say it."""


@dataclass(frozen=True)
class Run:
    """What of a row decides its memory."""

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
    is_of_the_second_sweep: bool
    """Whether it is among the runs on 64 nodes or with tp = 32, whose cut into stages breaks ties the other way."""


@dataclass(frozen=True)
class Planned:
    """Of the first stage, and of whichever needs most."""

    static_bytes: int
    first_peak_bytes: int
    peak_bytes: int


def read_run(row: Mapping[str, str]) -> Run:
    """Microbatches beyond those that can be in flight change nothing; rows that failed do not say whether tables are tied."""

    def number(name: str) -> int:
        return int(float(row[name]))

    tied = row["tie_word_embeddings"]
    heads = number("num_heads") if row["num_heads"] else number("hidden_size") // 128
    pp, zero = number("pp"), number("zero_stage")
    return Run(
        number("seq_len"),
        number("mbs"),
        min(number("batch_accum"), pp + 1),
        number("dp") if zero else 1,
        pp,
        number("tp"),
        number("hidden_size"),
        number("interm_dim") if row["interm_dim"] else LLAMA_WIDTHS[number("hidden_size")],
        number("num_layers"),
        heads,
        number("num_kv_heads") if row["num_kv_heads"] else heads,
        number("vocab_size"),
        tied == "True" if tied else number("hidden_size") < 4096,
        zero if number("dp") > 1 else 0,
        number("dp") > 1,
        number("nodes") == 64 or number("tp") == 32,
    )


def layers_of_stages(run: Run) -> list[int]:
    """nanotron's cut: blocks in order, the next stage begins once a stage has more than its share of the work (`build_model`).

    The file is of two sweeps. In the first, a stage ends with exactly its share already; nothing but the size of
    the cluster says which sweep a run belongs to.
    """
    layer = 4 * run.width * run.width + 3 * run.feed_forward * run.width
    costs = [0, *([layer] * run.layers), 0, run.vocabulary * run.width]
    total, done, stage = sum(costs), 0, 0
    counts = [0] * run.pp
    for position, cost in enumerate(costs):
        done += cost
        counts[stage] += 1 <= position <= run.layers
        share = total * (stage + 1)
        is_full = done * run.pp > share or (
            done * run.pp == share and not run.is_of_the_second_sweep
        )
        if is_full and stage + 1 < run.pp:
            stage += 1
    return counts


def run_text(run: Run) -> str:
    head = "embed" if run.is_tied else "head"
    tables = "embed[V, D], norm[D]" + ("" if run.is_tied else ", head[V, D]")
    pipeline = f"microbatch {run.microbatch}"
    if run.pp > 1:
        counts = ", ".join(map(str, layers_of_stages(run)))
        # With fewer microbatches than stages all are in flight, whatever the schedule.
        schedule = "1f1b" if run.microbatches >= run.pp else "gpipe"
        settings = f"schedule = {schedule}, microbatch = {run.microbatch}, layers = [{counts}]"
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
dim L = {run.layers}

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  q = rope(x @ wq)
  k = rope(x @ wk)
  return attention(q, k, x @ wv, causal = true) @ wo
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm1[D], norm2[D], gate[D, F], up[D, F], down[F, D]
  h = x + Attention(rms_norm(x, norm1))
  y = rms_norm(h, norm2)
  return h + (silu(y @ gate) * (y @ up)) @ down
}}

model Llama(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight {tables}
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(cast(rms_norm(x, norm) @ {head}, dtype = fp32), targets)
}}

plan run {{
  mesh dp = {run.dp}, pp = {run.pp}, tp = {run.tp}
  shard B over dp
  shard H, K, F, V over tp
  shard S over tp
  {pipeline}
  {"zero 1 over dp" if run.zero else ""}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }}
  collectives {{ keep = shard }}
  optimizer adamw
}}
"""


def planned(run: Run) -> Planned:
    classes = compile_text(run_text(run), "run.stg").memory
    first = classes[0]
    parameters = first.static.num_bytes[Kind.PARAMETERS]
    static = first.static.total_bytes + kept_bytes(run, parameters)
    return Planned(static, first.peak_bytes, max(each.peak_bytes for each in classes))


def kept_bytes(run: Run, parameter_bytes: int) -> int:
    """What `KEPT` lists, of the first stage, whose parameters in bf16 take these bytes."""
    buckets = run.is_replicated * parameter_bytes
    gathered = run.zero * (parameter_bytes + parameter_bytes // run.dp)
    hidden = 2 * 2 * run.microbatch * run.sequence * run.width * (run.tp > 1)
    layers = layers_of_stages(run)[0]
    tables = layers * 2 * run.sequence * (run.width // run.heads // 2) * 2
    return buckets + gathered + hidden + tables + CUBLAS_BYTES


def attempt(run: Run) -> Planned | str:
    try:
        return planned(run)
    except (
        Exception
    ) as error:  # One row that does not compile is no reason to leave out the others.
        return str(error).splitlines()[0]


def plan_all(runs: Sequence[Run]) -> dict[Run, Planned | str]:
    """Each once, on all cores."""
    distinct = list(dict.fromkeys(runs))
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        return dict(zip(distinct, pool.map(attempt, distinct, chunksize=8), strict=True))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.clusters", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th row")
    options = parser.parse_args(arguments)
    rows = list(csv.DictReader(options.file.open()))[:: options.every]
    runs = [read_run(row) for row in rows]
    plans = plan_all(runs)
    near = below = succeeded = right = planned_rows = 0
    failed: list[str] = []
    for number, (row, run) in enumerate(zip(rows, runs, strict=True)):
        found = plans[run]
        if isinstance(found, str):
            failed.append(f"row {number * options.every}: {found}")
            continue
        succeeds = row["status"] == "Success"
        planned_rows += 1
        right += (found.peak_bytes <= DEVICE_BYTES - ALLOWANCE) == succeeds
        if succeeds:
            succeeded += 1
            measured = float(row["Mem Alloc (GB)"])
            near += abs(found.static_bytes / GIB - measured) <= 0.01 * measured
            below += found.first_peak_bytes / GIB <= float(row["Mem Res (GB)"])
    print(KEPT)
    print(f"{len(rows)} rows, {len(failed)} that do not compile", *failed[:5], sep="\n  ")
    print(f"static bytes within 1 %: {near} of {succeeded}")
    print(f"planned peak not above what was reserved: {below} of {succeeded}")
    print(
        f"told apart, with {ALLOWANCE // GIB} GiB for context and fragmentation: "
        f"{right} of {planned_rows}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
