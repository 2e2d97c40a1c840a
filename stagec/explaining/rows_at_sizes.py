"""Rows of a stage under other sizes than those that were compiled: what the passes from `build-programs` on make of it."""

from __future__ import annotations

from collections.abc import Mapping

from stagec.analysis.dataflow import Dataflow
from stagec.analysis.segments import segments_of
from stagec.analysis.sizes import module_of
from stagec.analysis.task_rows import rows_of_tasks
from stagec.dialects import stg
from stagec.passes.schedule.fill_buckets import in_buckets
from stagec.passes.schedule.place_reductions import placed
from stagec.passes.schedule.prefetch_gathers import issued_ahead
from stagec.pipeline_schedule import tasks_overlap
from stagec.unrolling.stage import StageLayout


def layout_with(program: stg.ProgramOp, values: Mapping[str, int]) -> StageLayout:
    """The rows of a stage, with other numbers of layers and other bytes in its buckets."""
    segments = segments_of(program)
    before = tasks_overlap(module_of(program))
    rows = rows_of_tasks(program, Dataflow(values), before=before)
    rows = issued_ahead(rows, segments, before=before)
    rows = placed(in_buckets(rows, segments, values), segments, values)
    return StageLayout(program, rows, values)
