"""Operands of products in fewer bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, result_def

from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import TensorOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Cotangents, only
from stagec.dialects.types import QUANTIZED, TensorType
from stagec.dialects.work import Work


@op_definition
class QuantizeOp(TensorOp):
    """The numbers of `x` in few bits, with scales: what a product reads (`precision { products = fp8_1x128 }`).

    Two operations an element: the largest of a block, and the scaled number. The gradient passes straight through: that of a quantized operand is
    that of `x`, in the dtype of the cotangent (Transformer Engine; DeepSeek-V3, arXiv:2412.19437, section 3.3).

    [..., D] -> [..., D], whose bytes include those of its scales.

    FLOPs: 2 for each element.
    """

    name = "stg.quantize"
    WORK: ClassVar[Work] = Work.QUANTIZE
    FLOPS: ClassVar[tuple[int, str]] = (2, "x")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = ()
    LIKE: ClassVar[int | None] = 0

    x = operand_def(TensorType)
    result = result_def(TensorType)

    def __init__(
        self, x: SSAValue, dtype: str, over: Iterable[str] = (), apart: Iterable[str] = ()
    ) -> None:
        """`over`: the dims that the product sums over that reads it, along which blocks are. Nothing: the last one. `apart`: those that count products."""
        kind = tensor_type(x)
        super().__init__([x], [kind.quantized(dtype, over or kind.names[-1:], apart)])

    def verify_(self) -> None:
        super().verify_()
        if tensor_type(self.result).dtype not in QUANTIZED:
            raise self.mistake(f"{self.result.type} is in no format with scales")

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.contribute(self.x, only(dys))
