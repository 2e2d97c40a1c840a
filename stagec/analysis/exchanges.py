"""Where tokens go to experts on other devices, and where they come back: a dispatch or a combine and a change of placement beside it."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType

Routed = stg.DispatchOp | stg.CombineOp


def exchanges(program: stg.ProgramOp) -> Iterator[tuple[Routed, dist.ReshardOp]]:
    """Where tokens go to experts on other devices, and where they come back."""
    for op in program.walk():
        if isinstance(op, stg.DispatchOp):
            users = [use.operation for use in op.routed.uses]
            changes = [user for user in users if isinstance(user, dist.ReshardOp)]
            if len(changes) == len(users):
                yield from ((op, change) for change in changes if travels(op, change))
        elif isinstance(op, stg.CombineOp):
            change = op.routed.owner
            if isinstance(change, dist.ReshardOp) and travels(op, change):
                yield op, change


def placements(routed: Routed, change: dist.ReshardOp) -> tuple[TensorType, TensorType]:
    """Tokens where their experts are, and where they come from."""
    if isinstance(routed, stg.DispatchOp):
        return change.target, change.source
    return change.source, change.target


def travels(routed: Routed, change: dist.ReshardOp) -> bool:
    own, _ = placements(routed, change)
    return bool(own.dims[0].split)
