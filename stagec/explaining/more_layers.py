"""The memory of a rank with more layers than it has, from which its closed forms are read.

A buffer is alive in all layers, in all but a few, in a few, or in none. Of one, two or three layers nobody can tell which: two of three are
`L - 1`, or 2. So a rank with few layers is laid out once more with many, by the passes that list its rows, and nothing else is compiled. The
forms that are read there are those of the rank if they come to its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stagec.analysis.coordinates import axes_in
from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.types import TIME_AXIS
from stagec.explaining.names import Names
from stagec.explaining.rows_at_sizes import layout_with
from stagec.memory import ClassPlan, plan_memory
from stagec.symbolic import symbol
from stagec.unrolling.rank import StageRun
from stagec.unrolling.stage import StageLayout

ENOUGH = 8
"""Layers of which all, all but a few, and a few are told apart."""


def layer_counts(plan: ClassPlan, names: Names) -> Iterator[tuple[StageRun, str, int]]:
    """The names that say how many layers the stages of a rank have, where these are few, and their numbers."""
    for stage in plan.stages:
        found = {
            name
            for op in stage.program.walk()
            if isinstance(op, stg.RepeatOp)
            for name in op.count.data.names - {TIME_AXIS, *names.mesh}
            if not axes_in([name])  # no coordinate of a rank
        }
        for name in sorted(found):
            if 0 < stage.values[name] < ENOUGH:
                yield stage, name, int(stage.values[name])


def few_layers(plan: ClassPlan, names: Names) -> str:
    """How many layers a rank has, in names that users know: `L/pp = 1`; empty where they are enough."""
    found = {
        f"{names.write(symbol(name), stage.stage)} = {number}"
        for stage, name, number in layer_counts(plan, names)
    }
    return ", ".join(sorted(found))


def with_more_layers(plan: ClassPlan, names: Names) -> ClassPlan | None:
    """The memory of a rank that has a multiple of its few layers; nothing where each layer is another, or that cannot be had."""
    grown: dict[int, dict[str, int]] = {}
    for stage, name, number in layer_counts(plan, names):
        grown.setdefault(id(stage), {})[name] = number * -(-ENOUGH // number)
    if not grown or any(stage.layout.loads.loads for stage in plan.stages):
        return None
    layouts: dict[object, StageLayout] = {}

    def larger(stage: StageRun) -> StageRun:
        values: Mapping[str, int] = {**stage.values, **grown.get(id(stage), {})}
        key = stage.program, tuple(sorted(values.items()))

        def lay_out() -> StageLayout:
            if key not in layouts:
                layouts[key] = layout_with(stage.program, values)
            return layouts[key]

        return replace(stage, lay_out=lay_out, values=values)

    run = plan.arrangement.run
    try:
        (found,) = plan_memory([replace(run, stages=[larger(stage) for stage in plan.stages])])
    except CompileError:
        return None
    return found
