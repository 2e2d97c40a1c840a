"""Update tables row by row, as the backward pass comes to their lookups: no table has a gradient.

Before `update-rows{algorithm="rowwise_adagrad" states="fp32"}`:

    dist.mesh <dp = 2, tp = 2>
    stg.program "M" () {
      %t = stg.weight "t" : !stg.tensor<[R, E/tp], fp32>
      %i, %dy = "test.op"() : () -> (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E/tp], fp32>)
      %g = stg.embedding_bag_grad %i, %dy over "J"
        : (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E/tp], fp32>) -> !stg.tensor<[R, E/tp], fp32, partial [dp]>
      stg.output weights %t : !stg.tensor<[R, E/tp], fp32> gradients %g : !stg.tensor<[R, E/tp], fp32, partial [dp]>
    }

After:

    dist.mesh <dp = 2, tp = 2>
    stg.program "M" () {
      %t = stg.weight "t" : !stg.tensor<[R, E/tp], fp32>
      %i, %dy = "test.op"() : () -> (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E/tp], fp32>)
      %a = dist.reshard %i {phase = "wgrad", made_by = "update-rows"} : !stg.tensor<[B/dp, J], i32> -> !stg.tensor<[B, J], i32>
      %b = dist.reshard %dy {phase = "wgrad", made_by = "update-rows"} : !stg.tensor<[B/dp, E/tp], fp32> -> !stg.tensor<[B, E/tp], fp32>
      stg.update_rows "rowwise_adagrad" states "fp32" %t by "R" (%a) from (%b) {phase = "wgrad", made_by = "update-rows"}
        : !stg.tensor<[R, E/tp], fp32> (!stg.tensor<[B, J], i32>) from (!stg.tensor<[B, E/tp], fp32>)
      stg.output
    }

It is what the batched tables of FBGEMM do, which TorchRec's are: their backward pass is fused with the optimizer
(`SplitTableBatchedEmbeddingBagsCodegen`), so that rows are updated after each microbatch, and no norm of gradients knows of them. Ranks along axes that
split samples, but not the table, each find other rows: they gather numbers and what flows back to them, and all do the same update, as all-reduces of
PyTorch's sparse gradients gather indices and values.

Dense gradients remain those of tables that something else reads as well, of tables of layers, of those that a pipeline looks up in several places or
pools share, and of tables that no axis splits, though one splits samples: TorchRec's `DATA_PARALLEL` sharding leaves these to DDP.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec.analysis.sizes import mesh_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.interfaces import spread
from stagec.dialects.types import TensorType, tensor_of
from stagec.dialects.use_def import weight_path
from stagec.rewriting import inherit, rewrite

NAME = "update-rows"
LOOKUPS = (stg.EmbeddingGradOp, stg.EmbeddingBagGradOp)
KEPT = (stg.CastOp, dist.ReshardOp)
"""Ops that a gradient may go through on its way."""


@dataclass(frozen=True)
class UpdateRows(ModulePass):
    name = NAME

    algorithm: str
    """`sgd`, `adagrad`, `rowwise_adagrad`, `adam`, `partial_rowwise_adam`."""
    states: str = "fp32"
    """Dtype of what is kept of rows."""
    in_stages: bool = False
    """Layers will be cut into stages, which may each look up rows of a table: such a table has a gradient."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        shared = {each.weight.data for each in op.body.ops if isinstance(each, dist.SharedOp)}
        rewrite(op, UpdateTables(self, mesh_of(op), shared), NAME, once=True)


@dataclass(frozen=True)
class UpdateTables(RewritePattern):
    options: UpdateRows
    mesh: Mapping[str, int]
    shared: Collection[str]
    """Weights of other pools, too: gradients are what pools tell each other."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.OutputOp, rewriter: PatternRewriter) -> None:
        left: list[tuple[SSAValue, SSAValue]] = []
        for weight, gradient in zip(op.weights, op.gradients, strict=True):
            found = lookups(gradient)
            is_shared = self.options.in_stages and len(found) > 1
            is_shared = is_shared or weight_path(weight) in self.shared
            if not found or is_shared or is_data_parallel(weight, found, self.mesh):
                left.append((weight, gradient))
            else:
                self.update(weight, found, rewriter)
        if len(left) == len(op.weights):
            return
        gone = [g for g in op.gradients if g not in {gradient for _, gradient in left}]
        rewriter.replace(op, stg.OutputOp(op.values, [w for w, _ in left], [g for _, g in left]))
        for gradient in gone:
            erase(gradient, rewriter)

    def update(
        self,
        table: SSAValue,
        found: Sequence[stg.EmbeddingGradOp | stg.EmbeddingBagGradOp],
        rewriter: PatternRewriter,
    ) -> None:
        axes = terms_over(found)
        last = found[0]
        moved: list[Operation] = []

        def whole(value: SSAValue) -> SSAValue:
            source = stg.tensor_type(value)
            dims = [Dim(d.name, tuple(a for a in d.split if a not in axes)) for d in source.dims]
            target = TensorType.of(dims, source.dtype)
            if target == source:
                return value
            moved.append(dist.ReshardOp(value, target))
            return moved[-1].results[0]

        ids, dys = [whole(op.ids) for op in found], [whole(op.dy) for op in found]
        rows = row_dim(found[0])
        update = stg.UpdateRowsOp(
            table, ids, dys, self.options.algorithm, self.options.states, rows
        )
        for op in (*moved, update):
            stg.marks(op)["phase"] = StringAttr("wgrad")
            inherit(op, last, NAME)
        rewriter.insert([*moved, update], InsertPoint.before(last))


def row_dim(op: stg.EmbeddingGradOp | stg.EmbeddingBagGradOp) -> str:
    """The dim of a table that counts its rows."""
    table = stg.tensor_type(op.dtable)
    if isinstance(op, stg.EmbeddingGradOp):
        return table.names[0]
    return next(name for name in table.names if name not in stg.tensor_type(op.ids).names)


def lookups(gradient: SSAValue) -> list[stg.EmbeddingGradOp | stg.EmbeddingBagGradOp]:
    """The lookups whose gradients a gradient adds up, the last first; none if it has other terms."""
    op = gradient.owner if isinstance(gradient, OpResult) else None
    if isinstance(op, LOOKUPS):
        return [op]
    if isinstance(op, KEPT):
        return lookups(op.operands[0])
    if not isinstance(op, stg.AddOp):
        return []
    left, right = lookups(op.left), lookups(op.right)
    return [*right, *left] if left and right else []


def terms_over(found: Sequence[stg.EmbeddingGradOp | stg.EmbeddingBagGradOp]) -> set[str]:
    """The axes along which ranks find other rows of a table."""
    return {axis for op in found for axis in stg.tensor_type(op.dtable).partial}


def is_data_parallel(
    table: SSAValue,
    found: Sequence[stg.EmbeddingGradOp | stg.EmbeddingBagGradOp],
    mesh: Mapping[str, int],
) -> bool:
    """Whether all ranks have all of a table, and other samples."""
    others = spread(sorted(terms_over(found)), mesh)
    return bool(others) and not spread(tensor_of(table.type).split_axes, mesh)


def erase(gradient: SSAValue, rewriter: PatternRewriter) -> None:
    """Erase what made a gradient, as far as nobody else reads it."""
    op = gradient.owner
    if isinstance(op, (*LOOKUPS, *KEPT, stg.AddOp)) and not any(r.uses for r in op.results):
        read = [] if isinstance(op, LOOKUPS) else list(op.operands)
        rewriter.erase(op)
        for value in read:
            erase(value, rewriter)
