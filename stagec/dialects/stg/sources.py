"""What a program starts from: sizes, weights, numbers."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import SizeAttr
from stagec.dialects.types import TensorType, ValueType, tensor_of
from stagec.symbolic import Size


@irdl_op_definition
class DimOp(IRDLOperation):
    """A named size. The expression is over other dims and mesh axes: `stg.dim "E" = "D/H"`."""

    name = "stg.dim"

    dim = prop_def(StringAttr)
    size = prop_def(SizeAttr)

    assembly_format = "$dim `=` $size attr-dict"

    def __init__(self, dim: str, size: Size) -> None:
        super().__init__(properties={"dim": StringAttr(dim), "size": SizeAttr(size)})


@irdl_op_definition
class WeightOp(IRDLOperation):
    """A parameter. One used in a repeat is a stack, one tensor per iteration, and sliced by it."""

    name = "stg.weight"

    path = prop_def(StringAttr)
    weight = result_def()

    assembly_format = "$path attr-dict `:` type($weight)"

    def __init__(self, path: str, weight_type: ValueType) -> None:
        super().__init__(properties={"path": StringAttr(path)}, result_types=[weight_type])

    def verify_(self) -> None:
        if not isinstance(self.weight.type, ValueType):
            raise VerifyException(f"a weight is a tensor or a stack, not {self.weight.type}")


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A number that the program's text contains, as a tensor without dims. Costs nothing."""

    name = "stg.constant"

    value = prop_def(StringAttr)
    constant = result_def(TensorType)

    assembly_format = "$value attr-dict `:` type($constant)"

    def __init__(self, value: str, dtype: str) -> None:
        super().__init__(
            properties={"value": StringAttr(value)}, result_types=[TensorType.of((), dtype)]
        )

    def verify_(self) -> None:
        if tensor_of(self.constant.type).dims:
            body = tensor_of(self.constant.type).body
            raise VerifyException(f"stg.constant: a number has no dims, but this is <{body}>")


@irdl_op_definition
class ZerosOp(IRDLOperation):
    """A tensor of zeros, to add to."""

    name = "stg.zeros"

    zeros = result_def(TensorType)

    assembly_format = "attr-dict `:` type($zeros)"

    def __init__(self, zeros_type: TensorType) -> None:
        super().__init__(result_types=[zeros_type])
