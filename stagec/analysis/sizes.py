"""The numbers behind a module's names: dims, mesh axes, microbatches.

A model may have 10,000 dims, through which every pass looks: their class is compared, for `isinstance` asks an abstract class about each other op.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.analysis.coordinates import SUFFIX, axes_in
from stagec.diagnostics import refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import TIME_AXIS
from stagec.symbolic import Size, SizeError, conditions


def module_of(op: Operation) -> ModuleOp:
    found = op.get_toplevel_object()
    assert isinstance(found, ModuleOp)
    return found


def batch_dim(module: ModuleOp) -> str:
    """The dim of the samples of a step, as the plan names it; empty without one."""
    plan = first_op(module, dist.PlanOp)
    return "" if plan is None else plan.batch_dim


def mesh_of(module: ModuleOp) -> dict[str, int]:
    """Axis sizes, the slowest-varying axis first. No mesh is a single device."""
    for op in module.body.ops:
        if type(op) is dist.MeshOp:
            return conditions.observed(op.sizes)
    return {}


def dim_sizes(module: ModuleOp) -> dict[str, Size]:
    """The expression of each named size."""
    return {op.dim.data: op.size.data for op in module.body.ops if type(op) is stg.DimOp}


def dims_by_place(module: ModuleOp) -> dict[str, Size]:
    """The dims whose sizes depend on a rank's coordinates: parts that are not all as large."""
    return {name: size for name, size in dim_sizes(module).items() if axes_in(size.names)}


def values_at(dims: Mapping[str, Size], values: Mapping[str, int]) -> dict[str, int]:
    """The numbers of `dims_by_place` at a rank's coordinates, which are among the values; the first where one is not."""
    return {name: at_first(size, values).integer(values) for name, size in dims.items()}


def at_first(size: Size, values: Mapping[str, int]) -> Size:
    """A size on the first rank along the axes of which it needs coordinates that are not known."""
    unknown = [f"{axis}{SUFFIX}" for axis in axes_in(size.names)]
    return size.substitute({name: 0 for name in unknown if name not in values})


def slots_in_words(module: ModuleOp) -> dict[str, str]:
    """The dims of experts and their copies, in the words of a plan."""
    dims = (op for op in module.body.ops if type(op) is stg.DimOp)
    return {op.dim.data: f"{op.slots.data} + redundant" for op in dims if op.slots is not None}


def averages(module: ModuleOp) -> dict[str, Size]:
    """The dims that need be no whole numbers, and their exact sizes."""
    return {
        op.dim.data: op.size.data
        for op in module.body.ops
        if type(op) is stg.DimOp and op.average is not None
    }


def size_values(module: ModuleOp) -> dict[str, int]:
    """Every name's number; of `dims_by_place` that of the first rank, whose part is the largest; of an average the next whole one. Another size
    that is not a whole number is E0208."""
    values: dict[str, int] = dict(conditions.unread(mesh_of(module)))
    values.setdefault(TIME_AXIS, 1)
    pending = {op.dim.data: op for op in module.body.ops if type(op) is stg.DimOp}
    sizes = {name: at_first(op.size.data, values) for name, op in pending.items()}
    readers: dict[str, list[str]] = {}
    missing_of: dict[str, int] = {}
    for name in pending:
        unknown = sizes[name].names - values.keys()
        missing_of[name] = len(unknown)
        for other in unknown:
            readers.setdefault(other, []).append(name)
    ready = [name for name, count in missing_of.items() if not count]
    while pending:
        if not ready:
            name, op = next(iter(pending.items()))
            missing = sorted(sizes[name].names - values.keys())
            raise refused(
                "E0208",
                f"the size of `{name}` needs `{missing[0]}`, which has none",
                span_of(op.location),
            )
        found, ready = ready, []
        for name in found:
            op = pending.pop(name)
            try:
                if op.average is not None:
                    values[name] = ceil(sizes[name].evaluate(values))
                else:
                    values[name] = sizes[name].integer(values)
                conditions.define(name, sizes[name])
                for reader in readers.get(name, ()):
                    missing_of[reader] -= 1
                    if not missing_of[reader]:
                        ready.append(reader)
            except SizeError as error:
                raise refused("E0208", f"`{name}`: {error}", span_of(op.location)) from None
    return conditions.observed(values)
