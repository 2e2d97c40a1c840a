"""Norms and softmax: ops with statistics over some dims, and their gradients.

A statistic is kept for the backward pass in fp32, as PyTorch and Megatron-LM keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.stg.base import Indices, TensorOp, tensor_type
from stagec.dialects.types import TensorType


def statistic_type(x: SSAValue, over: Sequence[str]) -> TensorType:
    """One fp32 number per position that is left when `over` is reduced."""
    return TensorType.of([d for d in tensor_type(x).dims if d.name not in over], "fp32")


class NormOp(TensorOp):
    """Shared by ops that normalise `over` some dims."""

    LIKE: ClassVar[int | None] = 0

    over = prop_def(NamesAttr)

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, statistics=frozenset(self.over.data))


@irdl_op_definition
class RmsNormOp(NormOp):
    """x / rms(x) * weight (Zhang and Sennrich 2019). Keeps `rstd`, one number per position."""

    name = "stg.rms_norm"
    NUM_STATISTICS: ClassVar[int] = 1

    x = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    result = result_def(TensorType)
    rstd = result_def(TensorType)

    assembly_format = (
        "$x (`weight` $weight^)? `over` $over attr-dict `:` functional-type(operands, results)"
    )

    def __init__(self, x: SSAValue, weight: SSAValue | None, over: Sequence[str]) -> None:
        super().__init__(
            operands=[x, weight],
            properties={"over": NamesAttr(tuple(over))},
            result_types=[x.type, statistic_type(x, over)],
        )


@irdl_op_definition
class RmsNormGradOp(NormOp):
    """The gradient for x: rstd * (dy * w - xhat * mean(dy * w * xhat))."""

    name = "stg.rms_norm_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    rstd = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    dx = result_def(TensorType)

    assembly_format = (
        "$dy `,` $x `,` $rstd (`weight` $weight^)? `over` $over attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        rstd: SSAValue,
        weight: SSAValue | None,
        over: Sequence[str],
    ) -> None:
        partial = tensor_type(dy).partial
        super().__init__(
            operands=[dy, x, rstd, weight],
            properties={"over": NamesAttr(tuple(over))},
            result_types=[tensor_type(x).with_partial(partial)],
        )


class NormWeightGradOp(TensorOp):
    """Shared by the gradients of norms' weights: sums over all dims but the weight's."""

    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)


def summed_type(dy: SSAValue, kept: TensorType) -> TensorType:
    """The type of dy summed over all dims but those of `kept`."""
    source = tensor_type(dy)
    summed = [a for d in source.dims if d.name not in kept.names for a in d.split]
    return kept.with_partial(sorted({*source.partial, *summed}))


@irdl_op_definition
class RmsNormWeightGradOp(NormWeightGradOp):
    """The gradient for the weight: the sum of dy * x * rstd over positions."""

    name = "stg.rms_norm_weight_grad"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    rstd = operand_def(TensorType)
    dweight = result_def(TensorType)

    assembly_format = "$dy `,` $x `,` $rstd attr-dict `:` functional-type(operands, results)"

    def __init__(self, dy: SSAValue, x: SSAValue, rstd: SSAValue, weight_type: TensorType) -> None:
        super().__init__(operands=[dy, x, rstd], result_types=[summed_type(dy, weight_type)])


@irdl_op_definition
class LayerNormOp(NormOp):
    """(x - mean) / std * weight + bias (Ba et al. 2016). Keeps `mean` and `rstd`."""

    name = "stg.layer_norm"
    NUM_STATISTICS: ClassVar[int] = 2

    x = operand_def(TensorType)
    affine = var_operand_def(TensorType)
    result = result_def(TensorType)
    mean = result_def(TensorType)
    rstd = result_def(TensorType)

    assembly_format = (
        "$x (`affine` `(` $affine^ `)`)? `over` $over attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(self, x: SSAValue, affine: Sequence[SSAValue], over: Sequence[str]) -> None:
        """`affine` is (weight, bias), (weight,) or nothing."""
        statistic = statistic_type(x, over)
        super().__init__(
            operands=[x, list(affine)],
            properties={"over": NamesAttr(tuple(over))},
            result_types=[x.type, statistic, statistic],
        )

    @property
    def weight(self) -> SSAValue | None:
        return self.affine[0] if self.affine else None

    @property
    def bias(self) -> SSAValue | None:
        return self.affine[1] if len(self.affine) > 1 else None

    def verify_(self) -> None:
        if len(self.affine) > 2:
            raise VerifyException("stg.layer_norm: affine is a weight and a bias at most")
        super().verify_()


@irdl_op_definition
class LayerNormGradOp(NormOp):
    """The gradient for x."""

    name = "stg.layer_norm_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    rstd = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    dx = result_def(TensorType)

    assembly_format = (
        "$dy `,` $x `,` $mean `,` $rstd (`weight` $weight^)? `over` $over attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        mean: SSAValue,
        rstd: SSAValue,
        weight: SSAValue | None,
        over: Sequence[str],
    ) -> None:
        partial = tensor_type(dy).partial
        super().__init__(
            operands=[dy, x, mean, rstd, weight],
            properties={"over": NamesAttr(tuple(over))},
            result_types=[tensor_type(x).with_partial(partial)],
        )


@irdl_op_definition
class LayerNormWeightGradOp(NormWeightGradOp):
    """The gradient for the weight: the sum of dy * xhat over positions."""

    name = "stg.layer_norm_weight_grad"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    rstd = operand_def(TensorType)
    dweight = result_def(TensorType)

    assembly_format = (
        "$dy `,` $x `,` $mean `,` $rstd attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        mean: SSAValue,
        rstd: SSAValue,
        weight_type: TensorType,
    ) -> None:
        super().__init__(operands=[dy, x, mean, rstd], result_types=[summed_type(dy, weight_type)])


@irdl_op_definition
class SoftmaxOp(NormOp):
    """exp(x - max) / sum over `over`."""

    name = "stg.softmax"

    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$x `over` $over attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, over: Sequence[str]) -> None:
        super().__init__(
            operands=[x], properties={"over": NamesAttr(tuple(over))}, result_types=[x.type]
        )


@irdl_op_definition
class SoftmaxGradOp(NormOp):
    """y * (dy - sum(dy * y)): the probabilities are what the backward pass reads."""

    name = "stg.softmax_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    y = operand_def(TensorType)
    dx = result_def(TensorType)

    assembly_format = "$dy `,` $y `over` $over attr-dict `:` functional-type(operands, results)"

    def __init__(self, dy: SSAValue, y: SSAValue, over: Sequence[str]) -> None:
        partial = tensor_type(dy).partial
        super().__init__(
            operands=[dy, y],
            properties={"over": NamesAttr(tuple(over))},
            result_types=[tensor_type(y).with_partial(partial)],
        )
