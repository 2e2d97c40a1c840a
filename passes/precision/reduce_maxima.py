"""Let ranks agree on the maxima of delayed scaling, once in each forward and once in each backward pass of a microbatch.

Before `reduce-maxima{axes="dp","tp"}`:

    dist.mesh <dp = 2, tp = 2>
    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D, F], fp8>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%u = %w : !stg.stack<"L" x !stg.tensor<[D, F], fp8>>) -> (!stg.tensor<[B, D], bf16>) {
        %q = stg.quantize %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], fp8>
        %p = stg.contract %q, %u over [D]
          : (!stg.tensor<[B, D], fp8>, !stg.tensor<[D, F], fp8>) -> !stg.tensor<[B, F], bf16>
        "test.op"(%p) : (!stg.tensor<[B, F], bf16>) -> ()
        stg.yield %h : !stg.tensor<[B, D], bf16>
      }
      stg.output %y : !stg.tensor<[B, D], bf16>
    }

After:

    dist.mesh <dp = 2, tp = 2>
    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D, F], fp8>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%u = %w : !stg.stack<"L" x !stg.tensor<[D, F], fp8>>) -> (!stg.tensor<[B, D], bf16>) {
        %q = stg.quantize %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], fp8>
        %p = stg.contract %q, %u over [D]
          : (!stg.tensor<[B, D], fp8>, !stg.tensor<[D, F], fp8>) -> !stg.tensor<[B, F], bf16>
        "test.op"(%p) : (!stg.tensor<[B, F], bf16>) -> ()
        stg.yield %h : !stg.tensor<[B, D], bf16>
      }
      dist.reduce_maxima "forward" "3*L" over [dp, tp] {made_by = "reduce-maxima"}
      stg.output %y : !stg.tensor<[B, D], bf16>
    }

Under delayed scaling each product of Transformer Engine notes the largest number of its input, its weight and its output, and in the backward pass those of
the two gradients that go through it. All that the modules of a process noted are reduced at once: where the outermost autocast ends
(`autocast_exit`), which Megatron-LM opens around the layers of a stage, and behind the backward pass of its first module (`is_first_fp8_module`,
`reduce_and_update_fp8_tensors` in `transformer_engine/pytorch/quantization.py`). Linear layers of one input are one module. Experts of one module have products
of their own. Fused attention is a module that has numbers of three products, whether it multiplies in fp8 or not (`DotProductAttention.forward` prepares
`num_gemms=3` in every autocast), and never reduces by itself.

Where the backward pass makes a layer's products again, in a checkpoint (`te_checkpoint`), it opens an autocast of its own, which ends behind them with one
more reduction of the forward pass. Each module in it takes itself for the first (`_check_fp8_reduce_and_update` in `module/linear.py`), and reduces behind its
own backward pass.

A rank of several stages has modules of all of them, and reduces the maxima of all for each; where stages have other numbers of layers, for each as many as if
all were like it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from stagec import symbolic
from stagec.analysis.recompute_choice import call_of
from stagec.analysis.sizes import mesh_of
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import tensor_of
from stagec.dialects.use_def import followed, from_stack, through, weight_path
from stagec.rewriting import insert_after, programs
from stagec.symbolic import Size

NAME = "reduce-maxima"
OF_PRODUCT = {"forward": 3, "backward": 2}
"""How many numbers of a product there are: of what it reads and makes, and of the gradients that go through it."""
FORMAT = "fp8"
"""With one scale for a tensor."""
OF_ATTENTION = 3
"""How many products fused attention counts as."""


@dataclass(frozen=True)
class ReduceMaxima(ModulePass):
    name = NAME

    axes: tuple[str, ...]
    """Ranks along these agree."""
    wide: tuple[str, ...] = ()
    """Modules outside of the autocasts, whose attention notes nothing."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        stages, axis = dist.stage_kinds(op), dist.stage_axis(op)
        of_rank = len(stages) // mesh_of(op)[axis] if axis else 1
        for program in programs(op):
            loop = first_op(program, stg.AccumulateOp)
            self.reduce((loop or program).body.block, of_rank)

    def reduce(self, block: Block, stages: int) -> None:
        layers = [op for op in block.ops if isinstance(op, stg.RepeatOp)]
        forward = [
            op for op in layers if op.reverse is None and self.num_products(op) != symbolic.ZERO
        ]
        backward = [op for op in layers if op.reverse is not None]
        if not forward:
            return
        count = symbolic.total(map(self.num_products, forward)) * stages
        again = sum([self.in_checkpoints(op, count) for op in backward])
        self.insert(forward[-1], "forward", count, "fwd")
        if backward and again < sum(map(num_modules, forward)):
            self.insert(backward[-1], "backward", count, "bwd")

    def in_checkpoints(self, repeat: stg.RepeatOp, count: Size) -> int:
        """Reduce in each layer whose products the backward pass makes again, and tell how many modules do."""
        ops = list(repeat.body.block.ops)
        found = sum([self.in_checkpoints(op, count) for op in ops if isinstance(op, stg.RepeatOp)])
        again = [op for op in ops if stg.phase_of(op) == "recompute"]
        if not any(map(is_product, again)):
            return found
        made = {value for op in again for value in op.results}
        inputs = {weight_of(op): gathered_from(read) for read, op in products_in(again)}
        modules: dict[SSAValue, Operation] = {}
        for op in filter(is_product, ops):
            if stg.phase_of(op) == "wgrad":
                read = [gathered_from(value) for value in op.operands]
                modules |= {value: op for value in read if value in made}
            elif stg.phase_of(op) == "bwd" and weight_of(op) in inputs:
                modules[inputs[weight_of(op)]] = op
        self.insert(again[-1], "forward", count, "recompute")
        for last in modules.values():
            self.insert(last, "backward", count, "bwd")
        return found + len(modules)

    def insert(self, behind: Operation, direction: str, count: Size, phase: str) -> None:
        numbers = count * OF_PRODUCT[direction]
        made = dist.ReduceMaximaOp(direction=direction, count=numbers, axes=self.axes)
        stg.marks(made)["phase"] = StringAttr(phase)
        insert_after(behind, [made], NAME)

    def num_products(self, repeat: stg.RepeatOp) -> Size:
        """The quantized products of all its layers, those of one input counted once, and what attention counts as."""
        products = symbolic.total(
            symbolic.product(
                d.size for d in tensor_of(x.type).dims if d.name in op.products_apart()
            )
            for x, op in modules_of(repeat).items()
        )
        attention = [
            op
            for op in repeat.body.block.ops
            if isinstance(op, stg.FusedAttention) and not call_of(op, self.wide)
        ]
        inner = symbolic.total(map(self.num_products, inner_layers(repeat)))
        return repeat.count.data * (products + OF_ATTENTION * len(attention) + inner)


def num_modules(repeat: stg.RepeatOp) -> int:
    """The linear modules of one of its layers."""
    return len(modules_of(repeat)) + sum(map(num_modules, inner_layers(repeat)))


def inner_layers(repeat: stg.RepeatOp) -> list[stg.RepeatOp]:
    return [op for op in repeat.body.block.ops if isinstance(op, stg.RepeatOp)]


def modules_of(repeat: stg.RepeatOp) -> dict[SSAValue, stg.ContractOp]:
    """What modules read, each with a product that reads it."""
    return {read: op for read, op in products_in(repeat.body.block.ops)}


def products_in(ops: Iterable[Operation]) -> Iterator[tuple[SSAValue, stg.ContractOp]]:
    """The products among ops, behind what each reads besides a weight."""
    for op in ops:
        if isinstance(op, stg.ContractOp) and is_product(op):
            yield op.operands[bool(path_of_weight(op.operands[0]))], op


def is_product(op: Operation) -> bool:
    """Whether it is one of operands with one scale each."""
    if not isinstance(op, stg.ContractOp):
        return False
    return {tensor_of(value.type).dtype for value in op.operands} == {FORMAT}


def gathered_from(value: SSAValue) -> SSAValue:
    return followed(value, through(dist.CollectiveBase))


def weight_of(op: Operation) -> str:
    """The path of the weight that a product reads; empty: it reads none."""
    return "".join(map(path_of_weight, op.operands))


def path_of_weight(value: SSAValue) -> str:
    same = through(stg.QuantizeOp, stg.CastOp, stg.RenameOp, stg.TransposeOp, dist.CollectiveBase)
    return weight_path(followed(value, from_stack, same))
