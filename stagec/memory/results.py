"""What the results of an op are, as far as the op alone tells."""

from __future__ import annotations

from xdsl.ir import Operation

from stagec.dialects import sched, stg
from stagec.dialects.types import ShardType, StackType
from stagec.memory.kinds import Kind


def kind_of(op: Operation) -> Kind:
    """What the results of an op are, whoever reads them."""
    phase = stg.phase_of(op)
    if is_copy_in(op):
        return Kind.COMMUNICATION
    if isinstance(op, sched.HostCopyOp):
        return Kind.HOST if op.direction.data == "store" else Kind.FETCHED
    if phase == "grad_reduce":
        return Kind.GRADIENTS
    if is_gather_of_parameters(op):
        # After the step it fills the parameters themselves.
        return Kind.PARAMETERS if phase == "optim" else Kind.GATHERED
    if phase == "recompute":
        return Kind.RECOMPUTED
    return Kind.TEMPORARIES


def is_gradient_of_product(op: Operation) -> bool:
    return (
        isinstance(op, sched.ComputeOp)
        and op.op.data == "mul"
        and stg.phase_of(op) in ("bwd", "wgrad")
    )


def is_copy_in(op: Operation) -> bool:
    """Whether an op fills the buffer of a reduction."""
    return isinstance(op, sched.ComputeOp) and op.op.data == sched.COPY_IN


def is_gather_of_parameters(op: Operation) -> bool:
    if not isinstance(op, sched.CollectiveOp) or op.kind.data != "all_gather":
        return False
    types = [v.type.leaf if isinstance(v.type, StackType) else v.type for v in op.values]
    return any(isinstance(t, ShardType) for t in types)
