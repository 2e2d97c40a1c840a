"""Add up the gradients of weights that several pools train.

Before `sum-over-pools{axes="dp"}`:

    !g = !stg.tensor<[V, D], fp32>
    dist.mesh <dp = 2, tp = 2>
    dist.pool "text" ranks 2 to 6 of 6
    dist.shared "embed" first 0 of [vision, text]
    stg.program "M" () {
      %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[V, D], fp32, partial [dp]>
      stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %g : !stg.tensor<[V, D], fp32, partial [dp]>
    }

After:

    !g = !stg.tensor<[V, D], fp32>
    dist.mesh <dp = 2, tp = 2>
    dist.pool "text" ranks 2 to 6 of 6
    dist.shared "embed" first 0 of [vision, text]
    stg.program "M" () {
      %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[V, D], fp32, partial [dp]>
      %r = dist.all_reduce_gradient (%g) over [dp] in "fp32" {scope = "embed", phase = "grad_reduce", late, made_by = "sum-over-pools"}
        : (!stg.tensor<[V, D], fp32, partial [dp]>) -> !g
      dist.tower_send "tied" 2 to "vision" %r {scope = "embed", phase = "optim", made_by = "sum-over-pools"} : !g
      %o = dist.tower_recv "tied" 1 of "vision" {scope = "embed", phase = "optim", made_by = "sum-over-pools"} : !g
      %s = stg.add %r, %o {scope = "embed", phase = "optim", made_by = "sum-over-pools"} : (!g, !g) -> !g
      stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %s : !g
    }

Each pool sums its own first, over all axes along which devices have terms, as `finalize_model_grads` of Megatron-LM sums embeddings over stages
after the data-parallel ranks. The sum is then handed to the other pools like any value, once per step, and each adds what it is told: devices of
the pools may hold the weight otherwise. That is part of the update, when all microbatches are done in all pools: before, pools wait for each other's
activations. Under ZeRO (`shard_axes`) a device takes its shard of the whole sum.

Where several stages of a pool have the weight, `tie-weights` has summed what they have: the first of them tells the other pools, and each hears from
those. E0423 where the first is one of several that run one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.diagnostics import CompileError, Diagnostic, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.dialects.use_def import weight_path
from stagec.rewriting import inherit, insert_before, output_of, programs_by_kind
from stagec.rewriting.stored_weights import storage_axes, stored_rows

NAME = "sum-over-pools"


@dataclass(frozen=True)
class SumOverPools(ModulePass):
    name = NAME

    axes: tuple[str, ...] = ()
    """The data-parallel axes, reduced last."""
    shard_axes: tuple[str, ...] = ()
    """Those of them that storage is split over."""
    dtype: str = "fp32"
    """What the sums travel in."""
    own: str = stg.OWN_DTYPE
    """And those of weights that have a dtype of their own: see `reduce-gradients`."""
    flat: bool = False
    """Storage is split by elements of a parameter, not by its rows."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pool, kinds = dist.pool_of(op), dist.stage_kinds(op)
        shared = {each.weight.data: each for each in op.body.ops if isinstance(each, dist.SharedOp)}
        if not shared or pool is None:
            return
        by_kind = programs_by_kind(op)
        for path, said in shared.items():
            own = [kind for kind in kinds if path in trained(by_kind[kind])]
            if own.count(own[0]) > 1:
                raise in_middle_stages(said, pool.pool.data)
            for kind in dict.fromkeys(own):
                self.sum(by_kind[kind], path, said, pool.pool.data, gives=kind == own[0])

    def sum(
        self, program: stg.ProgramOp, path: str, said: dist.SharedOp, pool: str, gives: bool
    ) -> None:
        """`gives`: the stage tells others of what all stages of the pool have."""
        output = output_of(program)
        at = trained(program).index(path)
        weight, gradient = output.weights[at], output.gradients[at]
        assert isinstance(weight.owner, stg.WeightOp)

        def insert(op: Operation, phase: str = "optim") -> None:
            stg.marks(op)["scope"] = StringAttr(path)
            stg.marks(op)["phase"] = StringAttr(phase)
            insert_before(output, [op], NAME)

        def made(op: Operation, phase: str = "optim") -> SSAValue:
            insert(op, phase)
            return op.results[0]

        own = gradient
        partial = tensor_of(own.type).partial
        of_data = [axis for axis in partial if axis in self.axes]
        if len(of_data) < len(partial):
            whole = stg.tensor_type(own).with_partial(of_data)
            own = made(dist.ReshardOp(own, whole), "grad_reduce")
        if of_data:
            step = dist.AllReduceGradientOp(
                [own], of_data, weight.owner.gradient_dtype(self.dtype, self.own)
            )
            stg.marks(step)["late"] = UnitAttr()
            own = made(step, "grad_reduce")
        others = [other for other in said.pools.data if other != pool]
        for other in others if gives else ():
            insert(dist.TowerSendOp(own, other, dist.TIED, said.number(pool, other)))
        total = own
        for other in others:
            number = said.number(other, pool)
            told = made(
                dist.TowerRecvOp(pool=other, direction=dist.TIED, number=number, like=own.type)
            )
            total = made(stg.AddOp(total, told))
        stored = storage_axes(weight, self.shard_axes)
        if stored:
            rows = stored_rows(weight.owner, self.flat)
            total = made(dist.TakeShardOp([total], stored, tensor_of(total.type).dtype, [rows]))
        gradients = [total if each is gradient else each for each in output.gradients]
        finished = stg.OutputOp(output.values, output.weights, gradients)
        inherit(finished, output)
        Rewriter.replace_op(output, finished)


def trained(program: stg.ProgramOp) -> Sequence[str]:
    """The paths of the weights that have gradients."""
    return [weight_path(weight) for weight in output_of(program).weights]


def in_middle_stages(said: dist.SharedOp, pool: str) -> CompileError:
    weight, pools = said.weight.data, quoted(said.pools.data)
    message = f"several stages of `{pool}` between its first and its last begin with the weight `{weight}`, which is trained in {pools}"
    help_ = f"let the first or the last stage of `{pool}` have it, or give each pool a weight of its own"
    note = (
        "one stage of a pool tells the others what all its stages have, and these run one program"
    )
    return CompileError(
        [Diagnostic("E0423", message, span_of(said.location), notes=(note,), help=help_)]
    )
