"""Where a value is defined, seen from a block; and what it is behind its changes of placement."""

from __future__ import annotations

from xdsl.ir import Block, OpResult, SSAValue

from stagec.dialects import dist


def is_inside(value: SSAValue, block: Block) -> bool:
    """Whether a value is defined in a block or in a region within it."""
    owner = value.owner
    inner = owner if isinstance(owner, Block) else owner.parent_block()
    while inner is not None:
        if inner is block:
            return True
        parent = inner.parent_op()
        inner = parent.parent_block() if parent is not None else None
    return False


def behind_reshards(value: SSAValue) -> SSAValue:
    """The value whose other placement this is: its cotangent is brought there directly."""
    while isinstance(value, OpResult) and isinstance(value.op, dist.ReshardOp):
        value = value.op.operand
    return value
