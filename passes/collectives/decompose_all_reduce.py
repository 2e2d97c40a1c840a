"""Decompose the all-reduces over one mesh axis into reduce-scatter and all-gather.

Before `decompose-all-reduce{axis="tp" scatter="S"}`:

    %partial = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
    %sum = dist.all_reduce "sum" %partial over [tp]
      : !stg.tensor<[B/dp, S, D], bf16, partial [tp]> -> !stg.tensor<[B/dp, S, D], bf16>

After:

    %partial = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
    %shard = dist.reduce_scatter %partial dim "S" over [tp] {made_by = "decompose-all-reduce"}
      : !stg.tensor<[B/dp, S, D], bf16, partial [tp]> -> !stg.tensor<[B/dp, S/tp, D], bf16>
    %sum = dist.all_gather %shard dim "S" over [tp] {made_by = "decompose-all-reduce"}
      : !stg.tensor<[B/dp, S/tp, D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>

A gradient's all-reduce, over exactly that axis, is decomposed on the buffer that travels, padded: after
`dist.all_reduce_gradient (%a) over [dp] in "fp32"` there are `dist.reduce_shard` and `dist.unshard`. For these, and for tensors whose first
dim should be scattered, `scatter` is left out.

Both move the same bytes on a ring, 2 (n-1)/n of the operand's, but row-wise ops can then run on the shard, before the
gather: Megatron's sequence parallelism (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.analysis.sizes import size_values
from stagec.diagnostics import refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.rewriting import rewrite

NAME = "decompose-all-reduce"
BUCKETS = {"bucket_bytes", "first_bucket_bytes"}
"""What `bucket-gradients` says of a reduction: it holds for both halves."""


@dataclass(frozen=True)
class DecomposeAllReduce(ModulePass):
    name = NAME

    axis: str
    """Mesh axis whose all-reduces are decomposed."""
    scatter: str = ""
    """Dim to scatter; tensors without it are left alone. The axis must divide it, else E0301. Without a name: the first dim of each."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_divides(op, self.axis, self.scatter)
        rewrite(op, DecomposeSum(self.axis, self.scatter), NAME)
        rewrite(op, DecomposeGradient(self.axis), NAME)


def check_divides(module: ModuleOp, axis: str, dim: str) -> None:
    """Every shard is whole."""
    values = size_values(module)
    if axis not in values:
        return
    for op in module.walk():
        if isinstance(op, dist.AllReduceOp) and applies(op, axis, dim):
            own = dim or op.source.names[0]
            if own not in values:
                continue
            local = op.source.dim(own).size.integer(values)
            if local % values[axis]:
                raise refused(
                    "E0301",
                    f"`{axis} = {values[axis]}` does not divide the {local} of `{own}` on each rank",
                    span_of(op.location),
                    help="scatter another dim",
                )


def applies(op: dist.AllReduceOp, axis: str, dim: str) -> bool:
    """Whether a tensor's sum over the axis is scattered; without a `dim`, whether it has any."""
    has_dim = dim in op.source.names if dim else bool(op.source.names)
    return op.axes.data == (axis,) and op.kind.data == "sum" and has_dim


@dataclass(frozen=True)
class DecomposeSum(RewritePattern):
    axis: str
    dim: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllReduceOp, rewriter: PatternRewriter) -> None:
        if not applies(op, self.axis, self.dim):
            return
        dim = self.dim or op.source.names[0]
        scatter = dist.ReduceScatterOp(op.operand, dim, [self.axis])
        gather = dist.AllGatherOp(scatter.result, dim, [self.axis])
        rewriter.replace(op, [scatter, gather])


@dataclass(frozen=True)
class DecomposeGradient(RewritePattern):
    axis: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllReduceGradientOp, rewriter: PatternRewriter) -> None:
        terms = [tensor_of(value.type) for value in op.values]
        if op.axes.data != (self.axis,) or any(t.partial != (self.axis,) for t in terms):
            return
        scatter = dist.ReduceShardOp(op.values, [self.axis], op.dtype.data)
        gather = dist.UnshardOp(scatter.outputs, [self.axis], op.dtype.data)
        for key in BUCKETS & stg.marks(op).keys():
            stg.marks(scatter)[key] = stg.marks(gather)[key] = stg.marks(op)[key]
        casts = [
            None if term.dtype == op.dtype.data else stg.CastOp(value, term.dtype)
            for value, term in zip(gather.outputs, terms, strict=True)
        ]
        results = [
            cast.result if cast is not None else value
            for value, cast in zip(gather.outputs, casts, strict=True)
        ]
        made = [scatter, gather, *(cast for cast in casts if cast is not None)]
        rewriter.replace(op, made, results)
