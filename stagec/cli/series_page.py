"""`--timeline` of a series of iterations: how long each takes, and how many tokens it computes."""

from __future__ import annotations

import os
import sys

import numpy as np

from stagec.analysis.sequences import ModuleSequences
from stagec.cli.tables import plain_table, text_of
from stagec.compiled import CompiledPoolSeries, CompiledSeries
from stagec.dialects.dist.sequences import NEW
from stagec.estimate.pool_series import times_of_series
from stagec.estimate.series import Clock
from stagec.pictures.scales import MICROSECONDS, digits, in_unit
from stagec.symbolic import ONE, symbol

MOST_LISTED = 40
"""Iterations that are listed; of more, some."""
SHARES = (0, 50, 90, 99, 100)


def show_series(series: CompiledSeries) -> None:
    """A line for each iteration, or for some of many; then the times of all. E0410 without the device's numbers."""
    times = np.zeros(series.num_iterations)
    for number, compiled in enumerate(series.parts):
        times[series.which == number] = Clock(compiled).times_us()
    counts = computed(series)
    table = plain_table("iterations, each by itself")
    for title in ("iteration", "sequences", "new tokens", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(MOST_LISTED, len(times))).astype(int))
    for number in chosen.tolist():
        table.add_row(
            str(number),
            *map("{:,}".format, counts[number].tolist()),
            in_unit(float(times[number]), MICROSECONDS),
        )
    spread = ", ".join(
        f"{share} % {in_unit(float(np.percentile(times, share)), MICROSECONDS)}" for share in SHARES
    )
    total = in_unit(float(times.sum()), MICROSECONDS)
    rate = int(counts[:, 1].sum()) / float(times.sum()) * 1e6
    sys.stdout.write(
        f"\n{text_of(table)}\n{len(times):,} iterations take {total} one after the other: {digits(rate)} new tokens/s\n"
        f"as long or less take {spread}\n"
    )


def computed(series: CompiledSeries) -> np.ndarray:
    """[iterations, 2]: sequences, and their new tokens."""
    counts = np.zeros((series.num_iterations, 2), np.int64)
    for number, compiled in enumerate(series.parts):
        sequences = ModuleSequences.of(compiled.module)
        assert sequences is not None
        own = sequences.dealt
        found = (own.sums(size).sum(axis=0) for size in (ONE, symbol(NEW)))
        counts[series.which == number] = np.stack(list(found), axis=1)
    return counts


def file_of_pool(path: str, pool: str) -> str:
    """`rows.prefill.csv` of `rows.csv`: a series of pools is in a file for each."""
    stem, ending = os.path.splitext(path)
    return f"{stem}.{pool}{ending}"


def handed_over(series: CompiledPoolSeries) -> str:
    """What goes from pool to pool, in a line for each two."""
    found = ""
    for giver, taker in dict.fromkeys((each.giver, each.taker) for each in series.handovers):
        own = [each for each in series.handovers if (each.giver, each.taker) == (giver, taker)]
        count, positions = sum(each.count for each in own), sum(each.number(None) for each in own)
        found += f"{giver} hands over {count:,} sequences of {positions:,} positions to {taker}, in {len(own):,} handovers\n"
    if series.is_together:
        return "all pools compute each iteration together\n"
    return found or "nothing is handed over: no file has a column `taken`\n"


def show_series_of_pools(series: CompiledPoolSeries) -> None:
    """When iterations of each pool begin, and how long they take, on one axis of time. E0410 without the device's numbers."""
    times = times_of_series(series)
    lines = ""
    for name, each in times.items():
        counts = computed(series.pools[name])
        table = plain_table(f"iterations of {name}, on one time axis")
        for title in ("iteration", "begins", "takes", "waits", "sequences", "new tokens"):
            table.add_column(title, justify="right", no_wrap=True)
        count = len(each.begin_us)
        chosen = np.unique(np.linspace(0, count - 1, min(MOST_LISTED, count)).astype(int))
        for number in chosen.tolist():
            took = each.end_us[number] - each.begin_us[number]
            shown = (each.begin_us[number], took, each.waited_us[number])
            table.add_row(
                str(number),
                *(in_unit(float(at), MICROSECONDS) for at in shown),
                *map("{:,}".format, counts[number].tolist()),
            )
        sys.stdout.write(f"\n{text_of(table)}\n")
        end, waited = (
            in_unit(float(t), MICROSECONDS) for t in (each.end_us[-1], each.waited_us.sum())
        )
        waits = int((each.waited_us > 0).sum())
        lines += f"{name} is done after {end}"
        lines += (
            f"; {waits:,} of {count:,} iterations wait for what they take, {waited} in all\n"
            if waits
            else "\n"
        )
    sys.stdout.write(lines)
