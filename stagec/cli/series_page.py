"""`--timeline` of a series of iterations: how long each takes, and how many tokens it computes."""

from __future__ import annotations

import sys

import numpy as np

from stagec.analysis.sequences import ModuleSequences
from stagec.cli.tables import plain_table, text_of
from stagec.compiled import CompiledSeries
from stagec.dialects.dist.sequences import NEW
from stagec.estimate.series import Clock
from stagec.pictures.scales import MICROSECONDS, digits, in_unit
from stagec.symbolic import ONE, symbol

MOST_LISTED = 40
"""Iterations that are listed; of more, some."""
SHARES = (0, 50, 90, 99, 100)


def show_series(series: CompiledSeries) -> None:
    """A line for each iteration, or for some of many; then the times of all. E0410 without the device's numbers."""
    times = np.zeros(series.num_iterations)
    counts = np.zeros((series.num_iterations, 2), np.int64)
    for number, compiled in enumerate(series.parts):
        here = series.which == number
        times[here] = Clock(compiled).times_us()
        sequences = ModuleSequences.of(compiled.module)
        assert sequences is not None
        own = sequences.op.sequences.data
        found = (own.sums(size).sum(axis=0) for size in (ONE, symbol(NEW)))
        counts[here] = np.stack(list(found), axis=1)
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
