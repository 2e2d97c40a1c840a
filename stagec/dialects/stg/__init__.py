"""`stg`: what a model is. Tensors of named dims, the ops on them, repeated layers rolled up.

%q = stg.contract %x, %wq over [D] : (!stg.tensor<[B, S, D], bf16>, ...) -> !stg.tensor<[B, S, H, E], bf16>
"""

from xdsl.ir import Dialect

from stagec.dialects.attributes import NamesAttr, PlacementAttr, SizeAttr
from stagec.dialects.stg.attention import (
    AttentionGradOp,
    AttentionOp,
    MergeAttentionOp,
    RopeOp,
)
from stagec.dialects.stg.base import (
    NAMES,
    PART_OF,
    PHASES,
    PLACEMENT,
    STEPS,
    Indices,
    InferError,
    TensorOp,
    add_names,
    local_results,
    made_by,
    names_of,
    operand_splits,
    part_of,
    phase_of,
    placed,
    placement_of,
    scope_of,
    tensor_type,
    text,
)
from stagec.dialects.stg.builtin import Builtin, Option
from stagec.dialects.stg.builtins import BUILTINS
from stagec.dialects.stg.contraction import (
    ContractOp,
    EmbeddingGradOp,
    EmbeddingOp,
    RepeatHeadsOp,
    SumHeadsOp,
)
from stagec.dialects.stg.convolution import (
    CausalConvKernelGradOp,
    CausalConvOp,
    PatchEmbeddingOp,
    PatchImageGradOp,
    PatchKernelGradOp,
)
from stagec.dialects.stg.elementwise import (
    UNARY_FUNCTIONS,
    AddOp,
    CastOp,
    CausalMaskOp,
    DivOp,
    DropoutOp,
    MulOp,
    RenameOp,
    SubOp,
    TransposeOp,
    UnaryGradOp,
    UnaryOp,
)
from stagec.dialects.stg.joining import ConcatOp, SplitOp
from stagec.dialects.stg.lookup import EmbeddingBagGradOp, EmbeddingBagOp
from stagec.dialects.stg.loss import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    LogSoftmaxLossGradOp,
    LogSoftmaxLossOp,
    LossOfStatisticsOp,
    MaxLogitOp,
    SumExpOp,
    TargetGradOp,
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
from stagec.dialects.stg.reduction import BroadcastOp, MaxGradOp, ReduceOp
from stagec.dialects.stg.routing import (
    CombineOp,
    CombineWeightGradOp,
    DispatchOp,
    RoutedOp,
    TopkGradOp,
    TopkOp,
    merged_axes,
)
from stagec.dialects.stg.scan import SsdScanGradOp, SsdScanOp
from stagec.dialects.stg.sources import ConstantOp, DimOp, WeightOp, ZerosOp
from stagec.dialects.stg.structure import (
    AccumulateOp,
    OutputOp,
    ProgramOp,
    RepeatOp,
    YieldOp,
    add_to_yield,
    with_results,
)
from stagec.dialects.stg.user import UserGradOp, UserOp
from stagec.dialects.types import StackType, TensorType

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
    ConcatOp,
    SplitOp,
    ReduceOp,
    MaxGradOp,
    BroadcastOp,
    DropoutOp,
    CausalMaskOp,
    ContractOp,
    EmbeddingOp,
    EmbeddingGradOp,
    EmbeddingBagOp,
    EmbeddingBagGradOp,
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
    MergeAttentionOp,
    PatchEmbeddingOp,
    PatchKernelGradOp,
    PatchImageGradOp,
    CausalConvOp,
    CausalConvKernelGradOp,
    SsdScanOp,
    SsdScanGradOp,
    CrossEntropyOp,
    CrossEntropyGradOp,
    LogSoftmaxLossOp,
    TargetGradOp,
    LogSoftmaxLossGradOp,
    MaxLogitOp,
    TargetLogitOp,
    SumExpOp,
    LossOfStatisticsOp,
    TopkOp,
    TopkGradOp,
    DispatchOp,
    CombineOp,
    CombineWeightGradOp,
    OptimizerStepOp,
    UserOp,
    UserGradOp,
]

Stg = Dialect("stg", OPS, [TensorType, StackType, SizeAttr, NamesAttr])

__all__ = [
    "BUILTINS",
    "NAMES",
    "NUM_STATES",
    "OPS",
    "PART_OF",
    "PHASES",
    "PLACEMENT",
    "STEPS",
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
    "add_names",
    "add_to_yield",
    "local_results",
    "merged_axes",
    "RoutedOp",
    "names_of",
    "operand_splits",
    "part_of",
    "made_by",
    "phase_of",
    "placed",
    "placement_of",
    "scope_of",
    "tensor_type",
    "text",
    "with_results",
    *(op.__name__ for op in OPS),
]
