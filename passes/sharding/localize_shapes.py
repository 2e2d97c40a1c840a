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

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.placement import Splits, needed_type
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType
from stagec.rewriting import insert_after, insert_before, programs, set_type

NAME = "localize-shapes"


@dataclass(frozen=True)
class LocalizeShapes(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            localize_block(program.body.block)
        verify_local(op)


def localize_block(block: Block) -> None:
    """Localise the ops of a block and of the regions in it."""
    brought: dict[tuple[SSAValue, TensorType], SSAValue] = {}
    for op in list(block.ops):
        if isinstance(op, stg.PlaceOp):
            localize_place(op)
        elif isinstance(op, stg.TensorOp) and stg.PLACEMENT in op.properties:
            splits = stg.placement_of(op)
            bring_operands(op, splits, brought)
            del stg.marks(op)[stg.PLACEMENT]
            bring_results(op, splits)
        for region in op.regions:
            localize_block(region.block)


def localize_place(op: stg.PlaceOp) -> None:
    """An override is a change of placement, and no more: the types say which."""
    if op.x.type == op.result.type or not op.result.uses:
        op.result.replace_all_uses_with(op.x)
        Rewriter.erase_op(op)
    else:
        reshard = dist.ReshardOp(op.x, stg.tensor_type(op.result))
        insert_before(op, [reshard], NAME)
        op.result.replace_all_uses_with(reshard.result)
        Rewriter.erase_op(op)


def bring_operands(
    op: stg.TensorOp, splits: Splits, brought: dict[tuple[SSAValue, TensorType], SSAValue]
) -> None:
    """Reshard the operands that are spread otherwise than the op needs them."""
    if adds_up_losses(op):
        return
    for position, operand in enumerate(op.operands):
        need = needed_type(op, position, splits)
        if operand.type == need:
            continue
        if (operand, need) not in brought:
            reshard = dist.ReshardOp(operand, need)
            reshard.result.name_hint = operand.name_hint
            insert_before(op, [reshard], NAME)
            brought[operand, need] = reshard.result
        op.operands[position] = brought[operand, need]


def adds_up_losses(op: stg.TensorOp) -> bool:
    """Whether an op makes of terms of losses terms of a loss: of single numbers, in which it is linear, and of constants."""
    if any(stg.tensor_type(value).dims for value in (*op.operands, *op.results)):
        return False
    terms = [stg.tensor_type(op.operands[position]).partial for position in op.linear_operands]
    others = [v for n, v in enumerate(op.operands) if n not in op.linear_operands]
    is_constant = all(isinstance(value.owner, stg.ConstantOp) for value in others)
    return is_constant and len({*map(frozenset, terms)}) == 1 and bool(terms[0])


def bring_results(op: stg.TensorOp, splits: Splits) -> None:
    """Let results come out as computed, then bring them to their own sharding."""
    for result, computed in zip(op.results, stg.local_results(op, splits), strict=True):
        own = stg.tensor_type(result)
        if own == computed or not list(result.uses):
            set_type(result, computed)
            continue
        if not own.dims and computed.partial:
            # A loss stays partial until something asks for it.
            set_type(result, computed)
            continue
        readers = list(result.uses)
        set_type(result, computed)
        reshard = dist.ReshardOp(result, own)
        reshard.result.name_hint = result.name_hint
        for use in readers:
            use.operation.operands[use.index] = reshard.result
        insert_after(op, [reshard], NAME)


def verify_local(module: ModuleOp) -> None:
    """Check the promise: no placement is left, operands and results agree."""
    for op in module.walk():
        assert stg.PLACEMENT not in op.properties, op
        if isinstance(op, stg.TensorOp):
            op.verify_()
