"""Take the first layer out of a repeat where its input needs no gradient and that of the others does.

Before `peel-layers`:

    stg.dim "L" = "3"
    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "Layer.w" {scope = "Layer"} : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
        %n = stg.mul %h, %v {scope = "Layer"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n : !stg.tensor<[B, D], bf16>
      }
      stg.output %y : !stg.tensor<[B, D], bf16>
    }

After:

    stg.dim "L" = "3"
    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "Layer.w" {scope = "Layer"} : !stg.stack<"1" x !stg.tensor<[D], bf16>>
      %w_1 = stg.weight "Layer_2.w" {scope = "Layer_2"} : !stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>
      %y = stg.repeat "1" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%v = %w : !stg.stack<"1" x !stg.tensor<[D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {layers_of = "L", made_by = "peel-layers"} {
        %n = stg.mul %h, %v {scope = "Layer"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n : !stg.tensor<[B, D], bf16>
      }
      %y_1 = stg.repeat "L - 1" from 1 carry(%h_1 = %y : !stg.tensor<[B, D], bf16>)
          slice(%v_1 = %w_1 : !stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {layers_of = "L", made_by = "peel-layers"} {
        %n_1 = stg.mul %h_1, %v_1 {scope = "Layer_2"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n_1 : !stg.tensor<[B, D], bf16>
      }
      stg.output %y_1 : !stg.tensor<[B, D], bf16>
    }

All iterations of a repeat have one backward pass. Where nothing before the layers is trained (an input of the model goes straight into them, or what frozen
weights make of it, as in LoRA), PyTorch makes no gradient of what goes into the first one: autograd stops at the first tensor that requires none. So that is
a repeat of its own, as if the text had called the module once before the repeat, and is called as such a text calls it: `Block`, and `Block_2` in the repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.dependence import Dependence
from stagec.analysis.sizes import size_values
from stagec.analysis.units import called_module
from stagec.dialects import stg
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.types import StackType
from stagec.rewriting import insert_after, programs, set_type
from stagec.symbolic import ONE, Size, conditions

NAME = "peel-layers"


@dataclass(frozen=True)
class PeelLayers(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values = size_values(op)
        for program in programs(op):
            while (repeat := first_to_peel(program)) is not None:
                count = repeat.count.data
                peel(program, repeat, conditions.compare(count, ">", 1, values))


def first_to_peel(program: stg.ProgramOp) -> stg.RepeatOp | None:
    """A repeat whose layers are given what weights go into which are trained, but for the first one."""
    dependence = Dependence(program)
    for op in program.walk():
        if isinstance(op, stg.RepeatOp) and op.count.data != ONE and is_of_weights(op):
            given = zip(op.carried, op.carry_args, strict=False)
            if any(dependence.on_weights(b) and not dependence.on_weights(a) for a, b in given):
                return op
    return None


def is_of_weights(repeat: stg.RepeatOp) -> bool:
    """Whether all that it slices are weights, and it stacks nothing."""
    return not repeat.stack_results and all(map(is_weight, repeat.stacks))


def is_weight(value: SSAValue) -> bool:
    """Whether it is a weight, or a slice of one."""
    if isinstance(value, BlockArgument):
        around = value.block.parent_op()
        return isinstance(around, stg.RepeatOp) and is_weight(around.operands[value.index])
    return isinstance(value.owner, stg.WeightOp)


def peel(program: stg.ProgramOp, first: stg.RepeatOp, has_others: bool) -> None:
    """Make it a repeat of one layer, and put another behind it for the others, if there are some."""
    first.layers_of = StringAttr(str(first.total_layers))
    if has_others:
        calls, count = Calls(program, stg.scope_of(first)), first.count.data - 1
        others, carried = first.clone(), list(first.results)
        for old, new in zip(carried, others.results, strict=True):
            old.replace_all_uses_with(new)
        rest = [of_others(stack, calls) for stack in first.stacks]
        others.operands = [*carried, *rest]
        others.properties |= {"count": SizeAttr(count), "first": IntegerAttr(1, i64)}
        for op in others.body.walk():
            calls.rename(op)
        insert_after(first, [others], NAME)
        for stack in rest:
            set_count(stack, count, 1)
    for stack in first.stacks:
        set_count(stack, ONE)
    first.properties["count"] = SizeAttr(ONE)


def of_others(stack: SSAValue, calls: Calls) -> SSAValue:
    """Weights as these, for other layers. Of a slice in an outer repeat it is another slice."""
    if isinstance(stack, BlockArgument):
        around = stack.block.parent_op()
        assert isinstance(around, stg.RepeatOp)
        return stg.add_slice(around, of_others(around.operands[stack.index], calls))
    weight = stack.owner
    assert isinstance(weight, stg.WeightOp)
    others = weight.clone()
    calls.rename(others)
    insert_after(weight, [others], NAME)
    return others.weight


def set_count(stack: SSAValue, count: Size, first: int = 0) -> None:
    """How many layers a stack is of, and the number of the first. An outer repeat slices it from one of its own count."""
    kind = stack.type
    assert isinstance(kind, StackType)
    set_type(stack, StackType.of(count, kind.element, first))
    while isinstance(stack, BlockArgument):
        around = stack.block.parent_op()
        assert isinstance(around, stg.RepeatOp) and isinstance(stack.type, StackType)
        sliced = around.operands[stack.index]
        set_type(sliced, around.stack_of(stack.type))
        stack = sliced


@dataclass
class Calls:
    """Names of the calls in a body: of those that become others, the next that are free."""

    program: stg.ProgramOp
    scope: str
    """The scope of the body."""
    renamed: dict[str, str] = field(default_factory=dict)

    def rename(self, op: Operation) -> None:
        if stg.scope_of(op):
            stg.marks(op)["scope"] = StringAttr(self.new(stg.scope_of(op)))
        if isinstance(op, stg.WeightOp):
            op.properties["path"] = StringAttr(self.new(op.path.data))

    def new(self, path: str) -> str:
        call, behind = self.split(path)
        if not call:
            return path
        if call not in self.renamed:
            self.renamed[call] = self.free(called_module(call))
        outer = [self.scope] if self.scope else []
        return ".".join([*outer, self.renamed[call], *behind])

    def split(self, path: str) -> tuple[str, list[str]]:
        """The call in the body that a path goes through, or nothing, and what is behind it."""
        if self.scope and not path.startswith(f"{self.scope}."):
            return "", []
        call, *behind = path[len(self.scope) + bool(self.scope) :].split(".")
        return call, behind

    def free(self, module: str) -> str:
        weights = (op.path.data for op in self.program.walk() if isinstance(op, stg.WeightOp))
        scopes = (stg.scope_of(op) for op in self.program.walk())
        taken = {self.split(path)[0] for path in (*weights, *scopes)} | set(self.renamed.values())
        number = 2
        while f"{module}_{number}" in taken:
            number += 1
        return f"{module}_{number}"
