"""What crosses the boundary of two pipeline stages, as `dist` and `sched` both say it."""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.irdl import operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.marks import MarkedOp
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.actions import NodeAction, Sum, Transfer
from stagec.dialects.sched.node import CommunicationOp, NodeNumbers
from stagec.dialects.types import TensorType, tensor_of

DIRECTIONS = ("forward", "backward")
SEND_STREAM, RECV_STREAM = "p2p.send", "p2p.recv"


class CrossingOp(DefaultBuilder, MarkedOp):
    """Shared by the two ends: which way it goes, and as which of those that go so."""

    STREAM: ClassVar[str] = ""
    """On which it runs, if it is a task."""
    WAYS: ClassVar[tuple[str, ...]] = DIRECTIONS

    direction = prop_def(StringAttr)
    number = prop_def(IntegerAttr.constr(i64))

    def __init__(self, *given: Any, **named: Any) -> None:
        if self.STREAM:
            named["stream"] = self.STREAM
        super().__init__(*given, **named)

    @property
    def crossing(self) -> tuple[str, int]:
        """Its direction and number."""
        return self.direction.data, self.number.value.data

    def verify_(self) -> None:
        super().verify_()
        direction, number = self.crossing
        if direction not in self.WAYS:
            ways = " or ".join(self.WAYS)
            raise self.mistake(f"a value goes {ways}, not `{direction}`")
        verify_number(self.name, number)


class StageSend(CrossingOp):
    """Hand a value to the neighbouring stage: a tensor of the rank's own part, [B/mb, S/tp, D] for instance, as bytes of its dtype."""

    value = operand_def(TensorType)


class StageRecv(CrossingOp):
    """A value that the neighbouring stage hands over, of the shape and dtype that it has there."""

    value = result_def(TensorType)

    @property
    def value_type(self) -> TensorType:
        return tensor_of(self.value.type)


class StageCrossing(CrossingOp, CommunicationOp):
    """Shared by both ends as tasks."""

    CROSSES: ClassVar[bool] = True

    def action(self, numbers: NodeNumbers) -> NodeAction:
        tensor = tensor_of((*self.operands, *self.results)[0].type)
        axes, shift, channel = numbers.neighbour(self)
        num_bytes = numbers.num_bytes(tensor.num_bytes)
        return Transfer(self.node_name, axes, shift, num_bytes, channel, tensor.dtype)

    @property
    def sums(self) -> tuple[Sum, ...]:
        return ((tensor_of((*self.operands, *self.results)[0].type).num_bytes,),)


@op_definition
class StageSendOp(StageSend, StageCrossing):
    """`dist.stage_send` as a task of its own, which the schedule places."""

    name = "sched.stage_send"
    STREAM: ClassVar[str] = SEND_STREAM

    assembly_format = "$direction $number $value `on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($value)"


@op_definition
class StageRecvOp(StageRecv, StageCrossing):
    """`dist.stage_recv` as a task of its own."""

    name = "sched.stage_recv"
    STREAM: ClassVar[str] = RECV_STREAM

    assembly_format = "$direction $number `on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($value)"


def verify_number(name: str, number: int) -> None:
    if number < 0:
        raise VerifyException(f"{name}: numbers count from 0, not from {number}")
