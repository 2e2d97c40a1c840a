"""`dist`: what the machine does. The mesh, how values are spread over it, and what moves between devices.

    %g = dist.all_gather %n dim "S" over [tp]
      : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/cp, D], bf16>

Bytes in the docstrings are what each device sends on a ring of n devices (Thakur et al. 2005).
"""

from __future__ import annotations

from xdsl.ir import Dialect

from stagec.dialects.attributes import (Dim, PlacementAttr)
from stagec.dialects.dist.context import (ContextOp)
from stagec.dialects.dist.collectives import (AllGatherOp, AllReduceOp, AllToAllOp, COLLECTIVES, CollectiveBase, Movement, ReduceScatterOp, ReshardOp, SliceOp, gathered, scattered)
from stagec.dialects.dist.expert_load import (Distribution, ExpertLoadOp, MAX, SENT, SUFFIX)
from stagec.dialects.dist.host import (HOST_OPS, HostOp, LoadOp, ReadOp, StateOp, StoreOp, WriteOp)
from stagec.dialects.dist.mesh import (MeshAttr, MeshOp, RuleOp)
from stagec.dialects.dist.plan import (PassesOp, PlanOp, clause_span, place_of, span_at, clause_span, place_of, span_at)
from stagec.dialects.dist.pools import (GivesOp, HandedOp, POOL_OPS, PoolOp, PoolRecvOp, PoolSendOp, TakesOp)
from stagec.dialects.dist.sent_load import (MOST, SentLoadOp, TOTAL)
from stagec.dialects.dist.sequences import SequencesAttr, SequencesOp
from stagec.dialects.dist.stages import (GiveGradientOp, STAGE_OPS, Stage, StageRecvOp, StageSendOp, StagesAttr, StagesOp, TakeGradientOp, first_layer, local_count)
from stagec.dialects.dist.storage import (AllReduceGradientOp, AllReduceShardOp, AllReduceTiedOp, DealShardsOp, PutTogetherOp, ReduceShardOp, STORAGE_OPS, StorageOp, TakeApartOp, TakeShardOp, UnshardOp)
from stagec.dialects.dist.towers import (TOWER_OPS, PoolPart, TowerRecvOp, TowerSendOp, TowersAttr, TowersOp)
from stagec.dialects.dist.transfers import (ExchangeCountsOp, GatherBlocksOp, RecvOp, RotateOp, SendOp, TRANSFER_OPS, WaitOp)
from stagec.dialects.types import (ShardType)

Dist = Dialect(
    "dist",
    [
        PlanOp,
        PassesOp,
        MeshOp,
        RuleOp,
        ContextOp,
        ExpertLoadOp,
        SentLoadOp,
        SequencesOp,
        ReshardOp,
        *COLLECTIVES,
        SliceOp,
        *STORAGE_OPS,
        *STAGE_OPS,
        *TRANSFER_OPS,
        *HOST_OPS,
        *POOL_OPS,
        *TOWER_OPS,
    ],
    [MeshAttr, PlacementAttr, SequencesAttr, ShardType, StagesAttr, TowersAttr],
)

__all__ = [
    "AllGatherOp",
    "AllReduceGradientOp",
    "AllReduceOp",
    "AllReduceShardOp",
    "AllReduceTiedOp",
    "AllToAllOp",
    "COLLECTIVES",
    "CollectiveBase",
    "ContextOp",
    "DealShardsOp",
    "Dist",
    "Distribution",
    "ExchangeCountsOp",
    "ExpertLoadOp",
    "GatherBlocksOp",
    "GiveGradientOp",
    "GivesOp",
    "HandedOp",
    "HostOp",
    "LoadOp",
    "MAX",
    "MOST",
    "MeshAttr",
    "MeshOp",
    "Movement",
    "PassesOp",
    "PlanOp",
    "clause_span",
    "place_of",
    "span_at",
    "PoolOp",
    "PoolRecvOp",
    "PoolSendOp",
    "RecvOp",
    "ReduceScatterOp",
    "ReduceShardOp",
    "ReshardOp",
    "RotateOp",
    "RuleOp",
    "SENT",
    "SUFFIX",
    "SendOp",
    "SliceOp",
    "Stage",
    "StageRecvOp",
    "StageSendOp",
    "StagesAttr",
    "StagesOp",
    "StateOp",
    "StorageOp",
    "StoreOp",
    "TakeGradientOp",
    "PutTogetherOp",
    "TakeApartOp",
    "TakeShardOp",
    "TakesOp",
    "PoolPart",
    "TowerRecvOp",
    "TowerSendOp",
    "TowersOp",
    "UnshardOp",
    "WaitOp",
    "first_layer",
    "local_count",
    "SentLoadOp",
    "SequencesOp",
]
