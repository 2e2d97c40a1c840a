"""Sum each weight's gradient over the ranks that hold terms of it.

Before `reduce-gradients{axes="dp"}`:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>
      stg.output weights %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>
        gradients %g : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>
    }

After:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>
      %r = stg.repeat "L" reverse slice(%s = %g : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>)
          -> (!stg.stack<"L" x !stg.tensor<[D], fp32>>) attributes {made_by = "reduce-gradients", phase = "grad_reduce"} {
        %a = dist.reshard %s {made_by = "reduce-gradients", phase = "grad_reduce"}
          : !stg.tensor<[D], fp32, partial [dp, tp]> -> !stg.tensor<[D], fp32, partial [dp]>
        %b = dist.reshard %a {made_by = "reduce-gradients", phase = "grad_reduce"}
          : !stg.tensor<[D], fp32, partial [dp]> -> !stg.tensor<[D], fp32>
        stg.yield %b : !stg.tensor<[D], fp32>
      }
      stg.output weights %w : !stg.stack<"L" x !stg.tensor<[D], bf16>> gradients %r : !stg.stack<"L" x !stg.tensor<[D], fp32>>
    }

First over the axes that are not data parallel (`tp` for norms under sequence parallelism), then over `axes`. Stacks are
reduced layer by layer, the last layer first, as their gradients become ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.dialects import dist, stg
from stagec.dialects.types import StackType, TensorType
from stagec.rewriting import inherit, programs
from stagec.symbolic import Size

NAME = "reduce-gradients"


@dataclass(frozen=True)
class ReduceGradients(ModulePass):
    name = NAME

    axes: tuple[str, ...] = ()
    """The data-parallel axes, reduced last."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            reduce_all(program, self.axes)


def reduce_all(program: stg.ProgramOp, data_axes: Sequence[str]) -> None:
    output = program.body.block.last_op
    assert isinstance(output, stg.OutputOp)
    pairs = list(zip(output.weights, output.gradients, strict=True))
    reduced: dict[SSAValue, SSAValue] = {}
    by_count: dict[Size, list[SSAValue]] = {}
    for weight, gradient in reversed(pairs):
        if isinstance(gradient.type, StackType):
            if gradient.type.tensor.partial:
                by_count.setdefault(gradient.type.count, []).append(gradient)
        elif stg.tensor_type(gradient).partial:
            origin = weight.owner
            assert isinstance(origin, Operation)
            steps = reductions(gradient, data_axes)
            for step in steps:
                insert(step, output, origin)
            reduced[gradient] = steps[-1].results[0]
    for count, stacks in by_count.items():
        repeat = reduce_stacks(count, stacks, data_axes)
        insert(repeat, output, output)
        reduced |= dict(zip(stacks, repeat.results, strict=True))
    finished = stg.OutputOp(
        output.values, output.weights, [reduced.get(g, g) for g in output.gradients]
    )
    inherit(finished, output)
    Rewriter.replace_op(output, finished)


def insert(op: Operation, before: Operation, origin: Operation) -> None:
    op.attributes["phase"] = StringAttr("grad_reduce")
    inherit(op, origin, NAME)
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(op, before)


def reductions(gradient: SSAValue, data_axes: Sequence[str]) -> list[dist.ReshardOp]:
    """Sum over other axes first, then over the data-parallel ones."""
    steps: list[dist.ReshardOp] = []
    for remaining in ([a for a in stg.tensor_type(gradient).partial if a in data_axes], []):
        source = stg.tensor_type(gradient)
        if list(source.partial) != remaining:
            steps.append(dist.ReshardOp(gradient, source.with_partial(remaining)))
            gradient = steps[-1].result
    return steps


def reduce_stacks(
    count: Size, stacks: Sequence[SSAValue], data_axes: Sequence[str]
) -> stg.RepeatOp:
    """One repeat over the layers that reduces a slice of each stack."""
    body = Block()
    results: list[SSAValue] = []
    for stack in stacks:
        assert isinstance(stack.type, StackType)
        element = stack.type.element
        argument = body.insert_arg(element, len(body.args))
        if isinstance(element, StackType):
            inner = reduce_stacks(element.count, [argument], data_axes)
            add(inner, body, stack)
            results.append(inner.results[0])
        else:
            for step in reductions(argument, data_axes):
                add(step, body, stack)
                results_last = step.results[0]
            results.append(results_last)
    body.add_op(stg.YieldOp(results))
    types = [
        StackType.of(count, v.type) for v in results if isinstance(v.type, TensorType | StackType)
    ]
    return stg.RepeatOp(count, [], stacks, Region(body), types, reverse=True)


def add(op: Operation, body: Block, stack: SSAValue) -> None:
    op.attributes["phase"] = StringAttr("grad_reduce")
    origin = stack.owner
    if isinstance(origin, Operation):
        inherit(op, origin, NAME)
    body.add_op(op)
