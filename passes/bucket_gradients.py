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

With `of_first_stage` only what the first stage of a pipeline reduces is cut into buckets: that of others is one, of no limit, and a gradient that
stages share (`dist.all_reduce_tied`) is one by itself. So does Megatron-LM (`distributed_data_parallel.py`, `bucket_size` where `pp_rank > 0`;
`_does_param_require_new_bucket` in `distrib_optimizer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from stagec.dialects import dist, stg
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

    of_first_stage: bool = False
    """Other stages of a pipeline have one bucket each, and gradients that stages share one of their own."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = first_kind(op) if self.of_first_stage else None
        others = [each for each in programs(op) if first not in (None, stg.text(each, "kind"))]
        whole = {candidate for each in others for candidate in each.walk()}
        for candidate in op.walk():
            if isinstance(candidate, BUCKETED):
                self.mark(candidate, candidate not in whole)

    def mark(self, op: dist.StorageOp, is_cut: bool) -> None:
        sizes = (self.bucket_bytes, self.first_bucket_bytes or self.bucket_bytes)
        if self.of_first_stage and is_shared(op):
            sizes = (1, 1)
        elif not is_cut:
            sizes = (NO_LIMIT, NO_LIMIT)
        for name, size in zip(("bucket_bytes", "first_bucket_bytes"), sizes, strict=True):
            stg.marks(op)[name] = IntegerAttr(size, i64)


def first_kind(module: ModuleOp) -> str | None:
    """The kind of the first stage of a pipeline."""
    stages = next((op for op in module.body.ops if isinstance(op, dist.StagesOp)), None)
    return stages.stages.data[0].kind if stages is not None else None


def is_shared(op: dist.StorageOp) -> bool:
    """Whether what is reduced was summed over the stages that share a weight."""
    return any(isinstance(value.owner, dist.AllReduceTiedOp) for value in op.values)
