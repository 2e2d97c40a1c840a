"""How well plans of one model on as many devices are ranked: `python -m tests.fidelity.search FILE.csv... [--groups 12]`.

For each group of measured runs that have the model, the devices, the sequence and the batch in common, five or more of them successful, plans are
ranked by what a search ranks them by. Told are the regret of the first choice against the best measured (the share of its throughput that is
lost), how often the best is among the first five, Kendall's tau, and whether plans that ran out of memory are said to. Beside it stand two others on the
same rows: a search's lower bound (what the rank that is longest at it computes, and the pipeline's bubble, without a network), and Calculon's published method.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median

from stagec.searching.coarse_times import LEAST as LOWER_BOUND
from stagec.searching.evaluation import NAME, FormsTask, evaluate
from stagec.sweeping.run import PEAK
from tests.fidelity import calculon, time_rows
from tests.fidelity.cluster_plans import sizes_of, structure_of
from tests.fidelity.cluster_runs import read_run, run_text

LEAST = 5
"""Successful runs of a group."""
CAPACITY = 80 * 2**30
MARGIN = 0.06
"""Of the memory, as `stagec search` leaves it free."""
BARS = {"median regret": 0.03, "worst regret": 0.20, "best in five": 0.90}
METHODS = ("stagec search", "lower bound alone", "Calculon's method")
UNJUDGED = "nanotron, which polls or not"
"""Half of these runs slept between messages, and which of them did nobody can tell by anything but their times: they are ranked, and held to no bar."""
Row = Mapping[str, str]


@dataclass(frozen=True)
class Measured:
    """One run: what of it is measured, and how it is asked for."""

    group: str
    throughput: float
    """Of devices together, in anything per second; 0 where it ran out of memory."""
    text: str
    """Of the model and its plan."""
    sizes: Mapping[str, int]
    """What the text is to be evaluated with."""
    shares: object
    """Runs that have this in common are one text but for sizes."""
    job: calculon.Job
    judges_memory: bool = True
    source: str = ""
    """Runs of a group that another program made are ranked by themselves."""


@dataclass(frozen=True)
class Judged:
    """What is said of a run: seconds by each of `METHODS`."""

    run: Measured
    seconds: tuple[float, ...]
    peak_bytes: float


def runs_of(path: Path) -> list[Measured]:
    """By what columns a file has: nanotron's sweep, or vTrain's."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and "tok/s/gpu" in rows[0]:
        return [nanotron(row) for row in rows]
    if rows and "iteration time (ms)" in rows[0]:
        return [vtrain(row) for row in rows]
    raise ValueError(f"`{path.name}` has no plans with times that are known")


def nanotron(row: Row) -> Measured:
    """Which program a run is of, its stored bytes say: see `time_rows.nanotron`."""
    run = read_run(row)
    timed = time_rows.nanotron(dict(row))
    ranks = run.dp * run.pp * run.tp
    batch = run.dp * run.microbatch * run.microbatches
    group = f"{run.width} x {run.layers}, {run.vocabulary} on {ranks}, {batch} of {run.sequence}"
    device = "device h100 { kernels = eager, graphs = false }"
    return Measured(
        f"nanotron {group}",
        float(row["tok/s/gpu"]) if row["status"] == "Success" else 0.0,
        run_text(run).replace("plan run {", f"plan {NAME} {{\n  {device}"),
        sizes_of(run),
        ("nanotron", structure_of(run)),
        calculon.Job(
            "h100",
            run.layers,
            run.width,
            run.feed_forward,
            run.heads,
            run.key_heads,
            run.sequence,
            run.microbatch,
            run.microbatches,
            run.tp,
            run.pp,
            run.dp,
            gated=True,
            sequence_parallel=run.tp > 1,
            zero=run.zero > 0,
        ),
        source=timed.source if timed is not None else "",
    )


def vtrain(row: Row) -> Measured:
    def number(name: str) -> int:
        return int(float(row[name]))

    timed = time_rows.deepspeed(row)
    width, layers, heads = number("hidden size"), number("# layers"), number("attention heads")
    batch, micro = number("global batch"), number("micro batch")
    tp, pp = number("tensor parallelism"), number("pipeline parallelism")
    dp, sequence = number("data parallelism"), number("sequence length")
    sizes = {"dp": dp, "tp": tp, "microbatch": micro}
    return Measured(
        f"vTrain {width} x {layers} on {number('# GPUs')}, {batch} of {sequence}",
        1 / timed.measured_s,
        timed.text.replace("plan measured {", f"plan {NAME} {{"),
        sizes,
        ("vTrain", width, layers, batch, sequence, pp, dp > 1, tp > 1),
        calculon.Job(
            "a100",
            layers,
            width,
            4 * width,
            heads,
            heads,
            sequence,
            micro,
            batch // dp // micro,
            tp,
            pp,
            dp,
            recomputes=True,
        ),
        judges_memory=False,
    )


def grouped(runs: Iterable[Measured]) -> list[list[Measured]]:
    """Runs that differ in their plans alone."""
    found: dict[str, list[Measured]] = defaultdict(list)
    for run in runs:
        found[run.group].append(run)
    return [g for g in found.values() if sum(run.throughput > 0 for run in g) >= LEAST]


def judged(runs: Sequence[Measured]) -> list[Judged | None]:
    """Runs of one text, by its closed forms. Nothing for one that does not compile."""
    names = tuple(runs[0].sizes)
    rows = tuple(tuple(run.sizes[name] for name in names) for run in runs)
    found: list[dict[str, list[float]]] = []
    for wants_memory in (False, True):
        task = FormsTask(
            "run.stg",
            runs[0].text,
            names,
            rows,
            tuple(range(len(runs))),
            (PEAK,) if wants_memory else (),
        )
        found.append(evaluate(task).columns)
    times, memory = found
    answers: list[Judged | None] = []
    for n, run in enumerate(runs):
        step, least, peak = times["step"][n], times[LOWER_BOUND][n], memory["memory.peak"][n]
        known = step == step and peak == peak
        seconds = (step, least, calculon.step_seconds(run.job))
        answers.append(Judged(run, seconds, peak) if known else None)
    return answers


@dataclass(frozen=True)
class Score:
    """Of one group."""

    regret: float
    best_in_five: bool
    tau: float


def score(runs: Sequence[Judged], method: int) -> Score:
    order = sorted(range(len(runs)), key=lambda i: runs[i].seconds[method])
    throughput = [each.run.throughput for each in runs]
    best = max(range(len(runs)), key=lambda i: throughput[i])
    agree = 0
    pairs = list(combinations(range(len(runs)), 2))
    for i, j in pairs:
        measured = throughput[i] - throughput[j]
        said = runs[j].seconds[method] - runs[i].seconds[method]
        agree += (measured * said > 0) - (measured * said < 0)
    regret = 1 - throughput[order[0]] / throughput[best]
    return Score(regret, best in order[:5], agree / max(len(pairs), 1))


def least_regret(runs: Sequence[Measured]) -> float:
    """What a first choice loses at least in a group of runs, by any method to which a plan without a pipeline is no slower in larger microbatches on the
    same ranks, whether ZeRO splits its optimizer's state or not: no run may come first of which another is the same but for these."""
    first = [run for run in runs if not any(is_no_slower(other.job, run.job) for other in runs)]
    return 1 - max(run.throughput for run in first) / max(run.throughput for run in runs)


def is_no_slower(one: calculon.Job, other: calculon.Job) -> bool:
    """Whether one plan runs the sequences of the other in fewer, larger kernels and messages of as many bytes."""
    alike = replace(
        one, microbatch=other.microbatch, microbatches=other.microbatches, zero=other.zero
    )
    is_larger = one.microbatch > other.microbatch and not one.microbatch % other.microbatch
    return alike == other and one.pp == 1 and is_larger


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
    sys.stdout.write(f"{title:18} {line}\n")
    return found


def told_memory(answers: Sequence[Judged]) -> None:
    """Of the plans that ran out of memory, how many are said to, and of those that are said to, how many did."""
    ran_out = [each.run.throughput == 0 for each in answers]
    said = [each.peak_bytes > CAPACITY * (1 - MARGIN) for each in answers]
    if not answers:
        return
    both = sum(a and b for a, b in zip(ran_out, said, strict=True))
    sys.stdout.write(
        f"out of memory, with {100 * MARGIN:g} % of the device left free: "
        f"precision {100 * both / max(sum(said), 1):.1f} %, recall {100 * both / max(sum(ran_out), 1):.1f} % "
        f"({sum(ran_out)} of {len(answers)} plans did)\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fidelity.search", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.csv", type=Path)
    parser.add_argument("--groups", type=int, help="so many of the groups, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", action="store_true", help="print each plan")
    options = parser.parse_args()
    try:
        chosen = grouped(run for path in options.files for run in runs_of(path))
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    if options.groups is not None and options.groups < len(chosen):
        chosen = Random(options.seed).sample(chosen, options.groups)
    alike: dict[object, list[Measured]] = defaultdict(list)
    for run in (run for group in chosen for run in group):
        alike[run.shares].append(run)
    answers: dict[str, list[Judged]] = defaultdict(list)
    lost: Counter[str] = Counter()
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        texts = sorted(alike.values(), key=len, reverse=True)
        for runs, found in zip(texts, pool.map(judged, texts), strict=True):
            for run, each in zip(runs, found, strict=True):
                if each is None:
                    lost[run.group] += 1
                else:
                    answers[run.group].append(each)
    scores: dict[bool, list[tuple[Score, ...]]] = {True: [], False: []}
    least: list[float] = []
    for name, group in sorted(answers.items()):
        sources: dict[str, list[Judged]] = defaultdict(list)
        for each in group:
            if each.run.throughput:
                sources[each.run.source].append(each)
        for source, ran in sorted(sources.items()):
            if len(ran) < LEAST:
                continue
            found = tuple(score(ran, method) for method in range(len(METHODS)))
            scores[source != UNJUDGED].append(found)
            least += [least_regret([each.run for each in ran])] if source != UNJUDGED else []
            own = found[0]
            without = f", {lost[name]} do not compile" if lost[name] else ""
            besides = "" if source != UNJUDGED else ", some of which slept"
            sys.stdout.write(
                f"{name}: {len(ran)} runs{besides}{without}: regret {100 * own.regret:.1f} %, tau {own.tau:.2f}\n"
            )
            for each in sorted(ran, key=lambda e: e.seconds[0]) if options.rows else ():
                job = each.run.job
                sys.stdout.write(
                    f"  {each.run.throughput:10.4g} "
                    + " ".join(f"{s:8.4g}" for s in each.seconds)
                    + f"  dp {job.dp} tp {job.tp} pp {job.pp} mb {job.microbatch} x {job.microbatches} zero {job.zero:d}\n"
                )
    if not scores[True]:
        sys.stdout.write("no group\n")
        return 1
    if scores[False]:
        sys.stdout.write(
            f"{len(scores[False])} groups of runs some of which slept, held to no bar\n"
        )
        for n, title in enumerate(METHODS):
            told(title, [each[n] for each in scores[False]])
    sys.stdout.write(f"{len(scores[True])} groups\n")
    every = [told(title, [each[n] for each in scores[True]]) for n, title in enumerate(METHODS)]
    sys.stdout.write(
        f"any method by which larger microbatches are no slower has a worst regret of {100 * max(least):.1f} % or more\n"
    )
    told_memory([each for group in answers.values() for each in group if each.run.judges_memory])
    missed = [
        name
        for name, bar in BARS.items()
        if (every[0][name] < bar if name == "best in five" else every[0][name] > bar)
    ]
    missed += ["every group's plans compile"] if lost else []
    sys.stdout.write(f"missed: {', '.join(missed)}\n" if missed else "all bars are met\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
