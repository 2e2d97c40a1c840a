"""Gathers that do not run with each pass: rows of a task of their own, beside those of the pass that they belong to.

`separated` takes them out of the rows of a pass: each stands behind the row before it. `together` puts them back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from stagec.arrays import widened
from stagec.dialects.sched.tasks import NOWHERE, PASS_GATHERS, TASK_NUMBER, Rows

PASSES = {"GATHER_F": ("F",), "GATHER_B": ("B", "I", "W")}


def pass_of(gathers: str, tasks: Collection[str]) -> str | None:
    """The task that a stage's gathers go with: of a backward pass in halves the first that the stage has."""
    return next((task for task in PASSES[gathers] if task in tasks), None)


def separated(rows: Rows, gathers: Collection[int], task: str) -> tuple[Rows, Rows]:
    """The rows of a pass without its gathers, and these: segments of the numbers `gathers`."""
    moves = np.isin(rows.segment, list(gathers))
    behind = np.cumsum(~moves) - 1
    first = np.where(behind >= 0, TASK_NUMBER[task], NOWHERE)
    place = np.where(behind >= 0, behind, NOWHERE)
    table = rows.table.copy()
    table[:, 2], table[:, 3] = (
        np.where(moves, first, table[:, 2]),
        np.where(moves, place, table[:, 3]),
    )
    return Rows.of_table(table[~moves]), Rows.of_table(table[moves])


def together(tasks: Mapping[str, Rows]) -> dict[str, Rows]:
    """The rows of each task, gathers where they stand among those of their pass."""
    found = dict(tasks)
    for gathers in PASS_GATHERS:
        task = pass_of(gathers, tasks)
        if gathers not in tasks or task is None:
            continue
        own, moved = tasks[task].table, tasks[gathers].table
        width = max(own.shape[1], moved.shape[1])
        own, moved = (widened(table, width, NOWHERE) for table in (own, moved))
        at = np.concatenate([2 * np.arange(len(own)), 2 * moved[:, 3] + 1])
        moved = moved.copy()
        moved[:, 2:4] = NOWHERE
        found[task] = Rows.of_table(np.concatenate([own, moved])[np.argsort(at, kind="stable")])
        del found[gathers]
    return found
