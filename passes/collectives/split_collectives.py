"""Run a collective over several axes as one after the other: a hierarchy.

Before `split-collectives{axes="dp","tp"}`:

    %x = "test.op"() : () -> !stg.tensor<[S/(dp*tp), D], bf16>
    %g = dist.all_gather %x dim "S" over [dp, tp] : !stg.tensor<[S/(dp*tp), D], bf16> -> !stg.tensor<[S, D], bf16>

After:

    %x = "test.op"() : () -> !stg.tensor<[S/(dp*tp), D], bf16>
    %h = dist.all_gather %x dim "S" over [tp] {made_by = "split-collectives"}
      : !stg.tensor<[S/(dp*tp), D], bf16> -> !stg.tensor<[S/dp, D], bf16>
    %g = dist.all_gather %h dim "S" over [dp] {made_by = "split-collectives"} : !stg.tensor<[S/dp, D], bf16> -> !stg.tensor<[S, D], bf16>

A gather takes the most minor axis first, a reduce-scatter the most major, an all-reduce the last axis named, which should be that of the
fastest links. A ring over n = a*b ranks sends (n-1)/n of the whole per gather, its two levels (b-1)/n + (a-1)/a: the same
bytes, but only (a-1)/a of them over the slower links. An all-reduce in two sends more, the second level as much as the first.

PyTorch's DTensor gathers and reduces one axis of the mesh after the other in this way; ASTRA-sim splits one
collective over the levels of its network so (arXiv:2303.14006).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.dialects import dist
from stagec.rewriting import rewrite

NAME = "split-collectives"


@dataclass(frozen=True)
class SplitCollectives(ModulePass):
    name = NAME

    axes: tuple[str, ...]
    """Collectives over exactly these axes are split."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for pattern in (SplitGather, SplitReduceScatter, SplitAllReduce):
            rewrite(op, pattern(self.axes), NAME)


@dataclass(frozen=True)
class SplitGather(RewritePattern):
    axes: tuple[str, ...]

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllGatherOp, rewriter: PatternRewriter) -> None:
        if set(op.axes.data) != set(self.axes) or len(self.axes) < 2:
            return
        steps: list[dist.AllGatherOp] = []
        for name, axis in reversed(each_axis(op)):
            source = steps[-1].result if steps else op.operand
            steps.append(dist.AllGatherOp(source, name, [axis]))
        rewriter.replace(op, steps)


@dataclass(frozen=True)
class SplitReduceScatter(RewritePattern):
    axes: tuple[str, ...]

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.ReduceScatterOp, rewriter: PatternRewriter) -> None:
        if set(op.axes.data) != set(self.axes) or len(self.axes) < 2:
            return
        steps: list[dist.ReduceScatterOp] = []
        for name, axis in each_axis(op):
            source = steps[-1].result if steps else op.operand
            steps.append(dist.ReduceScatterOp(source, name, [axis]))
        rewriter.replace(op, steps)


@dataclass(frozen=True)
class SplitAllReduce(RewritePattern):
    axes: tuple[str, ...]

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllReduceOp, rewriter: PatternRewriter) -> None:
        if set(op.axes.data) != set(self.axes) or len(self.axes) < 2:
            return
        steps: list[dist.AllReduceOp] = []
        for axis in reversed(self.axes):
            source = steps[-1].result if steps else op.operand
            steps.append(dist.AllReduceOp(source, [axis], op.kind.data))
        rewriter.replace(op, steps)


def each_axis(op: dist.AllGatherOp | dist.ReduceScatterOp) -> list[tuple[str, str]]:
    """Dims and axes, the major axes of a dim first."""
    return [(each.name, axis) for each in op.steps for axis in each.split]
