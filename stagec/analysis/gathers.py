"""Gathers that do not run with each pass: rows of a task of their own, beside those of the pass that they belong to.

`separated` takes them out of the rows of a pass: each stands behind the row before it. `together` puts them back.
`found_gathered` says in which run of them each pass finds its parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import IntegerAttr

from stagec.arrays import Ints, widened
from stagec.dialects import sched, stg
from stagec.dialects.sched.tasks import (
    COMPUTE_TASKS,
    NOWHERE,
    PASS_GATHERS,
    TASK_NUMBER,
    TASKS,
    GatheredAttr,
    Lines,
    Order,
    Rows,
)

PASSES = {"GATHER_F": ("F",), "GATHER_B": ("B", "I", "W")}


def pass_of(gathers: str, tasks: Collection[str]) -> str | None:
    """The task that a stage's gathers go with: of a backward pass in halves the first that the stage has."""
    return next((task for task in PASSES[gathers] if task in tasks), None)


def separated(
    rows: Rows, gathers: Collection[int], task: str, *, before: bool
) -> tuple[Rows, Rows]:
    """The rows of a pass without its gathers, and these: segments of the numbers `gathers`.

    Those that stand among the rows come there, or all `before` them: another pass that runs beside this one reads them too.
    """
    moves = np.isin(rows.segment, list(gathers))
    behind = np.full(len(rows), NOWHERE) if before else np.cumsum(~moves) - 1
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


Units = Mapping[str, Collection[int]]
"""The units that each task gathers, of a stage that frees them."""


def gathered_units(program: stg.ProgramOp) -> Units:
    found: dict[str, set[int]] = {}
    for op in program.walk():
        if isinstance(op, sched.CollectiveOp) and op.segment is not None:
            number = stg.marks(op).get(stg.UNIT)
            if isinstance(number, IntegerAttr):
                found.setdefault(op.segment.task, set()).add(number.value.data)
    return found


def found_gathered(order: Order, units: Sequence[Units]) -> GatheredAttr | None:
    """For each pass of a rank in which run of a gather it finds each unit of its stage; `units` has those of each stage. Nothing where none is freed.

    What is gathered for a microbatch is for its own passes; a pass for which nothing is gathered, finds what was gathered last.
    """
    if not any(units):
        return None
    last: list[dict[int, tuple[int, int]]] = [{} for _ in units]
    ran: set[tuple[str, int, int]] = set()
    lines: list[tuple[int, ...]] = []
    for number, stage, microbatch in order.table[:, :3].tolist():
        task = TASKS[number]
        if task in units[stage]:
            ran.add((task, stage, microbatch))
            last[stage] |= dict.fromkeys(units[stage][task], (number, microbatch))
        elif task in COMPUTE_TASKS:
            own = next((name for name in PASS_GATHERS if task in PASSES[name]), "")
            has_own = (own, stage, microbatch) in ran
            for unit, run in sorted(last[stage].items()):
                is_own = has_own and unit in units[stage][own]
                found = (TASK_NUMBER[own], microbatch) if is_own else run
                lines.append((unit, number, stage, microbatch, *found))
    table: Ints = np.array(lines, np.int64).reshape(-1, 6)
    return GatheredAttr(Lines(table))
