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

One node for all weights of a device, as their blocks are of one size (Shi et al., arXiv:2309.06497, section 3). No collective is its own: a rank
preconditions what tensor parallelism left it as a matrix of its own (`FullyShardDistributor` of `distributed_shampoo`), and what ZeRO stores in parts comes and
goes as under any optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.dialects import stg
from stagec.rewriting import insert_before, programs

NAME = "precondition-updates"


@dataclass(frozen=True)
class PreconditionUpdates(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            for step in list(program.body.block.ops):
                if isinstance(step, stg.OptimizerStepOp) and step.factors is not None:
                    precondition(step)


def precondition(step: stg.OptimizerStepOp) -> None:
    assert step.factors is not None and step.matrices is not None
    made = stg.PreconditionOp(
        step.algorithm.data, step.factors.data, step.gradients, step.matrices.data, step.scale
    )
    stg.marks(made)["phase"] = StringAttr("optim")
    made.location = step.location
    insert_before(step, [made], NAME)
    # Updates are of gradients that were scaled.
    new = stg.OptimizerStepOp(
        step.algorithm.data,
        step.states.data,
        step.master.data if step.master is not None else None,
        step.weights,
        list(made.updates),
        step.kept,
        step.average.data if step.average is not None else None,
        matrices=step.matrices,
        factors=step.factors.data,
    )
    stg.marks(new).take(stg.marks(step))
    new.location = step.location
    Rewriter.replace_op(step, new)
