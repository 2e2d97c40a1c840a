"""`python -m tests.fidelity.clusters FILE [--every N]`: plan the memory of training runs that were measured with nanotron.

Each row is compiled to rank classes, not to files. nanotron keeps more from step to step than the states of mixed
precision; what that is was read off the measurements (`KEPT`), and is printed with the result.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stagec.driver import compile_text
from stagec.memory import Kind

GIB = 1 << 30

KEPT = """\
beside the plan's static bytes nanotron keeps gradients in bf16 (2 bytes per parameter) where dp > 1; under ZeRO 1 another 2 bytes per
parameter and 2 for each that the rank updates; the hidden states of a microbatch twice; 0.07 GiB of its own"""
LLAMA_WIDTHS = {2048: 8192, 3072: 8192, 4096: 14336, 8192: 28672, 16384: 53248}
"""Of the feed-forward layer by model width, for rows that failed and do not say it."""

OWN_BYTES = 0.07 * GIB


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


@dataclass(frozen=True)
class Planned:
    """Of the first stage, and of whichever needs most."""

    parameter_bytes: int
    static_bytes: int
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
    )


def layers_of_stages(run: Run) -> list[int]:
    """nanotron's cut: blocks in order, the next stage begins once a stage has its share of the work (`build_model`)."""
    layer = 4 * run.width * run.width + 3 * run.feed_forward * run.width
    costs = [0, *([layer] * run.layers), 0, run.vocabulary * run.width]
    share, done, stage = sum(costs) / run.pp, 0, 0
    counts = [0] * run.pp
    for position, cost in enumerate(costs):
        done += cost
        counts[stage] += 1 <= position <= run.layers
        if done >= share * (stage + 1) and stage + 1 < run.pp:
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


@cache
def planned(run: Run) -> Planned:
    classes = compile_text(run_text(run), "run.stg").memory
    first = classes[0]
    parameters = first.static.num_bytes[Kind.PARAMETERS]
    count = parameters // 2
    kept = run.is_replicated * parameters + run.zero * (2 * count + 2 * count // run.dp)
    hidden = 4 * run.microbatch * run.sequence * run.width
    static = first.static.total_bytes + kept + hidden + int(OWN_BYTES)
    peak = max(each.peak_bytes for each in classes)
    return Planned(parameters, static, peak)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.clusters", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th row")
    options = parser.parse_args(arguments)
    rows = list(csv.DictReader(options.file.open()))[:: options.every]
    near = below = succeeded = 0
    failed: list[str] = []
    peaks: list[tuple[float, bool]] = []
    for number, row in enumerate(rows):
        run = read_run(row)
        try:
            found = planned(run)
        except (
            Exception
        ) as error:  # One row that does not compile is no reason to leave out the others.
            failed.append(f"row {number}: {str(error).splitlines()[0]}")
            continue
        succeeds = row["status"] == "Success"
        peaks.append((found.peak_bytes / GIB, succeeds))
        if succeeds:
            succeeded += 1
            measured = float(row["Mem Alloc (GB)"])
            near += abs(found.static_bytes / GIB - measured) <= 0.01 * measured
            below += found.peak_bytes / GIB <= float(row["Mem Res (GB)"])
    print(KEPT)
    print(f"{len(rows)} rows, {len(failed)} that do not compile", *failed[:5], sep="\n  ")
    print(f"static bytes within 1 %: {near} of {succeeded}")
    print(f"planned peak not above what was reserved: {below} of {succeeded}")
    limit = max((peak for peak, _ in peaks), default=0)
    right = {
        bound: sum((peak <= bound) == succeeds for peak, succeeds in peaks)
        for bound in range(40, 81)
    }
    best = max(right, key=lambda bound: right[bound])
    print(f"told apart at {best} GiB: {right[best]} of {len(peaks)} (highest peak {limit:.0f} GiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
