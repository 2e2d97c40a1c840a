"""Ops of `sched` that hand state of requests to another pool of ranks, or take it from one.

    sched.pool_send (%k) to "decode" rank "8 + tp.index" channel 0 in "bf16" bytes "2*E*K*2048/tp" on "pool.send" : ...
    %c = sched.pool_recv (%cache) from "prefill" rank "tp.index" channel 0 in "bf16" bytes "2*E*K*2048/tp" on "pool.recv" : ...

Pools have meshes of their own, so that a peer is no shift along an axis: it is a rank of the whole job, in a rank's own coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import LayerStagesAttr, RankAttr, SizeAttr
from stagec.dialects.marks import MarkedOp, flag_mark
from stagec.dialects.memory import PLAIN, Effects, MemoryAttr, Overwrite, verify_memory
from stagec.dialects.sched.tasks import SegmentAttr
from stagec.dialects.types import DTYPE_BITS, TensorType
from stagec.symbolic import Size

PEER_STAGE = "pool.stage"
"""In the number of a peer: its place along the axis of its pool's stages, which depends on the layer."""

IN_PLACE = Effects(overwrites=(Overwrite(0, 0),))
"""What is received is written into the cache itself."""


class PoolTransferOp(MarkedOp):
    """Shared by both ends of what pools hand over. Messages of one channel and layer between two ranks arrive in the order in which they are sent."""

    pool = prop_def(StringAttr)
    """The other one."""
    rank = prop_def(RankAttr)
    channel = prop_def(IntegerAttr.constr(i64))
    dtype = prop_def(StringAttr)
    num_bytes = prop_def(SizeAttr, prop_name="bytes")
    stages = opt_prop_def(LayerStagesAttr)
    """Where in the other pool each layer is, if it has stages."""
    stream = prop_def(StringAttr)
    segment = opt_prop_def(SegmentAttr)
    memory = opt_prop_def(MemoryAttr)
    apart = flag_mark("apart")
    """It is issued apart from its neighbours."""
    serial = flag_mark("serial")
    """See `sched.collective`."""

    def verify_transfer(self, effects: Effects) -> None:
        memory = self.memory.data if self.memory is not None else None
        verify_memory(self, effects, memory)
        verify_pool_transfer(
            self.name, self.rank.data, self.stages, self.dtype.data, self.pool.data
        )


def verify_pool_transfer(
    name: str, rank: Size, stages: LayerStagesAttr | None, dtype: str, pool: str
) -> None:
    if dtype not in DTYPE_BITS:
        raise VerifyException(f"{name}: there is no dtype `{dtype}`")
    if not pool:
        raise VerifyException(f"{name}: the other pool has a name")
    if (PEER_STAGE in rank.names) != (stages is not None):
        raise VerifyException(f"{name}: a peer is of a stage where its pool has stages by layer")


def pool_properties(
    pool: str,
    rank: Size,
    channel: int,
    dtype: str,
    num_bytes: Size,
    stages: LayerStagesAttr | None,
    stream: str,
) -> dict[str, Attribute | None]:
    return {
        "pool": StringAttr(pool),
        "rank": RankAttr(rank),
        "channel": IntegerAttr(channel, i64),
        "dtype": StringAttr(dtype),
        "bytes": SizeAttr(num_bytes),
        "stages": stages,
        "stream": StringAttr(stream),
    }


@irdl_op_definition
class PoolSendOp(PoolTransferOp):
    """Send a part of what is in a cache to a rank of another pool, once `values` are there. It ends without the receive."""

    name = "sched.pool_send"

    values = var_operand_def()

    assembly_format = (
        "`(` $values `)` `to` $pool `rank` $rank (`at` $stages^)? `channel` $channel `in` $dtype `bytes` $bytes "
        "`on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($values)"
    )

    def __init__(
        self,
        values: Sequence[SSAValue],
        pool: str,
        rank: Size,
        channel: int,
        dtype: str,
        num_bytes: Size,
        stages: LayerStagesAttr | None = None,
    ) -> None:
        super().__init__(
            operands=[list(values)],
            properties=pool_properties(pool, rank, channel, dtype, num_bytes, stages, "pool.send"),
        )

    def verify_(self) -> None:
        self.verify_transfer(PLAIN)


@irdl_op_definition
class PoolRecvOp(PoolTransferOp):
    """Write a part of a cache, which a rank of another pool sends; the result is the cache with it."""

    name = "sched.pool_recv"

    cache = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = (
        "`(` $cache `)` `from` $pool `rank` $rank (`at` $stages^)? `channel` $channel `in` $dtype `bytes` $bytes "
        "`on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($cache) `->` type($result)"
    )

    def __init__(
        self,
        cache: SSAValue,
        pool: str,
        rank: Size,
        channel: int,
        dtype: str,
        num_bytes: Size,
        stages: LayerStagesAttr | None = None,
    ) -> None:
        super().__init__(
            operands=[cache],
            result_types=[cache.type],
            properties=pool_properties(pool, rank, channel, dtype, num_bytes, stages, "pool.recv"),
        )

    def verify_(self) -> None:
        self.verify_transfer(IN_PLACE)
        if self.cache.type != self.result.type:
            raise VerifyException("sched.pool_recv: a cache stays what it is")
