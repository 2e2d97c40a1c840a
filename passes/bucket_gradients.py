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
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from stagec.dialects import dist, stg

BUCKETED = (dist.AllReduceGradientOp, dist.ReduceShardOp, dist.AllReduceShardOp)


@dataclass(frozen=True)
class BucketGradients(ModulePass):
    name = "bucket-gradients"

    bucket_bytes: int
    """A bucket closes when it holds as many."""
    first_bucket_bytes: int = 0
    """The same for the first bucket, so that communication starts early; 0: as the others."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = self.first_bucket_bytes or self.bucket_bytes
        for candidate in op.walk():
            if isinstance(candidate, BUCKETED):
                stg.marks(candidate)["bucket_bytes"] = IntegerAttr(self.bucket_bytes, i64)
                stg.marks(candidate)["first_bucket_bytes"] = IntegerAttr(first, i64)
