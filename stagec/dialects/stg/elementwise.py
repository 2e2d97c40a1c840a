"""Ops on one element at a time, reductions of dims, and their gradients.

Operands broadcast by name: `[B, S, D] + [D]` adds along `D`. What is broadcast forward is summed on the way back, and
the other way round: a broadcast is the gradient of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import operand_def, opt_prop_def, prop_def, result_def

from stagec import symbolic
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import NO_FLOPS
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import (
    Indices,
    InferredOp,
    LikeOp,
    TensorOp,
    tensor_type,
    union_names,
    wider,
)
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    Cotangents,
    Decomposition,
    Signature,
    only,
)
from stagec.dialects.stg.sources import ConstantOp
from stagec.dialects.stg.views import TransposeOp
from stagec.dialects.types import QUANTIZED, TensorType
from stagec.dialects.work import Work

UNARY_FUNCTIONS = (
    "abs",
    "cos",
    "exp",
    "gelu",
    "log",
    "neg",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "tanh",
)


def sum_to(cotangent: SSAValue, operand: SSAValue, gradients: BackwardPass) -> SSAValue:
    """`cotangent` summed over the dims that `operand` lacks, with its dims in that order, in its dtype.

    An op on two dtypes computes in the wider. PyTorch's autograd sums and casts in this order (`validate_outputs` in engine.cpp).
    """
    kept = tensor_type(operand).names
    extra = [n for n in tensor_type(cotangent).names if n not in kept]
    if extra:
        cotangent = gradients.insert(ReduceOp("sum", cotangent, extra), operand).results[0]
    if tensor_type(cotangent).names != kept:
        cotangent = gradients.insert(TransposeOp(cotangent, kept), operand).results[0]
    dtype = tensor_type(operand).dtype
    if tensor_type(cotangent).dtype != dtype:
        cotangent = gradients.insert(CastOp(cotangent, dtype), operand).results[0]
    return cotangent


def pass_through(operand: SSAValue, dy: SSAValue, gradients: BackwardPass) -> None:
    """The cotangent of a term of a sum is that of the sum."""
    if gradients.wants(operand):
        gradients.contribute(operand, sum_to(dy, operand, gradients))


def emit_broadcast(
    gradients: BackwardPass, operand: SSAValue, make: Callable[[], Operation]
) -> None:
    """Make the cotangent of an operand that was broadcast: a sum over the dims that it lacks."""
    if gradients.wants(operand):
        pass_through(operand, gradients.insert(make(), operand).results[0], gradients)


class BinaryOp(InferredOp):
    """Elementwise on two operands; the result has the dims of both."""

    WORK: ClassVar[Work] = Work.ELEMENTWISE

    left = operand_def(TensorType)
    right = operand_def(TensorType)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        a, b = tensor_type(self.left), tensor_type(self.right)
        return [TensorType.of(union_names(a, b), wider(a.dtype, b.dtype))]


@op_definition
class AddOp(BinaryOp):
    """`left + right`. Terms of a sum may be partial, over the same axes: one reduction then serves both.

    With `once` each rank has all of `right`, and what is added to the terms of `left` is `right` in all: each of n ranks adds an nth.

    Both [..., D], or a term with fewer dims, which is repeated -> [..., D]. FLOPs: 1 for each element of the result.
    """

    name = "stg.add"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0, 1)

    once = opt_prop_def(UnitAttr)

    def verify_(self) -> None:
        if self.once is None:
            check_terms(self)
        elif tensor_type(self.right).partial or not tensor_type(self.left).partial:
            raise self.mistake(
                f"<{tensor_type(self.right).body}> is not added once to terms <{tensor_type(self.left).body}>"
            )
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        # The later term first: its maker is the next one on the way back.
        pass_through(self.right, only(dys), gradients)
        pass_through(self.left, only(dys), gradients)


@op_definition
class SubOp(BinaryOp):
    """`left - right`. Like terms of a sum, both may be partial, over the same axes.

    Shapes and FLOPs as those of `stg.add`: [..., D] and [..., D] -> [..., D], 1 for each element.
    """

    name = "stg.sub"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0, 1)

    def verify_(self) -> None:
        check_terms(self)
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        pass_through(self.left, only(dys), gradients)
        emit_broadcast(gradients, self.right, lambda: UnaryOp("neg", only(dys)))


def check_terms(op: AddOp | SubOp) -> None:
    """A term that is not partial would be counted once per rank."""
    a, b = tensor_type(op.left), tensor_type(op.right)
    if set(a.partial) != set(b.partial):
        raise op.mistake(
            f"one term is partial over [{', '.join(a.partial)}], "
            f"the other over [{', '.join(b.partial)}]"
        )


@op_definition
class MulOp(BinaryOp):
    """`left * right`, elementwise. Linear in `left`, where gradients put the cotangent, or in what a constant is multiplied with.

    [..., D] and [..., D] -> [..., D], 1 FLOP for each element.
    """

    name = "stg.mul"

    @property
    def linear_operands(self) -> tuple[int, ...]:
        return (1,) if isinstance(self.left.owner, ConstantOp) else (0,)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        emit_broadcast(gradients, self.left, lambda: MulOp(only(dys), self.right))
        emit_broadcast(gradients, self.right, lambda: MulOp(only(dys), self.left))


@op_definition
class DivOp(BinaryOp):
    """`left / right`, elementwise. Linear in `left`.

    [..., D] and [..., D] -> [..., D], 1 FLOP for each element.
    """

    name = "stg.div"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        emit_broadcast(gradients, self.left, lambda: DivOp(only(dys), self.right))
        if gradients.wants(self.right):
            scaled = gradients.insert(MulOp(only(dys), self.result), self.right)
            divided = gradients.insert(DivOp(scaled.results[0], self.right), self.right)
            emit_broadcast(gradients, self.right, lambda: UnaryOp("neg", divided.results[0]))


SAVED_RESULT = ("exp", "relu", "rsqrt", "sigmoid", "sqrt", "tanh")
"""Functions whose derivative is read off their result: y for exp, y (1 - y) for sigmoid, ..."""


@op_definition
class UnaryOp(LikeOp):
    """A function of each element: `stg.unary "silu" %x`. One of `UNARY_FUNCTIONS`.

    [..., D] -> [..., D]. FLOPs: 1 for each element, whatever the function.
    """

    name = "stg.unary"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    SIGNATURES: ClassVar[tuple[Signature, ...]] = tuple(
        Signature.of(f"{function}(x)", f"{function} of each element")
        for function in UNARY_FUNCTIONS
    )

    function = prop_def(StringAttr)
    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$function $x attr-dict `:` functional-type(operands, results)"

    def __init__(self, function: str, x: SSAValue) -> None:
        super().__init__(x, function)

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        return UnaryOp(call.function, operands[0])

    @property
    def linear_operands(self) -> tuple[int, ...]:
        return (0,) if self.function.data == "neg" else ()

    def verify_(self) -> None:
        check_function(self)
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        function = self.function.data
        if function == "neg":
            gradients.emit(self.x, lambda: UnaryOp("neg", only(dys)))
            return
        saved = self.result if function in SAVED_RESULT else self.x
        gradients.emit(self.x, lambda: UnaryGradOp(function, only(dys), saved))


def check_function(op: UnaryOp | UnaryGradOp) -> None:
    if op.function.data not in UNARY_FUNCTIONS:
        raise op.mistake(f"there is no function `{op.function.data}`")


@op_definition
class UnaryGradOp(LikeOp):
    """`dy * f'(x)`. `saved` is x, or y for functions whose derivative is simpler in y.

    `dy` and `saved` [..., D] -> [..., D]. FLOPs: 2 for each element, the derivative and the product.
    """

    name = "stg.unary_grad"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    FLOPS: ClassVar[tuple[int, str]] = (2, "dy")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    function = prop_def(StringAttr)
    dy = operand_def(TensorType)
    saved = operand_def(TensorType)
    dx = result_def(TensorType)

    assembly_format = "$function $dy `,` $saved attr-dict `:` functional-type(operands, results)"

    def __init__(self, function: str, dy: SSAValue, saved: SSAValue) -> None:
        super().__init__(dy, saved, function)

    def verify_(self) -> None:
        check_function(self)
        super().verify_()


@op_definition
class CastOp(TensorOp):
    """The same numbers in another dtype. The gradient is in the dtype of `x`; where that is one of few bits, it passes straight through, as by `quantize`.

    [..., D] -> [..., D]. No FLOPs; bytes by both dtypes.
    """

    name = "stg.cast"
    WORK: ClassVar[Work] = Work.CAST
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 0
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of("cast(x, dtype = dtype)", "the same numbers in another dtype"),
    )

    x = operand_def(TensorType)
    result = result_def(TensorType)

    def __init__(self, x: SSAValue, dtype: str) -> None:
        super().__init__([x], [tensor_type(x).with_dtype(dtype)])

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dtype = tensor_type(self.x).dtype
        if dtype in QUANTIZED or dtype == tensor_type(only(dys)).dtype:
            gradients.contribute(self.x, only(dys))
        else:
            gradients.emit(self.x, lambda: CastOp(only(dys), dtype))


@op_definition
class DropoutOp(TensorOp):
    """Zero a share of the elements. `mask` says which, a byte each, for the backward pass.

    [..., D] -> [..., D] and a mask [..., D]. FLOPs: 1 for each element.
    """

    name = "stg.dropout"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    NUM_STATISTICS: ClassVar[int] = 1
    LIKE: ClassVar[int | None] = 0
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of("dropout(x, rate = number)", "zero a share of the elements"),
    )

    rate = prop_def(StringAttr)
    x = operand_def(TensorType)
    result = result_def(TensorType)
    mask = result_def(TensorType)

    def __init__(self, x: SSAValue, rate: str) -> None:
        source = tensor_type(x)
        super().__init__([x], [source, source.with_dtype("bool")], rate=rate)

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.x, lambda: MulOp(only(dys), self.mask))


@op_definition
class CausalMaskOp(LikeOp):
    """Scores of keys after their query become -inf, or `zero`, as their gradients do.

    `query` and `key` name the two dims.

    [..., S, T] -> [..., S, T]. FLOPs: 1 for each element.
    """

    name = "stg.causal_mask"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "causal_mask(scores, query = dim, key = dim)",
            "scores of keys after their query become -inf",
        ),
    )

    query = prop_def(StringAttr)
    key = prop_def(StringAttr)
    zero = opt_prop_def(UnitAttr)
    scores = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = (
        "(`zero` $zero^)? $scores `query` $query `key` $key attr-dict "
        "`:` functional-type(operands, results)"
    )

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)
        for option in ("query", "key"):
            call.need_dim(0, call.dim(option), option)

    @property
    def linear_operands(self) -> tuple[int, ...]:
        return () if self.zero is None else (0,)

    def verify_(self) -> None:
        for name in (self.query.data, self.key.data):
            if name not in tensor_type(self.scores).names:
                body = tensor_type(self.scores).body
                raise self.mistake(f"there is no dim `{name}` in <{body}>")
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        query, key = self.query.data, self.key.data
        gradients.emit(self.scores, lambda: CausalMaskOp(only(dys), query, key, zero=True))


REDUCTIONS = ("sum", "mean", "max")


@op_definition
class ReduceOp(InferredOp):
    """`sum`, `mean` or `max` over dims. Sums and means over a split dim are partial.

    A maximum over a split dim takes a collective of its own, see `decompose-statistics`.

    [B, S, D] over D -> [B, S], for instance. FLOPs: 1 for each element of `x`.
    """

    name = "stg.reduce"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (1, "x")
    SIGNATURES: ClassVar[tuple[Signature, ...]] = tuple(
        Signature.of(f"{kind}(x, over = dims)", f"the {kind} over dims") for kind in REDUCTIONS
    )

    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    over = prop_def(NamesAttr)
    result = result_def(TensorType)

    assembly_format = "$kind $x `over` $over attr-dict `:` functional-type(operands, results)"

    def __init__(self, kind: str, x: SSAValue, over: Sequence[str]) -> None:
        super().__init__(x, kind, over)

    def made(self) -> Sequence[TensorType]:
        source = tensor_type(self.x)
        return [TensorType.of([n for n in source.names if n not in self.over.data], source.dtype)]

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)
        for name in call.dims("over"):
            call.need_dim(0, name, "over")

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        return ReduceOp(call.function, operands[0], call.dims("over"))

    @property
    def linear_operands(self) -> tuple[int, ...]:
        return () if self.kind.data == "max" else (0,)

    def indices(self) -> Indices:
        over = frozenset(self.over.data)
        return Indices(
            (tensor_type(self.x).names,),
            (tensor_type(self.result).names,),
            statistics=over if self.kind.data == "max" else frozenset(),
        )

    def verify_(self) -> None:
        if self.kind.data not in REDUCTIONS:
            raise self.mistake(f"there is no reduction `{self.kind.data}`")
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if self.kind.data == "max":
            gradients.emit(self.x, lambda: MaxGradOp(only(dys), self.x, self.result))
        elif gradients.wants(self.x):
            source = tensor_type(self.x)
            spread = gradients.insert(BroadcastOp(only(dys), like=source), self.x)
            if self.kind.data == "sum":
                gradients.contribute(self.x, spread.results[0])
                return
            number = str(symbolic.ONE / symbolic.product(map(symbolic.symbol, self.over.data)))
            share = gradients.insert(ConstantOp(number, source.dtype), self.x)
            gradients.emit(self.x, lambda: MulOp(spread.results[0], share.results[0]))

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        """A maximum: nothing else that `reduce` computes has statistics."""
        return [largest_over(steps, self.x, self.over.data)]


@op_definition
class MaxGradOp(LikeOp):
    """The gradient of a maximum: `dy` where `x` is the `largest` of its dims, else 0.

    `dy` and `largest` [B, S], `x` [B, S, D] -> [B, S, D]. FLOPs: 1 for each element of `dx`.
    """

    name = "stg.max_grad"
    WORK: ClassVar[Work] = Work.REDUCTION
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 1

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    largest = operand_def(TensorType)
    dx = result_def(TensorType)


@op_definition
class BroadcastOp(InferredOp):
    """Repeat a tensor along further dims: the gradient of a reduction. A view.

    [B, S] -> [B, S, D], for instance. No FLOPs, no bytes.
    """

    name = "stg.broadcast"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    result = result_def(TensorType)

    def verify_(self) -> None:
        source, result = tensor_type(self.x), tensor_type(self.result)
        for dim in source.dims:
            if dim not in result.dims:
                raise self.mistake(f"`{dim}` is not in <{result.body}>")
        if set(source.partial) != set(result.partial):
            raise self.mistake("a partial tensor stays partial")

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        pass_through(self.x, only(dys), gradients)


# Steps of ops that are taken apart


def total_over(steps: Decomposition, kind: str, x: SSAValue, over: Sequence[str]) -> SSAValue:
    """The sum or mean over dims, wherever they are."""
    return steps.total(steps.do(ReduceOp(kind, x, over)))


def largest_over(steps: Decomposition, x: SSAValue, over: Sequence[str]) -> SSAValue:
    return steps.largest(steps.do(ReduceOp("max", x, over)))


def cast(steps: Decomposition, x: SSAValue, dtype: str) -> SSAValue:
    """In this dtype: a cast only where it is another."""
    return x if tensor_type(x).dtype == dtype else steps.do(CastOp(x, dtype))


def product(steps: Decomposition, a: SSAValue, b: SSAValue) -> SSAValue:
    return steps.do(MulOp(a, b))


def difference(steps: Decomposition, a: SSAValue, b: SSAValue) -> SSAValue:
    return steps.do(SubOp(a, b))


def scaled(steps: Decomposition, x: SSAValue, weight: SSAValue | None, dtype: str) -> SSAValue:
    """Times a weight, if there is one. The weight is cast, so that the product keeps the dtype."""
    return x if weight is None else product(steps, x, cast(steps, weight, dtype))
