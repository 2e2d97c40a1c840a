"""`python -m tests.fidelity.times FILE... [--every N] [--plot FILE.svg]`: estimated steps beside measured ones.

Each row's plan is written in the language, compiled and priced on the device file that ships, without a parameter of its own. For each source: median
absolute error, bias (the median error), the 90th percentile, and the rank correlation of plans of one model on as many devices. Rows that the language
cannot say are listed and not judged. A source that misses its bar fails the run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from stagec.pictures.charts import Point, points
from stagec.pictures.page import page, picture
from tests.fidelity.time_rows import Timed, rows_of

BARS = {
    "MLPerf pre-training": 0.10,
    "Megatron-Bridge": 0.10,
    "Korthikanti 2022": 0.059,
    "Narayanan 2021": 0.074,
    "vTrain": 0.149,
    "nanotron": 0.15,
    "SimuMax": 0.056,
    "MLPerf LoRA": 0.15,
    "Megatron-Bridge LoRA": 0.15,
    "Megatron-Bridge experts": 0.15,
}
"""Median absolute errors at most: issue 18, and the best of its peers (Calculon, RAPID-LLM, SimuMax) where there is one."""
MOST_BIAS = 0.05
LEAST_RANK = 0.9
SMALLEST_GROUP = 5
FAR = 0.25
"""A row that misses by more is listed."""


@dataclass(frozen=True)
class Found:
    """A row, and what was estimated for it."""

    row: Timed
    estimated_s: float = 0.0
    parts: str = ""
    why_not: str = ""

    @property
    def error(self) -> float:
        return self.estimated_s / self.row.measured_s - 1


def estimated_all(rows: Sequence[Timed]) -> list[Found]:
    """Of each row. Rows of one model and plan, as different makers and releases ran it, are estimated once."""
    first = {row.text: row for row in reversed(rows) if not row.why_not}
    with ProcessPoolExecutor() as pool:
        known = dict(zip(first, pool.map(estimated, first.values(), chunksize=2), strict=True))
    return [
        Found(row, why_not=row.why_not) if row.why_not else replace(known[row.text], row=row)
        for row in rows
    ]


def estimated(row: Timed) -> Found:
    try:
        found = step_summary(compile_text(row.text))
    except Exception as error:  # One row is no reason to leave out the others.
        first = str(error).strip().split("\n")[0]
        return Found(row, why_not=f"{type(error).__name__}: {first}")
    parts = sorted(found.breakdown.parts.items(), key=lambda item: -item[1])
    total = found.step_s * 1e6
    shown = ", ".join(f"{name} {us / total:.0%}" for name, us in parts if us > 0.01 * total)
    return Found(row, found.step_s, shown)


def ranks(values: Sequence[float]) -> np.ndarray:
    """From 0 on; what is equal shares the mean of its places."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def rank_correlation(found: Iterable[Found]) -> tuple[float, int]:
    """Spearman's, the median over groups of five plans or more, and how many there are. A plan that was run several times counts once, by its median."""
    groups: dict[str, dict[str, list[Found]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        groups[each.row.group][each.row.plan].append(each)
    values: list[float] = []
    for group in groups.values():
        if len(group) >= SMALLEST_GROUP:
            runs = group.values()
            a = ranks(
                [float(np.median([r.row.measured_s / r.row.tokens for r in run])) for run in runs]
            )
            b = ranks(
                [float(np.median([r.estimated_s / r.row.tokens for r in run])) for run in runs]
            )
            values.append(float(np.corrcoef(a, b)[0, 1]))
    return (float(np.median(values)), len(values)) if values else (float("nan"), 0)


def report(source: str, found: Sequence[Found]) -> bool:
    """Print a source's figures; whether it misses a bar."""
    errors = np.array([each.error for each in found])
    median, bias = float(np.median(np.abs(errors))), float(np.median(errors))
    rank, groups = rank_correlation(found)
    bar = BARS.get(source)
    misses = bar is not None and (
        median > bar or abs(bias) > MOST_BIAS or (groups > 0 and rank < LEAST_RANK)
    )
    held = "" if bar is None else f"  bar {bar:.1%}: {'MISSED' if misses else 'held'}"
    ranked = f"rank {rank:.2f} of {groups} groups" if groups else "no group to rank"
    print(
        f"{source:<26}{len(found):>5} rows  median {median:>6.1%}  bias {bias:>+7.1%}  "
        f"p90 {np.quantile(np.abs(errors), 0.9):>6.1%}  {ranked}{held}"
    )
    return misses


def plot(found: Sequence[Found], path: Path) -> None:
    """Measured against estimated, as powers of ten of a second."""
    data = [
        Point(
            float(np.log10(each.row.measured_s)),
            float(np.log10(each.estimated_s)),
            f"{each.row.name}: measured {each.row.measured_s:.4g} s, estimated {each.estimated_s:.4g} s",
            abs(each.error) > FAR,
        )
        for each in found
    ]
    edges = ("measured, log10 of seconds", "estimated, log10 of seconds")
    note = f"off by more than {FAR:.0%}"
    chart = points(f"{len(data):,} steps", edges, data, note, equal="steps")
    is_picture = path.suffix == ".svg"
    shown = picture(chart) if is_picture else page("Measured and estimated steps", chart)
    path.write_text(shown, encoding="utf-8")
    print(f"{path}: {len(data):,} steps")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.times", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th row alone")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has this text")
    parser.add_argument("--rows", action="store_true", help="print each row")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.html", help="write a scatter plot, as a page or FILE.svg"
    )
    options = parser.parse_args(arguments)
    try:
        rows = [row for path in options.files for row in rows_of(path)]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    rows = [row for row in rows if options.only in f"{row.source} {row.name}"][:: options.every]
    found = estimated_all(rows)
    planned = [each for each in found if not each.why_not]
    if options.rows:
        for each in planned:
            print(
                f"{each.error:>+7.1%} {each.row.measured_s:>9.4g} s  {each.row.name}: {each.parts}"
            )
    left_out = Counter((each.row.source, each.why_not) for each in found if each.why_not)
    for (source, why), count in sorted(left_out.items()):
        print(f"not planned: {count} of {source}: {why}")
    by_source: dict[str, list[Found]] = defaultdict(list)
    for each in planned:
        by_source[each.row.source].append(each)
    missed = [source for source, own in sorted(by_source.items()) if report(source, own)]
    if planned:
        report("all", planned)
    far = [each for each in planned if abs(each.error) > FAR]
    print(f"{len(far)} rows are off by more than {FAR:.0%}")
    for each in far[:40]:
        print(f"  {each.error:>+7.1%} {each.row.name}: {each.parts}")
    if options.plot is not None:
        plot(planned, options.plot)
    return 1 if missed or not planned else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
