"""Compute Muon's updates of matrices: momenta, gathered where they are split, and the nearest orthogonal matrices.

Before `orthogonalize-updates{steps=5}`:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %s = dist.take_shard (%w) over [dp] in "bf16" {phase = "optim"}
        : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
      stg.optimizer_step "muon" states "fp32" matrices [#stg.matrix<[D] x [F]>] (%s) from (%g) {phase = "optim"}
        : !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]> from !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
      stg.output
    }

After:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %s = dist.take_shard (%w) over [dp] in "bf16" {phase = "optim"}
        : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
      %m = stg.momentum states "fp32" (%g) {phase = "optim", made_by = "orthogonalize-updates"}
        : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>)
      %f = dist.unshard (%m) over [dp] in "bf16" {phase = "optim", made_by = "orthogonalize-updates"}
        : (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>) -> !stg.tensor<[D, F/tp], bf16>
      %t = dist.all_gather %f dim "F" over [tp] {phase = "optim", made_by = "orthogonalize-updates"}
        : !stg.tensor<[D, F/tp], bf16> -> !stg.tensor<[D, F], bf16>
      %u = stg.orthogonalize (%t) steps 5 as [#stg.matrix<[D] x [F]>] shared over [dp] {phase = "optim", made_by = "orthogonalize-updates"}
        : (!stg.tensor<[D, F], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      stg.optimizer_step "muon" states "fp32" matrices [#stg.matrix<[D] x [F]>] (%s) from (%u) {phase = "optim"}
        : !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]> from !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      stg.output
    }

So Moonlight's Distributed Muon does it under ZeRO-1 (Liu et al., arXiv:2502.16982, section 2.3, algorithm 1): momenta are gathered in bf16, here layer by
layer, over data and then tensor parallelism; a rank orthogonalizes the matrices that its part of the flat buffer is of, and keeps that part. Ranks of tensor
parallelism make the same (Megatron-LM's `duplicated` mode). Where parameters themselves are shards (`dealt`, ZeRO 3), every rank has some rows of all
matrices: an all-to-all over all axes that split them brings each rank whole matrices, another one brings rows back, as the Muon of Dion's authors does under
FSDP2 (github.com/microsoft/dion). Experts are whole matrices, of which a rank has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.dialects import dist, stg
from stagec.dialects.types import StackType, tensor_of
from stagec.rewriting import inherit, rewrite

NAME = "orthogonalize-updates"

Make = Callable[[SSAValue], list[Operation]]
"""The ops that bring a matrix together, or nothing if it is whole. The last one's result is it."""


@dataclass(frozen=True)
class OrthogonalizeUpdates(ModulePass):
    name = NAME

    steps: int = 5
    """Newton-Schulz iterations."""
    dealt: bool = False
    """Bring whole matrices to single ranks, and rows back."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, OrthogonalizeOne(self), NAME, once=True)


@dataclass(frozen=True)
class OrthogonalizeOne(RewritePattern):
    options: OrthogonalizeUpdates

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.OptimizerStepOp, rewriter: PatternRewriter) -> None:
        if op.matrices is not None:
            Orthogonalizing(self.options, op, op.matrices.data, rewriter).run()


@dataclass
class Orthogonalizing:
    options: OrthogonalizeUpdates
    step: stg.OptimizerStepOp
    of: Sequence[stg.MatrixAttr]
    rewriter: PatternRewriter

    def run(self) -> None:
        step = self.step
        numbers = [n for n, each in enumerate(self.of) if each.data.rows]
        matrices = [self.of[n].data for n in numbers]
        if not numbers:
            return
        gradients = [step.gradients[n] for n in numbers]
        momentum = stg.MomentumOp(gradients, step.scale, step.states)
        self.insert(momentum)
        updates = dict(zip(numbers, self.orthogonal(list(momentum.moments), matrices), strict=True))
        read = [updates.get(n, gradient) for n, gradient in enumerate(step.gradients)]
        new = step.of(step.weights, read, step.kept)
        stg.marks(new).take(stg.marks(step))
        self.rewriter.replace(step, new)

    def orthogonal(
        self, moments: Sequence[SSAValue], matrices: Sequence[stg.Matrix]
    ) -> list[SSAValue]:
        """What is subtracted of each matrix: a kernel for those that the same ranks share."""
        by_axes: dict[tuple[str, ...], list[int]] = {}
        for number, (moment, matrix) in enumerate(zip(moments, matrices, strict=True)):
            by_axes.setdefault(self.shared(moment, matrix), []).append(number)
        found: dict[int, SSAValue] = {}
        for axes, numbers in by_axes.items():
            own = [self.whole(moments[n], matrices[n]) for n in numbers]
            op = stg.OrthogonalizeOp(
                own,
                self.options.steps,
                ArrayAttr(stg.MatrixAttr(matrices[n]) for n in numbers),
                axes,
                like=[moments[n].type for n in numbers],
            )
            self.insert(op)
            results: list[SSAValue] = list(op.updates)
            if self.options.dealt and axes:
                results = [self.each(r, lambda v, a=axes: [deal(v, a)]) for r in results]
            found |= dict(zip(numbers, results, strict=True))
        return [found[number] for number in range(len(moments))]

    def shared(self, moment: SSAValue, matrix: stg.Matrix) -> tuple[str, ...]:
        """The axes whose ranks share matrices out: none of one that no axis of `zero` splits, as others split all of it."""
        stored = dist.stored_over(moment)
        return (*stored, *split_over(moment, matrix)) if stored and self.options.dealt else stored

    def whole(self, moment: SSAValue, matrix: stg.Matrix) -> SSAValue:
        axes = self.shared(moment, matrix)
        if self.options.dealt and axes:
            return self.each(moment, lambda v: [deal(v, axes)])
        return self.each(moment, lambda v: gathers(v, matrix))

    def each(self, value: SSAValue, make: Make) -> SSAValue:
        """The same of a value, or of each layer of a stack."""
        if not isinstance(value.type, StackType):
            made = make(value)
            for op in made:
                self.insert(op)
            return made[-1].results[0] if made else value
        repeat = repeated(value, make)
        if repeat is None:
            return value
        self.insert(repeat)
        return repeat.results[0]

    def insert(self, op: Operation) -> None:
        for inner in op.walk():
            inherit(inner, self.step, NAME)
        self.rewriter.insert(op)


def repeated(stack: SSAValue, make: Make) -> stg.RepeatOp | None:
    """A repeat that does so to each element of a stack; none if there is nothing to do."""
    assert isinstance(stack.type, StackType)
    body = Block()
    inner = stg.slice_arg(body, stack)
    nested = repeated(inner, make) if isinstance(inner.type, StackType) else None
    made = [nested] if nested is not None else []
    made = made if isinstance(inner.type, StackType) else make(inner)
    if not made:
        return None
    body.add_ops(made)
    body.add_op(stg.YieldOp([made[-1].results[0]]))
    return stg.RepeatOp.over([stack], body)


def gathers(moment: SSAValue, matrix: stg.Matrix) -> list[Operation]:
    """The all-gathers that make a momentum whole: over the ranks that store parts of it, then over those that split its rows or columns."""
    made: list[Operation] = []
    if dist.stored_over(moment):
        made.append(
            dist.UnshardOp([moment], dist.stored_over(moment), tensor_of(moment.type).dtype)
        )
        moment = made[-1].results[0]
    for dim in tensor_of(moment.type).dims:
        if dim.split and dim.name in (*matrix.rows, *matrix.columns):
            made.append(dist.AllGatherOp(moment, dim.name, dim.split))
            moment = made[-1].results[0]
    return made


def deal(shard: SSAValue, axes: Sequence[str]) -> Operation:
    return dist.DealShardsOp([shard], axes, tensor_of(shard.type).dtype)


def split_over(value: SSAValue, matrix: stg.Matrix) -> tuple[str, ...]:
    """The axes that split rows or columns."""
    named = (*matrix.rows, *matrix.columns)
    return tuple(a for d in tensor_of(value.type).dims if d.name in named for a in d.split)
