"""What a program starts from: sizes, weights, numbers."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import I64, IntegerAttr, StringAttr, UnitAttr
from xdsl.irdl import opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import SizeAttr
from stagec.dialects.interfaces import NO_FLOPS, CostInterface
from stagec.dialects.marks import MarkedOp
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.stg.base import wider
from stagec.dialects.types import (
    QUANTIZED,
    StackType,
    TensorType,
    ValueType,
    rows_of_matrix,
    tensor_of,
)
from stagec.symbolic import ONE, Size


@op_definition
class DimOp(DefaultBuilder):
    """A named size. The expression is over other dims and mesh axes: `stg.dim "E" = "D/H"`.

    One that `pads` another dim is what that is in tensors, so that axes divide it: `stg.dim "V" = "8*ceildiv(V.unpadded, 8)" pads "V.unpadded"`.
    Of a dim whose parts, side by side, are padded, it is the sum of theirs.
    One that `parts` another stands for it where parts are not all as large: a rank's own, times how many there are. Its size
    depends on the rank's coordinates: `stg.dim "X.part" = "ep*ceildiv(X - ep.index, ep)" parts "X"`. Of a dim that others are parts of, side by side, it
    is the sum of theirs.
    One that is `average` need be no whole number: tokens of an expert, `stg.dim "T" = "A*B*S/X" average`. What ops cost is of its exact size, what
    memory is set aside for of the next whole number.
    One of `slots` counts another dim's experts and their copies: `stg.dim "X.slots" = "X + 32" slots "X"`.
    """

    name = "stg.dim"

    dim = prop_def(StringAttr)
    size = prop_def(SizeAttr)
    pads = opt_prop_def(StringAttr)
    parts = opt_prop_def(StringAttr)
    slots = opt_prop_def(StringAttr)
    average = opt_prop_def(UnitAttr)

    assembly_format = "$dim `=` $size (`pads` $pads^)? (`parts` $parts^)? (`slots` $slots^)? (`average` $average^)? attr-dict"

    def verify_(self) -> None:
        names = self.size.data.names
        # The sum of padded parts names these, and an axis.
        if self.pads is not None and self.pads.data not in names and len(names) < 2:
            raise self.mistake("what is padded is a part of its size")
        if self.parts is not None and not self.is_of_parts():
            raise self.mistake("a part's size is of what it is a part of")

    def is_of_parts(self) -> bool:
        """Whether the size is of the dim that this parts, or of parts of others, which depend on a rank's coordinates."""
        names = self.size.data.names
        return self.parts is not None and any(
            name == self.parts.data or name.endswith(".index") for name in names
        )


OWN_DTYPE, WIDER, AS_OTHERS = "own", "wider", "others"
"""What gradients of weights are in that have a dtype of their own."""


@op_definition
class WeightOp(DefaultBuilder, MarkedOp):
    """A parameter. One used in a repeat is a stack, one tensor per iteration, and sliced by it.

    `rows` is how many of its dims, the first, are dim 0 of the tensor that a framework stores: 2 for a linear layer
    `[H, E | D]` whose outputs come first, 1 for `[D | H, E]`. Not said: all but the last.

    One that is `frozen` is not trained: it has no gradient, and the optimizer keeps nothing of it. One whose dtype is its `own`, not that of the plan's
    weights, is stored and gathered in it, and its gradient is of it (`gradient_dtype`); or it is `gathered` in another one once it is updated, from which each
    device makes what it stores. One that is `persistent` stays whole on a device where others are stored split.
    """

    name = "stg.weight"

    path = prop_def(StringAttr)
    rows = opt_prop_def(IntegerAttr[I64])
    frozen = opt_prop_def(UnitAttr)
    own = opt_prop_def(UnitAttr)
    persistent = opt_prop_def(UnitAttr)
    gathered = opt_prop_def(StringAttr)
    weight = result_def()

    assembly_format = (
        "$path (`rows` $rows^)? (`frozen` $frozen^)? (`own` $own^)? (`persistent` $persistent^)? "
        "(`gathered` $gathered^)? attr-dict `:` type($weight)"
    )

    @property
    def num_rows(self) -> int:
        """How many dims are rows."""
        if self.rows is not None:
            return self.rows.value.data
        return rows_of_matrix(tensor_of(self.weight.type))

    @property
    def num_parameters(self) -> Size:
        """The elements of all layers together, however they are spread over devices."""
        kind = self.weight.type
        count = kind.total_count if isinstance(kind, StackType) else ONE
        return count * tensor_of(kind).unsplit.num_elements

    def gradient_dtype(self, dtype: str, own: str) -> str:
        """What its gradient is in where those of others are in `dtype`: one that is not quantized has its `own`, or what is `wider`, or what `others` have."""
        mine = tensor_of(self.weight.type).dtype
        if self.own is None or own == AS_OTHERS or mine in QUANTIZED:
            return dtype
        return wider(mine, dtype) if own == WIDER else mine

    def verify_(self) -> None:
        if not isinstance(self.weight.type, ValueType):
            raise VerifyException(f"a weight is a tensor or a stack, not {self.weight.type}")
        num_dims = len(tensor_of(self.weight.type).dims)
        if self.rows is not None and not 0 < self.rows.value.data <= num_dims:
            raise VerifyException(f"rows are 1 to {num_dims} of a weight's dims")


@op_definition
class ConstantOp(MarkedOp):
    """A number that the program's text contains, as a tensor without dims. Costs nothing."""

    name = "stg.constant"

    value = prop_def(StringAttr)
    constant = result_def(TensorType)

    assembly_format = "$value attr-dict `:` type($constant)"

    def __init__(self, value: str, dtype: str) -> None:
        super().__init__(result_types=[TensorType.of((), dtype)], value=value)

    def verify_(self) -> None:
        if tensor_of(self.constant.type).dims:
            body = tensor_of(self.constant.type).body
            raise self.mistake(f"a number has no dims, but this is <{body}>")


@op_definition
class ZerosOp(DefaultBuilder, CostInterface):
    """A tensor of zeros, to add to.

    [D, F], for instance. No FLOPs; bytes of one writing.
    """

    name = "stg.zeros"
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS

    zeros = result_def(TensorType)

    assembly_format = "attr-dict `:` type($zeros)"
