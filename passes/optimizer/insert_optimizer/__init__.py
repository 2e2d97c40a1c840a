"""Update the weights from their gradients.

Before `insert-optimizer{algorithm="adamw" states="fp32" master="fp32"}`:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[D], fp32>
      stg.output weights %w : !stg.tensor<[D], bf16> gradients %g : !stg.tensor<[D], fp32>
    }

After:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[D], fp32>
      stg.optimizer_step "adamw" states "fp32" master "fp32" (%w) from (%g) {made_by = "insert-optimizer", phase = "optim"}
        : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
      stg.output
    }

One fused step for all weights of a device. `master` is the dtype of the copy that is updated when weights are narrower
than the optimizer's arithmetic; empty for none.

AdamW is that of Loshchilov and Hutter (arXiv:1711.05101), the wider copy of the weights that of Micikevicius et al. (arXiv:1710.03740, section
3.1). All weights in one step is what PyTorch's `fused = True` and Apex do.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, UnitAttr
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.dialects import stg
from stagec.passes.optimizer.insert_optimizer.matrices import matrices_of
from stagec.rewriting import rewrite

NAME = "insert-optimizer"


@dataclass(frozen=True)
class InsertOptimizer(ModulePass):
    name = NAME

    algorithm: str
    """`sgd`, `sgd_momentum`, `adam`, `adamw`, `lion`, `adafactor`; `muon`, `shampoo` or `soap`: then the step says which weights are matrices."""
    states: str = "fp32"
    """Dtype of the moments."""
    master: str = ""
    """Dtype of the master weights, empty for none."""
    average: str = ""
    """Dtype of a moving average of the weights, empty for none."""
    block: int = 1024
    """Rows and columns, at most, of a block of `shampoo` or `soap`."""
    frequency: int = 1
    """Steps from one computation of their roots or eigenvectors to the next."""
    grafted: bool = False
    """Steps of `shampoo` have the length of Adam's."""
    copies: bool = False
    """Kernels of their own copy gradients to fp32, and master weights to what is stored."""
    by_rows: bool = False
    """Ranks cut the rows that they store into blocks; otherwise those that store parts deal out blocks of whole matrices."""

    replicas: tuple[str, ...] = ()
    """Axes whose ranks store the same rows, and deal the blocks of these out."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, InsertStep(self), NAME, once=True)

    def matrices(self, output: stg.OutputOp) -> ArrayAttr[stg.MatrixAttr] | None:
        program = output.parent_op()
        if self.algorithm not in stg.OF_MATRICES or not isinstance(program, stg.ProgramOp):
            return None
        return matrices_of(program, output.weights, every_weight=self.algorithm != stg.MUON)

    def factors(self) -> stg.Preconditioner | None:
        if self.algorithm not in stg.PRECONDITIONED:
            return None
        return stg.Preconditioner(
            self.block, self.frequency, self.grafted, self.by_rows, self.replicas
        )


@dataclass(frozen=True)
class InsertStep(RewritePattern):
    options: InsertOptimizer

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.OutputOp, rewriter: PatternRewriter) -> None:
        if not op.weights:
            # A stage without weights has nothing to update.
            return
        options = self.options
        step = stg.OptimizerStepOp(
            op.weights,
            op.gradients,
            algorithm=options.algorithm,
            states=options.states,
            master=options.master or None,
            average=options.average or None,
            matrices=options.matrices(op),
            factors=options.factors(),
        )
        stg.marks(step)["phase"] = StringAttr("optim")
        if options.copies:
            stg.marks(step)["copies"] = UnitAttr()
        rewriter.replace(op, [step, stg.OutputOp(op.values)])
