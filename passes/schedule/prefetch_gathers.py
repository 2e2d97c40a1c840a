"""Issue the gather of a unit's parameters ahead of the unit: while units before it are computed.

Before `prefetch-gathers`:

    !s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    dist.mesh <dp = 2>
    stg.program "M" (%x : !t) {
      %ws = stg.weight "w" : !stg.stack<"4" x !s>
      stg.accumulate over "mb" {
        %y = sched.compute "loss" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
        %z = stg.repeat "4" carry(%h = %y : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
          %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.1
            {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
          %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "bwd"} : (!t, !t) -> !t
          stg.yield %b : !t
        }
        stg.yield
      }
      stg.output
    }
    sched.tasks @model of "" layers {} {
      B = "0 (1@0+1 2@0+1)*4"
    }

After:

    ...
    sched.tasks @model of "" layers {} {
      B = "1@0 0 (1@1+1 2@0+1)*3 2@3"
    }

Rows are segments: `1@0` is segment 1 in iteration 0, and what is in brackets stands three times, in an iteration later each time. The
gather of layer 1 is issued before layer 0 begins, and so on: one unit ahead, as the gather says. What the first layers need is gathered when the run
before them begins: FSDP2 issues it in the hook of the unit before (`_pre_backward`, `_prefetch_unshard` in
`torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`). Where a unit's gradients begin later than what is made again of it, that is marked
(`begins_unit`), and what is gathered ahead of it waits for that. Units are counted in the order in which their backward passes begin, through all iterations
of repeats and from one repeat to the next; a gather is never later than its unit is needed. What comes from the host or
from NVMe is counted in layers, likewise from one repeat to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.gathers import pass_of, separated, together
from stagec.analysis.segments import Segment, path_of, scheduled, whole_number
from stagec.dialects import sched, stg
from stagec.dialects.sched.tasks import PASS_GATHERS, Rows
from stagec.pipeline_schedule import tasks_overlap

NAME = "prefetch-gathers"


@dataclass(frozen=True)
class PrefetchGathers(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        before = tasks_overlap(op)
        for tasks, segments, _ in scheduled(op):
            tasks.with_rows(issued_ahead(tasks.rows.data, segments, before=before))


def issued_ahead(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], *, before: bool
) -> Mapping[str, Rows]:
    """The rows of each task, with gathers as many units ahead as they say.

    What a stage frees is gathered `before` the pass that needs it where another pass runs beside that one.
    """
    ahead = {
        number: n
        for number, each in segments.items()
        if (n := whole_number(each.first, "prefetch"))
    }
    if ahead:
        apart = {number for number, each in segments.items() if each.task in PASS_GATHERS}
        tasks = {task: moved(rows, segments, ahead) for task, rows in together(tasks).items()}
        tasks = apart_again(tasks, apart, before=before) if apart else tasks
    return tasks


def apart_again(
    tasks: Mapping[str, Rows], gathers: Collection[int], *, before: bool
) -> Mapping[str, Rows]:
    """The rows of each task, with those gathers by themselves that do not run with each pass."""
    found: dict[str, Rows] = {}
    for task, rows in tasks.items():
        own = next((name for name in PASS_GATHERS if task == pass_of(name, tasks)), None)
        if own is None:
            found[task] = rows
            continue
        found[task], moved_rows = separated(rows, gathers, task, before=before)
        if len(moved_rows):
            found[own] = moved_rows
    return found


BEFORE, OWN, AHEAD = -1, 0, 1
"""What stands at a row: what is issued before it; the row; the gathers of units after it."""


def moved(rows: Rows, segments: Mapping[int, Segment], ahead: Mapping[int, int]) -> Rows:
    gathers = np.flatnonzero(np.isin(rows.segment, list(ahead))).tolist()
    if not gathers:
        return rows
    # Where each row stands: at which row, in what part of what stands there, and its number there.
    at = np.stack(
        [np.arange(len(rows)), np.zeros(len(rows), np.int64), np.zeros_like(rows.segment)]
    )
    begins = begins_of(rows, segments, gathers)
    for own in units_of(rows, segments, gathers):
        in_order = sorted(own, key=lambda unit: begins.get(unit[0], unit[0]))
        firsts = [unit[0] for unit in in_order]
        for place, unit_rows in enumerate(in_order):
            for row in unit_rows:
                unit = place - ahead[int(rows.segment[row])]
                target, before = firsts[max(0, unit)], None
                if unit < 0:
                    target = first_in_layers(rows, segments, firsts, row)
                    before = run_before(rows, segments, ahead, target)
                hook = begins.get(target) if before is None else before
                if (target if hook is None else hook) < row:
                    at[:, row] = (target, AHEAD, place) if hook is None else (hook, BEFORE, place)
    return rows.reordered(np.lexsort(at[::-1]))


def units_of(
    rows: Rows, segments: Mapping[int, Segment], gathers: Sequence[int]
) -> Iterator[list[list[int]]]:
    """What units are counted among, each with its rows: gathers, which are one each; copies from the host or from NVMe, all of a layer's together."""
    alone: list[list[int]] = []
    layers: dict[object, list[int]] = {}
    for row in gathers:
        if isinstance(segments[int(rows.segment[row])].first, sched.HostCopyOp):
            layers.setdefault(layer_of(rows, segments, row), []).append(row)
        else:
            alone.append([row])
    yield alone
    yield [*layers.values()]


def layer_of(rows: Rows, segments: Mapping[int, Segment], row: int) -> object:
    """The repeat that a row is in, and the iteration of it and of those around it."""
    return segments[int(rows.segment[row])].repeats[-1:], path_of(rows, row)


def begins_of(
    rows: Rows, segments: Mapping[int, Segment], gathers: Sequence[int]
) -> dict[int, int]:
    """The row where the backward pass of a gathered unit begins, of those that are needed before."""
    marked = {
        n: each.first for n, each in segments.items() if stg.BEGINS_UNIT in stg.marks(each.first)
    }
    if not marked:
        return {}
    found: dict[tuple[object, ...], int] = {}
    for row in np.flatnonzero(np.isin(rows.segment, list(marked))).tolist():
        number = stg.marks(marked[int(rows.segment[row])])[stg.BEGINS_UNIT]
        found[number, path_of(rows, row)] = row
    hooks = {
        row: stg.marks(segments[int(rows.segment[row])].first).get(stg.HOOK) for row in gathers
    }
    keys = {row: (hook, path_of(rows, row)) for row, hook in hooks.items() if hook is not None}
    return {row: found[key] for row, key in keys.items() if key in found}


def first_in_layers(
    rows: Rows, segments: Mapping[int, Segment], gathers: Sequence[int], gather: int
) -> int:
    """The first of these gathers in any layers, for one in layers; one beside the layers itself."""

    def is_in_layers(row: int) -> bool:
        return bool(segments[int(rows.segment[row])].repeats)

    if not is_in_layers(gather):
        return gather
    return next(row for row in gathers if is_in_layers(row))


def run_before(
    rows: Rows, segments: Mapping[int, Segment], ahead: Mapping[int, int], gather: int
) -> int | None:
    """The row of the run right before a repeat whose first gather is in a row: the innermost that has one. Within a layer a gather is none."""
    repeats, path = segments[int(rows.segment[gather])].repeats, path_of(rows, gather)
    first = gather
    for depth in reversed(range(len(repeats))):

        def is_inside(row: int, depth: int = depth) -> bool:
            own = segments[int(rows.segment[row])].repeats
            return repeats[depth] in own and path_of(rows, row)[:depth] == path[:depth]

        while first >= 0 and is_inside(first):
            first -= 1
        if first >= 0 and path_of(rows, first) == path[:depth]:
            is_gather = int(rows.segment[first]) in ahead
            return None if is_gather and depth else first
    return None
