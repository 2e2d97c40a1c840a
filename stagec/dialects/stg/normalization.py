"""Norms and softmax: ops with statistics over some dims, and their gradients.

A statistic is kept for the backward pass in fp32, as PyTorch and Megatron-LM keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    var_operand_def,
)

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import elements
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, LikeOp, TensorOp, tensor_type
from stagec.dialects.stg.elementwise import (
    AddOp,
    DivOp,
    UnaryOp,
    cast,
    difference,
    largest_over,
    pass_through,
    product,
    scaled,
    total_over,
)
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    CallError,
    Cotangents,
    Decomposition,
    Signature,
    only,
)
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import Size


def statistic_type(x: SSAValue, over: Sequence[str]) -> TensorType:
    """One fp32 number per position that is left when `over` is reduced."""
    return TensorType.of([d for d in tensor_type(x).dims if d.name not in over], "fp32")


def normalised_dims(call: Call) -> tuple[str, ...]:
    """The dims that a norm is over: as `over` says, else those of the weight, else the last."""
    if "over" in call.options:
        for name in call.dims("over"):
            call.need_dim(0, name, "over")
        return call.dims("over")
    x, *affine = call.types
    return affine[0].names if affine else x.names[-1:]


def check_norm(call: Call) -> None:
    """Weight and bias have the dims that are normalised over."""
    call.need_float(0, 1, 2)
    over = normalised_dims(call)
    x, *affine = call.types
    for position, operand in enumerate(affine, start=1):
        missing = [n for n in operand.names if n not in x.names]
        if missing:
            raise CallError(
                f"the values have no dim `{missing[0]}`",
                operand=position,
                notes=[f"they are [{', '.join(x.names)}]"],
            )
        if operand.names != over:
            raise CallError(
                f"this is [{', '.join(operand.names)}], but the norm is over [{', '.join(over)}]",
                operand=position,
            )
    if not over:
        raise CallError("there is nothing to normalise over", operand=0)


class NormOp(InferredOp):
    """Shared by ops that normalise `over` some dims."""

    WORK: ClassVar[Work] = Work.REDUCTION

    LIKE: ClassVar[int | None] = 0

    over = prop_def(NamesAttr)

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, statistics=frozenset(self.over.data))

    def verify_(self) -> None:
        there = tensor_type(self.operands[0]).names
        for dim in self.over.data:
            if dim not in there:
                raise self.mistake(f"there is no dim `{dim}` to be over")
        super().verify_()


@op_definition
class RmsNormOp(NormOp):
    """x / rms(x) * weight (Zhang and Sennrich 2019). Keeps `rstd`, one number per position.

    `x` [..., D], `weight` [D] -> [..., D] and `rstd` [...]. FLOPs: 4 for each element: square, add, scale, weight; 3 without a weight.
    """

    name = "stg.rms_norm"
    NUM_STATISTICS: ClassVar[int] = 1
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "rms_norm(x, weight?, over? = dims)",
            "x / rms(x) * weight, over the weight's dims or `over`",
        ),
    )

    x = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    result = result_def(TensorType)
    rstd = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.x), statistic_type(self.x, self.over.data)]

    @classmethod
    def check_call(cls, call: Call) -> None:
        check_norm(call)

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        x, *weight = operands
        return RmsNormOp(x, next(iter(weight), None), normalised_dims(call))

    def flops(self) -> Size:
        # square, add, scale, and the weight
        return elements(self.x) * (4 if self.weight is not None else 3)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dy, weight, over = only(dys), self.weight, self.over.data
        gradients.emit(self.x, lambda: RmsNormGradOp(dy, self.x, self.rstd, weight, over))
        if weight is not None:
            like = tensor_type(weight)
            gradients.emit(weight, lambda: RmsNormWeightGradOp(dy, self.x, self.rstd, like=like))

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        dtype = tensor_type(self.x).dtype
        squares = cast(steps, steps.do(UnaryOp("square", self.x)), "fp32")
        rstd = steps.do(UnaryOp("rsqrt", total_over(steps, "mean", squares, self.over.data)))
        normal = product(steps, self.x, cast(steps, rstd, dtype))
        return [scaled(steps, normal, self.weight, dtype), rstd]


@op_definition
class RmsNormGradOp(NormOp, LikeOp):
    """The gradient for x: rstd * (dy * w - xhat * mean(dy * w * xhat)).

    `dy` and `x` [..., D], `rstd` [...], `weight` [D] -> [..., D]. FLOPs: 7 for each element.
    """

    name = "stg.rms_norm_grad"
    FLOPS: ClassVar[tuple[int, str]] = (7, "x")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 1

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    rstd = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    dx = result_def(TensorType)

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        dtype = tensor_type(self.x).dtype
        rstd = cast(steps, self.rstd, dtype)
        weighted = scaled(steps, self.dy, self.weight, dtype)
        normal = product(steps, self.x, rstd)
        inner = total_over(steps, "mean", product(steps, weighted, normal), self.over.data)
        return [product(steps, difference(steps, weighted, product(steps, inner, normal)), rstd)]


class NormWeightGradOp(InferredOp):
    """Shared by the gradients of norms' weights: sums over all dims but the weight's."""

    WORK: ClassVar[Work] = Work.NORM_WEIGHT_GRAD

    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)


@op_definition
class RmsNormWeightGradOp(NormWeightGradOp):
    """The gradient for the weight: the sum of dy * x * rstd over positions.

    `dy` and `x` [..., D], `rstd` [...] -> [D]. FLOPs: 3 for each element: two products, one addition.
    """

    name = "stg.rms_norm_weight_grad"
    FLOPS: ClassVar[tuple[int, str]] = (3, "x")

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    rstd = operand_def(TensorType)
    dweight = result_def(TensorType)


@op_definition
class LayerNormOp(NormOp):
    """(x - mean) / std * weight + bias (Ba et al. 2016). Keeps `mean` and `rstd`.

    `x` [..., D], weight and bias [D] -> [..., D], `mean` and `rstd` [...]. FLOPs: 7 for each element: add, subtract, square, add, scale, weight, bias.
    """

    name = "stg.layer_norm"
    NUM_STATISTICS: ClassVar[int] = 2
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "layer_norm(x, weight?, bias?, over? = dims)",
            "(x - mean) / std * weight + bias, over the weight's dims or `over`",
        ),
    )

    x = operand_def(TensorType)
    affine = var_operand_def(TensorType)
    """(weight, bias), (weight,) or nothing."""
    result = result_def(TensorType)
    mean = result_def(TensorType)
    rstd = result_def(TensorType)

    assembly_format = (
        "$x (`affine` `(` $affine^ `)`)? `over` $over attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        statistic = statistic_type(self.x, self.over.data)
        return [tensor_type(self.x), statistic, statistic]

    @classmethod
    def check_call(cls, call: Call) -> None:
        check_norm(call)

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        x, *affine = operands
        return LayerNormOp(x, affine, normalised_dims(call))

    @property
    def weight(self) -> SSAValue | None:
        return self.affine[0] if self.affine else None

    @property
    def bias(self) -> SSAValue | None:
        return self.affine[1] if len(self.affine) > 1 else None

    def verify_(self) -> None:
        if len(self.affine) > 2:
            raise self.mistake("affine is a weight and a bias at most")
        super().verify_()

    def flops(self) -> Size:
        # add, subtract, square, add, scale, weight, bias
        return elements(self.x) * (5 + len(self.affine))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dy, weight, bias, over = only(dys), self.weight, self.bias, self.over.data
        gradients.emit(
            self.x, lambda: LayerNormGradOp(dy, self.x, self.mean, self.rstd, weight, over)
        )
        if weight is not None:
            kept, like = (self.x, self.mean, self.rstd), tensor_type(weight)
            gradients.emit(weight, lambda: LayerNormWeightGradOp(dy, *kept, like=like))
        if bias is not None:
            pass_through(bias, dy, gradients)

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        dtype, over = tensor_type(self.x).dtype, self.over.data
        mean = total_over(steps, "mean", cast(steps, self.x, "fp32"), over)
        centred = difference(steps, self.x, cast(steps, mean, dtype))
        squares = cast(steps, steps.do(UnaryOp("square", centred)), "fp32")
        rstd = steps.do(UnaryOp("rsqrt", total_over(steps, "mean", squares, over)))
        result = scaled(
            steps, product(steps, centred, cast(steps, rstd, dtype)), self.weight, dtype
        )
        if self.bias is not None:
            result = steps.do(AddOp(result, cast(steps, self.bias, dtype)))
        return [result, mean, rstd]


@op_definition
class LayerNormGradOp(NormOp, LikeOp):
    """The gradient for x.

    `dy` and `x` [..., D], `mean` and `rstd` [...] -> [..., D]. FLOPs: 11 for each element.
    """

    name = "stg.layer_norm_grad"
    FLOPS: ClassVar[tuple[int, str]] = (11, "x")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 1

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    rstd = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    dx = result_def(TensorType)

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        dtype, over = tensor_type(self.x).dtype, self.over.data
        rstd = cast(steps, self.rstd, dtype)
        weighted = scaled(steps, self.dy, self.weight, dtype)
        centred = difference(steps, self.x, cast(steps, self.mean, dtype))
        normal = product(steps, centred, rstd)
        first = total_over(steps, "mean", weighted, over)
        second = total_over(steps, "mean", product(steps, weighted, normal), over)
        rest = difference(steps, difference(steps, weighted, first), product(steps, second, normal))
        return [product(steps, rest, rstd)]


@op_definition
class LayerNormWeightGradOp(NormWeightGradOp):
    """The gradient for the weight: the sum of dy * xhat over positions.

    `dy` and `x` [..., D], `mean` and `rstd` [...] -> [D]. FLOPs: 4 for each element: subtract, two products, one addition.
    """

    name = "stg.layer_norm_weight_grad"
    FLOPS: ClassVar[tuple[int, str]] = (4, "x")

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    rstd = operand_def(TensorType)
    dweight = result_def(TensorType)


@op_definition
class SoftmaxOp(NormOp, LikeOp):
    """exp(x - max) / sum over `over`.

    [..., T] -> [..., T]. FLOPs: 5 for each element: maximum, subtract, exp, add, divide.
    """

    name = "stg.softmax"
    FLOPS: ClassVar[tuple[int, str]] = (5, "x")
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of("softmax(x, over = dims)", "exp(x) / sum(exp(x)) over dims"),
    )

    x = operand_def(TensorType)
    result = result_def(TensorType)

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)
        for name in call.dims("over"):
            call.need_dim(0, name, "over")

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.x, lambda: SoftmaxGradOp(only(dys), self.result, self.over.data))

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        largest = largest_over(steps, self.x, self.over.data)
        powers = steps.do(UnaryOp("exp", difference(steps, self.x, largest)))
        return [steps.do(DivOp(powers, total_over(steps, "sum", powers, self.over.data)))]


@op_definition
class SoftmaxGradOp(NormOp, LikeOp):
    """y * (dy - sum(dy * y)): the probabilities are what the backward pass reads.

    `dy` and `y` [..., T] -> [..., T]. FLOPs: 4 for each element: multiply, add, subtract, multiply.
    """

    name = "stg.softmax_grad"
    FLOPS: ClassVar[tuple[int, str]] = (4, "y")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 1

    dy = operand_def(TensorType)
    y = operand_def(TensorType)
    dx = result_def(TensorType)

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        inner = total_over(steps, "sum", product(steps, self.dy, self.y), self.over.data)
        return [product(steps, difference(steps, self.dy, inner), self.y)]
