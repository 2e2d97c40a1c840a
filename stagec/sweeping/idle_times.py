"""Settings that decide nothing but times: whether they decide something in any of many plans that differ in sizes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stagec.analysis.kernels import Forms
from stagec.backend.program import Node
from stagec.diagnostics import Diagnostic
from stagec.idle_times import TimedSetting, timed_settings
from stagec.sweeping.actions import ActionForm, DistinctRows, with_numbers
from stagec.sweeping.op_costs import PriceColumns
from stagec.sweeping.step_times import named
from stagec.sweeping.structures import Structure
from stagec.symbolic import Size
from stagec.symbolic.columns import Columns


def idle_in_all(
    structure: Structure, sizes: Columns, told: Sequence[Diagnostic]
) -> list[Diagnostic]:
    """What the plan that was compiled of a structure is told to change nothing, and changes nothing in any plan of it. `sizes` are those of all of these."""
    spans = {each.span for each in told}
    settings = (each for each in timed_settings(structure.job.compiled) if each.span in spans)
    deciding = {each.span for each in settings if decides(each, structure, sizes)}
    return [each for each in told if each.span not in deciding]


def decides(setting: TimedSetting, structure: Structure, sizes: Columns) -> bool:
    """Whether the time of some node depends on a setting in some plan."""
    columns = PriceColumns(structure.plan, sizes, tuple(structure.names.mesh), None)
    for node, numbers in concerned(setting, structure, sizes):
        distinct = DistinctRows.of([*map(sizes.number, numbers), columns.mesh], sizes.count)
        for *own, mesh in distinct.rows:
            action = with_numbers(node.action, own)
            if setting.decides(replace(node, action=action), columns.meshes[mesh]):
                return True
    return False


def concerned(
    setting: TimedSetting, structure: Structure, sizes: Columns
) -> Iterator[tuple[Node, tuple[Size, ...]]]:
    """The nodes that a setting may concern, each with the sizes from which its numbers follow."""
    known: Forms = {}
    found: dict[object, Size] = {}
    for each in structure.job.classes:
        for term in each.terms:
            form = (
                ActionForm.of(term.counted.op, known)
                if setting.concerns(term.node.action)
                else None
            )
            if form is not None:
                yield (
                    term.node,
                    named(form.sizes, sizes.names.keys(), term.counted.stage.values, found),
                )
