"""What a program computes, as numbers: two values have one number if the same ops made them of the same values.

Repeats are run, so that programs of different structure can be compared; attributes do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue

from stagec.analysis.sizes import size_values
from stagec.dialects import stg
from stagec.dialects.types import StackType

Number = Any
"""An int, or for a stack a list of the numbers of its elements."""


@dataclass
class ValueNumbers:
    """Numbers that several modules share."""

    numbers: dict[object, int] = field(default_factory=dict)

    def number(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def of_gradients(self, module: ModuleOp) -> list[Number]:
        """The numbers of what the optimizer steps of a module read."""
        found: list[Number] = []
        for op in module.body.ops:
            if isinstance(op, stg.ProgramOp):
                run = Run(self, size_values(module), found)
                for argument in op.body.block.args:
                    run.values[argument] = self.number(("input", argument.index))
                run.block(op.body.block.ops)
        assert found
        return found


@dataclass
class Run:
    """One run of a program."""

    table: ValueNumbers
    sizes: Mapping[str, int]
    steps: list[Number]
    values: dict[SSAValue, Number] = field(default_factory=dict)

    def block(self, ops: Iterable[Operation]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: Operation) -> None:
        if isinstance(op, stg.RepeatOp):
            self.repeat(op)
        elif isinstance(op, stg.AccumulateOp):
            self.block(op.body.block.ops)
            for value, total in zip(op.yield_op.values, op.sums, strict=True):
                self.values[total] = self.values[value]
        elif isinstance(op, stg.WeightOp):
            self.values[op.weight] = self.weight(op.weight.type, (op.path.data,))
        elif isinstance(op, stg.OptimizerStepOp):
            self.steps += [self.values[x] for x in op.operands]
        else:
            assert not op.regions, op
            key = (op.name, str(computed(op)), tuple(self.flat(x) for x in op.operands))
            for result in op.results:
                self.values[result] = self.table.number((*key, result.index))

    def flat(self, value: SSAValue) -> object:
        return str(self.values[value])

    def weight(self, weight_type: object, path: tuple[object, ...]) -> Number:
        if isinstance(weight_type, StackType):
            count = weight_type.count.integer(self.sizes)
            return [self.weight(weight_type.element, (*path, i)) for i in range(count)]
        return self.table.number(path)

    def repeat(self, op: stg.RepeatOp) -> None:
        count = op.count.data.integer(self.sizes)
        carried = [self.values[x] for x in op.carried]
        stacks: list[list[Number]] = [[None] * count for _ in op.stack_results]
        order = range(count) if op.reverse is None else range(count - 1, -1, -1)
        for element in order:
            self.values |= dict(zip(op.carry_args, carried, strict=True))
            for argument, stack in zip(op.slice_args, op.stacks, strict=True):
                self.values[argument] = self.values[stack][element]
            self.block(o for o in op.body.block.ops if not isinstance(o, stg.YieldOp))
            yielded = [self.values[x] for x in op.yield_op.values]
            carried = yielded[: len(carried)]
            for stack, value in zip(stacks, yielded[len(carried) :], strict=True):
                stack[element] = value
        self.values |= dict(zip(op.results, [*carried, *stacks], strict=True))


def computed(op: Operation) -> dict[str, Attribute]:
    """The properties of an op that say what it computes."""
    return {name: each for name, each in op.properties.items() if name not in stg.marks(op)}
