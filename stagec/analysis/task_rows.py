"""The rows of the tasks of a program, in the order in which it has their ops."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from xdsl.ir import Operation

from stagec.analysis.dataflow import Dataflow
from stagec.analysis.gathers import pass_of, separated
from stagec.arrays import Ints, widened
from stagec.dialects import sched, stg
from stagec.dialects.sched.tasks import (
    CLIP,
    COMPUTE_TASKS,
    NOWHERE,
    PASS_GATHERS,
    TRANSFER_TASKS,
    Rows,
)


def rows_of_tasks(program: stg.ProgramOp, flow: Dataflow, *, before: bool) -> dict[str, Rows]:
    """The rows of each task in the order of the program; after the microbatches, reductions of gradients first. `before`: tasks overlap others, so that
    what a pass gathers stands before all of it."""
    found: dict[str, Rows] = {}
    ops = list(program.body.block.ops)
    loops = [op for op in ops if isinstance(op, stg.AccumulateOp)]
    for loop in loops[:1]:
        inside = list(loop.body.block.ops)
        for task in (*COMPUTE_TASKS, *TRANSFER_TASKS):
            found[task] = rows_of(inside, (task,), flow)
        for gathers in PASS_GATHERS:
            task = pass_of(gathers, [task for task, rows in found.items() if len(rows)])
            if task is not None:
                mixed = rows_of(inside, (task, gathers), flow)
                own = found[task].segment
                moved = set(mixed.segment.tolist()) - set(own.tolist())
                found[task], found[gathers] = separated(mixed, moved, task, before=before)
    outside = [op for op in ops if op not in loops[:1]]
    found["pre"] = rows_of(outside, ("pre",), flow)
    found["GATHER"] = rows_of(outside, ("GATHER",), flow)
    found["reduce"] = rows_of(outside, ("reduce",), flow)
    found["tied"] = rows_of(outside, ("tied",), flow)
    found[CLIP] = rows_of(outside, (CLIP,), flow)
    reductions = [op for op in outside if stg.phase_of(op) == "grad_reduce"]
    others = [op for op in outside if stg.phase_of(op) != "grad_reduce"]
    for task in ("norm", "step"):
        found[task] = rows_of([*reductions, *others], (task,), flow)
    return {task: rows for task, rows in found.items() if len(rows)}


def rows_of(ops: Iterable[Operation], tasks: Collection[str], flow: Dataflow) -> Rows:
    segment, path = unrolled(ops, tasks, flow)
    return Rows.of(segment, path)


def unrolled(ops: Iterable[Operation], tasks: Collection[str], flow: Dataflow) -> tuple[Ints, Ints]:
    """The segments of tasks in ops `[n]`, and the iterations of repeats `[n, depth]`, -1 beyond."""
    segments, paths = [np.zeros(0, np.int64)], [np.zeros((0, 0), np.int64)]
    last = -1
    for op in ops:
        if isinstance(op, sched.NodeOp):
            own = op.segment
            if own is not None and own.task in tasks and own.number != last:
                last = own.number
                segments.append(np.array([last]))
                paths.append(np.zeros((1, 0), np.int64))
        elif isinstance(op, stg.RepeatOp):
            segment, path = unrolled(op.body.block.ops, tasks, flow)
            count = flow.count(op) if len(segment) else 0
            iteration = np.repeat(np.arange(count), len(segment))
            segments.append(np.tile(segment, count))
            paths.append(
                np.concatenate([iteration[:, None], np.tile(path, (count, 1))], axis=1)
                if count
                else np.zeros((0, 0), np.int64)
            )
    depth = max(path.shape[1] for path in paths)
    filled = [widened(path, depth, NOWHERE) for path in paths]
    return np.concatenate(segments), np.concatenate(filled)
