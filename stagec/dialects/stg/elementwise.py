"""Ops on one element at a time, views, reductions of dims, and their gradients.

Operands broadcast by name: `[B, S, D] + [D]` adds along `D`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.stg.base import (
    Indices,
    TensorOp,
    expect_dims,
    tensor_type,
    union_names,
    wider,
)
from stagec.dialects.types import TensorType

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


class BinaryOp(TensorOp):
    """Elementwise on two operands; the result has the dims of both."""

    left = operand_def(TensorType)
    right = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$left `,` $right attr-dict `:` functional-type(operands, results)"

    def __init__(self, left: SSAValue, right: SSAValue) -> None:
        super().__init__(operands=[left, right], result_types=[infer_binary(left, right)])

    def verify_(self) -> None:
        left, right = tensor_type(self.left), tensor_type(self.right)
        expect_dims(self, left, tensor_type(self.result), union_names(left, right))
        super().verify_()


def infer_binary(left: SSAValue, right: SSAValue) -> TensorType:
    a, b = tensor_type(left), tensor_type(right)
    splits = a.splits | b.splits
    partial = sorted(set(a.partial) | set(b.partial))
    return (
        TensorType.of(union_names(a, b), wider(a.dtype, b.dtype))
        .with_splits(splits)
        .with_partial(partial)
    )


@irdl_op_definition
class AddOp(BinaryOp):
    """`left + right`. Terms of a sum may be partial, over the same axes: one reduction then serves both."""

    name = "stg.add"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0, 1)

    def verify_(self) -> None:
        check_terms(self)
        super().verify_()


@irdl_op_definition
class SubOp(BinaryOp):
    """`left - right`. Like terms of a sum, both may be partial, over the same axes."""

    name = "stg.sub"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0, 1)

    def verify_(self) -> None:
        check_terms(self)
        super().verify_()


def check_terms(op: AddOp | SubOp) -> None:
    """A term that is not partial would be counted once per rank."""
    a, b = tensor_type(op.left), tensor_type(op.right)
    if set(a.partial) != set(b.partial):
        raise VerifyException(
            f"{op.name}: one term is partial over [{', '.join(a.partial)}], "
            f"the other over [{', '.join(b.partial)}]"
        )


@irdl_op_definition
class MulOp(BinaryOp):
    """`left * right`, elementwise. Linear in `left`: gradients put the cotangent there."""

    name = "stg.mul"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)


@irdl_op_definition
class DivOp(BinaryOp):
    """`left / right`, elementwise. Linear in `left`."""

    name = "stg.div"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)


@irdl_op_definition
class UnaryOp(TensorOp):
    """A function of each element: `stg.unary "silu" %x`. One of `UNARY_FUNCTIONS`."""

    name = "stg.unary"
    LIKE: ClassVar[int | None] = 0

    function = prop_def(StringAttr)
    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$function $x attr-dict `:` functional-type(operands, results)"

    def __init__(self, function: str, x: SSAValue) -> None:
        super().__init__(
            operands=[x], result_types=[x.type], properties={"function": StringAttr(function)}
        )

    @property
    def linear_operands(self) -> tuple[int, ...]:
        return (0,) if self.function.data == "neg" else ()

    def verify_(self) -> None:
        check_function(self)
        super().verify_()


def check_function(op: UnaryOp | UnaryGradOp) -> None:
    if op.function.data not in UNARY_FUNCTIONS:
        raise VerifyException(f"{op.name}: there is no function `{op.function.data}`")


@irdl_op_definition
class UnaryGradOp(TensorOp):
    """`dy * f'(x)`. `saved` is x, or y for functions whose derivative is simpler in y."""

    name = "stg.unary_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 0

    function = prop_def(StringAttr)
    dy = operand_def(TensorType)
    saved = operand_def(TensorType)
    dx = result_def(TensorType)

    assembly_format = "$function $dy `,` $saved attr-dict `:` functional-type(operands, results)"

    def __init__(self, function: str, dy: SSAValue, saved: SSAValue) -> None:
        super().__init__(
            operands=[dy, saved],
            result_types=[dy.type],
            properties={"function": StringAttr(function)},
        )

    def verify_(self) -> None:
        check_function(self)
        super().verify_()


@irdl_op_definition
class CastOp(TensorOp):
    """The same numbers in another dtype."""

    name = "stg.cast"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 0

    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, dtype: str) -> None:
        super().__init__(operands=[x], result_types=[tensor_type(x).with_dtype(dtype)])


@irdl_op_definition
class RenameOp(TensorOp):
    """`k[S -> T]`: the same tensor, one dim under another name of the same size. A view."""

    name = "stg.rename"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    old = prop_def(NamesAttr)
    new = prop_def(NamesAttr)
    result = result_def(TensorType)

    assembly_format = "$x $old `to` $new attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, old: Sequence[str], new: Sequence[str]) -> None:
        source = tensor_type(x)
        renames = dict(zip(old, new, strict=True))
        names = [renames.get(n, n) for n in source.names]
        splits = {renames.get(n, n): s for n, s in source.splits.items()}
        result = TensorType.of(names, source.dtype).with_splits(splits)
        super().__init__(
            operands=[x],
            properties={"old": NamesAttr(tuple(old)), "new": NamesAttr(tuple(new))},
            result_types=[result.with_partial(source.partial)],
        )

    def indices(self) -> Indices:
        names = tensor_type(self.x).names
        return Indices((names,), (names,))

    def verify_(self) -> None:
        if len(self.old.data) != len(self.new.data):
            raise VerifyException(
                f"stg.rename: {len(self.old.data)} dims do not get {len(self.new.data)} names"
            )
        source, result = tensor_type(self.x), tensor_type(self.result)
        renames = dict(zip(self.old.data, self.new.data, strict=True))
        expect_dims(self, source, result, [renames.get(n, n) for n in source.names])
        super().verify_()


@irdl_op_definition
class TransposeOp(TensorOp):
    """The same tensor with its dims in another order. A view."""

    name = "stg.transpose"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, names: Sequence[str]) -> None:
        source = tensor_type(x)
        result = TensorType.of([source.dim(n) for n in names], source.dtype, source.partial)
        super().__init__(operands=[x], result_types=[result])

    def verify_(self) -> None:
        source, result = tensor_type(self.x), tensor_type(self.result)
        if set(source.names) != set(result.names):
            raise VerifyException(f"stg.transpose: <{source.body}> does not become <{result.body}>")
        super().verify_()


@irdl_op_definition
class DropoutOp(TensorOp):
    """Zero a share of the elements. `mask` says which, a byte each, for the backward pass."""

    name = "stg.dropout"
    NUM_STATISTICS: ClassVar[int] = 1
    LIKE: ClassVar[int | None] = 0

    rate = prop_def(StringAttr)
    x = operand_def(TensorType)
    result = result_def(TensorType)
    mask = result_def(TensorType)

    assembly_format = "$x `rate` $rate attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, rate: str) -> None:
        source = tensor_type(x)
        super().__init__(
            operands=[x],
            properties={"rate": StringAttr(rate)},
            result_types=[source, source.with_dtype("bool")],
        )


@irdl_op_definition
class CausalMaskOp(TensorOp):
    """Scores of keys after their query become -inf, or `zero`, as their gradients do.

    `query` and `key` name the two dims.
    """

    name = "stg.causal_mask"
    LIKE: ClassVar[int | None] = 0

    query = prop_def(StringAttr)
    key = prop_def(StringAttr)
    zero = opt_prop_def(UnitAttr)
    scores = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = (
        "(`zero` $zero^)? $scores `query` $query `key` $key attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(self, scores: SSAValue, query: str, key: str, zero: bool = False) -> None:
        properties: dict[str, Attribute] = {"query": StringAttr(query), "key": StringAttr(key)}
        if zero:
            properties["zero"] = UnitAttr()
        super().__init__(operands=[scores], result_types=[scores.type], properties=properties)

    @property
    def linear_operands(self) -> tuple[int, ...]:
        return () if self.zero is None else (0,)

    def verify_(self) -> None:
        for name in (self.query.data, self.key.data):
            if name not in tensor_type(self.scores).names:
                body = tensor_type(self.scores).body
                raise VerifyException(f"stg.causal_mask: there is no dim `{name}` in <{body}>")
        super().verify_()
