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


def gradient_of_other_factor(op: Operation) -> Operation | None:
    """For the gradient of one factor of a product that of the other, which the product's gradient rule makes right after it.

    Both are products of the same cotangent. Between them is only what is made of the first: sums over dims that a factor lacks.
    """
    if not is_gradient_of_factor(op):
        return None
    made, following = set(op.results), op.next_op
    while following is not None and not made.isdisjoint(following.operands):
        made.update(following.results)
        following = following.next_op
    if following is None or not is_gradient_of_factor(following):
        return None
    return following if following.operands[0] is op.operands[0] else None


def is_gradient_of_factor(op: Operation) -> bool:
    """Whether an op multiplies a cotangent with the factor that was saved."""
    return (
        isinstance(op, sched.ComputeOp)
        and op.op.data in ("mul", "contract")
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
