"""`sched`: what a device runs. Each op that becomes a trace node, its costs, and its stream.

    %q = sched.compute "contract" (%n, %wq) flops "2*B*D*E*H*S/tp" reads "..." writes "..." on "compute"
      : (...) -> !stg.tensor<[B, S, H/tp, E], bf16>

Shapes are those on one rank. Sizes are expressions over the model's dims and the mesh's axes: FLOPs are floating-point operations of one run of an op,
everything else is bytes. Loops stay rolled (`stg.repeat`, `stg.accumulate`); `sched.schedule` says in which order microbatches run.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from stagec.dialects.memory import (
    EffectsAttr,
    MemoryAttr,
    StoredAttr,
    StoredOp,
)
from stagec.dialects.sched.arena import ArenaOp, OffsetsAttr
from stagec.dialects.sched.crossing import StageRecvOp, StageSendOp
from stagec.dialects.sched.host_copy import HostCopyOp, HostUpdateOp
from stagec.dialects.sched.node import NodeOp
from stagec.dialects.sched.nodes import (
    COMPUTE_STREAM,
    COPY_IN,
    NODES,
    CollectiveOp,
    ComputeOp,
    RecvOp,
    ScheduleOp,
    SendOp,
    TakenOp,
    TransferOp,
    ViewOp,
    effects_of,
    planned,
    work_of,
)
from stagec.dialects.sched.pools import PEER_STAGE, PoolMessage, PoolRecvOp, PoolSendOp
from stagec.dialects.sched.rank_programs import RankProgramOp, RanksOp, TasksOp
from stagec.dialects.sched.tasks import (
    TASKS,
    GatheredAttr,
    HeldAttr,
    OrderAttr,
    PerRowAttr,
    RankStagesAttr,
    RowsAttr,
    SegmentAttr,
    WhereAttr,
)
from stagec.dialects.work import Work, WorkAttr

Sched = Dialect(
    "sched",
    [*NODES, ViewOp, TakenOp, ScheduleOp, TasksOp, RankProgramOp, RanksOp, StoredOp, ArenaOp],
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

__all__ = [
    "COMPUTE_STREAM",
    "COPY_IN",
    "NODES",
    "PEER_STAGE",
    "TASKS",
    "ArenaOp",
    "CollectiveOp",
    "ComputeOp",
    "HostCopyOp",
    "HostUpdateOp",
    "NodeOp",
    "PoolMessage",
    "PoolRecvOp",
    "PoolSendOp",
    "RankProgramOp",
    "RanksOp",
    "RecvOp",
    "Sched",
    "ScheduleOp",
    "SegmentAttr",
    "SendOp",
    "StageRecvOp",
    "StageSendOp",
    "StoredOp",
    "TakenOp",
    "TasksOp",
    "TransferOp",
    "ViewOp",
    "Work",
    "effects_of",
    "planned",
    "work_of",
]
