"""`stg`: what a model is. Tensors of named dims, the ops on them, repeated layers rolled up.

%q = stg.contract %x, %wq over [D] : (!stg.tensor<[B, S, D], bf16>, ...) -> !stg.tensor<[B, S, H, E], bf16>
"""

from xdsl.ir import Dialect

from stagec.dialects.attributes import (
    LayerStagesAttr,
    NamesAttr as NamesAttr,
    NumbersAttr as NumbersAttr,
    PlacementAttr as PlacementAttr,
    RankAttr,
    RequestsAttr,
    SizeAttr as SizeAttr,
)
from stagec.dialects.contents import ops_of
from stagec.dialects.stg.attention import (
    AttentionGradOp as AttentionGradOp,
    AttentionOp as AttentionOp,
    AttentionSinksGradOp as AttentionSinksGradOp,
    CombineAttentionOp as CombineAttentionOp,
    FusedAttention as FusedAttention,
    MergeAttentionOp as MergeAttentionOp,
    Reach as Reach,
    RopeOp as RopeOp,
    parts_over as parts_over,
)
from stagec.dialects.stg.base import (
    BEGINS_UNIT as BEGINS_UNIT,
    EVICTED as EVICTED,
    FOLLOWS_UNIT as FOLLOWS_UNIT,
    GRADIENT_OF as GRADIENT_OF,
    HOOK as HOOK,
    ISSUED as ISSUED,
    LEAVES as LEAVES,
    MADE_BY as MADE_BY,
    NAMES as NAMES,
    OF_STAGE as OF_STAGE,
    PART_OF as PART_OF,
    PHASES as PHASES,
    PLACEMENT as PLACEMENT,
    STEPS as STEPS,
    UNIT as UNIT,
    WITH_PASS as WITH_PASS,
    WITH_UNIT as WITH_UNIT,
    Function as Function,
    Indices as Indices,
    InferredOp as InferredOp,
    LikeOp as LikeOp,
    StatefulOp as StatefulOp,
    TensorOp as TensorOp,
    add_names as add_names,
    functions_of as functions_of,
    local_results as local_results,
    made_by as made_by,
    marks as marks,
    names_of as names_of,
    operand_splits as operand_splits,
    part_of as part_of,
    phase_of as phase_of,
    placed as placed,
    placement_of as placement_of,
    scope_of as scope_of,
    tensor_type as tensor_type,
    text as text,
)
from stagec.dialects.stg.caching import (
    SAMPLED as SAMPLED,
    SOURCES as SOURCES,
    AppendOp as AppendOp,
    CacheOp as CacheOp,
    FillOp as FillOp,
    InRowsOp as InRowsOp,
    LastPositionsOp as LastPositionsOp,
    OutOfRowsOp as OutOfRowsOp,
    begun as begun,
    is_stored as is_stored,
    is_with_positions as is_with_positions,
    of_sources as of_sources,
    paired as paired,
    position_dim as position_dim,
    stored as stored,
)
from stagec.dialects.stg.chunks import (
    MAKES_GRADIENTS as MAKES_GRADIENTS,
    ChunkOp as ChunkOp,
    JoinChunksOp as JoinChunksOp,
    chunked as chunked,
    stack_of_chunks as stack_of_chunks,
)
from stagec.dialects.stg.concat_split import (
    ConcatOp as ConcatOp,
    SplitOp as SplitOp,
    joined_dims as joined_dims,
)
from stagec.dialects.stg.contraction import (
    WIDE_WEIGHT_GRADIENT as WIDE_WEIGHT_GRADIENT,
    ContractOp as ContractOp,
    EmbeddingGradOp as EmbeddingGradOp,
    EmbeddingOp as EmbeddingOp,
    RepeatHeadsOp as RepeatHeadsOp,
    SumHeadsOp as SumHeadsOp,
)
from stagec.dialects.stg.convolution import (
    CausalConvKernelGradOp as CausalConvKernelGradOp,
    CausalConvOp as CausalConvOp,
    PatchEmbeddingOp as PatchEmbeddingOp,
    PatchImageGradOp as PatchImageGradOp,
    PatchKernelGradOp as PatchKernelGradOp,
)
from stagec.dialects.stg.delta_rule import (
    GatedDeltaRuleGradOp as GatedDeltaRuleGradOp,
    GatedDeltaRuleOp as GatedDeltaRuleOp,
    ResumedDeltaRuleOp as ResumedDeltaRuleOp,
)
from stagec.dialects.stg.elementwise import (
    UNARY_FUNCTIONS as UNARY_FUNCTIONS,
    AddOp as AddOp,
    BroadcastOp as BroadcastOp,
    CastOp as CastOp,
    CausalMaskOp as CausalMaskOp,
    DivOp as DivOp,
    DropoutOp as DropoutOp,
    MaxGradOp as MaxGradOp,
    MulOp as MulOp,
    ReduceOp as ReduceOp,
    SubOp as SubOp,
    UnaryGradOp as UnaryGradOp,
    UnaryOp as UnaryOp,
)
from stagec.dialects.stg.embedding_bag import (
    ROW_STATES as ROW_STATES,
    EmbeddingBagGradOp as EmbeddingBagGradOp,
    EmbeddingBagOp as EmbeddingBagOp,
    UpdateRowsOp as UpdateRowsOp,
)
from stagec.dialects.stg.expert_choices import (
    CopyWeightsGradOp as CopyWeightsGradOp,
    ReturnWeightsOp as ReturnWeightsOp,
    SendWeightsOp as SendWeightsOp,
    SpreadChoiceOp as SpreadChoiceOp,
    TakeChoiceOp as TakeChoiceOp,
    WeightCopiesOp as WeightCopiesOp,
)
from stagec.dialects.stg.interface import (
    BackwardPass as BackwardPass,
    Call as Call,
    CallError as CallError,
    Cotangents as Cotangents,
    Decomposition as Decomposition,
    Option as Option,
    Requests as Requests,
    Signature as Signature,
    only as only,
)
from stagec.dialects.stg.latent_attention import LatentAttentionOp as LatentAttentionOp
from stagec.dialects.stg.loss import (
    LOSSES as LOSSES,
    CrossEntropyGradOp as CrossEntropyGradOp,
    CrossEntropyOp as CrossEntropyOp,
    LogSoftmaxLossGradOp as LogSoftmaxLossGradOp,
    LogSoftmaxLossOp as LogSoftmaxLossOp,
    LossOfStatisticsOp as LossOfStatisticsOp,
    MaxLogitOp as MaxLogitOp,
    SumExpOp as SumExpOp,
    TargetGradOp as TargetGradOp,
    TargetLogitOp as TargetLogitOp,
)
from stagec.dialects.stg.matrices import Matrix as Matrix, MatrixAttr as MatrixAttr
from stagec.dialects.stg.normalization import (
    LayerNormGradOp as LayerNormGradOp,
    LayerNormOp as LayerNormOp,
    LayerNormWeightGradOp as LayerNormWeightGradOp,
    RmsNormGradOp as RmsNormGradOp,
    RmsNormOp as RmsNormOp,
    RmsNormWeightGradOp as RmsNormWeightGradOp,
    SoftmaxGradOp as SoftmaxGradOp,
    SoftmaxOp as SoftmaxOp,
)
from stagec.dialects.stg.optimizer import (
    FACTORED as FACTORED,
    MUON as MUON,
    NUM_STATES as NUM_STATES,
    OF_MATRICES as OF_MATRICES,
    GradientStatisticOp as GradientStatisticOp,
    MomentumOp as MomentumOp,
    OptimizerStepOp as OptimizerStepOp,
    OrthogonalizeOp as OrthogonalizeOp,
    is_wide as is_wide,
)
from stagec.dialects.stg.preconditioning import (
    PRECONDITIONED as PRECONDITIONED,
    Preconditioner as Preconditioner,
    PreconditionerAttr as PreconditionerAttr,
    PreconditionOp as PreconditionOp,
)
from stagec.dialects.stg.quantization import QuantizeOp as QuantizeOp
from stagec.dialects.stg.recurrent import (
    SEQUENCES as SEQUENCES,
    ResumedConvOp as ResumedConvOp,
    ResumedOp as ResumedOp,
    ResumedScanOp as ResumedScanOp,
)
from stagec.dialects.stg.routing import (
    CollectsTokens as CollectsTokens,
    CombineOp as CombineOp,
    CombineWeightGradOp as CombineWeightGradOp,
    DispatchOp as DispatchOp,
    RoutedOp as RoutedOp,
    SendsTokens as SendsTokens,
    TopkGradOp as TopkGradOp,
    TopkOp as TopkOp,
    merged_axes as merged_axes,
)
from stagec.dialects.stg.scan import SsdScanGradOp as SsdScanGradOp, SsdScanOp as SsdScanOp
from stagec.dialects.stg.sources import (
    AS_OTHERS as AS_OTHERS,
    OWN_DTYPE as OWN_DTYPE,
    WIDER as WIDER,
    ConstantOp as ConstantOp,
    DimOp as DimOp,
    WeightOp as WeightOp,
    ZerosOp as ZerosOp,
)
from stagec.dialects.stg.structure import (
    AccumulateOp as AccumulateOp,
    OutputOp as OutputOp,
    ProgramOp as ProgramOp,
    RepeatOp as RepeatOp,
    YieldOp as YieldOp,
    add_slice as add_slice,
    grown as grown,
    slice_arg as slice_arg,
)
from stagec.dialects.stg.token_forwarding import (
    FanInOp as FanInOp,
    FanInWeightGradOp as FanInWeightGradOp,
    FanOutOp as FanOutOp,
)
from stagec.dialects.stg.user_ops import (
    ResumedUserOp as ResumedUserOp,
    UserGradOp as UserGradOp,
    UserOp as UserOp,
)
from stagec.dialects.stg.views import (
    PlaceOp as PlaceOp,
    RenameOp as RenameOp,
    TransposeOp as TransposeOp,
)
from stagec.dialects.types import StackType as StackType, TensorType as TensorType

OPS = ops_of(globals())
"""In the order of the files that they are imported from."""

FUNCTIONS = functions_of(OPS)
"""The functions of the language, by name."""

Stg = Dialect(
    "stg",
    OPS,
    [
        TensorType,
        StackType,
        SizeAttr,
        NamesAttr,
        NumbersAttr,
        RequestsAttr,
        MatrixAttr,
        PreconditionerAttr,
        RankAttr,
        LayerStagesAttr,
    ],
)
