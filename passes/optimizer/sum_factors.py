"""Add up what Adafactor takes of whole matrices where devices have parts of them.

Before `sum-factors`:

    dist.mesh <dp = 2, tp = 4>
    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D, F/tp], fp32>>
      stg.optimizer_step "adafactor" states "fp32" matrices [#stg.matrix<[D] x [F]>] (%w) from (%g) {phase = "optim"}
        : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>> from !stg.stack<"L" x !stg.tensor<[D, F/tp], fp32>>
      stg.output
    }

After:

    dist.mesh <dp = 2, tp = 4>
    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D, F/tp], fp32>>
      %s = stg.gradient_statistic "factors" (%g) {phase = "optim", made_by = "sum-factors"}
        : (!stg.stack<"L" x !stg.tensor<[D, F/tp], fp32>>) -> !stg.stack<"D*L + L" x !stg.tensor<[], fp32, partial [tp]>>
      %t = dist.all_reduce_gradient (%s) over [tp] in "fp32" {phase = "optim", made_by = "sum-factors"}
        : (!stg.stack<"D*L + L" x !stg.tensor<[], fp32, partial [tp]>>) -> !stg.stack<"D*L + L" x !stg.tensor<[], fp32>>
      %n = stg.gradient_statistic "lengths" (%g, %t) {phase = "optim", made_by = "sum-factors"}
        : (!stg.stack<"L" x !stg.tensor<[D, F/tp], fp32>>, !stg.stack<"D*L + L" x !stg.tensor<[], fp32>>)
        -> !stg.stack<"2*L" x !stg.tensor<[], fp32, partial [tp]>>
      %m = dist.all_reduce_gradient (%n) over [tp] in "fp32" {phase = "optim", made_by = "sum-factors"}
        : (!stg.stack<"2*L" x !stg.tensor<[], fp32, partial [tp]>>) -> !stg.stack<"2*L" x !stg.tensor<[], fp32>>
      stg.optimizer_step "adafactor" states "fp32" matrices [#stg.matrix<[D] x [F]>] (%w) from (%g)
        scaled by %m : !stg.stack<"2*L" x !stg.tensor<[], fp32>> {phase = "optim"}
        : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>> from !stg.stack<"L" x !stg.tensor<[D, F/tp], fp32>>
      stg.output
    }

Sums of squares over columns are terms where columns are split, and so are those over rows where rows are; the mean of what stands for columns is
a number more for each matrix. Then the lengths of the update and of the weight are each a number (Shazeer and Stern, arXiv:1804.04235, algorithm 4).
`torch.optim.Adafactor` over DTensors reduces each by itself, weight by weight (`_single_tensor_adafactor`); here what goes over the same axes goes as
one, as all weights are updated in one node. A part of a flat buffer is a vector of its own to the optimizer, of which nothing is added up (`by_rows`
says that parts are rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec import symbolic
from stagec.dialects import dist, stg
from stagec.dialects.types import ShardType, StackType, tensor_of
from stagec.rewriting import rewrite
from stagec.symbolic import ONE, Size

NAME = "sum-factors"


@dataclass(frozen=True)
class SumFactors(ModulePass):
    name = NAME

    by_rows: bool = False
    """Ranks store rows of weights, and no parts of flat buffers."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, SumOne(self.by_rows), NAME, once=True)


@dataclass(frozen=True)
class SumOne(RewritePattern):
    by_rows: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.OptimizerStepOp, rewriter: PatternRewriter) -> None:
        if op.algorithm.data != stg.FACTORED or op.matrices is None:
            return
        factors, lengths = Numbers(), Numbers()
        for gradient, matrix in zip(op.gradients, op.matrices.data, strict=True):
            part = Part.of(gradient, matrix.data, self.by_rows)
            if part is not None:
                factors.add(part.of_columns, part.count * (part.rows + 1), gradient)
                factors.add(part.of_rows, part.count * part.columns, gradient)
                lengths.add(part.axes, 2 * part.layers, gradient)
        if not lengths.found:
            return
        known = [op.scale] if op.scale is not None else []
        known = total("factors", factors, known, rewriter)
        # What is left behind is read by the last of them, and that by the step.
        *_, last = total("lengths", lengths, known, rewriter)
        new = op.of(op.weights, op.gradients, op.kept, last)
        stg.marks(new).take(stg.marks(op))
        rewriter.replace(op, new)


def total(
    kind: str, numbers: Numbers, known: Sequence[SSAValue], rewriter: PatternRewriter
) -> Sequence[SSAValue]:
    """The sums of one kind over all groups of ranks, one group after the other."""
    for axes, (count, gradients) in numbers.found.items():
        found = stg.GradientStatisticOp(kind, [*gradients, *known], axes, count)
        summed = dist.AllReduceGradientOp([found.result], axes, "fp32")
        rewriter.insert([found, summed])
        known = summed.outputs
    return known


class Numbers:
    """How many numbers are added up over each group of axes, and of which gradients."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, ...], tuple[Size, list[SSAValue]]] = {}

    def add(self, axes: tuple[str, ...], count: Size, gradient: SSAValue) -> None:
        if axes:
            sofar, gradients = self.found.get(axes, (symbolic.ZERO, []))
            more = [] if gradient in gradients else [gradient]
            self.found[axes] = (sofar + count, [*gradients, *more])


@dataclass(frozen=True)
class Part:
    """What a device has of the matrices of a weight."""

    layers: Size
    count: Size
    """Matrices, in all layers."""
    rows: Size
    columns: Size
    of_rows: tuple[str, ...]
    of_columns: tuple[str, ...]
    """The axes that split rows and columns; of a vector there are none."""
    axes: tuple[str, ...]
    """All axes that split the weight."""

    @staticmethod
    def of(value: SSAValue, matrix: stg.Matrix, by_rows: bool) -> Part | None:
        """None of a part of a flat buffer."""
        kind, layers = value.type, ONE
        if isinstance(kind, StackType):
            layers, kind = kind.total_count, kind.leaf
        stored = kind.axes if isinstance(kind, ShardType) else ()
        if stored and not by_rows:
            return None
        ways = symbolic.product(map(symbolic.symbol, stored))
        dims = tensor_of(value.type).dims
        sizes = {}
        splits = {}
        for side, names in (("rows", matrix.rows), ("columns", matrix.columns)):
            sizes[side] = symbolic.product(d.size for d in dims if d.name in names)
            splits[side] = tuple(a for d in dims if d.name in names for a in d.split)
        others = [d for d in dims if d.name not in (*matrix.rows, *matrix.columns)]
        count = symbolic.product(d.size for d in others)
        apart = tuple(a for d in others for a in d.split)
        # Dim 0 as modules store it: experts, or the outputs of a linear layer.
        if stored and others:
            count = symbolic.ceildiv(count, ways)
        elif stored:
            sizes["columns"] = symbolic.ceildiv(sizes["columns"], ways)
        of_columns = splits["columns"] if others else (*splits["columns"], *stored)
        axes = (*apart, *splits["rows"], *splits["columns"], *stored)
        if not matrix.columns:
            of_columns, splits["rows"] = (), ()
        return Part(
            layers,
            layers * count,
            sizes["rows"],
            sizes["columns"],
            splits["rows"],
            of_columns,
            axes,
        )
