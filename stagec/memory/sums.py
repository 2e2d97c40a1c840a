"""The loop over microbatches: what is in it, and which results it adds up."""

from __future__ import annotations

from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from stagec.analysis.dataflow import is_node
from stagec.dialects import sched, stg


def ops_inside(program: stg.ProgramOp) -> set[Operation]:
    """The ops of the loop over microbatches."""
    return {
        inner
        for op in program.body.block.ops
        if isinstance(op, stg.AccumulateOp)
        for inner in op.walk()
    }


def loops(program: stg.ProgramOp) -> list[stg.AccumulateOp]:
    return [op for op in program.body.block.ops if isinstance(op, stg.AccumulateOp)]


def summed_results(program: stg.ProgramOp) -> set[SSAValue]:
    """The results of which the loop over microbatches adds up some instance."""
    return {
        root for loop in loops(program) for value in loop.yield_op.values for root in roots(value)
    }


def makers(gradient: SSAValue) -> set[SSAValue]:
    """The results of nodes behind a gradient outside of the layers, as the optimizer reads it: before reductions and sums."""
    value = before_reductions(gradient)
    if isinstance(value, OpResult) and isinstance(value.op, stg.AccumulateOp):
        value = value.op.yield_op.values[value.index]
    return roots(value)


def before_reductions(value: SSAValue) -> SSAValue:
    """What collectives, copies into their buffers and views were made from."""
    while isinstance(value, OpResult):
        op = value.op
        if isinstance(op, sched.CollectiveOp):
            value = op.values[value.index]
        elif isinstance(op, sched.ComputeOp) and op.op.data == sched.COPY_IN:
            value = op.inputs[value.index]
        elif isinstance(op, sched.ViewOp):
            value = op.operand
        else:
            break
    return value


def roots(value: SSAValue) -> set[SSAValue]:
    """The results of nodes that a value may be, in any iteration."""
    found: set[SSAValue] = set()
    seen: set[SSAValue] = set()
    ahead = [value]
    while ahead:
        value = ahead.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if isinstance(owner, Block):
            ahead += behind_argument(value)
        elif is_node(owner):
            found.add(value)
        elif isinstance(owner, sched.ViewOp):
            ahead.append(owner.operand)
        elif isinstance(owner, stg.RepeatOp):
            assert isinstance(value, OpResult)
            ahead.append(owner.yield_op.values[value.index])
            if value.index < len(owner.carried):
                ahead.append(owner.carried[value.index])
    return found


def behind_argument(value: SSAValue) -> list[SSAValue]:
    assert isinstance(value, BlockArgument)
    repeat = value.block.parent_op()
    if not isinstance(repeat, stg.RepeatOp):
        return []
    if value.index < len(repeat.carried):
        return [repeat.carried[value.index], repeat.yield_op.values[value.index]]
    return [repeat.stacks[value.index - len(repeat.carried)]]
