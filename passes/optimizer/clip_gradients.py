"""Find out what the optimizer's step has to know of all gradients together: their norm, and whether they are finite.

Before `clip-gradients{norm=true axis="pp"}`:

    dist.mesh <pp = 2, dp = 4>
    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>
      stg.optimizer_step "adamw" states "fp32" (%w) from (%g) {phase = "optim"}
        : !stg.tensor<[D], bf16> from !dist.shard<!stg.tensor<[D], fp32> over [dp]>
      stg.output
    }

After:

    dist.mesh <pp = 2, dp = 4>
    stg.program "M" () {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>
      %s = stg.gradient_statistic "norm" (%g) {phase = "optim", made_by = "clip-gradients"}
        : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>) -> !stg.tensor<[], fp32, partial [pp, dp]>
      %n = dist.all_reduce "sum" %s over [pp, dp] {phase = "optim", made_by = "clip-gradients"}
        : !stg.tensor<[], fp32, partial [pp, dp]> -> !stg.tensor<[], fp32>
      stg.optimizer_step "adamw" states "fp32" (%w) from (%g) scaled by %n : !stg.tensor<[], fp32> {phase = "optim"}
        : !stg.tensor<[D], bf16> from !dist.shard<!stg.tensor<[D], fp32> over [dp]>
      stg.output
    }

The axes are those along which any gradient of any stage is split, and that of the stages: one all-reduce over all of them, as Megatron-LM's
`get_grad_norm_fp32` makes over the model-parallel ranks, or all ranks under its distributed optimizer; or one for each axis (`apart`), innermost first, as
`clip_grad_norm_` of PyTorch does for a DTensor. Under a scaled loss (`finite`) ranks tell each other first whether anything overflowed: the maximum of
a flag. The step waits for what comes out, by which gradients are scaled in place; that is among the costs of the statistic.

A rank of several stages has one optimizer for all of them, and so one norm: each stage goes on from what the stage before it on its rank found
(`dist.found_before`), and ranks tell each other once, with the last (`sched.tasks`: `clip`). So do Megatron-LM, whose optimizer has the parameters of all
`model_chunks` of a rank (`get_megatron_optimizer` in `megatron/core/optimizer/__init__.py`), and torchtitan, whose trainer clips those of all
of its `model_parts`.

A weight that several stages or pools have, whose gradients are the same by then, is one term of the norm: that of the first of them (Megatron-LM's
`param_is_not_shared` in `get_main_grads_for_grad_norm`). All of them look whether it is finite.

Of a model whose parts train on pools of ranks (`dist.towers`), what comes out is of one pool, and one more all-reduce over all ranks of the job
tells each what the others have (`dist.all_reduce_pools`): of the norms the squares of all pools, a number each, of the flag the largest. So
Megatron-LM's optimizer of modules on grids of their own does (`megatron/core/models/mimo/optimizer.py`, `get_grad_norm` and `step`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.sizes import mesh_of, module_of
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.dialects.use_def import weight_path
from stagec.pipeline_schedule import has_several_stages
from stagec.rewriting import insert_before, programs

NAME = "clip-gradients"


@dataclass(frozen=True)
class ClipGradients(ModulePass):
    name = NAME

    norm: bool = False
    """Whether gradients are clipped by their norm."""
    finite: bool = False
    """Whether a step is left out if some gradient is not finite."""
    axis: str = ""
    """The axis of the stages of a pipeline."""
    apart: bool = False
    """One all-reduce for each axis, not one for all."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        axes, shared, goes_on = self.axes(op), counted_elsewhere(op), has_several_stages(op)
        for program in programs(op):
            Clipping(self, program, axes, shared[stg.text(program, "kind")], goes_on).run()

    def axes(self, module: ModuleOp) -> list[str]:
        """The axes of the mesh along which ranks hold different gradients, in the mesh's order."""
        found = {self.axis} if self.axis else set[str]()
        for program in programs(module):
            for step in program.body.block.ops:
                if isinstance(step, stg.OptimizerStepOp):
                    for gradient in step.gradients:
                        found |= {*split_over(gradient)}
        return [axis for axis in mesh_of(module) if axis in found]


@dataclass
class Clipping:
    options: ClipGradients
    program: stg.ProgramOp
    axes: Sequence[str]
    shared: Collection[str]
    """Weights that others count."""
    goes_on: bool
    """Whether a rank has several stages."""

    def run(self) -> None:
        block = self.program.body.block
        step = first_op(block, stg.OptimizerStepOp)
        end = step or block.last_op
        assert end is not None
        kinds = [k for k in dist.FOUND_OF_ALL if getattr(self.options, k)]
        for kind in kinds:
            # A stage without weights takes part.
            before = None
            if self.goes_on:
                number = TensorType.of((), "fp32", self.axes)
                before = self.insert(dist.FoundBeforeOp(kind, like=number), end)
            found = stg.GradientStatisticOp(
                kind, self.read_for(kind, step), self.axes, before=before
            )
            if step is not None and step.copies is not None:
                stg.marks(found)["copies"] = UnitAttr()
            self.insert(found, end)
            total = self.reduced(found.result, "max" if kind == "finite" else "sum", end)
            total = self.of_all_pools(total, kind, end)
            if step is not None and kind == kinds[-1]:
                scaled(step, total)

    def read_for(self, kind: str, step: stg.OptimizerStepOp | None) -> list[SSAValue]:
        """The gradients of the program that it counts."""
        if step is None:
            return []
        return [
            gradient
            for weight, gradient in zip(step.weights, step.gradients, strict=True)
            if kind == "finite" or weight_path(weight) not in self.shared
        ]

    def reduced(self, value: SSAValue, kind: str, end: Operation) -> SSAValue:
        groups = [[axis] for axis in reversed(self.axes)] if self.options.apart else [self.axes]
        for axes in groups:
            if axes:
                value = self.insert(dist.AllReduceOp(value, axes, kind), end)
        return value

    def insert(self, op: Operation, end: Operation) -> SSAValue:
        stg.marks(op)["phase"] = StringAttr("optim")
        insert_before(end, [op], NAME)
        return op.results[0]

    def of_all_pools(self, value: SSAValue, kind: str, end: Operation) -> SSAValue:
        """A norm is a number of each pool, of which there is a sum; a flag is one."""
        module = module_of(end)
        towers, pool = first_op(module, dist.TowersOp), dist.pool_of(module)
        if towers is None or pool is None:
            return value
        count = 1 if kind == "finite" else len(towers.towers.data)
        return self.insert(dist.AllReducePoolsOp(value, count, pool.total.value.data), end)


def counted_elsewhere(module: ModuleOp) -> Mapping[str, Collection[str]]:
    """By kind of stage, the weights outside of layers that an earlier stage has too, or a pool that is named before."""
    pool = dist.pool_of(module)
    others = {
        op.weight.data
        for op in module.body.ops
        if isinstance(op, dist.SharedOp) and pool is not None and op.pools.data[0] != pool.pool.data
    }
    trained = {
        stg.text(program, "kind"): {
            weight_path(weight)
            for step in program.body.block.ops
            if isinstance(step, stg.OptimizerStepOp)
            for weight in step.weights
            if not isinstance(weight.type, StackType)
        }
        for program in programs(module)
    }
    found: dict[str, set[str]] = {}
    before = set(others)
    for kind in dict.fromkeys(dist.stage_kinds(module)):
        found[kind] = set(before)
        before |= trained[kind]
    return found


def scaled(step: stg.OptimizerStepOp, scale: SSAValue) -> None:
    """Let a step read its gradients scaled."""
    new = step.of(step.weights, step.gradients, step.kept, scale)
    stg.marks(new).take(stg.marks(step))
    new.location = step.location
    Rewriter.replace_op(step, new)


def split_over(gradient: SSAValue) -> tuple[str, ...]:
    return (*tensor_of(gradient.type).split_axes, *dist.stored_over(gradient))
