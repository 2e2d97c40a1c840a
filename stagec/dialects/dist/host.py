"""Ops of `dist` between the memory of a device and that of its host, and between that and NVMe.

    %h = dist.store (%x) : !stg.tensor<[B, D], bf16>
    %y = dist.load (%h) : !stg.tensor<[B, D], bf16>

A value on the host has the type that it has on the device. Only `dist.load` and what the host itself computes read it; repeats stack and
slice it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure

from stagec import symbolic
from stagec.dialects import sched
from stagec.dialects.interfaces import TaskInterface, elements, kind_of, num_bytes
from stagec.dialects.marks import MarkedOp
from stagec.dialects.memory import Effects, Kind, Overwrite
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.host_copy import HostCopyMarks
from stagec.dialects.types import ValueType


class HostOp(TaskInterface, HostCopyMarks):
    """Shared by copies to and from the host. Values of one op travel one after the other."""

    values = var_operand_def()
    outputs = var_result_def()

    assembly_format = "`(` $values `)` attr-dict `:` functional-type($values, $outputs)"

    def __init__(self, values: Sequence[SSAValue]) -> None:
        super().__init__([list(values)], [[v.type for v in values]])

    def verify_(self) -> None:
        if not self.values:
            raise self.mistake("a copy is of some value")
        if list(self.operand_types) != list(self.result_types):
            raise self.mistake("a copy has the type of what is copied")
        for value in self.values:
            if not isinstance(value.type, ValueType):
                raise self.mistake(f"{value.type} is not a tensor, shard or stack")

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        size = symbolic.total(num_bytes(v) for v in self.values)
        way = kind_of(self)
        return [sched.HostCopyOp(self.values, direction=way, bytes=size, like=self.result_types)]


@op_definition
class StoreOp(HostOp):
    """Copy values to the memory of the host. `load(store(x))` is x."""

    name = "dist.store"


@op_definition
class LoadOp(HostOp):
    """Copy values from the memory of the host to that of the device."""

    name = "dist.load"

    traits = traits_def(Pure())


@op_definition
class ReadOp(HostOp):
    """Copy values from NVMe to the memory of the host."""

    name = "dist.read"

    traits = traits_def(Pure())


@op_definition
class WriteOp(HostOp):
    """Copy values from the memory of the host to NVMe. `read(write(x))` is x."""

    name = "dist.write"


@op_definition
class SumOnHostOp(HostOp):
    """Let the CPU of the host add what was stored to what earlier microbatches stored: both are read there, and the sum is written.

    `stg.accumulate` says what adds up; this is the work. FLOPs: 1 for each element.
    """

    name = "dist.sum_on_host"

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        flops = symbolic.total(map(elements, self.values))
        size = 3 * symbolic.total(num_bytes(v) for v in self.values)
        in_place = (Overwrite(number, number) for number in range(len(self.values)))
        effects = Effects(tuple(in_place), makes=Kind.HOST)
        done = (flops, size, effects, "host_sum")
        return [sched.HostUpdateOp(self.values, *done, like=self.result_types)]


@op_definition
class StateOp(DefaultBuilder, MarkedOp):
    """What the optimizer keeps of a weight on the host: the `number`-th tensor, moments before the master copy."""

    name = "dist.state"

    path = prop_def(StringAttr)
    number = prop_def(IntegerAttr.constr(i64))
    state = result_def()

    assembly_format = "$path $number attr-dict `:` type($state)"

    def verify_(self) -> None:
        if self.number.value.data < 0:
            raise self.mistake("states are counted from 0")
        if not isinstance(self.state.type, ValueType):
            raise self.mistake(f"{self.state.type} is not a tensor, shard or stack")
