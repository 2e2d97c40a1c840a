"""Reductions of dims, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.stg.base import Indices, TensorOp, expect_dims, tensor_type
from stagec.dialects.types import TensorType


@irdl_op_definition
class ReduceOp(TensorOp):
    """`sum`, `mean` or `max` over dims. Sums and means over a split dim are partial.

    A maximum over a split dim takes a collective of its own, see `decompose-statistics`.
    """

    name = "stg.reduce"

    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    over = prop_def(NamesAttr)
    result = result_def(TensorType)

    assembly_format = "$kind $x `over` $over attr-dict `:` functional-type(operands, results)"

    def __init__(self, kind: str, x: SSAValue, over: Sequence[str]) -> None:
        source = tensor_type(x)
        kept = [d for d in source.dims if d.name not in over]
        summed = [a for n in over for a in source.dim(n).split] if kind != "max" else []
        super().__init__(
            operands=[x],
            properties={"kind": StringAttr(kind), "over": NamesAttr(tuple(over))},
            result_types=[TensorType.of(kept, source.dtype, sorted({*source.partial, *summed}))],
        )

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
        if self.kind.data not in ("sum", "mean", "max"):
            raise VerifyException(f"stg.reduce: there is no reduction `{self.kind.data}`")
        source, result = tensor_type(self.x), tensor_type(self.result)
        expect_dims(self, source, result, [n for n in source.names if n not in self.over.data])
        super().verify_()


@irdl_op_definition
class MaxGradOp(TensorOp):
    """The gradient of a maximum: `dy` where `x` is the `largest` of its dims, else 0."""

    name = "stg.max_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 1

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    largest = operand_def(TensorType)
    dx = result_def(TensorType)

    assembly_format = "$dy `,` $x `,` $largest attr-dict `:` functional-type(operands, results)"

    def __init__(self, dy: SSAValue, x: SSAValue, largest: SSAValue) -> None:
        partial = tensor_type(dy).partial
        super().__init__(
            operands=[dy, x, largest], result_types=[tensor_type(x).with_partial(partial)]
        )


@irdl_op_definition
class BroadcastOp(TensorOp):
    """Repeat a tensor along further dims: the gradient of a reduction. A view."""

    name = "stg.broadcast"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, result_type: TensorType) -> None:
        partial = tensor_type(x).partial
        super().__init__(operands=[x], result_types=[result_type.with_partial(partial)])

    def verify_(self) -> None:
        source, result = tensor_type(self.x), tensor_type(self.result)
        for dim in source.dims:
            if dim not in result.dims:
                raise VerifyException(f"stg.broadcast: `{dim}` is not in <{result.body}>")
        if set(source.partial) != set(result.partial):
            raise VerifyException("stg.broadcast: a partial tensor stays partial")
