"""Where tokens go to experts on other devices, and where they come back: a dispatch or a combine and a change of placement beside it."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.diagnostics import refused
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import TensorType

Routed = stg.DispatchOp | stg.CombineOp


def changes_beside(op: Operation) -> list[dist.ReshardOp]:
    """The changes of placement by which tokens go from a dispatch to experts on other devices, or come back to a combine."""
    if isinstance(op, stg.DispatchOp):
        beside = [use.operation for use in op.routed.uses]
    elif isinstance(op, stg.CombineOp):
        beside = [op.routed.owner]
    else:
        return []
    changes = [each for each in beside if isinstance(each, dist.ReshardOp)]
    if len(changes) < len(beside):
        return []
    return [each for each in changes if placements(op, each)[0].dims[0].split]


def placements(routed: Routed, change: dist.ReshardOp) -> tuple[TensorType, TensorType]:
    """Tokens where their experts are, and where they come from."""
    if isinstance(routed, stg.DispatchOp):
        return change.target, change.source
    return change.source, change.target


def check_exchanges(module: ModuleOp, effect: str, setting: str, split: str) -> None:
    """E0313 where no tokens go to experts on other devices, so that a setting of `collectives` has no `effect`; `split`: what would let it have one."""
    if not any(map(changes_beside, module.walk())):
        message = f"no tokens go to experts on other devices, so that {effect}"
        program = first_op(module, stg.ProgramOp) or module
        span = dist.clause_span(program, f"collectives.given.{setting}")
        help_ = f"leave `{setting}` out of `collectives`, or split the experts over {split}"
        raise refused("E0313", message, span, help=help_)
