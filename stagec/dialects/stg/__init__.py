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
    FOLLOWS_UNIT,
    NAMES,
    PART_OF,
    PHASES,
    PLACEMENT,
    STEPS,
    Function,
    Indices,
    TensorOp,
    add_names,
    functions_of,
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
from stagec.dialects.stg.caching import AppendOp, CacheOp, LastPositionsOp, stored
from stagec.dialects.stg.chunks import (
    MAKES_GRADIENTS,
    ChunkOp,
    JoinChunksOp,
    chunked,
    stack_of_chunks,
)
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
    BroadcastOp,
    CastOp,
    CausalMaskOp,
    DivOp,
    DropoutOp,
    MaxGradOp,
    MulOp,
    ReduceOp,
    SubOp,
    UnaryGradOp,
    UnaryOp,
)
from stagec.dialects.stg.forwarding import FORWARDING_OPS, FanInOp, FanInWeightGradOp, FanOutOp
from stagec.dialects.stg.interface import (
    Call,
    CallError,
    Cotangents,
    Gradients,
    Option,
    Signature,
    Steps,
    only,
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
    with_slices,
)
from stagec.dialects.stg.user import UserGradOp, UserOp
from stagec.dialects.stg.views import PlaceOp, RenameOp, TransposeOp
from stagec.dialects.types import StackType, TensorType

OPS = [
    ChunkOp,
    JoinChunksOp,
    DimOp,
    ProgramOp,
    WeightOp,
    CacheOp,
    AppendOp,
    LastPositionsOp,
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
    *FORWARDING_OPS,
    OptimizerStepOp,
    UserOp,
    UserGradOp,
]

FUNCTIONS = functions_of(OPS)
"""The functions of the language, by name."""

MATRIX_OPS = frozenset(
    op.name.partition(".")[2] for op in OPS if issubclass(op, TensorOp) and op.ON_MATRIX_UNITS
)
"""Kinds of ops whose FLOPs published training FLOPs count."""

Stg = Dialect("stg", OPS, [TensorType, StackType, SizeAttr, NamesAttr])

__all__ = [
    "AppendOp",
    "CacheOp",
    "LastPositionsOp",
    "stored",
    "Call",
    "CallError",
    "Cotangents",
    "FUNCTIONS",
    "Function",
    "Gradients",
    "MATRIX_OPS",
    "Signature",
    "Steps",
    "functions_of",
    "only",
    "FanInOp",
    "FanInWeightGradOp",
    "FanOutOp",
    "NAMES",
    "NUM_STATES",
    "MAKES_GRADIENTS",
    "OPS",
    "chunked",
    "stack_of_chunks",
    "FOLLOWS_UNIT",
    "PART_OF",
    "PHASES",
    "PLACEMENT",
    "STEPS",
    "UNARY_FUNCTIONS",
    "Indices",
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
    "with_slices",
    *(op.__name__ for op in OPS),
]
