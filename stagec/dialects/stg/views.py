"""The same values under another type: renamed dims, another order of dims, another placement.

    %t = stg.rename %k ["S"] to ["T"]             // [B, S, H, E] -> [B, T, H, E]
    %y = stg.transpose %x                         // [B, S, D] -> [S, B, D]

No op of this file does any work or has memory of its own, except for what `stg.place` makes others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, LikeOp, TensorOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Cotangents, only
from stagec.dialects.types import TensorType


@op_definition
class RenameOp(InferredOp):
    """`k[S -> T]`: the same tensor, one dim under another name of the same size. A view."""

    name = "stg.rename"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    old = prop_def(NamesAttr)
    new = prop_def(NamesAttr)
    result = result_def(TensorType)

    assembly_format = "$x $old `to` $new attr-dict `:` functional-type(operands, results)"

    def made(self) -> Sequence[TensorType]:
        return [
            tensor_type(self.x).with_names(dict(zip(self.old.data, self.new.data, strict=False)))
        ]

    def indices(self) -> Indices:
        names = tensor_type(self.x).names
        return Indices((names,), (names,))

    def verify_(self) -> None:
        if len(self.old.data) != len(self.new.data):
            raise self.mistake(f"{len(self.old.data)} dims do not get {len(self.new.data)} names")
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.x, lambda: RenameOp(only(dys), self.new.data, self.old.data))


@op_definition
class TransposeOp(TensorOp):
    """The same tensor with its dims in another order. A view.

    [B, S, D] -> [S, B, D], for instance. No FLOPs, no bytes.
    """

    name = "stg.transpose"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    result = result_def(TensorType)

    def __init__(self, x: SSAValue, names: Sequence[str]) -> None:
        super().__init__([x], [tensor_type(x).transposed(names)])

    def verify_(self) -> None:
        source, result = tensor_type(self.x), tensor_type(self.result)
        if set(source.names) != set(result.names):
            raise self.mistake(f"<{source.body}> does not become <{result.body}>")
        super().verify_()

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.x, lambda: TransposeOp(only(dys), tensor_type(self.x).names))


@op_definition
class PlaceOp(LikeOp):
    """The same value, spread for its readers as the plan says: `dims` over `axes`, the rest by rule.

    `shard Block.h[S] over cp` in a plan. No axes: each device has those dims whole, and no rule splits
    another dim over the axes that are freed. The gradient is brought back to the value's placement.
    """

    name = "stg.place"
    IS_VIEW: ClassVar[bool] = True
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    x = operand_def(TensorType)
    dims = prop_def(NamesAttr)
    axes = prop_def(NamesAttr)
    result = result_def(TensorType)

    assembly_format = "$x $dims `over` $axes attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        source, result = tensor_type(self.x), tensor_type(self.result)
        if source.names != result.names or source.dtype != result.dtype:
            raise self.mistake(f"<{source.body}> does not become <{result.body}>")

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if gradients.wants(self.x):
            gradients.contribute(self.x, only(dys))
