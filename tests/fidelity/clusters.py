"""`python -m tests.fidelity.clusters FILE [--every N]`: plan the memory of training runs that were measured with nanotron.

Each row is compiled to rank classes, not to files. Both figures of a row are those of world rank 0, on the first stage
(`write_to_csv` in nanotron's `helpers.py`). What nanotron keeps beside the states of mixed precision is read off its code:
`kept_bytes`, whose terms are printed with the result.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fidelity.cluster_plans import KEPT, Planned, plan_all
from tests.fidelity.cluster_runs import Run, for_memory, read_run

GIB = 1 << 30
NEAR, BELOW, APART = 0.9, 1.0, 0.95
"""The bars: of the rows that succeeded, how many have static bytes within 1 % of what was allocated, and a planned peak not above what was
reserved; how many of all are told apart."""
ALLOWANCE = 24 * GIB
"""Of the 80 GiB of a device: what context, communicators and fragmentation are let to take."""
DEVICE_BYTES = 80 * GIB


@dataclass
class Tally:
    """How many rows agree."""

    rows: int = 0
    failed: list[str] = field(default_factory=list)
    succeeded: int = 0
    near: int = 0
    below: int = 0
    right: int = 0

    def add(self, number: int, row: Mapping[str, str], found: Planned | str) -> None:
        self.rows += 1
        if isinstance(found, str):
            self.failed.append(f"row {number}: {found}")
            return
        succeeds = row["status"] == "Success"
        self.right += (found.peak_bytes <= DEVICE_BYTES - ALLOWANCE) == succeeds
        if succeeds:
            self.succeeded += 1
            measured = float(row["Mem Alloc (GB)"])
            self.near += abs(found.static_bytes / GIB - measured) <= 0.01 * measured
            self.below += found.first_peak_bytes / GIB <= float(row["Mem Res (GB)"])

    @property
    def meets_the_bars(self) -> bool:
        planned = self.rows - len(self.failed)
        return (
            not self.failed
            and self.near >= NEAR * self.succeeded
            and self.below >= BELOW * self.succeeded
            and self.right >= APART * planned
        )

    def lines(self) -> Sequence[str]:
        planned = self.rows - len(self.failed)
        return (
            f"{self.rows} rows, {len(self.failed)} that do not compile",
            *(f"  {each}" for each in self.failed[:5]),
            f"static bytes within 1 %: {self.near} of {self.succeeded}",
            f"planned peak not above what was reserved: {self.below} of {self.succeeded}",
            f"told apart, with {ALLOWANCE // GIB} GiB for context and fragmentation: "
            f"{self.right} of {planned}",
        )


def read(row: Mapping[str, str]) -> Run | str:
    """What of a run decides its memory; or what its row lacks."""
    try:
        return for_memory(read_run(row))
    except (KeyError, ValueError) as error:
        return f"not understood: {type(error).__name__} {error}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.clusters", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th row")
    options = parser.parse_args(arguments)
    if options.every < 1:
        parser.error("`--every` wants 1 or more")
    try:
        with options.file.open(newline="") as file:
            rows = list(csv.DictReader(file))[:: options.every]
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"`{options.file}` is not read: {error}")
    runs = [read(row) for row in rows]
    plans = plan_all([run for run in runs if isinstance(run, Run)])
    tally = Tally()
    for number, (row, run) in enumerate(zip(rows, runs, strict=True)):
        tally.add(number * options.every, row, plans[run] if isinstance(run, Run) else run)
    print(KEPT)
    print(*tally.lines(), sep="\n")
    bars = f"{NEAR:.0%}, {BELOW:.0%} and {APART:.0%}"
    print(f"the bars are {bars}: {'met' if tally.meets_the_bars else 'MISSED'}")
    return 0 if tally.meets_the_bars else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
