"""Gather and scatter in pieces, past the products that read or make them: asynchronous tensor parallelism.

Before `split-products{pieces=4}`:

    dist.mesh <tp = 2>
    stg.dim "S" = "64"
    stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
      %y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
      "test.op"(%y) : (!stg.tensor<[S, F/tp], bf16>) -> ()
      stg.output
    }

After:

    dist.mesh <tp = 2>
    stg.dim "S" = "64"
    stg.dim "tp.piece" = "4"
    stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %xs = stg.chunk %x dim "S" {made_by = "split-products"}
        : !stg.tensor<[S/tp, D], bf16> -> !stg.stack<"tp.piece" x !stg.tensor<[S/(tp.piece*tp), D], bf16>>
      %ys = stg.repeat "tp.piece" slice(%xc = %xs : !stg.stack<"tp.piece" x !stg.tensor<[S/(tp.piece*tp), D], bf16>>)
          -> (!stg.stack<"tp.piece" x !stg.tensor<[S/tp.piece, F/tp], bf16>>) attributes {steps, made_by = "split-products"} {
        %gc = dist.all_gather %xc dim "S" over [tp] {made_by = "split-products"}
          : !stg.tensor<[S/(tp.piece*tp), D], bf16> -> !stg.tensor<[S/tp.piece, D], bf16>
        %yc = stg.contract %gc, %w over [D] {made_by = "split-products"}
          : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S/tp.piece, F/tp], bf16>
        stg.yield %yc : !stg.tensor<[S/tp.piece, F/tp], bf16>
      }
      %y = stg.join_chunks %ys dim "S" within [tp] {made_by = "split-products"}
        : !stg.stack<"tp.piece" x !stg.tensor<[S/tp.piece, F/tp], bf16>> -> !stg.tensor<[S, F/tp], bf16>
      "test.op"(%y) : (!stg.tensor<[S, F/tp], bf16>) -> ()
      stg.output
    }

A piece is gathered while the product of the one before is computed, and a piece that a product made is scattered while it makes the next: all but one of
the transfers can be hidden. Transformer Engine does so (`num_splits` of `CommOverlapBase`, 4 in NeMo's settings; rings have a piece for each rank), and PyTorch
(`fused_all_gather_matmul` and `fused_matmul_reduce_scatter` of symmetric memory).

The gradient of what linear layers read, one or several of them, is scattered whole, beside the gradients of their weights, which come behind it.
What these read is gathered whole, beside the products that make that gradient, and begins in front of them. So does
`LinearWithGradAccumulationAndAsyncCommunication` of Megatron-LM, and Transformer Engine (`bulk` of `qkv_dgrad`, `qkv_wgrad`, `fc1_dgrad` and `fc1_wgrad`
in `initialize_ub`). Frozen weights have no gradients that could run meanwhile: then what a lone product makes is cut as well, as Megatron-Bridge's
settings for LoRA have it (`fc1_dgrad`).

Where something is cut, what is not is marked: `leaves_units`. Products beside it leave it the multiprocessors that it takes (`set_sm_margin` in
Transformer Engine's `initialize_ub`), so that it does not slow them down by the blocks that it has.

PyTorch's compiler cuts what a product alone makes or reads as its left operand
(`fuse_matmul_reduce_scatter`, `fuse_all_gather_matmul`), and waits for the rest, for it reorders no communication by default: `bulk=false`.
Products of experts stay whole, as does one whose pieces would not be of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from stagec import symbolic
from stagec.analysis.communication import communication_kind
from stagec.analysis.contexts import Contexts
from stagec.analysis.sizes import mesh_of, size_values
from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in, block_of
from stagec.dialects.types import PIECE_AXIS, TensorType
from stagec.rewriting import inherit, insert_before, programs, set_type
from stagec.symbolic import conditions

NAME = "split-products"


@dataclass(frozen=True)
class SplitProducts(ModulePass):
    name = NAME

    pieces: int = 4
    """Into how many pieces."""
    bulk: bool = True
    """Whether what is not cut overlaps too. Else computation waits for it, as for tensor-parallel communication without this pass."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values, mesh, contexts = size_values(op), mesh_of(op), Contexts.of(op).axes()
        found, whole = False, list[dist.CollectiveBase]()
        for program in programs(op):
            for moved in list(program.walk()):
                if communication_kind(moved, contexts) != "tp":
                    continue
                if isinstance(moved, dist.AllGatherOp | dist.ReduceScatterOp):
                    axes = [axis for axis in moved.axes.data if conditions.is_split(axis, mesh)]
                    is_beside = axes and self.bulk and run_beside_weights(moved)
                    products, place = products_at(moved) if axes and not is_beside else ([], moved)
                    if products and self.fits(moved, values):
                        split(moved, products, place)
                        found = True
                        continue
                    whole.append(moved)
                    if is_beside:
                        continue
                if not self.bulk:
                    stg.marks(moved)["serial"] = UnitAttr()
        if found:
            for moved in whole if self.bulk else ():
                stg.marks(moved)["leaves_units"] = UnitAttr()
            first = programs(op)[0]
            size = stg.DimOp(PIECE_AXIS, symbolic.constant(self.pieces))
            insert_before(first, [size])

    def fits(self, moved: dist.AllGatherOp | dist.ReduceScatterOp, values: dict[str, int]) -> bool:
        """Whether pieces of what a rank has are of one size."""
        narrow = moved.source if isinstance(moved, dist.AllGatherOp) else moved.target
        size = narrow.dim(moved.dim.data).size / self.pieces
        return self.pieces > 1 and conditions.whole(size, values)


def products_at(
    moved: dist.AllGatherOp | dist.ReduceScatterOp,
) -> tuple[list[stg.ContractOp], Operation]:
    """The products that read what is gathered, and keep the dim, and what reads it first; or the one that makes what is scattered, for nothing else."""
    name, block = moved.dim.data, moved.parent_block()
    if len(moved.steps) > 1 or block is None:
        return [], moved
    if isinstance(moved, dist.ReduceScatterOp):
        made = moved.operand.owner
        if not isinstance(made, stg.ContractOp) or made.parent_block() is not block:
            return [], moved
        return ([] if has_batch(made) or len(list(made.result.uses)) > 1 else [made]), made
    order = {op: number for number, op in enumerate(block.ops)}
    readers = {ancestor_in(block, use.operation) for use in moved.result.uses}
    found = [
        op
        for op in sorted(readers, key=order.__getitem__)
        if isinstance(op, stg.ContractOp) and name not in op.over.data and not has_batch(op)
    ]
    # All are computed where it is first read, and weights quantized for them before that.
    place = min(readers, key=order.__getitem__, default=moved)
    first = order[place]
    for value in (value for op in found for value in op.operands):
        made = value.owner
        if not isinstance(made, stg.QuantizeOp) or order.get(made, -1) < first:
            continue
        if before(made.x, order, first):
            made.detach()
            block.insert_op_before(made, place)
            order[made] = first - 1
    return [op for op in found if all(before(value, order, first) for value in op.operands)], place


def has_batch(op: stg.ContractOp) -> bool:
    """Whether it is several products, of experts."""
    both = set(stg.tensor_type(op.left).names) & set(stg.tensor_type(op.right).names)
    return bool(both & set(stg.tensor_type(op.result).names))


def makers(moved: dist.AllGatherOp | dist.ReduceScatterOp) -> list[stg.ContractOp]:
    """The products that make the gradient of an input, which is scattered; none of anything else."""
    waiting, found = list[SSAValue](), list[stg.ContractOp]()
    if isinstance(moved, dist.ReduceScatterOp):
        waiting.append(moved.operand)
    while waiting:
        made = waiting.pop().owner
        if isinstance(made, Operation) and made.parent_block() is moved.parent_block():
            if isinstance(made, stg.AddOp):
                waiting += made.operands
            elif isinstance(made, stg.ContractOp) and stg.phase_of(made) == "bwd":
                found.append(made)
    return found


def run_beside_weights(scatter: dist.AllGatherOp | dist.ReduceScatterOp) -> bool:
    """Compute gradients of weights once the scattering of their input's gradient has begun, and gather what they read before that is made.

    Whether this is such a gradient, and there are any of weights: nothing else runs beside what is scattered whole.
    """
    block, products = block_of(scatter), makers(scatter)
    read = {value for product in products for value in product.operands}
    weights = [
        op
        for op in block.ops
        if isinstance(op, stg.ContractOp)
        and stg.phase_of(op) == "wgrad"
        and read & {*op.operands}
        and not is_read_before(op, scatter)
    ]
    first = min(products, key=block.get_operation_index, default=scatter)
    place: Operation = scatter
    for op in weights:
        if op.is_before_in_block(scatter):
            op.detach()
            block.insert_op_after(op, place)
            place = op
        for value in op.operands:
            gather_before(value, first)
    return bool(weights)


def gather_before(value: SSAValue, place: Operation) -> None:
    """Gather what only gradients of weights read before an op, where what is gathered is there by then."""
    block, gathers = block_of(place), list[Operation]()
    while isinstance(made := value.owner, dist.AllGatherOp) and stg.phase_of(made) == "wgrad":
        if made.parent_block() is not block or made.is_before_in_block(place):
            break
        gathers.append(made)
        value = made.operand
    made = value.owner
    if isinstance(made, Operation) and made.parent_block() is block:
        gathers = gathers if made.is_before_in_block(place) else []
    for op in gathers:
        op.detach()
        block.insert_op_before(op, place)
        place = op


def is_read_before(op: Operation, place: Operation) -> bool:
    """Whether the same block reads what an op makes up to a place, or there."""
    readers = (
        block_of(place).find_ancestor_op_in_block(use.operation) for use in op.results[0].uses
    )
    return any(each in (None, place) or each.is_before_in_block(place) for each in readers)


def before(value: SSAValue, order: dict[Operation, int], place: int) -> bool:
    return not isinstance(value, OpResult) or order.get(value.op, -1) < place


def split(
    moved: dist.AllGatherOp | dist.ReduceScatterOp,
    products: Sequence[stg.ContractOp],
    place: Operation,
) -> None:
    """A loop over pieces, before an op."""
    name, axes = moved.dim.data, tuple(moved.axes.data)
    gathers = isinstance(moved, dist.AllGatherOp)
    origin = products[0]
    made: list[Operation] = []

    def add(op: Operation) -> Operation:
        inherit(op, origin, NAME)
        made.append(op)
        return op

    region: list[Operation] = [moved, *products] if gathers else [*products, moved]
    inside = {result for op in region for result in op.results}
    read = dict.fromkeys(value for op in region for value in op.operands if value not in inside)
    chunked = [v for v in read if name in stg.tensor_type(v).names]
    within = () if gathers else axes
    stacks = [add(stg.ChunkOp(v, name, PIECE_AXIS, within)).results[0] for v in chunked]
    body = Block()
    mapping: dict[SSAValue, SSAValue] = {
        v: body.insert_arg(piece(stg.tensor_type(v), name), len(body.args)) for v in chunked
    }
    for op in region:
        copy = op.clone(mapping)
        copy.location = op.location
        for old, new in zip(op.results, copy.results, strict=True):
            set_type(new, piece(stg.tensor_type(old), name))
            mapping[old] = new
        stg.marks(copy)[stg.MADE_BY] = StringAttr(NAME)
        body.add_op(copy)
    outside = [v for op in region for v in op.results if is_read_outside(v, region)]
    body.add_op(stg.YieldOp([mapping[v] for v in outside]))
    loop = stg.RepeatOp(symbolic.symbol(PIECE_AXIS), [], stacks, body)
    stg.marks(loop)[stg.STEPS] = UnitAttr()
    add(loop)
    within = axes if gathers else ()
    joined = [
        add(stg.JoinChunksOp(stack, name, stg.tensor_type(v), within)).results[0]
        for v, stack in zip(outside, loop.results, strict=True)
    ]
    Rewriter.insert_op(made, InsertPoint.before(place))
    for old, new in zip(outside, joined, strict=True):
        old.replace_all_uses_with(new)
    for op in reversed(region):
        op.detach()
        op.erase(safe_erase=False)


def piece(tensor: TensorType, dim: str) -> TensorType:
    return stg.chunked(tensor, dim, PIECE_AXIS)


def is_read_outside(value: SSAValue, region: Sequence[Operation]) -> bool:
    return any(use.operation not in region for use in value.uses)
