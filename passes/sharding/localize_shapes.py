"""Turn a placed program into that of one device: operands agree with their ops, types are local.

Before `localize-shapes`:

    stg.program "M" (%t : !stg.tensor<[B], i32>) {
      %x = "test.op"() : () -> !stg.tensor<[B/dp, S/tp, D], bf16>
      %w = stg.weight "up" : !stg.tensor<[D, F/tp], bf16>
      %y = stg.contract %x, %w over [D] {placement = #dist.placement<[B/dp, F/tp]>}
        : (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, S, F/tp], bf16>
      stg.output %y : !stg.tensor<[B/dp, S, F/tp], bf16>
    }

After:

    stg.program "M" (%t : !stg.tensor<[B], i32>) {
      %x = "test.op"() : () -> !stg.tensor<[B/dp, S/tp, D], bf16>
      %w = stg.weight "up" : !stg.tensor<[D, F/tp], bf16>
      %g = dist.reshard %x {made_by = "localize-shapes"}
        : !stg.tensor<[B/dp, S/tp, D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>
      %y = stg.contract %g, %w over [D]
        : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, S, F/tp], bf16>
      stg.output %y : !stg.tensor<[B/dp, S, F/tp], bf16>
    }

An op computes in its placement. Where an operand is spread otherwise, a `dist.reshard` brings it (once
for all readers that need the same); where the result comes out otherwise, or partial, another
brings it to its own sharding. What a reshard costs is decided by `insert-collectives`.

It is the partitioning of GSPMD (arXiv:2105.04663): every op becomes one on parts, and communication goes where parts do not fit.
PyTorch's DTensor does the same op by op.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec.analysis.placement import Splits, needed_type
from stagec.dialects import dist, stg
from stagec.dialects.op import block_of
from stagec.dialects.types import TensorType
from stagec.rewriting import programs, rewrite, set_type

NAME = "localize-shapes"


@dataclass(frozen=True)
class LocalizeShapes(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            rewrite(program, LocalizeOp(), NAME, once=True)
        verify_local(op)


@dataclass(frozen=True)
class LocalizeOp(RewritePattern):
    """Lets an op compute in its placement: brings its operands there, and its results to their own sharding."""

    brought: dict[tuple[Block, SSAValue, TensorType], SSAValue] = field(default_factory=dict)
    """What a block has of a value already, as its readers need it."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.TensorOp, rewriter: PatternRewriter) -> None:
        if isinstance(op, stg.PlaceOp):
            replace_place(op, rewriter)
        elif stg.PLACEMENT in op.properties:
            splits = stg.placement_of(op)
            if not adds_up_losses(op):
                self.bring_operands(op, splits, rewriter)
            del stg.marks(op)[stg.PLACEMENT]
            bring_results(op, splits, rewriter)

    def bring_operands(self, op: stg.TensorOp, splits: Splits, rewriter: PatternRewriter) -> None:
        """Reshard the operands that are spread otherwise than the op needs them."""
        for position, operand in enumerate(op.operands):
            need = needed_type(op, position, splits)
            if operand.type == need:
                continue
            key = block_of(op), operand, need
            if key not in self.brought:
                reshard = dist.ReshardOp(operand, need)
                reshard.result.name_hint = operand.name_hint
                self.brought[key] = rewriter.insert(reshard).result
            op.operands[position] = self.brought[key]


def replace_place(op: stg.PlaceOp, rewriter: PatternRewriter) -> None:
    """An override is a change of placement, and no more: the types say which."""
    if op.x.type == op.result.type or not op.result.uses:
        rewriter.replace(op, [], [op.x])
    else:
        rewriter.replace(op, dist.ReshardOp(op.x, stg.tensor_type(op.result)))


def adds_up_losses(op: stg.TensorOp) -> bool:
    """Whether an op makes of terms of losses terms of a loss: of single numbers, in which it is linear, and of constants."""
    if any(stg.tensor_type(value).dims for value in (*op.operands, *op.results)):
        return False
    terms = [stg.tensor_type(op.operands[position]).partial for position in op.linear_operands]
    others = [v for n, v in enumerate(op.operands) if n not in op.linear_operands]
    is_constant = all(isinstance(value.owner, stg.ConstantOp) for value in others)
    return is_constant and len({*map(frozenset, terms)}) == 1 and bool(terms[0])


def bring_results(op: stg.TensorOp, splits: Splits, rewriter: PatternRewriter) -> None:
    """Let results come out as computed, then bring them to their own sharding."""
    for result, computed in zip(op.results, stg.local_results(op, splits), strict=True):
        own, readers = stg.tensor_type(result), list(result.uses)
        set_type(result, computed)
        # A loss stays partial until something asks for it.
        is_loss = not own.dims and computed.partial
        if own != computed and readers and not is_loss:
            reshard = dist.ReshardOp(result, own)
            reshard.result.name_hint = result.name_hint
            rewriter.insert(reshard, InsertPoint.after(op))
            for use in readers:
                use.operation.operands[use.index] = reshard.result


def verify_local(module: ModuleOp) -> None:
    """Check the promise: no placement is left, operands and results agree."""
    for op in module.walk():
        assert stg.PLACEMENT not in op.properties, op
        if isinstance(op, stg.TensorOp):
            op.verify_()
