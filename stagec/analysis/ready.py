"""When the backward pass has made gradients."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, OpResult, SSAValue

from stagec.dialects import stg
from stagec.dialects.types import StackType


def maker(gradient: SSAValue) -> Operation | None:
    """The op in the innermost loop that makes a gradient."""
    while isinstance(gradient, OpResult):
        op = gradient.op
        if isinstance(op, stg.AccumulateOp | stg.RepeatOp):
            gradient = op.yield_op.values[gradient.index]
        else:
            return op
    return None


def ready_order(gradient: SSAValue) -> list[int]:
    """Sorts gradients as the backward pass makes them: the position of their maker, outermost block first."""
    op = maker(gradient)
    order: list[int] = []
    while op is not None and not isinstance(op, stg.ProgramOp):
        block = op.parent_block()
        assert block is not None
        order.insert(0, block.get_operation_index(op))
        op = block.parent_op()
    return order


def when_ready(group: Sequence[SSAValue]) -> list[int]:
    """Of layers, when the first is ready; of a unit, when all of it is."""
    orders = [ready_order(gradient) for gradient in group]
    return min(orders) if isinstance(group[0].type, StackType) else max(orders)


def loop_of(gradient: SSAValue) -> Operation | None:
    """The repeat over layers that makes a stack of gradients."""
    while isinstance(gradient, OpResult):
        op = gradient.op
        if isinstance(op, stg.RepeatOp):
            return op
        if not isinstance(op, stg.AccumulateOp):
            return None
        gradient = op.yield_op.values[gradient.index]
    return None
