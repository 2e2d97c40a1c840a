"""Units of parameters: what is gathered, and reduced, as one buffer (FSDP's term)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from xdsl.ir import Operation, OpResult, SSAValue

from stagec.analysis.dependence import Dependence
from stagec.dialects import stg
from stagec.dialects.op import first_op
from stagec.dialects.use_def import followed, from_stack, weight_path

ROOT = ""
"""The unit of all parameters that belong to no other."""


def unit_of(path: str, units: Sequence[str]) -> str:
    """The unit of a weight: the innermost call on its path of a named module (`Experts`, `Block.Experts`), or the root."""
    parts = path.split(".")[:-1]
    patterns = [unit.split(".") for unit in units]
    for end in range(len(parts), 0, -1):
        for pattern in patterns:
            calls = parts[max(0, end - len(pattern)) : end]
            if len(calls) == len(pattern) and all(map(is_call, calls, pattern)):
                return ".".join(parts[:end])
    return ROOT


def is_call(call: str, module: str) -> bool:
    """Whether a part of a path is a call of a module: `Block`, or `Block_2`, the second in a body. No other module is called so (E0202)."""
    return module in (call, called_module(call))


def names_weight(path: str, names: Iterable[str], is_peeled: bool) -> bool:
    """Whether one of these names means a weight: its own, or with those of modules before it, each call of which is meant.

    Of a weight that stands in a repeat itself `peel-layers` calls that of the other layers `w_2`.
    """
    parts = path.split(".")
    tails = [(parts[-len(words) :], words) for words in (name.split(".") for name in names)]
    return any(
        len(tail) == len(words)
        and all(map(is_call, tail[:-1], words[:-1]))
        and (is_call(tail[-1], words[-1]) if is_peeled else tail[-1] == words[-1])
        for tail, words in tails
    )


def called_module(call: str) -> str:
    """`Block`, of the second call in a body, `Block_2`."""
    base, _, number = call.rpartition("_")
    is_counted = base and number.isdigit() and number[0] != "0" and number != "1"
    return base if is_counted else call


def first_use(weight: SSAValue) -> int:
    """Where in the loop over microbatches the forward pass first reads a weight, or the layers of one; behind everything if it does not."""
    found = sys.maxsize
    for use in weight.uses:
        op = use.operation
        while (parent := op.parent_op()) is not None and not isinstance(parent, stg.AccumulateOp):
            op = parent
        if parent is not None and stg.phase_of(use.operation) == "fwd":
            block = op.parent_block()
            assert block is not None
            found = min(found, block.get_operation_index(op))
    return found


def is_within(scope: str, unit: str) -> bool:
    """Whether a call of a module is that of the unit, or in it."""
    return scope == unit or scope.startswith(f"{unit}.")


def takes_gradient(
    program: stg.ProgramOp, unit: str | stg.RepeatOp, dependence: Dependence
) -> bool:
    """Whether weights are behind something that goes into a unit, a call or the layers of a repeat, so that its backward pass ends in a gradient of that."""
    if isinstance(unit, stg.RepeatOp):
        read = (operand for op in unit.body.walk() for operand in op.operands)
        others = (
            value
            for value in read
            if not unit.is_ancestor(value.owner) and not weight_path(followed(value, from_stack))
        )
        return any(map(dependence.on_weights, (*unit.carried, *others)))
    return any(
        dependence.on_weights(operand) and not comes_from(operand, unit)
        for op in program.walk()
        if stg.phase_of(op) == "fwd" and is_within(stg.scope_of(op), unit)
        for operand in op.operands
    )


def comes_from(value: SSAValue, unit: str) -> bool:
    """Whether a value is a weight, or a slice of one, or made in a unit."""
    owner = value.owner
    is_made_there = isinstance(owner, Operation) and is_within(stg.scope_of(owner), unit)
    return is_made_there or bool(weight_path(followed(value, from_stack)))


def gradient_makers(
    loop: stg.AccumulateOp, program: stg.ProgramOp, weights: Sequence[SSAValue]
) -> list[Operation]:
    """What makes the gradients of weights in the loop over microbatches, before they are reduced."""
    step = first_op(program, stg.OptimizerStepOp)
    if step is None:
        return []
    makers = [
        gradient_maker(loop, gradient)
        for weight, gradient in zip(step.weights, step.gradients, strict=True)
        if weight in weights
    ]
    return [op for op in makers if op is not None]


def gradient_maker(loop: stg.AccumulateOp, gradient: SSAValue) -> Operation | None:
    """From what the optimizer reads, through reductions whose results answer to their operands, into the loop."""
    while isinstance(gradient, OpResult):
        op = gradient.op
        if op is loop:
            gradient = loop.yield_op.values[gradient.index]
        elif loop.is_ancestor(op) and stg.phase_of(op) != "grad_reduce":
            return op
        elif gradient.index < len(op.operands):
            gradient = op.operands[gradient.index]
        else:
            return None
    return None
