"""Pools of ranks: parts of one job that each run a plan of their own, and hand state of requests to each other.

    dist.pool "prefill" ranks 0 to 8 of 24
    dist.gives "Attention.k" to "decode" from 8 mesh <dp = 2, tp = 8> as <[B/dp, T.stored, K/tp, E], bf16> moving "8192*E*K" channel 0 microbatches 1
    dist.pool_send (%k) to "decode" rank "8 + 2*tp.index" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T, K/tp, E], bf16>

Each pool is a module. What it has to know of another is said in it: where that one's ranks begin, its mesh, how its devices
hold a cache, and how much of it is handed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Operation
from xdsl.irdl import opt_prop_def, prop_def

from stagec.dialects import sched
from stagec.dialects.attributes import LayerStagesAttr, SizeAttr
from stagec.dialects.dist.mesh import MeshAttr
from stagec.dialects.interfaces import TaskInterface
from stagec.dialects.marks import PURPOSES, word_mark
from stagec.dialects.memory import Effects
from stagec.dialects.op import DefaultBuilder, first_op, op_definition
from stagec.dialects.sched.pools import PoolRecv, PoolSend
from stagec.dialects.types import TensorType


@op_definition
class PoolOp(DefaultBuilder):
    """The module is the program of some ranks of a job: those from `first` to `end`, without that one."""

    name = "dist.pool"

    pool = prop_def(StringAttr)
    first = prop_def(IntegerAttr.constr(i64))
    end = prop_def(IntegerAttr.constr(i64))
    total = prop_def(IntegerAttr.constr(i64))

    assembly_format = "$pool `ranks` $first `to` $end `of` $total attr-dict"

    def verify_(self) -> None:
        first, end, total = (each.value.data for each in (self.first, self.end, self.total))
        if not 0 <= first < end <= total:
            raise self.mistake(f"there are no ranks {first} to {end} of {total}")


def pool_of(module: Operation) -> PoolOp | None:
    """Which pool of several a module is of, if of one."""
    return first_op(module, PoolOp)


_OTHER_POOL = (
    "`from` $first `mesh` $mesh `as` $holds `moving` $moving `channel` $channel "
    "`microbatches` $microbatches (`stages` $axis^ $stages)? attr-dict"
)


class HandedOp(DefaultBuilder):
    """Shared by the two sides of a cache that one pool hands to another: how the other one holds it.

    `moving` counts the elements of a layer that are handed over, all devices together: the new positions of sequences that go on there.
    """

    path = prop_def(StringAttr)
    """The path of the cache."""
    pool = prop_def(StringAttr)
    """The other one."""
    first = prop_def(IntegerAttr.constr(i64))
    """Its first rank."""
    mesh = prop_def(MeshAttr)
    holds = prop_def(TensorType)
    moving = prop_def(SizeAttr)
    channel = prop_def(IntegerAttr.constr(i64))
    microbatches = prop_def(IntegerAttr.constr(i64))
    """The number of microbatches of the other pool's iteration."""
    axis = opt_prop_def(StringAttr)
    """The axis of its stages."""
    stages = opt_prop_def(LayerStagesAttr)

    def verify_(self) -> None:
        if (self.axis is None) != (self.stages is None):
            raise self.mistake("stages lie along an axis")
        axes = dict(self.mesh.data.axes)
        if self.axis is not None and self.axis.data not in axes:
            raise self.mistake(f"the other pool has no axis `{self.axis.data}`")
        if self.stages is not None and self.axis is not None:
            most = max(self.stages.data, default=-1)
            if not 0 <= most < axes[self.axis.data]:
                raise self.mistake(f"there is no stage {most} in the other pool")
        if self.first.value.data < 0 or self.microbatches.value.data < 1:
            raise self.mistake("a pool has ranks and microbatches")


@op_definition
class GivesOp(HandedOp):
    """What this pool computes of a cache goes to another one."""

    name = "dist.gives"

    assembly_format = f"$path `to` $pool {_OTHER_POOL}"


@op_definition
class TakesOp(HandedOp):
    """What another pool computes of a cache comes to this one."""

    name = "dist.takes"

    assembly_format = f"$path `of` $pool {_OTHER_POOL}"


@op_definition
class PoolSendOp(PoolSend, TaskInterface):
    """Send a part of what is in a cache to a rank of another pool. Its `dist.pool_recv` is in that one's module, on the same channel."""

    name = "dist.pool_send"

    purpose = word_mark("purpose", PURPOSES)
    """What it is for, in the words of a plan's `overlap`; nothing of a cache."""

    assembly_format = (
        "`(` $values `)` `to` $pool (`going` $direction^)? `rank` $rank (`at` $stages^)? `channel` $channel `in` $dtype `bytes` $bytes "
        "attr-dict `:` type($values)"
    )

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return [sched.PoolSendOp(self.values, message=self.message)]


@op_definition
class PoolRecvOp(PoolRecv, TaskInterface):
    """Write a part of a cache, in place, which a rank of another pool sends."""

    name = "dist.pool_recv"

    purpose = word_mark("purpose", PURPOSES)
    """What it is for, in the words of a plan's `overlap`; nothing of a cache."""

    assembly_format = (
        "(`(` $cache^ `)`)? `from` $pool (`going` $direction^)? `rank` $rank (`at` $stages^)? `channel` $channel `in` $dtype `bytes` $bytes "
        "attr-dict `:` (type($cache)^)? `->` type($result)"
    )

    def effects(self) -> Effects:
        return self.writes

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return [sched.PoolRecvOp(self.cache, message=self.message, like=self.result.type)]
