"""`stg`: what a model is. Tensors of named dims, the ops on them, repeated layers rolled up.

%q = stg.contract %x, %wq over [D] : (!stg.tensor<[B, S, D], bf16>, ...) -> !stg.tensor<[B, S, H, E], bf16>
"""

from xdsl.ir import Dialect

from stagec.dialects.stg.attention import AttentionGradOp, AttentionOp, RopeOp
from stagec.dialects.stg.base import (
    PHASES,
    PLACEMENT,
    Indices,
    InferError,
    TensorOp,
    local_results,
    operand_splits,
    phase_of,
    placed,
    placement_of,
    scope_of,
    tensor_type,
    text,
)
from stagec.dialects.stg.builtins import BUILTINS, Builtin, Option
from stagec.dialects.stg.contraction import (
    ContractOp,
    EmbeddingGradOp,
    EmbeddingOp,
    RepeatHeadsOp,
    SumHeadsOp,
)
from stagec.dialects.stg.elementwise import (
    UNARY_FUNCTIONS,
    AddOp,
    BroadcastOp,
    CastOp,
    CausalMaskOp,
    DivOp,
    DropoutOp,
    MulOp,
    ReduceOp,
    RenameOp,
    SubOp,
    TransposeOp,
    UnaryGradOp,
    UnaryOp,
)
from stagec.dialects.stg.loss import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    LossOfStatisticsOp,
    MaxLogitOp,
    SumExpOp,
    TargetLogitOp,
)
from stagec.dialects.stg.normalization import (
    LayerNormGradOp,
    LayerNormOp,
    LayerNormWeightGradOp,
    RmsNormGradOp,
    RmsNormOp,
    RmsNormWeightGradOp,
    SoftmaxGradOp,
    SoftmaxOp,
)
from stagec.dialects.stg.optimizer import NUM_STATES, OptimizerStepOp
from stagec.dialects.stg.placement import PlaceOp
from stagec.dialects.stg.structure import (
    AccumulateOp,
    ConstantOp,
    DimOp,
    OutputOp,
    ProgramOp,
    RepeatOp,
    WeightOp,
    YieldOp,
    ZerosOp,
    add_to_yield,
    with_results,
)
from stagec.dialects.stg.user import UserGradOp, UserOp
from stagec.dialects.types import (
    NamesAttr,
    PlacementAttr,
    SizeAttr,
    StackType,
    TensorType,
)

OPS = [
    DimOp,
    ProgramOp,
    WeightOp,
    ConstantOp,
    RepeatOp,
    AccumulateOp,
    YieldOp,
    OutputOp,
    ZerosOp,
    PlaceOp,
    AddOp,
    SubOp,
    MulOp,
    DivOp,
    UnaryOp,
    UnaryGradOp,
    CastOp,
    RenameOp,
    TransposeOp,
    ReduceOp,
    BroadcastOp,
    DropoutOp,
    CausalMaskOp,
    ContractOp,
    EmbeddingOp,
    EmbeddingGradOp,
    RepeatHeadsOp,
    SumHeadsOp,
    RmsNormOp,
    RmsNormGradOp,
    RmsNormWeightGradOp,
    LayerNormOp,
    LayerNormGradOp,
    LayerNormWeightGradOp,
    SoftmaxOp,
    SoftmaxGradOp,
    RopeOp,
    AttentionOp,
    AttentionGradOp,
    CrossEntropyOp,
    CrossEntropyGradOp,
    MaxLogitOp,
    TargetLogitOp,
    SumExpOp,
    LossOfStatisticsOp,
    OptimizerStepOp,
    UserOp,
    UserGradOp,
]

Stg = Dialect("stg", OPS, [TensorType, StackType, SizeAttr, NamesAttr])

__all__ = [
    "BUILTINS",
    "NUM_STATES",
    "OPS",
    "PHASES",
    "PLACEMENT",
    "UNARY_FUNCTIONS",
    "Builtin",
    "Indices",
    "InferError",
    "NamesAttr",
    "Option",
    "PlacementAttr",
    "SizeAttr",
    "StackType",
    "Stg",
    "TensorOp",
    "TensorType",
    "add_to_yield",
    "local_results",
    "operand_splits",
    "phase_of",
    "placed",
    "placement_of",
    "scope_of",
    "tensor_type",
    "text",
    "with_results",
    *(op.__name__ for op in OPS),
]
