"""Rotary embedding and fused attention, forward and backward.

Attention's operands end in sequence, heads, width: q [..., S, H, E], k [..., T, K, E],
v [..., T, K, G]. H and K are one index at two granularities (grouped queries). The sequence of queries
and of keys are two indices, even where they share a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def

from stagec.dialects.stg.base import Indices, TensorOp, tensor_type
from stagec.dialects.types import SizeAttr, TensorType
from stagec.symbolic import Size

KEY = "key:"
"""Marks the index of keys and values apart from the queries' of the same name."""


@irdl_op_definition
class RopeOp(TensorOp):
    """Rotary position embedding (Su et al. 2021): rotates pairs within the last dim.

    The gradient is the inverse rotation; the tables of sines are buffers, nothing is saved.
    """

    name = "stg.rope"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    x = operand_def(TensorType)
    inverse = opt_prop_def(UnitAttr)
    result = result_def(TensorType)

    assembly_format = "(`inverse` $inverse^)? $x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, inverse: bool = False) -> None:
        super().__init__(
            operands=[x],
            properties={"inverse": UnitAttr()} if inverse else {},
            result_types=[x.type],
        )

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, blocked=frozenset(base.operands[0][-1:]))


def attention_indices(q: TensorType, k: TensorType, v: TensorType) -> tuple:
    """Indices of q, k, v, of the output and of the log-sum-exp."""
    *batch, queries, heads, width = q.names
    keys, value_width = KEY + k.names[-3], v.names[-1]
    return (
        (*batch, queries, heads, width),
        (*batch, keys, heads, width),
        (*batch, keys, heads, value_width),
        (*batch, queries, heads, value_width),
        (*batch, queries, heads),
    )


@irdl_op_definition
class AttentionOp(TensorOp):
    """softmax(q k^T) v without the scores in memory (FlashAttention, Dao et al. 2022).

    Keeps the output and `lse`, the log-sum-exp of each query and head in fp32. `count` says how FLOPs
    count a causal mask: `causal` what a fused kernel computes, `full` all of it. `window` limits how
    far back a query looks.
    """

    name = "stg.attention"
    NUM_STATISTICS: ClassVar[int] = 1

    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    causal = opt_prop_def(UnitAttr)
    count = prop_def(StringAttr)
    window = opt_prop_def(SizeAttr)
    result = result_def(TensorType)
    lse = result_def(TensorType)

    assembly_format = (
        "$q `,` $k `,` $v (`causal` $causal^)? `count` $count (`window` $window^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        causal: bool = False,
        count: str = "causal",
        window: Size | None = None,
    ) -> None:
        queries, values = tensor_type(q), tensor_type(v)
        output = TensorType.of([*queries.dims[:-1], values.dims[-1]], queries.dtype)
        super().__init__(
            operands=[q, k, v],
            properties=attention_properties(causal, count, window),
            result_types=[output, TensorType.of(queries.dims[:-1], "fp32")],
        )

    def indices(self) -> Indices:
        q, k, v, output, lse = attention_indices(
            tensor_type(self.q), tensor_type(self.k), tensor_type(self.v)
        )
        blocked = frozenset((q[-1], v[-1], k[-3]))
        return Indices((q, k, v), (output, lse), blocked=blocked)


def attention_properties(causal: bool, count: str, window: Size | None) -> dict[str, Attribute]:
    properties: dict[str, Attribute] = {"count": StringAttr(count)}
    if causal:
        properties["causal"] = UnitAttr()
    if window is not None:
        properties["window"] = SizeAttr(window)
    return properties


@irdl_op_definition
class AttentionGradOp(TensorOp):
    """Gradients of fused attention: scores are computed again, then four more products.

    dk and dv sum over queries: over axes that split those they are partial.
    """

    name = "stg.attention_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    output = operand_def(TensorType)
    lse = operand_def(TensorType)
    causal = opt_prop_def(UnitAttr)
    count = prop_def(StringAttr)
    window = opt_prop_def(SizeAttr)
    dq = result_def(TensorType)
    dk = result_def(TensorType)
    dv = result_def(TensorType)

    assembly_format = (
        "$dy `,` $q `,` $k `,` $v `,` $output `,` $lse (`causal` $causal^)? `count` $count "
        "(`window` $window^)? attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        dy: SSAValue,
        forward: AttentionOp,
        saved: Mapping[SSAValue, SSAValue] | None = None,
    ) -> None:
        """`saved` maps the forward op's operands and results to what the backward pass sees."""
        values = (forward.q, forward.k, forward.v, forward.result, forward.lse)
        q, k, v, output, lse = (saved[x] if saved else x for x in values)
        partial = tensor_type(dy).partial
        queries = tensor_type(q)
        summed = sorted({*partial, *queries.dims[-3].split})
        super().__init__(
            operands=[dy, q, k, v, output, lse],
            properties={
                key: value
                for key in ("causal", "count", "window")
                if (value := forward.properties.get(key)) is not None
            },
            result_types=[
                queries.with_partial(partial),
                tensor_type(k).with_partial(summed),
                tensor_type(v).with_partial(summed),
            ],
        )

    def indices(self) -> Indices:
        q, k, v, output, lse = attention_indices(
            tensor_type(self.q), tensor_type(self.k), tensor_type(self.v)
        )
        blocked = frozenset((q[-1], v[-1], k[-3]))
        return Indices((output, q, k, v, output, lse), (q, k, v), blocked=blocked)
