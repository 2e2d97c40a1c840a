"""Use-def chains: from a value back to the one that it is a form of, through ops that keep what it is, and through loops.

    weight_path(followed(value, from_stack, through(stg.CastOp, dist.ReshardOp)))

is the path of the weight that a value is, cast and placed in any way, in a layer or outside of any.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from stagec.dialects import dist, sched, stg

StepBack = Callable[[SSAValue], SSAValue | None]
"""From a value to the one that it is a form of, or nothing."""


def followed(value: SSAValue, *steps: StepBack) -> SSAValue:
    """As far back as any of the steps leads."""
    while True:
        before = next((each for step in steps if (each := step(value)) is not None), None)
        if before is None:
            return value
        value = before


def through(*kinds: type[Operation]) -> StepBack:
    """From what an op of some kind makes to what it reads first."""

    def before(value: SSAValue) -> SSAValue | None:
        op = value.owner
        return op.operands[0] if isinstance(op, kinds) else None

    return before


def one_by_one(*kinds: type[Operation]) -> StepBack:
    """The step back through ops that make one result of each operand."""

    def before(value: SSAValue) -> SSAValue | None:
        if isinstance(value, OpResult) and isinstance(value.op, kinds):
            return value.op.operands[value.index]
        return None

    return before


def from_stack(value: SSAValue) -> SSAValue | None:
    """From an argument of a repeat to the stack that it is an element of."""
    repeat = value.owner.parent_op() if isinstance(value, BlockArgument) else None
    if not isinstance(repeat, stg.RepeatOp) or not isinstance(value, BlockArgument):
        return None
    return repeat.operands[value.index] if value.index >= repeat.num_carried else None


def from_body(value: SSAValue) -> SSAValue | None:
    """From what a loop hands out to what its body does."""
    if isinstance(value, OpResult) and isinstance(value.op, stg.RepeatOp | stg.AccumulateOp):
        return value.op.yield_op.values[value.index]
    return None


def sent(value: SSAValue) -> SSAValue | None:
    """From what a collective makes to what it sends, where there is one result of each value."""
    if not isinstance(value, OpResult) or not isinstance(value.op, sched.CollectiveOp):
        return None
    op = value.op
    return op.values[value.index] if len(op.values) == len(op.outputs) else None


viewed = through(sched.ViewOp)
before_placing = through(dist.ReshardOp)


def weight_path(value: SSAValue) -> str:
    """The path of a weight; nothing for another value."""
    owner = value.owner
    return owner.path.data if isinstance(owner, stg.WeightOp) else ""
