"""What the optimizer's step says of each weight."""

from __future__ import annotations

from xdsl.ir import BlockArgument, OpResult, SSAValue

from stagec.dialects import sched, stg


def updates(program: stg.ProgramOp) -> dict[stg.WeightOp, tuple[SSAValue, SSAValue]]:
    """For each weight: its part that the optimizer updates, and the gradient that it reads."""
    found: dict[stg.WeightOp, tuple[SSAValue, SSAValue]] = {}
    for op in program.walk():
        if isinstance(op, sched.ComputeOp) and op.op.data == "optimizer_step":
            both = op.inputs[: len(op.inputs) - len(op.outputs)]
            half = len(both) // 2
            for one, other in zip(both[:half], both[half : 2 * half], strict=True):
                weight, gradient = of_all_layers(one), of_all_layers(other)
                owner = weight.owner
                while isinstance(owner, sched.ViewOp):
                    owner = owner.operand.owner
                if isinstance(owner, stg.WeightOp):
                    found[owner] = (weight, gradient)
    return found


def of_all_layers(value: SSAValue) -> SSAValue:
    """The stack behind what an update in a repeat reads, also where it is loaded from the host."""
    while True:
        if isinstance(value, OpResult) and isinstance(value.op, sched.HostCopyOp):
            value = value.op.values[value.index]
            continue
        repeat = value.owner.parent_op() if isinstance(value, BlockArgument) else None
        if not isinstance(repeat, stg.RepeatOp) or not isinstance(value, BlockArgument):
            return value
        value = repeat.stacks[value.index - len(repeat.carried)]
