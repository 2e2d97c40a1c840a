"""`python -m tests.fidelity.times FILE [--every N]`: estimated steps beside iteration times measured with Megatron-DeepSpeed on A100.

The file does not say whether activations were computed again, so both are shown. An estimate is what the devices could do: nothing is fitted, and
a measured step takes longer. What it is for is telling plans apart, so pairs of runs of one model on as many devices are counted
whose order it has right.
"""

from __future__ import annotations

import argparse
import csv
import sys
from itertools import combinations
from pathlib import Path

from stagec.driver import compile_text
from stagec.estimate import step_time

MODEL = """
dim B = {batch}
dim S = {sequence}
dim V = 51200
dim D = {width}
dim F = 4 * D
dim H = {heads}
dim E = D / H
dim L = {layers}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], b1[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], n2[D], b2[D], up[D, F], down[F, D]
  n = layer_norm(x, n1, b1)
  h = x + attention(n @ wq, n @ wk, n @ wv, causal = true, count = full) @ wo
  return h + gelu(layer_norm(h, n2, b2) @ up) @ down
}}

model Gpt(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D], bias[D]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(layer_norm(x, norm, bias) @ embed, targets)
}}

plan p {{
  mesh pp = {pp}, dp = {dp}, tp = {tp}
  shard B over dp
  shard H, F, V over tp
  {pipeline}
  recompute {recompute}
  precision {{ weights = bf16, gradients = fp32 }}
  device a100
}}
"""
COLUMNS = {
    "global batch": "batch",
    "sequence length": "sequence",
    "hidden size": "width",
    "attention heads": "heads",
    "# layers": "layers",
    "pipeline parallelism": "pp",
    "data parallelism": "dp",
    "tensor parallelism": "tp",
}


def estimated_ms(row: dict[str, str], recompute: str) -> float:
    """A row's step as its plan is estimated."""
    microbatch = row["micro batch"]
    pipeline = f"microbatch {microbatch}"
    if int(row["pipeline parallelism"]) > 1:
        pipeline = f"pipeline L over pp {{ microbatch = {microbatch} }}"
    numbers = {name: row[column] for column, name in COLUMNS.items()}
    text = MODEL.format(**numbers, pipeline=pipeline, recompute=recompute)
    return 1e3 * step_time(compile_text(text))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.times", description=__doc__)
    parser.add_argument("file", type=Path, help="megatron_deepspeed_a100.csv")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th row alone")
    options = parser.parse_args(arguments)
    with options.file.open(newline="") as file:
        rows = list(csv.DictReader(file))[:: options.every]
    found: list[tuple[str, float, float]] = []
    print("parameters  devices  tp  dp  pp  micro  measured ms  none/measured  full/measured")
    for row in rows:
        measured = float(row["iteration time (ms)"])
        none, full = (estimated_ms(row, recompute) for recompute in ("none", "full"))
        found.append((f"{row['Parameters (billion)']} on {row['# GPUs']}", full, measured))
        degrees = [row[f"{kind} parallelism"] for kind in ("tensor", "data", "pipeline")]
        print(
            f"{row['Parameters (billion)']:>9}B  {row['# GPUs']:>7}  "
            f"{'  '.join(f'{d:>2}' for d in degrees)}  {row['micro batch']:>5}  "
            f"{measured:>11.1f}  {none / measured:>13.2f}  {full / measured:>13.2f}",
            flush=True,
        )
    print(summary(found))
    return 0


def summary(found: list[tuple[str, float, float]]) -> str:
    """The range of estimates over measurements, and how many pairs of plans of one job are in order."""
    ratios = sorted(estimated / measured for _, estimated, measured in found)
    pairs = [(a, b) for a, b in combinations(found, 2) if a[0] == b[0]]
    right = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in pairs)
    return (
        f"with recomputation {ratios[0]:.2f} to {ratios[-1]:.2f} of what was measured, "
        f"median {ratios[len(ratios) // 2]:.2f}; {right} of {len(pairs)} pairs of plans in order"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
