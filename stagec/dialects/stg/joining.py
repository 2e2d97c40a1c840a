"""Tensors side by side along one dim, and one dim cut into several.

    %k = stg.concat %n, %r over [N, R] to "E"     // [B, S, H, N] and [B, S, R] -> [B, S, H, E], with E = N + R
    %a, %b = stg.split %x over "E" to [N, R]      // [B, S, H, E] -> [B, S, H, N] and [B, S, H, R]

Each is the gradient of the other. A dim that is joined or cut is whole on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import Dim, NamesAttr
from stagec.dialects.stg.base import (
    PLACEMENT,
    Indices,
    TensorOp,
    expect_dims,
    tensor_type,
    union_names,
)
from stagec.dialects.types import TensorType


@irdl_op_definition
class ConcatOp(TensorOp):
    """Operands side by side: their dims `over`, one of each, become `to`. A copy.

    An operand that lacks another dim of the others is repeated along it, as decoupled rotary keys are for all
    heads (DeepSeek-V2, arXiv:2405.04434, section 2.1.3).
    """

    name = "stg.concat"

    parts = var_operand_def(TensorType)
    over = prop_def(NamesAttr)
    to = prop_def(StringAttr)
    result = result_def(TensorType)

    assembly_format = (
        "$parts `over` $over `to` $to attr-dict `:` functional-type(operands, results)"
    )

    def __init__(self, parts: Sequence[SSAValue], over: Sequence[str], to: str) -> None:
        types = [tensor_type(v) for v in parts]
        splits = {d.name: d.split for t in types for d in t.dims}
        names = joined_names(types, over, to)
        super().__init__(
            operands=[parts],
            properties={"over": NamesAttr(tuple(over)), "to": StringAttr(to)},
            result_types=[
                TensorType.of(
                    [Dim(n, splits.get(n, ())) for n in names], types[0].dtype, types[0].partial
                )
            ],
        )

    @property
    def linear_operands(self) -> tuple[int, ...]:
        """All at once: terms of sums over the same axes make terms of the sum."""
        partials = {frozenset(tensor_type(part).partial) for part in self.parts}
        return tuple(range(len(self.parts))) if len(partials) == 1 else ()

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(
            base.operands, base.results, blocked=frozenset((*self.over.data, self.to.data))
        )

    def verify_(self) -> None:
        types = [tensor_type(v) for v in self.parts]
        if len(types) != len(self.over.data):
            raise VerifyException(
                f"stg.concat: {len(self.over.data)} dims are joined, of {len(types)} operands"
            )
        for part, dim in zip(types, self.over.data, strict=True):
            if dim not in part.names:
                raise VerifyException(f"stg.concat: there is no dim `{dim}` in <{part.body}>")
            verify_whole(self, part, dim)
        expect_dims(
            self,
            types[0],
            tensor_type(self.result),
            joined_names(types, self.over.data, self.to.data),
        )
        super().verify_()


@irdl_op_definition
class SplitOp(TensorOp):
    """Cut a dim: the first elements of `over` are the first part, and so on. A view."""

    name = "stg.split"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = prop_def(NamesAttr)
    parts = var_result_def(TensorType)

    assembly_format = "$x `over` $over `to` $to attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, over: str, to: Sequence[str]) -> None:
        source = tensor_type(x)
        kinds = [
            TensorType.of(
                [Dim(n) if d.name == over else d for d in source.dims], source.dtype, source.partial
            )
            for n in to
        ]
        super().__init__(
            operands=[x],
            properties={"over": StringAttr(over), "to": NamesAttr(tuple(to))},
            result_types=[kinds],
        )

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(
            base.operands, base.results, blocked=frozenset((self.over.data, *self.to.data))
        )

    def verify_(self) -> None:
        source, over = tensor_type(self.x), self.over.data
        if over not in source.names:
            raise VerifyException(f"stg.split: there is no dim `{over}` in <{source.body}>")
        verify_whole(self, source, over)
        if len(self.parts) != len(self.to.data):
            raise VerifyException(
                f"stg.split: {len(self.to.data)} dims are cut, for {len(self.parts)} results"
            )
        for part, name in zip(self.parts, self.to.data, strict=True):
            names = [name if n == over else n for n in source.names]
            expect_dims(self, source, tensor_type(part), names)
        super().verify_()


def joined_names(types: Sequence[TensorType], over: Sequence[str], to: str) -> list[str]:
    """Dims of the result: those of the operand with most, and then of the others, but for the joined ones."""
    shared = [
        [to if n == dim else n for n in part.names] for part, dim in zip(types, over, strict=True)
    ]
    return union_names(
        *(TensorType.of(names, "i32") for names in sorted(shared, key=len, reverse=True))
    )


def verify_whole(op: TensorOp, tensor: TensorType, dim: str) -> None:
    if PLACEMENT not in op.attributes and tensor.dim(dim).split:
        raise VerifyException(f"{op.name}: each device needs all of `{dim}` in <{tensor.body}>")
