"""Ops of `dist` that hand values on to a neighbour along an axis.

    %k1, %v1 = dist.rotate (%k, %v) over [cp] : (T, T) -> (T, T)

Several values travel as one flat buffer. Devices along several axes count as one ring, the last axis the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects import sched
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import TaskInterface, num_bytes, spread, views
from stagec.dialects.marks import PURPOSES, flag_mark, word_mark
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.types import StackType, TensorType, ValueType, tensor_of
from stagec.symbolic import ZERO, Size


def buffer_of(values: Sequence[SSAValue]) -> tuple[str, Size]:
    """Dtype and bytes of the flat buffer in which values travel."""
    return tensor_of(values[0].type).dtype, symbolic.total(num_bytes(v) for v in values)


def verify_buffer(name: str, values: Sequence[SSAValue]) -> None:
    if not values:
        raise VerifyException(f"{name}: there is nothing to hand over")
    dtypes = {tensor_of(value.type).dtype for value in values}
    if len(dtypes) != 1:
        raise VerifyException(f"{name}: one buffer has one dtype, not {', '.join(sorted(dtypes))}")


def verify_peer(name: str, distance: int) -> None:
    if not distance:
        raise VerifyException(f"{name}: a device is not a peer of its own")


class HandsOn(TaskInterface):
    """Shared by ops that hand values on along axes, as one buffer."""

    axes = prop_def(NamesAttr)
    apart = flag_mark("apart")
    """It is issued apart from its neighbours."""
    purpose = word_mark("purpose", PURPOSES)


@op_definition
class RotateOp(HandsOn):
    """Each device hands its values to the next one along `axes`, the last to the first.

    After n of them on n devices everything is where it was. Equals a `dist.send` to 1 and a `dist.recv` from -1, as one
    all-to-all in which all but one part is empty; its transpose is the rotation backwards. Sends operand_bytes.
    """

    name = "dist.rotate"

    values = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = (
        "`(` $values `)` `over` $axes attr-dict `:` functional-type($values, $outputs)"
    )

    def __init__(self, values: Sequence[SSAValue], axes: Sequence[str]) -> None:
        super().__init__([list(values)], [[v.type for v in values]], axes=axes)

    def verify_(self) -> None:
        if [v.type for v in self.values] != [v.type for v in self.outputs]:
            raise self.mistake("what comes has the types of what goes")
        verify_buffer(self.name, self.values)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        dtype, size = buffer_of(self.values)
        axes = spread(self.axes.data, mesh)
        return [
            sched.CollectiveOp(
                "all_to_all", self.values, axes, self.result_types, dtype, size, size
            )
        ]


@op_definition
class GatherBlocksOp(HandsOn):
    """Each device gets the values of all others, as stacks: element i is what i+1 `dist.rotate`s would bring.

    The stacks may stop short of all n-1 others; what travels is all the same one all-gather, to
    n * operand_bytes. Sends (n-1) * operand_bytes, as n-1 rotations do.
    """

    name = "dist.gather_blocks"

    values = var_operand_def(TensorType)
    blocks = var_result_def(StackType)

    traits = traits_def(Pure())
    assembly_format = "`(` $values `)` `over` $axes attr-dict `:` functional-type($values, $blocks)"

    def __init__(self, values: Sequence[SSAValue], axes: Sequence[str], count: Size) -> None:
        """`count`: how many others are looked at."""
        stacks: list[Attribute] = []
        for value in values:
            assert isinstance(value.type, TensorType)
            stacks.append(StackType.of(count, value.type))
        super().__init__([list(values)], [stacks], axes=axes)

    def verify_(self) -> None:
        if [v.type for v in self.values] != [b.type.element for b in self.blocks]:
            raise self.mistake("stacks are of what is gathered")
        verify_buffer(self.name, self.values)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        dtype, size = buffer_of(self.values)
        axes = spread(self.axes.data, mesh)
        whole = size * symbolic.product(map(symbolic.symbol, axes))
        return [
            sched.CollectiveOp(
                "all_gather", self.values, axes, self.result_types, dtype, size, whole
            )
        ]


@op_definition
class SendOp(DefaultBuilder, HandsOn):
    """Send values to the device `to` further along `axes`. Its `dist.recv` has the same channel, from -`to`.

    Transpose of that `dist.recv`. Sends operand_bytes.
    """

    name = "dist.send"

    values = var_operand_def(TensorType)
    to = prop_def(IntegerAttr.constr(i64))
    axes = prop_def(NamesAttr)
    channel = prop_def(IntegerAttr.constr(i64))

    assembly_format = (
        "`(` $values `)` `to` $to `over` $axes `channel` $channel attr-dict `:` type($values)"
    )

    def verify_(self) -> None:
        verify_peer(self.name, self.to.value.data)
        verify_buffer(self.name, self.values)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        dtype, size = buffer_of(self.values)
        travels = {"dtype": dtype, "bytes": size, "channel": self.channel}
        axes = spread(self.axes.data, mesh)
        return [sched.SendOp(self.values, axes=axes, shift=self.to, **travels)]


@op_definition
class WaitOp(DefaultBuilder, TaskInterface):
    """Computation goes on when values are there that it does not read.

    A device that looks at none of what it hands on stays in step with those that do. No cost but that of its place.
    """

    name = "dist.wait"

    values = var_operand_def(ValueType)

    assembly_format = "`(` $values `)` attr-dict `:` type($values)"

    def verify_(self) -> None:
        if not self.values:
            raise self.mistake("there is nothing to wait for")

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return [sched.ComputeOp("wait", self.values, [], ZERO, ZERO, ZERO, work=sched.Work.WAIT)]


@op_definition
class RecvOp(DefaultBuilder, HandsOn):
    """Receive values from the device `from` further along `axes`: what its `dist.send` of this channel sent.

    Receives of a channel complete in the order of its sends.
    """

    name = "dist.recv"

    source = prop_def(IntegerAttr.constr(i64), prop_name="from")
    axes = prop_def(NamesAttr)
    channel = prop_def(IntegerAttr.constr(i64))
    outputs = var_result_def(TensorType)

    assembly_format = "`from` $from `over` $axes `channel` $channel attr-dict `:` type($outputs)"

    def verify_(self) -> None:
        verify_peer(self.name, self.source.value.data)
        verify_buffer(self.name, self.outputs)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        dtype, size = buffer_of(self.outputs)
        travels = {"dtype": dtype, "bytes": size, "channel": self.channel}
        axes = spread(self.axes.data, mesh)
        return [sched.RecvOp(axes=axes, shift=self.source, **travels, like=self.result_types)]


@op_definition
class ExchangeCountsOp(TaskInterface):
    """Tell each device how many tokens of the others it will have for each of its experts: an all-to-all of whole numbers.

    Before a dispatch without drops, whose sizes depend on the data. Sends (n-1)/n of operand_bytes. `gathered`: an all-gather,
    which tells it also of the experts of others, on a ring (n-1) * operand_bytes; what it is told of these is of no use, and the result is its own part.
    """

    name = "dist.exchange_counts"

    counts = operand_def(TensorType)
    axes = prop_def(NamesAttr)
    gathered = opt_prop_def(UnitAttr)
    result = result_def(TensorType)

    assembly_format = "$counts `over` $axes (`gathered` $gathered^)? attr-dict `:` type($counts) `->` type($result)"

    def __init__(self, counts: SSAValue, axes: Sequence[str], *, gathered: bool = False) -> None:
        super().__init__([counts], [counts.type], axes=axes, gathered=gathered)

    def verify_(self) -> None:
        if self.counts.type != self.result.type:
            raise self.mistake("as many numbers come as go")
        counts = tensor_of(self.counts.type)
        if len(counts.dims) != 1 or counts.dtype != "i64":
            raise self.mistake(f"one i64 for each expert travels, not <{counts.body}>")
        if not self.axes.data:
            raise self.mistake("there is no axis to exchange over")

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        axes, (dtype, size) = spread(self.axes.data, mesh), buffer_of([self.counts])
        if not axes:
            return views(self)
        kind, whole = "all_to_all", size
        if self.gathered is not None:
            kind, whole = "all_gather", size * symbolic.product(map(symbolic.symbol, axes))
        types = [self.result.type]
        exchange = sched.CollectiveOp(kind, [self.counts], axes, types, dtype, size, whole)
        exchange.told = UnitAttr()
        return [exchange]
