"""Placing one value otherwise than the rules do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.stg.base import TensorOp, tensor_type
from stagec.dialects.types import TensorType


@irdl_op_definition
class PlaceOp(TensorOp):
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

    def __init__(self, x: SSAValue, dims: Sequence[str], axes: Sequence[str]) -> None:
        super().__init__(
            operands=[x],
            properties={"dims": NamesAttr(tuple(dims)), "axes": NamesAttr(tuple(axes))},
            result_types=[x.type],
        )

    def verify_(self) -> None:
        source, result = tensor_type(self.x), tensor_type(self.result)
        if source.names != result.names or source.dtype != result.dtype:
            raise VerifyException(f"stg.place: <{source.body}> does not become <{result.body}>")
