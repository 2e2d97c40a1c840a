"""FLOPs and bytes dispatch on an op's class; what holds where a class has no rule of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch

from xdsl.ir import Operation, SSAValue

from stagec import symbolic
from stagec.dialects import stg
from stagec.dialects.types import ValueType
from stagec.symbolic import ZERO, Size


@dataclass(frozen=True)
class Bytes:
    """Bytes that an op reads from and writes to device memory."""

    read: Size
    written: Size

    @property
    def moved(self) -> Size:
        return self.read + self.written


def elements(value: SSAValue) -> Size:
    """Elements on one device, of all tensors of a stack, or of a shard."""
    assert isinstance(value.type, ValueType)
    return value.type.num_elements


def num_bytes(value: SSAValue) -> Size:
    """Bytes on one device."""
    assert isinstance(value.type, ValueType)
    return value.type.num_bytes


def all_bytes(values: Iterable[SSAValue]) -> Size:
    return symbolic.total(num_bytes(v) for v in values)


@singledispatch
def flops(op: Operation) -> Size:
    """One per element of the first result, unless a class says otherwise."""
    return elements(op.results[0]) if op.results else ZERO


@singledispatch
def op_bytes(op: Operation) -> Bytes:
    """Each operand read once, each result written once, unless a class says otherwise."""
    return Bytes(all_bytes(op.operands), all_bytes(op.results))


def is_free(op: Operation) -> bool:
    """Whether an op is a name for memory that exists: a view, a weight, a slice of the input."""
    if isinstance(op, stg.TensorOp):
        return op.IS_VIEW
    return isinstance(op, stg.WeightOp | stg.ConstantOp | stg.YieldOp | stg.OutputOp)
