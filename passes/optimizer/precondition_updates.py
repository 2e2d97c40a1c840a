"""Compute what Shampoo and SOAP subtract of weights: products of gradients with factors that are kept of the blocks of each.

Before `precondition-updates`:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %s = dist.take_shard (%w) over [dp] in "bf16" {phase = "optim"}
        : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      stg.optimizer_step "soap" states "fp32" matrices [#stg.matrix<[D] x [F]>] factors <block 1024 every 10> (%s) from (%g) {phase = "optim"}
        : !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]> from !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      stg.output
    }

After:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %s = dist.take_shard (%w) over [dp] in "bf16" {phase = "optim"}
        : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
      %u = stg.precondition "soap" <block 1024 every 10> (%g) as [#stg.matrix<[D] x [F]>] {phase = "optim", made_by = "precondition-updates"}
        : (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>) -> (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>)
      stg.optimizer_step "soap" states "fp32" matrices [#stg.matrix<[D] x [F]>] factors <block 1024 every 10> (%s) from (%u) {phase = "optim"}
        : !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]> from !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
      stg.output
    }

One node for all weights of a device, as their blocks are of one size (Shi et al., arXiv:2309.06497, section 3). A rank
preconditions what tensor parallelism left it as a matrix of its own (`FullyShardDistributor` of `distributed_shampoo`), and what ZeRO stores in parts comes and
goes as under any optimizer. Ranks that store the same parts (`dealt over`) deal their blocks out, and gather what each computed, in fp32
(`HybridShardDistributor`, as it is set up).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.dialects import dist, stg
from stagec.dialects.op import shared_properties
from stagec.dialects.types import tensor_of
from stagec.rewriting import rewrite

NAME = "precondition-updates"


@dataclass(frozen=True)
class PreconditionUpdates(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, PreconditionOne(), NAME, once=True)


@dataclass(frozen=True)
class PreconditionOne(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.OptimizerStepOp, rewriter: PatternRewriter) -> None:
        if op.factors is None or op.matrices is None:
            return
        made = stg.PreconditionOp(
            op.gradients, op.scale, algorithm=op.algorithm, how=op.factors, matrices=op.matrices
        )
        # Updates are of gradients that were scaled.
        gathers, updates = gathered(list(made.updates), op.factors.data)
        step = stg.OptimizerStepOp(
            op.weights, updates, None, op.kept, **shared_properties(op, stg.OptimizerStepOp)
        )
        stg.marks(step).take(stg.marks(op))
        for each in gathers:
            stg.marks(each)["phase"] = StringAttr("optim")
        rewriter.replace(op, [made, *gathers, step])


def gathered(
    updates: list[SSAValue], how: stg.Preconditioner
) -> tuple[list[dist.GatherUpdatesOp], list[SSAValue]]:
    """What brings the shares of replicas together, and the updates then: those of one group of ranks travel as one."""
    by_axes: dict[tuple[str, ...], list[SSAValue]] = {}
    for update in updates:
        split = tensor_of(update.type).split_axes
        axes = tuple(axis for axis in how.replicas if axis not in split)
        by_axes.setdefault(axes, []).append(update)
    ops = [dist.GatherUpdatesOp(values, axes) for axes, values in by_axes.items() if axes]
    whole = {v: made for op in ops for v, made in zip(op.values, op.outputs, strict=True)}
    return ops, [whole.get(update, update) for update in updates]
