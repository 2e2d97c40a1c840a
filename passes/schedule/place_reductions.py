"""Issue each reduction of a gradient as soon as the gradient is complete: while the backward pass goes on. And what is gathered once per step where
the first forward pass needs it.

Before `place-reductions`:

    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    dist.mesh <dp = 2>
    stg.program "M" (%x : !t) {
      %gs = stg.accumulate over "mb" -> (!stg.stack<"4" x !t>) {
        %y = sched.compute "loss" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
        %z, %w = stg.repeat "4" carry(%h = %y : !t) -> (!t, !stg.stack<"4" x !t>) {
          %b = sched.compute "layer" (%h) flops "B" reads "B" writes "B" on "compute" in B.1 {phase = "bwd"} : (!t) -> !t
          stg.yield %b, %b : !t, !t
        }
        stg.yield %w : !stg.stack<"4" x !t>
      }
      %s = stg.repeat "4" slice(%t = %gs : !stg.stack<"4" x !t>) -> (!stg.stack<"4" x !t>) {
        %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" in step.2
          {phase = "grad_reduce"} : (!t) -> !t
        stg.yield %r : !t
      }
      stg.output
    }
    sched.tasks @model of "" layers {} {
      B = "0 (1@0+1)*4",
      step = "(2@0+1)*4"
    }

After:

    ...
    sched.tasks @model of "" layers {} {
      B = "0 (1@0+1)*4",
      step = "(2@0+1>B.1+1)*4"
    }

`4@0>B.1` is issued right behind row 1 of `B`, in the last microbatch, in which all gradients are completed. So do the hooks of PyTorch's DDP
(Li et al. 2020, arXiv:2006.15704, section 3.2.3) and FSDP, and Megatron-LM's `--overlap-grad-reduce`. A reduction that is `late`
(`gradients { overlap = false }`) comes behind the backward pass. Reductions of a stage keep their order among themselves. One of a weight
that several stages share stays: its ranks come to it when all their transfers are done. A gradient that `leaves` for the host does so as soon as it is complete
and reduced, in no order with others: no rank waits for that.

Where a rank has one stage, parameters that are gathered once per step are `issued` in the first forward pass, behind what the stage
receives: the root unit's as the pass begins (`with_pass`), others as their unit does (`with_unit`). So do FSDP2's hooks, which PyTorch's
`Schedule1F1B` and `ScheduleGPipe` leave alone; its runtime of several stages per rank gathers a stage whole beforehand
(`UNSHARD` in `torch/distributed/pipelining/schedules.py`). Buckets are gathered in the order in which they are needed, the last that was reduced first
(`next_param_gather_bucket_group` of Megatron-LM's `distributed_data_parallel.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.dataflow import Dataflow
from stagec.analysis.segments import RowFinder, Segment, is_shared, path_of, scheduled
from stagec.dialects import stg
from stagec.dialects.sched.tasks import TASK_NUMBER, TASKS, Rows
from stagec.symbolic.conditions import unread

NAME = "place-reductions"

TaskRow = tuple[int, int]
"""A task, by its number, and a row of it: ordered as they are issued."""
NOTHING: TaskRow = (-1, -1)


@dataclass(frozen=True)
class PlaceReductions(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for tasks, segments, values in scheduled(op):
            tasks.with_rows(placed(tasks.rows.data, segments, values))


def placed(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], values: Mapping[str, int]
) -> Mapping[str, Rows]:
    """The rows of each task, with reductions where their gradients are there, and gathers of a step where they are needed."""
    return when_needed(when_ready(tasks, segments, values), segments, values)


def when_needed(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], values: Mapping[str, int]
) -> Mapping[str, Rows]:
    """Gathers of `pre` behind the row of the forward pass before that in which they are needed; behind what is received if that is the first."""
    issued = {n: said for n, each in segments.items() if (said := stg.text(each.first, stg.ISSUED))}
    if not issued or "pre" not in tasks or "F" not in tasks:
        return tasks
    rows, forward = tasks["pre"], tasks["F"]
    needed: dict[int, int] = {}
    flow = Dataflow(values)
    finder = RowFinder(flow, {"pre": rows})
    for row, number in enumerate(forward.segment.tolist()):
        path = path_of(forward, row)
        for value in segments[number].inputs():
            source = flow.source(value, path)
            place = finder.row_of(source) if source is not None else None
            if place is not None:
                needed.setdefault(place[1], row)
    begin = NOTHING
    if "RECV_F" in tasks:
        begin = TASK_NUMBER["RECV_F"], len(tasks["RECV_F"]) - 1
    parts: list[tuple[int, np.ndarray]] = []
    following = len(forward)
    for start, stop in reversed(buckets(rows)):
        part = rows.table[start:stop].copy()
        said = issued.get(int(part[0, 0]))
        if said is not None:
            by_need = said == stg.WITH_UNIT
            following = min(
                (needed[n] for n in range(start, stop) if n in needed and by_need), default=0
            )
            place = (TASK_NUMBER["F"], following - 1) if following else begin
            part[0, 2:4] = place
        # What is not issued itself stays before what is.
        parts.append((following, part))
    table = [part for _, part in sorted(reversed(parts), key=lambda each: each[0])]
    return {**tasks, "pre": Rows.of_table(np.concatenate(table))}


def when_ready(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], values: Mapping[str, int]
) -> Mapping[str, Rows]:
    """The rows of each task, with reductions behind what completes their gradients."""
    movable = {n: each.first for n, each in segments.items() if is_moved(each.first)}
    if not movable:
        return tasks
    flow, found = Dataflow(unread(values)), dict(tasks)
    finder = RowFinder(flow, tasks)
    end = max(
        ((TASK_NUMBER[task], len(tasks[task]) - 1) for task in ("B", "I", "W") if task in tasks),
        default=None,
    )
    issued: dict[TaskRow, TaskRow] = {}
    latest = NOTHING
    for task in sorted(tasks, key=TASKS.index):
        rows = tasks[task]
        if not np.isin(rows.segment, list(movable)).any():
            continue
        behind_task, behind_row = rows.behind_task.copy(), rows.behind_row.copy()
        for start, stop in buckets(rows):
            if int(rows.segment[start]) not in movable:
                continue
            here: TaskRow = (TASK_NUMBER[task], start)
            leaves = stg.LEAVES in stg.marks(movable[int(rows.segment[start])])
            ready = NOTHING if leaves else latest
            for row in range(start, stop):
                path = path_of(rows, row)
                for value in segments[int(rows.segment[row])].inputs():
                    source = flow.source(value, path)
                    place = finder.row_of(source) if source is not None else None
                    if place is not None:
                        place = first_of_bucket(tasks[TASKS[place[0]]], place)
                        ready = max(ready, issued.get(place, place))
            members = rows.segment[start:stop].tolist()
            if any(is_late(movable[number]) for number in members if number in movable):
                ready = max(ready, end or here)
            latest = latest if leaves else ready
            issued[here] = min(ready, here) if ready > NOTHING else here
            if issued[here] < here:
                behind_task[start], behind_row[start] = issued[here]
        found[task] = Rows(rows.segment, rows.path, rows.joins, behind_task, behind_row)
    return found


def buckets(rows: Rows) -> list[tuple[int, int]]:
    """The first row of each bucket, and the one after its last; a row that joins no other is alone."""
    starts = np.flatnonzero(~rows.joins)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True))


def first_of_bucket(rows: Rows, place: TaskRow) -> TaskRow:
    """The row of the bucket that a row is in."""
    task, row = place
    while rows.joins[row]:
        row -= 1
    return task, row


def is_moved(op: Operation) -> bool:
    """Whether an op is a reduction that is issued by itself, and not where a schedule says.

    Ranks of several stages reduce a tied weight: each when all its transfers are done.
    """
    stays = is_shared(op) or stg.OF_STAGE in op.properties
    return stg.phase_of(op) == "grad_reduce" and not stays


def is_late(op: Operation) -> bool:
    return "late" in stg.marks(op)
