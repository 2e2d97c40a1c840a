"""What each value of a forward pass depends on: weights that are trained, data, and the axes that those are split over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from stagec.analysis.placement import PlacementRule, copies_of
from stagec.diagnostics import refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import FLOATS, StackType, TensorType, tensor_of
from stagec.symbolic import ONE


@dataclass(frozen=True)
class Facts:
    """`axes`: those that something behind the value is split or partial over."""

    weights: bool = False
    data: bool = False
    axes: frozenset[str] = frozenset()

    def __or__(self, other: Facts) -> Facts:
        return Facts(self.weights or other.weights, self.data or other.data, self.axes | other.axes)


class FactsOfValues(dict[SSAValue, Facts]):
    """Facts of the values of a program. E0709 for one that stands outside of it."""

    def __init__(self, program: stg.ProgramOp) -> None:
        super().__init__()
        self.program = program

    def __missing__(self, value: SSAValue) -> Facts:
        if not isinstance(value, OpResult | BlockArgument):
            message = "a value that no op makes is read"
            help_ = "let an op of the program make it"
            raise refused("E0709", message, span_of(self.program.location), help=help_)
        owner = value.owner
        if self.program.is_ancestor(owner):
            raise KeyError(value)
        place = span_of(owner.location) if isinstance(owner, Operation) else None
        name = owner.name if isinstance(owner, Operation) else "an argument"
        message = f"`{name}` is outside of the `stg.program` that reads it"
        raise refused("E0709", message, place, help="put it into the program")


class Dependence:
    """Facts of every value in a program. Values carried by a repeat: a fixpoint over its body, if that runs more than once.

    `rules` say of which dims ranks have the same.
    """

    def __init__(self, program: stg.ProgramOp, rules: Sequence[PlacementRule] = ()) -> None:
        self.facts = FactsOfValues(program)
        self.rules = [rule for rule in rules if rule.copies]
        for argument in program.body.block.args:
            self.facts[argument] = Facts(data=True, axes=own_axes(argument))
        self._visit_block(program.body.block)

    def on_weights(self, value: SSAValue) -> bool:
        """Whether the value is a floating-point number that weights go into which are trained, or rows of a table that have a gradient all the same."""
        return self.facts[value].weights

    def on_data(self, value: SSAValue) -> bool:
        return self.facts[value].data

    def split_axes(self, value: SSAValue) -> frozenset[str]:
        """Axes over which each device knows only its share of what the value depends on.

        Over the others every device computes the same from the same, so that a cotangent may stay partial. So do ranks that share a head of
        keys, from what has no such dim on.
        """
        axes = self.facts[value].axes
        if not self.rules:
            return axes
        names = tensor_of(value.type).names
        return axes.difference(*(copies_of(name, self.rules) for name in names)) | own_axes(value)

    def moved(self, before: SSAValue, after: SSAValue) -> None:
        """`after` takes the place of `before`."""
        self.facts[after] = self.facts[before]

    def saved(self, stack: SSAValue) -> None:
        """A stack that the backward pass reads; nothing is differentiated through it."""
        self.facts[stack] = Facts()

    def _visit_block(self, block: Block) -> None:
        for op in block.ops:
            self._visit(op)

    def _visit(self, op: Operation) -> None:
        if isinstance(op, stg.WeightOp):
            self.facts[op.weight] = Facts(weights=op.frozen is None, axes=own_axes(op.weight))
        elif isinstance(op, dist.TowerRecvOp):
            trained = op.trained is not None
            self.facts[op.value] = Facts(trained, data=True, axes=own_axes(op.value))
        elif isinstance(op, stg.RepeatOp):
            self._visit_repeat(op)
        elif isinstance(op, stg.AccumulateOp):
            self._visit_block(op.body.block)
            for value, total in zip(op.yield_op.values, op.sums, strict=True):
                self.facts[total] = self.facts[value]
        else:
            behind = Facts(isinstance(op, stg.EmbeddingOp) and op.has_gradient is not None)
            for operand in op.operands:
                behind |= self.facts[operand]
            for result in op.results:
                facts = behind | Facts(axes=own_axes(result))
                if isinstance(result.type, TensorType) and result.type.dtype not in FLOATS:
                    facts = Facts(False, facts.data, facts.axes)
                self.facts[result] = facts

    def _visit_repeat(self, op: stg.RepeatOp) -> None:
        carried = [self.facts[value] for value in op.carried]
        is_once = op.count.data == ONE
        for argument, stack in zip(op.slice_args, op.stacks, strict=True):
            self.facts[argument] = self.facts[stack]
        while True:
            for argument, facts in zip(op.carry_args, carried, strict=True):
                self.facts[argument] = facts
            self._visit_block(op.body.block)
            yielded = [self.facts[value] for value in op.yield_op.values]
            grown = [a | b for a, b in zip(carried, yielded, strict=False)]
            if grown == carried or is_once:
                break
            carried = grown
        for result, facts in zip(op.results, yielded, strict=True):
            self.facts[result] = facts
        for result, facts in zip(op.carry_results, yielded if is_once else carried, strict=False):
            self.facts[result] = facts


def own_axes(value: SSAValue) -> frozenset[str]:
    if not isinstance(value.type, TensorType | StackType):
        return frozenset()
    tensor = tensor_of(value.type)
    return frozenset((*tensor.split_axes, *tensor.partial))
