"""Which plans of a sweep can be compiled, and why others cannot: the conditions that compilation checks, for all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.analysis import placement
from stagec.diagnostics import Findings
from stagec.dialects import stg
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TIME_AXIS, StackType, TensorType, tensor_of
from stagec.explaining.job import Job
from stagec.explaining.sweeping.vectors import Columns, times
from stagec.frontend import CheckedModel, lower, syntax
from stagec.frontend.numbers import COMPARE, LARGEST, quantity
from stagec.frontend.plans.plan import Pipeline
from stagec.frontend.plans.resolve import MOST_RANKS
from stagec.frontend.printing import text_of
from stagec.schedules import ScheduleError, check_sizes
from stagec.symbolic import product, symbol


@dataclass
class Feasible:
    """The plans that are left, and how many were dropped for each reason."""

    left: np.ndarray
    reasons: Counter[str] = field(default_factory=Counter)

    def require(self, holds: np.ndarray, reason: str) -> None:
        dropped = self.left & ~np.asarray(holds, bool)
        number = int(dropped.sum())
        if number:
            self.reasons[reason] += number
            self.left = self.left & ~dropped


def compilation(job: Job, given: set[str], sizes: Columns, found: Feasible) -> None:
    """All that compilation would refuse. `given` are the names that are varied."""
    checked = job.compiled.checked
    whole_sizes(checked, given, sizes, found)
    requirements(checked, sizes, found)
    divisions(splits(checked, job.compiled.module), sizes, found)
    routing(checked, sizes, found)
    number = job.names.num_microbatches
    found.require(sizes.whole(number), "the microbatch does not divide the batch of a rank")
    found.require(ranks_of(job, sizes) <= MOST_RANKS, f"more than {MOST_RANKS:,} ranks")
    pipeline = checked.plan.pipeline
    if pipeline is not None:
        layers(job, pipeline, sizes, found)
        ranks, virtual = sizes.names[pipeline.axis], job.names.virtual_stages
        schedules(pipeline.schedule, virtual, ranks, sizes.number(number), found)


def ranks_of(job: Job, sizes: Columns) -> np.ndarray:
    found = sizes.constant(1)
    for axis in job.names.mesh:
        found = found * sizes.names[axis]
    return found


def named_sizes(
    checked: CheckedModel,
    columns: Mapping[str, np.ndarray],
    count: int,
    leave: Collection[str] = (),
) -> Columns:
    """The values of all names; those that are varied are given. A fraction is rounded up, and found by `whole_sizes`."""
    table = checked.sizes
    found = Columns(dict(columns), count)
    pending = {
        name: entry.size
        for entries in (table.dims, table.axes)
        for name, entry in entries.items()
        if name not in columns and name not in leave
    }
    while pending:
        ready = [n for n, size in pending.items() if size.names <= found.names.keys()]
        if not ready:
            break
        for name in ready:
            size = pending.pop(name)
            found.names = {**found.names, name: found.number(size)}
        for name, parts in table.products.items():
            if name not in found.names and all(part in found.names for part in parts):
                product = found.constant(1)
                for part in parts:
                    product = times(product, found.names[part])
                found.names = {**found.names, name: product}
    return found


def whole_sizes(checked: CheckedModel, given: set[str], sizes: Columns, found: Feasible) -> None:
    """E0208: every dim and axis is a whole number, 1 or more."""
    for entries in (checked.sizes.dims, checked.sizes.axes):
        for name, entry in entries.items():
            if name in given:
                continue
            found.require(sizes.whole(entry.size), f"`{name} = {entry.size}` is no whole number")
            value = sizes.names[name]
            found.require((value >= 1) & (value <= LARGEST), f"`{name}` is no size")


def requirements(checked: CheckedModel, sizes: Columns, found: Feasible) -> None:
    """E0207: what the model's text requires."""
    for program in checked.source.files.values():
        for definition in program.items:
            if isinstance(definition, syntax.Require):
                holding = holds(definition.condition, checked, sizes)
                found.require(holding, f"`{text_of(definition.condition)}` does not hold")


def holds(expr: syntax.Expr, checked: CheckedModel, sizes: Columns) -> np.ndarray:
    """A condition, for each plan."""
    assert isinstance(expr, syntax.Binary)
    if expr.operator in ("and", "or"):
        left, right = holds(expr.left, checked, sizes), holds(expr.right, checked, sizes)
        return left & right if expr.operator == "and" else left | right
    known = checked.sizes.values
    sides = [quantity(side, known, Findings()) for side in (expr.left, expr.right)]
    assert sides[0] is not None
    assert sides[1] is not None
    a, b = sizes.ratio(sides[0].size), sizes.ratio(sides[1].size)
    left, right = times(a.top, b.bottom), times(b.top, a.bottom)
    return COMPARE[expr.operator](left, right)


def splits(checked: CheckedModel, module: ModuleOp) -> set[Dim]:
    """Every dim that axes split: by the plan's rules, and in the values of the compiled module."""
    rules = [placement.Rule(rule.dims, rule.axes) for rule in checked.plan.rules]
    found: set[Dim] = set()
    for op in lower(checked).walk():
        if op.operands and not isinstance(op, stg.RepeatOp | stg.OutputOp | stg.YieldOp):
            for kind in result_types(op):
                split = placement.split_dims(kind.names, rules)
                found |= {Dim(name, axes) for name, axes in split.items()}
    for op in module.walk():
        for kind in result_types(op):
            for dim in kind.dims:
                axes = tuple(axis for axis in dim.split if axis != TIME_AXIS)
                found.add(Dim(dim.name, axes))
    return {dim for dim in found if dim.split}


def result_types(op: Operation) -> Iterator[TensorType]:
    for result in op.results:
        if isinstance(result.type, TensorType | StackType):
            yield tensor_of(result.type)


def divisions(dims: set[Dim], sizes: Columns, found: Feasible) -> None:
    """E0301: the axes that split a dim divide it."""
    for dim in sorted(dims, key=str):
        found.require(sizes.whole(dim.size), f"`{dim}` is no whole number")


def routing(checked: CheckedModel, sizes: Columns, found: Feasible) -> None:
    """E0310: without drops the experts have as many tokens as are sent."""
    for op in lower(checked).walk():
        if isinstance(op, stg.DispatchOp) and op.dropless is not None:
            routed, chosen = tensor_of(op.routed.type), tensor_of(op.experts.type)
            sent = product(symbol(name) for name in chosen.names)
            arrived = product(symbol(name) for name in routed.names[:2])
            equal = sizes.number(sent) == sizes.number(arrived)
            found.require(equal, f"experts have not the `{sent}` tokens that are sent")


def layers(job: Job, pipeline: Pipeline, sizes: Columns, found: Feasible) -> None:
    """E0407: layers divide into stages, or are as many as are listed."""
    stages, total = sizes.number(job.names.num_stages), sizes.names[pipeline.counts[0]]
    if pipeline.layers:
        listed, layers_of_all = len(pipeline.layers), sum(pipeline.layers)
        found.require(
            (stages == listed) & (total == layers_of_all),
            f"`layers` has {listed} stages with {layers_of_all} layers in all",
        )
        return
    even, rest = np.divmod(total - pipeline.first - pipeline.last, stages)
    fewest = np.minimum(even + min(pipeline.first, 0), even + min(pipeline.last, 0))
    divides = (stages == 1) | ((rest == 0) & (fewest >= 0))
    found.require(divides, f"the layers `{pipeline.counts[0]}` do not divide into stages")


def schedules(
    name: str, virtual: int, ranks: np.ndarray, microbatches: np.ndarray, found: Feasible
) -> None:
    """E0409: what a schedule demands of its sizes."""
    pairs = np.stack([ranks.astype(np.int64), microbatches.astype(np.int64)], axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    allowed = np.ones(len(distinct), bool)
    for number, (p, m) in enumerate(distinct.tolist()):
        try:
            check_sizes(name, p, virtual, m)
        except ScheduleError:
            allowed[number] = False
    reason = f"`{name}` does not run so few or so many microbatches"
    found.require(allowed[inverse.ravel()], reason)
