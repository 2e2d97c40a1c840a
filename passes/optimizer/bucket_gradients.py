"""Join gradient reductions into buckets.

Before `bucket-gradients{bucket_bytes=26214400 first_bucket_bytes=1048576}`:

    %g = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp]>
    %r = dist.all_reduce_gradient (%g) over [dp] in "fp32" : (!stg.tensor<[D], fp32, partial [dp]>) -> !stg.tensor<[D], fp32>

After:

    %g = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp]>
    %r = dist.all_reduce_gradient (%g) over [dp] in "fp32" {bucket_bytes = 26214400 : i64, first_bucket_bytes = 1048576 : i64}
      : (!stg.tensor<[D], fp32, partial [dp]>) -> !stg.tensor<[D], fp32>

Buckets cross layers, which stay rolled here: the ops are only marked, and joined where records are written. A bucket takes
gradients in the order in which they become ready and closes when it reaches its size, the one that crosses it included, as
PyTorch's DistributedDataParallel does (Li et al. 2020, section 4.2).

With `aligned` buckets are parts of buffers, as those of Megatron-LM's distributed optimizer: what comes next begins at a multiple of so many
elements, and a bucket ends at one of `bucket_end` and of the ranks (`optimizer/param_layout.py`). Only what the first stage of a pipeline reduces
is cut into buckets: that of others is one, of no limit, and a gradient that stages share (`dist.all_reduce_tied`) is one by itself
(`distributed_data_parallel.py`, `bucket_size` where `pp_rank > 0`; `_does_param_require_new_bucket` in `distrib_optimizer.py`). Parameters are
gathered in the same buckets, and so they are wherever they are gathered for the next forward pass (`in_forward` of `shard-parameters`).

With `checked` the host reads the norm of each bucket before it launches the reduction (`check_for_nan_in_grad` of Megatron-LM, `check_grads` in
`core/distributed/param_and_grad_buffer.py`): until then it launches nothing else. What the norm costs to compute is no node: times count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.dialects import dist, stg
from stagec.dialects.types import DTYPE_BITS
from stagec.dialects.use_def import followed, from_stack, through, weight_path
from stagec.rewriting import programs

NO_LIMIT = 1 << 62
"""Bytes, more than there are."""

BUCKETED = (dist.AllReduceGradientOp, dist.ReduceShardOp, dist.AllReduceShardOp)


@dataclass(frozen=True)
class BucketGradients(ModulePass):
    name = "bucket-gradients"

    bucket_bytes: int
    """A bucket closes when it holds as many."""
    first_bucket_bytes: int = 0
    """The same for the first bucket, so that communication starts early; 0: as the others."""

    aligned: int = 0
    """In buffers: at multiples of how many elements gradients and parameters begin. 0: they are in none."""
    bucket_end: int = 1
    """In buffers: at multiples of how many elements, and of the ranks, buckets end."""
    checked: bool = False
    """Whether the host reads the norm of what a bucket reduces before it launches that."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = first_kind(op) if self.aligned else None
        for program in programs(op) or [op]:
            is_cut = first in (None, stg.text(program, "kind"))
            reductions = [each for each in program.walk() if is_reduction(each)]
            for each in reductions:
                self.mark(each, is_cut, self.bucket_bytes)
                if self.checked:
                    stg.marks(each)["checked"] = UnitAttr()
            for gather in gathers(program):
                if self.aligned or stg.phase_of(gather) == "fwd":
                    self.mark(gather, is_cut, self.parameter_bytes(gather, reductions))

    def mark(self, op: Operation, is_cut: bool, bucket_bytes: int) -> None:
        sizes = (bucket_bytes, self.first_bucket_bytes or bucket_bytes)
        marks = stg.marks(op)
        if self.aligned:
            if isinstance(op, dist.ReduceShardOp | dist.UnshardOp):
                marks["aligned"] = IntegerAttr(self.aligned, i64)
                marks["bucket_end"] = IntegerAttr(self.bucket_end, i64)
            if is_shared(op):
                sizes = (1, 1)
            elif not is_cut:
                sizes = (NO_LIMIT, NO_LIMIT)
        for name, size in zip(("bucket_bytes", "first_bucket_bytes"), sizes, strict=True):
            marks[name] = IntegerAttr(size, i64)

    def parameter_bytes(self, gather: dist.UnshardOp, reductions: Sequence[Operation]) -> int:
        """As many elements of parameters as a bucket has of gradients."""
        bits = DTYPE_BITS[gather.dtype.data]
        of_gradients = [each for each in reductions if isinstance(each, dist.ReduceShardOp)]
        wide = DTYPE_BITS[of_gradients[0].dtype.data] if of_gradients else bits
        return max(1, self.bucket_bytes * bits // wide)


def is_reduction(op: Operation) -> bool:
    """Whether an op reduces gradients of its own, not buffers that others are in."""
    return isinstance(op, BUCKETED) and "of_whole" not in stg.marks(op)


def gathers(program: Operation) -> list[dist.UnshardOp]:
    """What gathers parameters that were updated: after that, or for the next forward pass."""
    found = [op for op in program.walk() if isinstance(op, dist.UnshardOp)]
    return [op for op in found if any(map(is_of_whole, op.values))]


def is_of_whole(shard: SSAValue) -> bool:
    """Whether ranks store all of what a shard is of."""
    taken = followed(shard, from_stack, through(dist.TakeApartOp)).owner
    return isinstance(taken, dist.TakeShardOp)


def first_kind(module: ModuleOp) -> str | None:
    """The kind of the first stage of a pipeline."""
    stages = dist.stages_of(module)
    return stages.stages.data[0].kind if stages is not None else None


def is_shared(op: Operation) -> bool:
    """Whether stages share what is reduced, or gathered: it is summed over them, then or before."""
    if isinstance(op, dist.UnshardOp):
        program = op.get_toplevel_object()
        shared = {
            each.weight.data for each in program.walk() if isinstance(each, dist.AllReduceTiedOp)
        }
        return not shared.isdisjoint(map(path_of, op.values))
    if any(isinstance(value.owner, dist.AllReduceTiedOp) for value in op.operands):
        return True
    users = [use.operation for result in op.results for use in result.uses]
    return any(
        isinstance(user, dist.AllReduceTiedOp)
        or (isinstance(user, dist.AllReduceShardOp) and is_shared(user))
        for user in users
    )


def path_of(shard: SSAValue) -> str:
    """The path of the weight that a shard beside the layers is of; nothing for one of a layer."""
    weight = through(dist.TakeShardOp)(shard)
    return weight_path(weight) if weight is not None else ""
