"""Where plans that others submitted rank in our search: `python -m tests.fidelity.submitted times/mlperf_training.csv [--only TEXT]`.

Of each row of MLPerf's pre-training on one kind of GPU the model, the devices and the batch are searched, with the row's precision and overlaps; the
row's degrees are a plan of the same space. Told are how much longer that takes than our best, both compiled whole, and how many plans that are known to
fit are faster in outline.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagec.backend.executors import open_executor
from stagec.frontend import check, parse_text
from stagec.searching.evaluation import NAME
from stagec.searching.model import read_model
from stagec.searching.objective import objective
from stagec.searching.results import Goal
from stagec.searching.search import Search
from stagec.searching.space import Space, Value, default_space, fix
from stagec.searching.texts import plan_text
from stagec.searching.whole_plans import WholePlan, compiled_whole
from tests.fidelity.time_models import Model, text
from tests.fidelity.time_rows import (
    BENCHMARKS,
    by_megatron,
    cached_weights,
    device_clause,
    number,
    overlap,
    precision,
    products_of,
    submitted_layout,
)

MARGIN = 0.06


@dataclass(frozen=True)
class Submitted:
    """A row."""

    name: str
    model: Model
    devices: int
    measured: float
    """Seconds of a step."""
    batch: int
    sequence: int
    choice: Mapping[str, Value]
    """What it chose of a space's names."""
    clauses: tuple[str, ...]
    """The device is the last."""


def rows_of(path: Path) -> Iterator[Submitted]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    seen: set[object] = set()
    for r in rows:
        model, _ = BENCHMARKS[r["benchmark"]]
        virtual, pp = number(r, "vp"), number(r, "pp")
        choice: dict[str, Value] = {
            "tp": number(r, "tp"),
            "cp": number(r, "cp"),
            "pp": pp,
            "microbatch": number(r, "micro_batch"),
            "sequence": "on" if r["sequence_parallel"] == "1" and number(r, "tp") > 1 else "off",
            "context": "ring" if number(r, "cp") > 1 else "none",
            "virtual_stages": virtual,
            "schedule": "none" if pp == 1 else "interleaved_1f1b" if virtual > 1 else "1f1b",
            "uneven": 2 * int(r["embedding_in_split"] == "1" and pp > 1),
            "zero": 1,
            "recompute": "none",
        }
        layout = submitted_layout(r, model)
        choice["bucket"] = max(layout.bucket_bytes // 2**20, 1)
        clauses = (
            precision(layout),
            overlap(layout),
            *cached_weights(layout),
            device_clause(layout),
        )
        name = f"{r['benchmark']} on {r['gpus']} {r['gpu']}, {products_of(r['precision'])}"
        key = (name, tuple(choice.items()), r["global_batch"])
        if model.adapters or key in seen:
            continue
        seen.add(key)
        yield Submitted(
            name,
            by_megatron(model, layout),
            number(r, "gpus"),
            float(r["step_s"]),
            number(r, "global_batch"),
            number(r, "sequence"),
            choice,
            clauses,
        )


def told(row: Submitted, executor: str, fixed: Sequence[str] = (), top: int = 10) -> str:
    """`fixed`: as `stagec search --fix`; the row's own values belong to the space all the same."""
    file, source = "submitted.stg", text(row.model, row.batch, row.sequence, False, False)
    device = row.clauses[-1]
    probe = check(parse_text(f"{source}\nplan {NAME} {{\n  {device}\n}}\n", file), NAME)
    dims, limit = read_model(probe), probe.plan.device.capacity
    assert limit is not None
    space = default_space(dims, row.devices, probe.plan.device.node)
    for each in fixed:
        fix(space, each)
    widened(space, row.choice)
    space.values["bucket"] = (row.choice["bucket"],)
    goal = Goal(
        file,
        source,
        dims,
        (row.devices,),
        row.batch,
        row.clauses,
        int(limit * (1 - MARGIN)),
        objective("step_time"),
        top,
    )
    started = time.perf_counter()
    with open_executor(executor) as pool:
        search = Search(goal, [space], pool)
        outcome = search.run()
        seconds = time.perf_counter() - started
        candidates = search.candidates
        wanted = [n for n, p in enumerate(candidates.points) if is_choice(p, row.choice)]
        if not wanted or not outcome.proved:
            return f"{row.name}: not in the space, or nothing fits"
        own = wanted[0]
        search.rounds.outline([own] if "step" not in candidates.known[own] else [])
    point = candidates.points[own]
    whole = compiled_whole(
        WholePlan(file, f"{source}\n{plan_text(NAME, point, dims, row.batch, row.clauses)}", 0)
    )
    best = outcome.proved[0]
    value = candidates.value
    faster = [n for n in candidates.ranked() if value(n) < value(own) and n != own]
    differ = [f"{k} {v} in place of {point[k]}" for k, v in best.point.items() if v != point[k]]
    gap = whole.step_time / best.step_time - 1
    return (
        f"{row.name}: theirs {whole.step_time:.4g} s, measured {row.measured:.4g} s ({whole.peak_bytes / 1e9:.1f} GB of {limit / 1e9:.1f}), "
        f"our best {best.step_time:.4g} s, {100 * gap:+.1f} %; {len(faster):,} of {outcome.num_points:,} plans are known to be faster in outline; "
        f"{seconds:.0f} s\n  ours: {', '.join(differ) or 'the same'}"
    )


def widened(space: Space, choice: Mapping[str, Value]) -> None:
    """The row's own values belong to the space. It has all powers of two as microbatches."""
    for name, value in choice.items():
        if value != "none" and value not in space.values.get(name, (value,)):
            space.values[name] = (*space.values[name], value)


def is_choice(point: Mapping[str, Value], choice: Mapping[str, Value]) -> bool:
    return all(point[name] == value for name, value in choice.items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.fidelity.submitted", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has this text")
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--fix", action="append", default=[], metavar="NAME=VALUES")
    parser.add_argument("--top", type=int, default=10, help="plans to propose")
    options = parser.parse_args(arguments)
    for row in rows_of(options.file):
        if options.only in row.name:
            print(told(row, options.executor, options.fix, options.top), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
