"""`sched`: what a device runs. Each op that becomes a trace node, its costs, and its stream.

    %q = sched.compute "contract" (%n, %wq) flops "2*B*D*E*H*S/tp" reads "..." writes "..." on "compute"
      : (...) -> !stg.tensor<[B, S, H/tp, E], bf16>

Shapes are those on one rank. Sizes are expressions over the model's dims and the mesh's axes: FLOPs are floating-point operations of one run of an op,
everything else is bytes. Loops stay rolled (`stg.repeat`, `stg.accumulate`); `sched.schedule` says in which order microbatches run.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from stagec.dialects.contents import ops_of
from stagec.dialects.memory import EffectsAttr, MemoryAttr, StoredAttr, StoredOp as StoredOp
from stagec.dialects.sched.arena import ArenaOp as ArenaOp, OffsetsAttr
from stagec.dialects.sched.crossing import StageRecvOp as StageRecvOp, StageSendOp as StageSendOp
from stagec.dialects.sched.host_copy import HostCopyOp as HostCopyOp, HostUpdateOp as HostUpdateOp
from stagec.dialects.sched.node import NodeOp as NodeOp
from stagec.dialects.sched.nodes import (
    COMPUTE_STREAM as COMPUTE_STREAM,
    COPY_IN as COPY_IN,
    STREAMS as STREAMS,
    CollectiveOp as CollectiveOp,
    ComputeOp as ComputeOp,
    RecvOp as RecvOp,
    ScheduleOp as ScheduleOp,
    SendOp as SendOp,
    TakenOp as TakenOp,
    TransferOp as TransferOp,
    ViewOp as ViewOp,
    comm_stream as comm_stream,
    effects_of as effects_of,
    planned as planned,
    work_of as work_of,
)
from stagec.dialects.sched.pools import (
    PEER_STAGE as PEER_STAGE,
    PoolMessage as PoolMessage,
    PoolRecvOp as PoolRecvOp,
    PoolSendOp as PoolSendOp,
)
from stagec.dialects.sched.rank_programs import (
    RankProgramOp as RankProgramOp,
    RanksOp as RanksOp,
    TasksOp as TasksOp,
)
from stagec.dialects.sched.tasks import (
    TASKS as TASKS,
    GatheredAttr,
    HeldAttr,
    OrderAttr,
    PerRowAttr,
    RankStagesAttr,
    RowsAttr,
    SegmentAttr as SegmentAttr,
    WhereAttr,
)
from stagec.dialects.work import Work as Work, WorkAttr

Sched = Dialect(
    "sched",
    ops_of(globals()),
    [
        WorkAttr,
        EffectsAttr,
        MemoryAttr,
        StoredAttr,
        OffsetsAttr,
        SegmentAttr,
        RowsAttr,
        OrderAttr,
        PerRowAttr,
        GatheredAttr,
        HeldAttr,
        RankStagesAttr,
        WhereAttr,
    ],
)
