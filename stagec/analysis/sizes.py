"""The numbers behind a module's names: dims, mesh axes, microbatches.

A model may have 10,000 dims, through which every pass looks: their class is compared, for `isinstance` asks an abstract class about each other op.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import TIME_AXIS
from stagec.symbolic import Size, SizeError, conditions


def mesh_of(module: ModuleOp) -> dict[str, int]:
    """Axis sizes, the slowest-varying axis first. No mesh is a single device."""
    for op in module.body.ops:
        if type(op) is dist.MeshOp:
            return conditions.observed(op.sizes)
    return {}


def dim_sizes(module: ModuleOp) -> dict[str, Size]:
    """The expression of each named size."""
    return {op.dim.data: op.size.data for op in module.body.ops if type(op) is stg.DimOp}


def size_values(module: ModuleOp) -> dict[str, int]:
    """Every name's number. A size that is not a whole number is E0208."""
    values: dict[str, int] = dict(conditions.unread(mesh_of(module)))
    values.setdefault(TIME_AXIS, 1)
    pending = {op.dim.data: op for op in module.body.ops if type(op) is stg.DimOp}
    readers: dict[str, list[str]] = {}
    missing_of: dict[str, int] = {}
    for name, op in pending.items():
        unknown = op.size.data.names - values.keys()
        missing_of[name] = len(unknown)
        for other in unknown:
            readers.setdefault(other, []).append(name)
    ready = [name for name, count in missing_of.items() if not count]
    while pending:
        if not ready:
            name, op = next(iter(pending.items()))
            missing = sorted(op.size.data.names - values.keys())
            raise CompileError(
                [
                    Diagnostic(
                        "E0208",
                        f"the size of `{name}` needs `{missing[0]}`, which has none",
                        span_of(op.location),
                    )
                ]
            )
        found, ready = ready, []
        for name in found:
            op = pending.pop(name)
            try:
                values[name] = op.size.data.integer(values)
                conditions.define(name, op.size.data)
                for reader in readers.get(name, ()):
                    missing_of[reader] -= 1
                    if not missing_of[reader]:
                        ready.append(reader)
            except SizeError as error:
                raise CompileError(
                    [Diagnostic("E0208", f"`{name}`: {error}", span_of(op.location))]
                ) from None
    return conditions.observed(values)
