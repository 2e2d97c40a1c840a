"""A schedule by its name, its table or its function."""

import difflib
from pathlib import Path

from stagec.schedules.catalogue import CATALOGUE, build_named, names, rule_of
from stagec.schedules.custom import from_csv, from_function
from stagec.schedules.errors import ScheduleError
from stagec.schedules.table import Schedule


def build(
    name: str,
    p: int,
    v: int,
    m: int,
    directory: str | Path = ".",
    transfers: str | None = None,
) -> Schedule:
    """The schedule `name` for p ranks of v stages each and m microbatches, transfers included.

    `name` is one of `names()`, or the path of a `.csv` table or a `FILE.py:FUNCTION`, relative to
    `directory`. `transfers` is one of `TRANSFERS`, in place of the schedule's own rule. Raises
    `ScheduleError` when there is no such schedule, or not for these sizes, or a table that has transfers is to get some.
    """
    if name in CATALOGUE:
        return build_named(name, p, v, m, transfers)
    rule = rule_of(transfers) if transfers is not None else None
    if name.endswith(".csv"):
        return from_csv(Path(directory) / name, p, v, m, rule)
    if ":" in name:
        return from_function(name, p, v, m, directory, rule)
    close = difflib.get_close_matches(name, names(), n=1)
    guess = f"did you mean `{close[0]}`? " if close else ""
    raise ScheduleError(
        f"no schedule `{name}`",
        f"{guess}choose one of {', '.join(names())}, a table `FILE.csv` or `FILE.py:FUNCTION`",
        "unknown",
    )
