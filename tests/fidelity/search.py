"""How well plans of one model on as many nodes are ranked: `python -m tests.fidelity.search FILE.csv [--groups 12]`.

For each group of measured runs that have the model, the nodes, the sequence and the batch in common, five or more of them
successful, plans are ranked by what a search ranks them by. Told are the regret of the first choice against the best measured
(the share of its throughput that is lost), how often the best is among the first five, Kendall's tau, and whether plans that
ran out of memory are said to. Beside it stands the roofline alone: FLOPs and bytes of memory at the peaks of the device, no network, no pipeline.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from statistics import median

from stagec.searching.forms import NAME, FormsTask, evaluate
from tests.fidelity.cluster_runs import read_run, run_text

LEAST = 5
"""Successful runs of a group."""
CAPACITY = 80 * 2**30
MARGIN = 0.06
"""Of the memory, as `stagec search` leaves it free."""
BARS = {"median regret": 0.03, "worst regret": 0.20, "best in five": 0.90}
Row = Mapping[str, str]
COMMON = [
    "nodes",
    "seq_len",
    "gbs",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "vocab_size",
    "interm_dim",
]


@dataclass(frozen=True)
class Judged:
    """One run: what was measured, and what is said of it."""

    throughput: float
    """Tokens per second and GPU; 0 where it ran out of memory."""
    seconds: float
    roofline: float
    peak_bytes: float


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Runs that differ in their plans alone."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in COMMON)].append(row)
    return [g for g in found.values() if sum(r["status"] == "Success" for r in g) >= LEAST]


def judged(row: Row) -> Judged | None:
    """By closed forms. Nothing for a run that does not compile."""
    run = read_run(row)
    run = replace(run, dp=int(float(row["dp"])), microbatches=int(float(row["batch_accum"])))
    text = run_text(run).replace("plan run {", f"plan {NAME} {{\n  device h100")
    task = FormsTask("run.stg", text, ("microbatch",), ((run.microbatch,),), (0,))
    times, memory = evaluate(task), evaluate(replace(task, wants_memory=True))
    seconds, peak = times.columns["step"][0], memory.columns["memory.peak"][0]
    if seconds != seconds or peak != peak:
        return None
    throughput = float(row["tok/s/gpu"]) if row["status"] == "Success" else 0.0
    return Judged(throughput, seconds, times.columns["compute"][0], peak)


@dataclass(frozen=True)
class Score:
    """Of one group."""

    regret: float
    best_in_five: bool
    tau: float


def score(runs: Sequence[Judged], times: Sequence[float]) -> Score:
    order = sorted(range(len(runs)), key=lambda i: times[i])
    best = max(range(len(runs)), key=lambda i: runs[i].throughput)
    first = runs[order[0]].throughput
    agree = 0
    pairs = list(combinations(range(len(runs)), 2))
    for i, j in pairs:
        measured = runs[i].throughput - runs[j].throughput
        said = times[j] - times[i]
        agree += (measured * said > 0) - (measured * said < 0)
    return Score(1 - first / runs[best].throughput, best in order[:5], agree / max(len(pairs), 1))


def told(title: str, scores: Sequence[Score]) -> dict[str, float]:
    regrets = [each.regret for each in scores]
    found = {
        "median regret": median(regrets),
        "worst regret": max(regrets),
        "best in five": sum(each.best_in_five for each in scores) / len(scores),
        "Kendall's tau": median(each.tau for each in scores),
    }
    line = ", ".join(
        f"{name} {value:.2f}" if name.startswith("K") else f"{name} {100 * value:.1f} %"
        for name, value in found.items()
    )
    sys.stdout.write(f"{title}: {line}\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fidelity.search", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.csv")
    parser.add_argument("--groups", type=int, help="so many of the groups, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chosen: list[list[Row]] = []
    for path in options.files:
        with open(path, newline="") as file:
            chosen += groups(list(csv.DictReader(file)))
    if options.groups is not None and options.groups < len(chosen):
        chosen = Random(options.seed).sample(chosen, options.groups)
    ours: list[Score] = []
    roofline: list[Score] = []
    memory: list[tuple[bool, bool]] = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for group in chosen:
            answers = [each for each in pool.map(judged, group) if each is not None]
            memory += [(a.throughput == 0, a.peak_bytes > CAPACITY * (1 - MARGIN)) for a in answers]
            ran = [a for a in answers if a.throughput]
            if len(ran) < LEAST:
                continue
            ours.append(score(ran, [a.seconds for a in ran]))
            roofline.append(score(ran, [a.roofline for a in ran]))
            sys.stdout.write(f"{len(ran)} runs: regret {100 * ours[-1].regret:.1f} %\n")
            sys.stdout.flush()
    if not ours:
        sys.stdout.write("no group\n")
        return 1
    sys.stdout.write(f"{len(ours)} groups\n")
    found = told("stagec search", ours)
    told("roofline alone", roofline)
    both = sum(out and said for out, said in memory)
    sys.stdout.write(
        f"out of memory: precision {100 * both / max(sum(s for _, s in memory), 1):.1f} %, "
        f"recall {100 * both / max(sum(o for o, _ in memory), 1):.1f} %\n"
    )
    missed = [
        name
        for name, bar in BARS.items()
        if (found[name] < bar if name == "best in five" else found[name] > bar)
    ]
    sys.stdout.write(f"missed: {', '.join(missed)}\n" if missed else "all bars are met\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
