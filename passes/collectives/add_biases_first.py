"""Add the bias of a product to its terms, before they are summed.

Before `add-biases-first`:

    dist.mesh <dp = 2, tp = 4>
    stg.program "M" (%x : !stg.tensor<[S, F/tp], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[F/tp, D], bf16>
      %b = stg.weight "b" : !stg.tensor<[D], bf16>
      %p = stg.contract %x, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
      %r = dist.reshard %p : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
      %y = stg.add %r, %b : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
      stg.output %y : !stg.tensor<[S/tp, D], bf16>
    }

After:

    dist.mesh <dp = 2, tp = 4>
    stg.program "M" (%x : !stg.tensor<[S, F/tp], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[F/tp, D], bf16>
      %b = stg.weight "b" : !stg.tensor<[D], bf16>
      %p = stg.contract %x, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
      %a = stg.add %p, %b once {made_by = "add-biases-first"}
        : (!stg.tensor<[S, D], bf16, partial [tp]>, !stg.tensor<[D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
      %y = dist.reshard %a {made_by = "add-biases-first"} : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
      stg.output %y : !stg.tensor<[S/tp, D], bf16>
    }

What `collectives { bias = before }` asks for. PyTorch's `RowwiseParallel` does it: in `F.linear` the bias takes the placement of the product
(`_addmm_like_strategy` in torch/distributed/tensor/_ops/_matrix_ops.py), and of partial terms each rank adds its part (`Partial._partition_value`).
Under sequence parallelism the gradient of the bias is then that of the gathered cotangent, whole on each rank. Megatron-LM adds biases to the shards of the sum
(`RowParallelLinear.forward`), and sums their gradients over tensor-parallel ranks with those of norms.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.analysis.dependence import Dependence
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.rewriting import programs, rewrite

NAME = "add-biases-first"


@dataclass(frozen=True)
class AddBiasesFirst(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            known = Dependence(program)
            adds = [op for op in program.walk() if isinstance(op, stg.AddOp)]
            biases = frozenset(add.right for add in adds if not known.on_data(add.right))
            rewrite(program, AddFirst(biases), NAME, once=True)


def product_of(value: SSAValue, bias: SSAValue) -> dist.ReshardOp | None:
    """The change of placement that adds up a product's terms for this reader alone, if the bias is one of its result's dims, whole."""
    summed = value.owner if isinstance(value, OpResult) else None
    if not isinstance(summed, dist.ReshardOp) or len(list(summed.result.uses)) != 1:
        return None
    product, added = summed.operand.owner, tensor_of(bias.type)
    is_sum = set(summed.source.partial) > set(summed.target.partial)
    is_product = isinstance(product, stg.ContractOp) and len(list(summed.operand.uses)) == 1
    dims = {dim.name: dim for dim in summed.source.dims}
    is_whole = not added.partial and all(dims.get(dim.name) == dim for dim in added.dims)
    return summed if is_sum and is_product and is_whole else None


@dataclass(frozen=True)
class AddFirst(RewritePattern):
    biases: Set[SSAValue]
    """What depends on no data."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.AddOp, rewriter: PatternRewriter) -> None:
        summed = product_of(op.left, op.right) if op.right in self.biases else None
        if summed is None:
            return
        first = stg.AddOp(summed.operand, op.right, once=True)
        result = dist.ReshardOp(first.result, tensor_of(op.result.type))
        stg.add_names(first, stg.names_of(op))
        first.result.name_hint = summed.operand.name_hint
        rewriter.replace(op, [first, result])
        rewriter.erase(summed)
