"""Gather piece by piece, round a ring, and multiply each piece while the next one travels.

Before `overlap-gathers{axis="tp"}`:

    dist.mesh <tp = 4>
    %x, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)
    %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
    %y = stg.contract %g, %w over [D]
      : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
    "test.op"(%y) : (!stg.tensor<[S, F/tp], bf16>) -> ()

After:

    stg.dim "tp.piece" = "tp"
    dist.mesh <tp = 4>
    %x, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)
    %p = dist.piece %x dim "S" over [tp] {made_by = "overlap-gathers"} : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S/tp.piece, D], bf16>
    dist.send (%p) to 1 over [tp] channel 0 {made_by = "overlap-gathers"} : !stg.tensor<[S/tp.piece, D], bf16>
    %n = dist.recv from -1 over [tp] channel 0 {made_by = "overlap-gathers"} : !stg.tensor<[S/tp.piece, D], bf16>
    %y0 = stg.contract %p, %w over [D] {made_by = "overlap-gathers"}
      : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S/tp.piece, F/tp], bf16>
    %l, %ys = stg.repeat "tp - 2" carry(%c = %n : !stg.tensor<[S/tp.piece, D], bf16>)
        -> (!stg.tensor<[S/tp.piece, D], bf16>, !stg.stack<"tp - 2" x !stg.tensor<[S/tp.piece, F/tp], bf16>>)
        attributes {steps, made_by = "overlap-gathers"} {
      dist.send (%c) to 1 over [tp] channel 0 {made_by = "overlap-gathers"} : !stg.tensor<[S/tp.piece, D], bf16>
      %m = dist.recv from -1 over [tp] channel 0 {made_by = "overlap-gathers"} : !stg.tensor<[S/tp.piece, D], bf16>
      %yi = stg.contract %c, %w over [D] {made_by = "overlap-gathers"}
        : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S/tp.piece, F/tp], bf16>
      stg.yield %m, %yi : !stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[S/tp.piece, F/tp], bf16>
    }
    %yl = stg.contract %l, %w over [D] {made_by = "overlap-gathers"}
      : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S/tp.piece, F/tp], bf16>
    %y = dist.join_pieces (%y0, %ys, %yl) dim "S" over [tp] {made_by = "overlap-gathers"}
      : (!stg.tensor<[S/tp.piece, F/tp], bf16>, !stg.stack<"tp - 2" x !stg.tensor<[S/tp.piece, F/tp], bf16>>,
         !stg.tensor<[S/tp.piece, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
    "test.op"(%y) : (!stg.tensor<[S, F/tp], bf16>) -> ()

Asynchronous tensor parallelism (Wang et al. 2023, "Overlap communication with dependent computation via decomposition"; PyTorch's
async TP). A ring of n devices sends the same (n-1) shards as the all-gather, in n-1 steps; each step's products are those of one piece.
Contractions that read the gathered value in the same block move into the steps; other readers get the pieces joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.sizes import dim_sizes, mesh_of
from stagec.dialects import dist, stg
from stagec.dialects.types import StackType, tensor_of
from stagec.rewriting import inherit, insert_before
from stagec.symbolic import symbol

NAME = "overlap-gathers"


@dataclass(frozen=True)
class OverlapGathers(ModulePass):
    name = NAME

    axis: str
    """The axis whose gathers go round a ring."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if mesh_of(op).get(self.axis, 1) < 2:
            return
        found = [g for g in op.walk() if isinstance(g, dist.AllGatherOp) and self.applies(g)]
        if found and dist.piece_axis(self.axis) not in dim_sizes(op):
            named = stg.DimOp(dist.piece_axis(self.axis), symbol(self.axis))
            op.body.block.insert_op_before(named, next(iter(op.body.ops)))
        for channel, gather in enumerate(found):
            Ring(gather, self.axis, channel).expand()

    def applies(self, gather: dist.AllGatherOp) -> bool:
        return gather.axes.data == (self.axis,) and bool(products(gather))


def products(gather: dist.AllGatherOp) -> list[stg.ContractOp]:
    """The contractions that a gathered value can be multiplied in piece by piece."""
    block = gather.parent_block()
    assert block is not None
    found = []
    for use in gather.result.uses:
        op = use.operation
        if not isinstance(op, stg.ContractOp) or op.parent_block() is not block or op in found:
            continue
        other = op.right if use.index == 0 else op.left
        if other is gather.result or gather.dim.data in op.over.data:
            continue
        if gather.dim.data in tensor_of(other.type).names:
            continue
        if is_before(other, gather):
            found.append(op)
    return sorted(found, key=block.get_operation_index)


def is_before(value: SSAValue, op: Operation) -> bool:
    """Whether a value exists where an op stands."""
    owner, block = value.owner, op.parent_block()
    if isinstance(owner, Block) or block is None or owner.parent_block() is not block:
        return True
    return block.get_operation_index(owner) < block.get_operation_index(op)


@dataclass
class Ring:
    """One gather, and the contractions that read it, as steps."""

    gather: dist.AllGatherOp
    axis: str
    channel: int

    def expand(self) -> None:
        gather, dim = self.gather, self.gather.dim.data
        moved = products(gather)
        first = self.add(dist.PieceOp(gather.operand, dim, [self.axis])).results[0]
        following = self.hand_on(first, None)
        results = [[self.multiply(op, first, None)] for op in moved]
        pieces: list[SSAValue] = [first]
        last, stacks = self.middle(moved, following)
        pieces += [stacks[0], last]
        for made, stack, op in zip(results, stacks[1:], moved, strict=True):
            made += [stack, self.multiply(op, last, None)]
        for op, made in zip(moved, results, strict=True):
            self.replace(op, made)
        if list(gather.result.uses):
            self.replace(gather, pieces)
        else:
            Rewriter.erase_op(gather)

    def middle(
        self, moved: Sequence[stg.ContractOp], following: SSAValue
    ) -> tuple[SSAValue, Sequence[SSAValue]]:
        """All steps but the first and the last: the last piece, stacks of the pieces and of each product."""
        count = symbol(self.axis) - 2
        body = Block(arg_types=[following.type])
        (piece,) = body.args
        arrived = self.hand_on(piece, body)
        keeps = any(
            not isinstance(use.operation, stg.ContractOp) or use.operation not in moved
            for use in self.gather.result.uses
        )
        made = [self.multiply(op, piece, body) for op in moved]
        kept = [piece, *made] if keeps else made
        body.add_op(stg.YieldOp([arrived, *kept]))
        types: list[Attribute] = [following.type]
        types += [StackType.of(count, tensor_of(v.type)) for v in kept]
        repeat = stg.RepeatOp(count, [following], [], Region(body), types)
        repeat.attributes["steps"] = UnitAttr()
        self.add(repeat)
        stacks = repeat.results[1:]
        return repeat.results[0], stacks if keeps else [following, *stacks]

    def hand_on(self, piece: SSAValue, body: Block | None) -> SSAValue:
        """Send a piece on, and take the next one."""
        self.add(dist.SendOp([piece], 1, [self.axis], self.channel), body)
        return self.add(dist.RecvOp([piece.type], -1, [self.axis], self.channel), body).results[0]

    def multiply(self, op: stg.ContractOp, piece: SSAValue, body: Block | None) -> SSAValue:
        left = piece if op.left is self.gather.result else op.left
        right = piece if op.right is self.gather.result else op.right
        result = tensor_of(op.result.type)
        made = stg.ContractOp(left, right, op.over.data, result.names, result.dtype)
        inherit(made, op, NAME)
        return self.add(made, body).results[0]

    def add(self, op: Operation, body: Block | None = None) -> Operation:
        if body is None:
            insert_before(self.gather, [op], NAME)
        else:
            inherit(op, self.gather, NAME)
            body.add_op(op)
        return op

    def replace(self, op: dist.AllGatherOp | stg.ContractOp, pieces: Sequence[SSAValue]) -> None:
        joined = dist.JoinPiecesOp(pieces, self.gather.dim.data, [self.axis])
        insert_before(self.gather, [joined], NAME)
        joined.whole.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(joined.whole)
        Rewriter.erase_op(op)
