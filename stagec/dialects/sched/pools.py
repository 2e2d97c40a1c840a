"""Ops of `sched` that hand state of requests to another pool of ranks, or take it from one, and what they share with those of `dist`.

    sched.pool_send (%k) to "decode" rank "8 + tp.index" channel 0 in "bf16" bytes "2*E*K*2048/tp" on "pool.send" : ...
    %c = sched.pool_recv (%cache) from "prefill" rank "tp.index" channel 0 in "bf16" bytes "2*E*K*2048/tp" on "pool.recv" : ...

Pools have meshes of their own, so that a peer is no shift along an axis: it is a rank of the whole job, in a rank's own coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute
from xdsl.irdl import (
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)

from stagec.dialects.attributes import LayerStagesAttr, RankAttr, SizeAttr
from stagec.dialects.marks import MarkedOp, flag_mark
from stagec.dialects.memory import PLAIN, Effects, Overwrite
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.actions import NodeAction, Peer, Transfer
from stagec.dialects.sched.crossing import DIRECTIONS
from stagec.dialects.sched.node import CommunicationOp, NodeNumbers
from stagec.dialects.types import TensorType, verify_dtypes
from stagec.symbolic import Size

PEER_STAGE = "pool.stage"
"""In the number of a peer: its place along the axis of its pool's stages, which depends on the layer."""


@dataclass(frozen=True)
class PoolMessage:
    """What one rank hands to a rank of another pool. Messages of one channel and layer between two ranks arrive in the order in which they are sent."""

    pool: str
    """The other one."""
    rank: Size
    """The peer, in the coordinates of a rank of this pool."""
    channel: int
    dtype: str
    num_bytes: Size
    stages: LayerStagesAttr | None = None
    """Where in the other pool each layer is, if it has stages."""
    direction: str = ""
    """Of what crosses between parts of a model that train on pools of their own: `forward`, or `backward`."""


class PoolMessageOp(DefaultBuilder, MarkedOp):
    """Shared by both ends of a message between pools, in `dist` and as tasks."""

    STREAM: ClassVar[str] = ""
    """On which it runs, if it is a task."""

    pool = prop_def(StringAttr)
    rank = prop_def(RankAttr)
    channel = prop_def(IntegerAttr.constr(i64))
    dtype = prop_def(StringAttr)
    num_bytes = prop_def(SizeAttr, prop_name="bytes")
    stages = opt_prop_def(LayerStagesAttr)
    direction = opt_prop_def(StringAttr)
    apart = flag_mark("apart")
    """It is issued apart from its neighbours."""
    gives_way = flag_mark("gives_way")
    """What waits for it lets a task go first that overlaps its own."""

    def __init__(self, *given: Any, message: PoolMessage, **named: Any) -> None:
        said = {"pool": message.pool, "channel": message.channel, "stages": message.stages}
        said |= {"rank": message.rank, "dtype": message.dtype, "bytes": message.num_bytes}
        said |= {"direction": message.direction or None, "stream": self.STREAM or None}
        super().__init__(*given, **said, **named)

    @property
    def message(self) -> PoolMessage:
        return PoolMessage(
            *(self.pool.data, self.rank.data, self.channel.value.data, self.dtype.data),
            *(self.num_bytes.data, self.stages),
            self.direction.data if self.direction is not None else "",
        )

    def verify_(self) -> None:
        super().verify_()
        verify_dtypes(self.name, self.dtype)
        if self.direction is not None and self.direction.data not in DIRECTIONS:
            raise self.mistake(f"a value goes forward or backward, not `{self.direction.data}`")
        if not self.pool.data:
            raise self.mistake("the other pool has a name")
        if (PEER_STAGE in self.rank.data.names) != (self.stages is not None):
            raise self.mistake("a peer is of a stage where its pool has stages by layer")


class PoolSend(PoolMessageOp):
    """Send a part of what is in a cache to a rank of another pool, once `values` (tensors of any shapes) are there: `bytes` bytes, elements of `dtype`."""

    values = var_operand_def(TensorType)


class PoolRecv(PoolMessageOp):
    """Write a part of a tensor, in place, which a rank of another pool sends: `bytes` bytes, elements of `dtype`.

    The result is the tensor with it, of the same shape: a cache, [B, T, K/tp, E] for instance. The first part of what is nowhere yet has no operand.
    """

    cache = opt_operand_def(TensorType)
    result = result_def(TensorType)

    def made(self) -> Sequence[Attribute]:
        return [self.cache.type] if self.cache is not None else []

    def verify_(self) -> None:
        super().verify_()
        if self.cache is not None and self.cache.type != self.result.type:
            raise self.mistake("a cache stays what it is")

    @property
    def writes(self) -> Effects:
        """What is received is written into the tensor itself, if that is there."""
        return IN_PLACE if self.cache is not None else PLAIN


class PoolTask(PoolMessageOp, CommunicationOp):
    """Shared by both ends as tasks."""

    CROSSES: ClassVar[bool] = True

    def action(self, numbers: NodeNumbers) -> NodeAction:
        rank, num_bytes = self.rank.data, numbers.num_bytes(self.num_bytes.data)
        if self.stages is not None:
            rank = rank.substitute({PEER_STAGE: self.stages.of_layer(numbers.layer_of_node)})
        peer, channel = Peer(self.pool.data, rank), self.channel.value.data
        return Transfer(self.node_name, (), 0, num_bytes, channel, self.dtype.data, peer)


IN_PLACE = Effects(overwrites=(Overwrite(0, 0),))


@op_definition
class PoolSendOp(PoolSend, PoolTask):
    """`dist.pool_send` as a task of its own. It ends without the receive."""

    name = "sched.pool_send"
    STREAM: ClassVar[str] = "pool.send"

    assembly_format = (
        "`(` $values `)` `to` $pool (`going` $direction^)? `rank` $rank (`at` $stages^)? `channel` $channel `in` $dtype `bytes` $bytes "
        "`on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($values)"
    )


@op_definition
class PoolRecvOp(PoolRecv, PoolTask):
    """`dist.pool_recv` as a task of its own."""

    name = "sched.pool_recv"
    STREAM: ClassVar[str] = "pool.recv"

    assembly_format = (
        "(`(` $cache^ `)`)? `from` $pool (`going` $direction^)? `rank` $rank (`at` $stages^)? `channel` $channel `in` $dtype `bytes` $bytes "
        "`on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` (type($cache)^)? `->` type($result)"
    )

    @property
    def memory_effects(self) -> Effects:
        return self.writes
