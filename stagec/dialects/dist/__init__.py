"""`dist`: what the machine does. The mesh, how values are spread over it, and what moves between devices.

    %g = dist.all_gather %n dim "S" over [tp]
      : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/cp, D], bf16>

Bytes in the docstrings are what each device sends on a ring of n devices (Thakur et al. 2005).
"""

from __future__ import annotations

from xdsl.ir import Dialect

from stagec.dialects.attributes import PlacementAttr
from stagec.dialects.contents import ops_of
from stagec.dialects.dist.collectives import (
    COLLECTIVES as COLLECTIVES,
    AllGatherOp as AllGatherOp,
    AllReduceOp as AllReduceOp,
    AllReducePoolsOp as AllReducePoolsOp,
    AllToAllOp as AllToAllOp,
    CollectiveBase as CollectiveBase,
    Movement as Movement,
    ReduceScatterOp as ReduceScatterOp,
    ReshardOp as ReshardOp,
    SliceOp as SliceOp,
)
from stagec.dialects.dist.context import ContextOp as ContextOp
from stagec.dialects.dist.expert_load import (
    MAX as MAX,
    SENT as SENT,
    SUFFIX as SUFFIX,
    Distribution as Distribution,
    ExpertLoadOp as ExpertLoadOp,
)
from stagec.dialects.dist.host import (
    HostOp as HostOp,
    LoadOp as LoadOp,
    ReadOp as ReadOp,
    StateOp as StateOp,
    StoreOp as StoreOp,
    SumOnHostOp as SumOnHostOp,
    WriteOp as WriteOp,
)
from stagec.dialects.dist.maxima import ReduceMaximaOp as ReduceMaximaOp
from stagec.dialects.dist.mesh import (
    MOST_AXES as MOST_AXES,
    MOST_RANKS as MOST_RANKS,
    MeshAttr as MeshAttr,
    MeshAxes as MeshAxes,
    MeshOp as MeshOp,
    RuleOp as RuleOp,
)
from stagec.dialects.dist.plan import (
    PassesOp as PassesOp,
    PlanOp as PlanOp,
    clause_span as clause_span,
    place_of as place_of,
    span_at as span_at,
)
from stagec.dialects.dist.pools import (
    GivesOp as GivesOp,
    HandedOp as HandedOp,
    PoolOp as PoolOp,
    PoolRecvOp as PoolRecvOp,
    PoolSendOp as PoolSendOp,
    TakesOp as TakesOp,
    pool_of as pool_of,
)
from stagec.dialects.dist.sent_load import MOST as MOST, TOTAL as TOTAL, SentLoadOp as SentLoadOp
from stagec.dialects.dist.sequences import (
    HandedNumbersOp as HandedNumbersOp,
    SequencesAttr,
    SequencesOp as SequencesOp,
)
from stagec.dialects.dist.stages import (
    FOUND_OF_ALL as FOUND_OF_ALL,
    FoundBeforeOp as FoundBeforeOp,
    GiveGradientOp as GiveGradientOp,
    Stage as Stage,
    StageRecvOp as StageRecvOp,
    StagesAttr as StagesAttr,
    StageSendOp as StageSendOp,
    StagesOp as StagesOp,
    TakeGradientOp as TakeGradientOp,
    first_layer as first_layer,
    local_count as local_count,
    local_counts as local_counts,
    stage_axis as stage_axis,
    stage_kinds as stage_kinds,
    stages_of as stages_of,
)
from stagec.dialects.dist.storage import (
    AllReduceGradientOp as AllReduceGradientOp,
    AllReduceShardOp as AllReduceShardOp,
    AllReduceTiedOp as AllReduceTiedOp,
    DealShardsOp as DealShardsOp,
    GatherUpdatesOp as GatherUpdatesOp,
    KeepShardOp as KeepShardOp,
    PutTogetherOp as PutTogetherOp,
    ReduceShardOp as ReduceShardOp,
    StorageOp as StorageOp,
    TakeApartOp as TakeApartOp,
    TakeShardOp as TakeShardOp,
    UnshardOp as UnshardOp,
    stored_over as stored_over,
)
from stagec.dialects.dist.towers import (
    TIED as TIED,
    ExpertsOp as ExpertsOp,
    PoolPart as PoolPart,
    SharedOp as SharedOp,
    TowerCrossing as TowerCrossing,
    TowerRecvOp as TowerRecvOp,
    TowersAttr,
    TowerSendOp as TowerSendOp,
    TowersOp as TowersOp,
)
from stagec.dialects.dist.transfers import (
    ExchangeCountsOp as ExchangeCountsOp,
    GatherBlocksOp as GatherBlocksOp,
    RecvOp as RecvOp,
    RotateOp as RotateOp,
    SendOp as SendOp,
    WaitOp as WaitOp,
)
from stagec.dialects.types import ShardType

Dist = Dialect(
    "dist",
    ops_of(globals()),
    [MeshAttr, PlacementAttr, SequencesAttr, ShardType, StagesAttr, TowersAttr],
)
