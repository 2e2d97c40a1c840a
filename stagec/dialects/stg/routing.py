"""Mixture of experts: which experts a token goes to, the way there, and the way back.

    %g, %i = stg.topk %scores over "X" to "A"          // [B, S, X] -> [B, S, A] twice: weights, and numbers of experts
    %r, %n = stg.dispatch %x by %i to "X" "C"          // [B, S, D] -> [X, C, D]: C tokens for each expert
    %o = stg.combine %y by %i weights %g               // [X, C, D] -> [B, S, D]

The dim of an expert's tokens, `C`, is the tokens' dims flattened: axes that split those split it. Which tokens are where in it means nothing, so
its axes have no order of their own. A dispatch is local; that experts live elsewhere is a change of placement, an all-to-all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.stg.base import Indices, TensorOp, tensor_type
from stagec.dialects.types import Dim, TensorType


@irdl_op_definition
class TopkOp(TensorOp):
    """The `to` largest scores of each token over `over`, and which they are.

    `normalise` divides them by their sum. The backward pass reads weights and numbers.
    """

    name = "stg.topk"

    scores = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = prop_def(StringAttr)
    normalise = opt_prop_def(UnitAttr)
    weights = result_def(TensorType)
    experts = result_def(TensorType)

    assembly_format = (
        "$scores `over` $over `to` $to (`normalise` $normalise^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(self, scores: SSAValue, over: str, to: str, normalise: bool = False) -> None:
        source = tensor_type(scores)
        dims = [Dim(to) if d.name == over else d for d in source.dims]
        properties = {"over": StringAttr(over), "to": StringAttr(to)}
        super().__init__(
            operands=[scores],
            properties=properties | ({"normalise": UnitAttr()} if normalise else {}),
            result_types=[TensorType.of(dims, source.dtype), TensorType.of(dims, "i32")],
        )

    def indices(self) -> Indices:
        base = super().indices()
        blocked = frozenset((self.over.data, self.to.data))
        return Indices(base.operands, base.results, blocked=blocked, statistics=blocked)


@irdl_op_definition
class TopkGradOp(TensorOp):
    """The gradient for the scores: that of each weight at its expert, zero elsewhere."""

    name = "stg.topk_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dweights = operand_def(TensorType)
    weights = operand_def(TensorType)
    experts = operand_def(TensorType)
    dscores = result_def(TensorType)

    assembly_format = (
        "$dweights `,` $weights `,` $experts attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        dweights: SSAValue,
        weights: SSAValue,
        experts: SSAValue,
        scores_type: TensorType,
    ) -> None:
        partial = tensor_type(dweights).partial
        super().__init__(
            operands=[dweights, weights, experts], result_types=[scores_type.with_partial(partial)]
        )

    def indices(self) -> Indices:
        base = super().indices()
        chosen = set(base.operands[0]) - set(base.results[0])
        return Indices(base.operands, base.results, statistics=frozenset(chosen))


class RoutedOp(TensorOp):
    """Shared by ops between tokens [..., D] and the tokens of each expert [X, C, D]."""

    def merged_index(self) -> tuple[str, tuple[str, ...]]:
        """The index of an expert's tokens, and those of the tokens that it is made of."""
        raise AssertionError(self.name)


@irdl_op_definition
class DispatchOp(RoutedOp):
    """Copy each token to its experts' tokens; `counts` says how many each expert has from this device.

    `dropless`: sizes depend on the data, so that devices exchange counts before tokens. With `weights` a copy is
    scaled by its weight: the transpose of a weighted `stg.combine`.
    """

    name = "stg.dispatch"
    NUM_STATISTICS: ClassVar[int] = 1
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    x = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    over = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    dropless = opt_prop_def(UnitAttr)
    routed = result_def(TensorType)
    counts = result_def(TensorType)

    assembly_format = (
        "$x `by` $experts (`weights` $weights^)? `to` $over $tokens (`dropless` $dropless^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self,
        x: SSAValue,
        experts: SSAValue,
        over: str,
        tokens: str,
        dropless: bool = False,
        weights: SSAValue | None = None,
        routed_type: TensorType | None = None,
    ) -> None:
        source, chosen = tensor_type(x), tensor_type(experts)
        axes = [a for d in chosen.dims[:-1] for a in d.split]
        if routed_type is None:
            dims = [Dim(over), Dim(tokens, tuple(axes)), source.dims[-1]]
            routed_type = TensorType.of(dims, source.dtype)
        properties = {"over": StringAttr(over), "tokens": StringAttr(tokens)}
        super().__init__(
            operands=[x, experts, weights],
            properties=properties | ({"dropless": UnitAttr()} if dropless else {}),
            result_types=[
                routed_type.with_partial(source.partial),
                TensorType.of([Dim(over)], "i64"),
            ],
        )

    def indices(self) -> Indices:
        base = super().indices()
        chosen = base.operands[1][-1]
        blocked = frozenset((self.over.data, self.tokens.data, chosen))
        everything = frozenset(n for names in base.operands for n in names)
        return Indices(base.operands, base.results, blocked=blocked, statistics=everything)

    def merged_index(self) -> tuple[str, tuple[str, ...]]:
        return self.tokens.data, tensor_type(self.experts).names[:-1]

    def verify_(self) -> None:
        verify_routed(self, tensor_type(self.x), tensor_type(self.routed))


@irdl_op_definition
class CombineOp(RoutedOp):
    """Add up what a token's experts made of it, weighted if there are `weights`."""

    name = "stg.combine"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    routed = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = (
        "$routed `by` $experts (`weights` $weights^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self, routed: SSAValue, experts: SSAValue, weights: SSAValue | None = None
    ) -> None:
        source, chosen = tensor_type(routed), tensor_type(experts)
        dims = [*chosen.dims[:-1], source.dims[-1]]
        super().__init__(
            operands=[routed, experts, weights],
            result_types=[TensorType.of(dims, source.dtype, source.partial)],
        )

    def indices(self) -> Indices:
        base = super().indices()
        over, tokens, _ = base.operands[0]
        blocked = frozenset((over, tokens, base.operands[1][-1]))
        return Indices(base.operands, base.results, blocked=blocked, statistics=blocked)

    def merged_index(self) -> tuple[str, tuple[str, ...]]:
        return tensor_type(self.routed).names[1], tensor_type(self.experts).names[:-1]

    def verify_(self) -> None:
        verify_routed(self, tensor_type(self.result), tensor_type(self.routed))


@irdl_op_definition
class CombineWeightGradOp(RoutedOp):
    """The gradient for the weights: of each token and expert, the product of dy with what the expert made."""

    name = "stg.combine_weight_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    routed = operand_def(TensorType)
    experts = operand_def(TensorType)
    dweights = result_def(TensorType)

    assembly_format = (
        "$dy `,` $routed `by` $experts attr-dict `:` functional-type(operands, results)"
    )

    def __init__(self, dy: SSAValue, routed: SSAValue, experts: SSAValue, dtype: str) -> None:
        cotangent, chosen = tensor_type(dy), tensor_type(experts)
        summed = cotangent.dims[-1].split
        result = chosen.with_dtype(dtype).with_partial(sorted({*cotangent.partial, *summed}))
        super().__init__(operands=[dy, routed, experts], result_types=[result])

    def merged_index(self) -> tuple[str, tuple[str, ...]]:
        return tensor_type(self.routed).names[1], tensor_type(self.experts).names[:-1]

    def verify_(self) -> None:
        verify_routed(self, tensor_type(self.dy), tensor_type(self.routed))


def verify_routed(op: RoutedOp, tokens: TensorType, routed: TensorType) -> None:
    """Tokens [..., D] and experts' tokens [X, C, D]: what splits the one splits the other."""
    if len(routed.dims) != 3 or tokens.names[-1] != routed.names[-1]:
        raise VerifyException(
            f"{op.name}: tokens <{tokens.body}> do not go to experts as <{routed.body}>"
        )
    axes = {a for d in tokens.dims[:-1] for a in d.split}
    if "placement" not in op.attributes and axes != set(routed.dims[1].split):
        raise VerifyException(
            f"{op.name}: tokens are split over [{', '.join(sorted(axes))}], experts' tokens over "
            f"[{', '.join(routed.dims[1].split)}]"
        )


def merged_axes(
    splits: dict[str, tuple[str, ...]], parts: Sequence[str], like: TensorType
) -> tuple[str, ...]:
    """The axes of an expert's tokens, in the order that makes the way to the experts short.

    First those that split them there too, last those that split the experts: these are exchanged.
    """
    axes = [a for part in parts for a in splits.get(part, ())]
    kept = [a for a in like.dims[1].split if a in axes]
    exchanged = [a for a in like.dims[0].split if a in axes]
    rest = [a for a in axes if a not in kept and a not in exchanged]
    return (*kept, *rest, *exchanged)
