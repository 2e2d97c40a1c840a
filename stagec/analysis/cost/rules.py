"""Costs of the built-in ops, with the source of each formula that is no definition."""

from __future__ import annotations

from stagec import symbolic
from stagec.analysis.cost.base import Bytes, all_bytes, elements, flops, num_bytes, op_bytes
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, dtype_bytes, tensor_of
from stagec.symbolic import ONE, ZERO, Size

HALF = ONE / 2


# Contractions: 2 per multiply-add, over the whole iteration space


@flops.register
def _(op: stg.ContractOp) -> Size:
    dims = {d.name: d for d in (*stg.tensor_type(op.left).dims, *stg.tensor_type(op.right).dims)}
    return 2 * symbolic.product(d.size for d in dims.values())


@flops.register
def _(op: stg.EmbeddingOp) -> Size:
    return ZERO


@op_bytes.register
def _(op: stg.EmbeddingOp) -> Bytes:
    # A row per number, not the table.
    return Bytes(num_bytes(op.ids) + num_bytes(op.result), num_bytes(op.result))


@flops.register
def _(op: stg.EmbeddingGradOp) -> Size:
    return elements(op.dy)


@op_bytes.register
def _(op: stg.EmbeddingGradOp) -> Bytes:
    return Bytes(num_bytes(op.ids) + num_bytes(op.dy), num_bytes(op.dtable))


def looked_up(ids: TensorType, table: TensorType) -> Size:
    """Elements of the rows that one device looks up: even over the devices that rows are split over."""
    rows, *width = [d for d in table.dims if d.name not in ids.names]
    ways = symbolic.product(map(symbolic.symbol, rows.split))
    return ids.num_elements * symbolic.product(d.size for d in width) / ways


@flops.register
def _(op: stg.EmbeddingBagOp) -> Size:
    return looked_up(stg.tensor_type(op.ids), stg.tensor_type(op.table))


@op_bytes.register
def _(op: stg.EmbeddingBagOp) -> Bytes:
    table = stg.tensor_type(op.table)
    rows = looked_up(stg.tensor_type(op.ids), table) * dtype_bytes(table.dtype)
    return Bytes(num_bytes(op.ids) + rows, num_bytes(op.result))


@flops.register
def _(op: stg.EmbeddingBagGradOp) -> Size:
    return looked_up(stg.tensor_type(op.ids), stg.tensor_type(op.dtable))


@flops.register
def _(op: stg.RepeatHeadsOp) -> Size:
    return ZERO


@flops.register
def _(op: stg.SumHeadsOp) -> Size:
    return elements(op.x)


@flops.register
def _(op: stg.CastOp) -> Size:
    return ZERO


@flops.register
def _(op: stg.ConcatOp) -> Size:
    return ZERO


@flops.register
def _(op: stg.ReduceOp) -> Size:
    return elements(op.x)


@flops.register
def _(op: stg.ZerosOp) -> Size:
    return ZERO


# Norms and softmax: the operations of their definitions, per element


@flops.register
def _(op: stg.RmsNormOp) -> Size:
    # square, add, scale, and the weight
    return elements(op.x) * (4 if op.weight is not None else 3)


@flops.register
def _(op: stg.RmsNormGradOp) -> Size:
    # dy*w, *xhat, add, xhat*mean, subtract, *rstd, and x*rstd
    return 7 * elements(op.x)


@flops.register
def _(op: stg.RmsNormWeightGradOp) -> Size:
    return 3 * elements(op.x)


@flops.register
def _(op: stg.LayerNormOp) -> Size:
    # add, subtract, square, add, scale, weight, bias
    return elements(op.x) * (5 + len(op.affine))


@flops.register
def _(op: stg.LayerNormGradOp) -> Size:
    return 11 * elements(op.x)


@flops.register
def _(op: stg.LayerNormWeightGradOp) -> Size:
    return 4 * elements(op.x)


@flops.register
def _(op: stg.SoftmaxOp) -> Size:
    # max, subtract, exp, add, divide
    return 5 * elements(op.x)


@flops.register
def _(op: stg.SoftmaxGradOp) -> Size:
    return 4 * elements(op.y)


@flops.register
def _(op: stg.UnaryGradOp) -> Size:
    return 2 * elements(op.dy)


@flops.register
def _(op: stg.RopeOp) -> Size:
    # A rotation of each pair: 4 multiplications and 2 additions for 2 elements.
    return 3 * elements(op.x)


# Attention


def score_pairs(q: TensorType, k: TensorType, causal: bool, window: Size | None) -> Size:
    """Pairs of a query and a key that count.

    All of them, or half under a causal mask, which is how FlashAttention's authors count what their kernel computes
    (`flops` in flash-attention's benchmarks: 4 S^2 H E / 2). A window of W keys leaves S W - W^2 / 2 (causal).
    """
    queries, keys = q.dims[-3].size, k.dims[-3].size
    if window is not None:
        reach = symbolic.call("min", window, keys)
        return queries * reach - (reach * reach * HALF if causal else ZERO)
    return queries * keys * (HALF if causal else ONE)


def attention_products(
    op: stg.AttentionOp | stg.AttentionGradOp, of_keys: int, of_values: int, of_cap: int
) -> Size:
    """FLOPs of so many products over the width of keys, and so many over that of values: 2 per pair and element.

    What softmax does is not counted, as FlashAttention's authors do not; what caps scores is: so many for each pair.
    """
    q, k, v = stg.tensor_type(op.q), stg.tensor_type(op.k), stg.tensor_type(op.v)
    if op.pairs is not None:
        pairs = op.pairs.data
    else:
        counted = op.causal is not None and op.count.data == "causal"
        window = op.window.data if op.window is not None else None
        pairs = score_pairs(q, k, counted, window)
    batch = symbolic.product(d.size for d in (*q.dims[:-3], q.dims[-2]))
    products = 2 * (of_keys * q.dims[-1].size + of_values * v.dims[-1].size)
    return batch * pairs * (products + (of_cap if op.softcap is not None else 0))


@flops.register
def _(op: stg.AttentionOp) -> Size:
    # q k^T, and the probabilities times v. A cap divides, takes the tanh and multiplies.
    return attention_products(op, 1, 1, 3)


@flops.register
def _(op: stg.AttentionGradOp) -> Size:
    # Five products for two: the scores again, dq and dk; dv and dp (Dao et al. 2022, appendix B).
    # Under a cap the scores are capped again, and its derivative 1 - tanh^2 is a factor.
    return attention_products(op, 3, 2, 6)


@flops.register
def _(op: stg.MergeAttentionOp) -> Size:
    # output - w (output - block); a difference, sigmoid(d), log(sigmoid(-d)) and its subtraction for each lse.
    return 3 * elements(op.output) + 5 * elements(op.lse)


# Loss and optimizer


@flops.register
def _(op: stg.CrossEntropyOp | stg.LogSoftmaxLossOp | stg.CrossEntropyGradOp) -> Size:
    return 4 * elements(op.logits)


@flops.register
def _(op: stg.TargetGradOp) -> Size:
    return elements(op.targets)


@flops.register
def _(op: stg.LogSoftmaxLossGradOp) -> Size:
    # exp, times the share of each position, plus the target's term
    return 3 * elements(op.dlogits)


@flops.register
def _(op: stg.MaxLogitOp) -> Size:
    return elements(op.logits)


@flops.register
def _(op: stg.SumExpOp) -> Size:
    return 3 * elements(op.logits)


@flops.register
def _(op: stg.TargetLogitOp) -> Size:
    return elements(op.target)


@flops.register
def _(op: stg.LossOfStatisticsOp) -> Size:
    return 3 * elements(op.lse)


@op_bytes.register
def _(op: stg.TargetLogitOp) -> Bytes:
    one_per_target = elements(op.target) * dtype_bytes(stg.tensor_type(op.logits).dtype)
    return Bytes(
        one_per_target + num_bytes(op.targets) + num_bytes(op.largest), num_bytes(op.target)
    )


@op_bytes.register
def _(op: stg.TargetGradOp) -> Bytes:
    # The log-probabilities say the shape alone.
    return Bytes(num_bytes(op.dloss) + num_bytes(op.targets), num_bytes(op.dtargets))


OPTIMIZER_FLOPS = {"sgd": 2, "sgd_momentum": 4, "adam": 12, "adamw": 14}
"""Operations per parameter of the update's formulas (Kingma and Ba 2015; Loshchilov and Hutter 2019)."""


@flops.register
def _(op: stg.OptimizerStepOp) -> Size:
    per_parameter = OPTIMIZER_FLOPS[op.algorithm.data]
    return symbolic.total(elements(w) for w in op.weights) * per_parameter


@op_bytes.register
def _(op: stg.OptimizerStepOp) -> Bytes:
    # Reads the gradient, the weight (or its master copy) and the states; writes all but the gradient.
    parameters = symbolic.total(elements(w) for w in op.weights)
    states = parameters * stg.NUM_STATES[op.algorithm.data] * dtype_bytes(op.states.data)
    weights, gradients = all_bytes(op.weights), all_bytes(op.gradients)
    if op.master is None:
        return Bytes(gradients + weights + states, weights + states)
    master = parameters * dtype_bytes(op.master.data)
    return Bytes(gradients + master + states, master + states + weights)


# Routing


@flops.register
def _(op: stg.DispatchOp) -> Size:
    return elements(op.routed) if op.weights is not None else ZERO


@flops.register
def _(op: stg.CombineOp) -> Size:
    # An addition for each copy, and a multiplication if it is weighted.
    return elements(op.routed) * (2 if op.weights is not None else 1)


@flops.register
def _(op: stg.CombineWeightGradOp) -> Size:
    return 2 * elements(op.routed)


@flops.register
def _(op: stg.FanOutOp) -> Size:
    return elements(op.copies) if op.weights is not None else ZERO


@flops.register
def _(op: stg.FanInOp) -> Size:
    return elements(op.copies) * (2 if op.weights is not None else 1)


@flops.register
def _(op: stg.FanInWeightGradOp) -> Size:
    return 2 * elements(op.copies)


@flops.register
def _(op: stg.TopkOp) -> Size:
    # A comparison for each score, an addition of the bias; with groups their two best and the masked choice.
    passes = 1 + (op.bias is not None) + (op.groups is not None)
    return elements(op.scores) * passes


@flops.register
def _(op: stg.TopkGradOp) -> Size:
    return elements(op.dscores)


# Ops that a model declares


def local_share(op: stg.UserOp | stg.UserGradOp) -> Size:
    """The part of a user's op that one device does: what splits its operands or results splits its work."""
    splits: dict[str, tuple[str, ...]] = {}
    for value in (*op.operands, *op.results):
        splits |= tensor_of(value.type).splits
    ways = symbolic.product(symbolic.symbol(a) for axes in splits.values() for a in axes)
    return ONE / ways


@flops.register
def _(op: stg.UserOp) -> Size:
    return op.flops.data * local_share(op)


@op_bytes.register
def _(op: stg.UserOp) -> Bytes:
    return Bytes(op.bytes.data * local_share(op), ZERO)


@flops.register
def _(op: stg.UserGradOp) -> Size:
    return op.flops.data * local_share(op)


@op_bytes.register
def _(op: stg.UserGradOp) -> Bytes:
    return Bytes(op.bytes.data * local_share(op), ZERO)


@flops.register
def _(op: dist.SliceOp) -> Size:
    return ZERO


@op_bytes.register
def _(op: dist.SliceOp) -> Bytes:
    return Bytes(num_bytes(op.result), num_bytes(op.result))
