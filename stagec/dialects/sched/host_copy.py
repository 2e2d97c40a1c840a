"""Ops of `sched` that copy between a device and its host, and that the host computes."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import opt_prop_def, prop_def, var_operand_def, var_result_def

from stagec.dialects.attributes import SizeAttr
from stagec.dialects.marks import MarkedOp, count_mark, flag_mark
from stagec.dialects.memory import Effects, EffectsAttr, Kind
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.actions import HostCopy, HostUpdate, NodeAction, Sum
from stagec.dialects.sched.node import CommunicationOp, NodeNumbers

NVME = ("read", "write")
DIRECTIONS = ("store", "load", *NVME)
UPDATE_STREAM = "host.update"


def host_stream(direction: str) -> str:
    """Copies in one direction follow one another."""
    return f"host.{direction}"


class HostCopyMarks(MarkedOp):
    """What passes find of copies between a device, its host and NVMe, in `dist` and as tasks."""

    lag = count_mark("lag")
    prefetch = count_mark("prefetch")
    """How many units ahead it may begin, and is issued: see `sched.collective`."""
    apart = flag_mark("apart")
    """It is issued apart from its neighbours."""
    home = flag_mark("home")
    """What is loaded fills the parameter itself."""


@op_definition
class HostCopyOp(DefaultBuilder, CommunicationOp, HostCopyMarks):
    """`store` values in the memory of the host, or `load` them from there; `read` them from NVMe into that memory, or `write` them back: a stream for each.

    Values are tensors or shards of any shapes, results those of the operands; `bytes` is how many bytes a rank copies, all values together.
    """

    name = "sched.host_copy"

    direction = prop_def(StringAttr)
    values = var_operand_def()
    num_bytes = prop_def(SizeAttr, prop_name="bytes")
    outputs = var_result_def()

    assembly_format = (
        "$direction `(` $values `)` `bytes` $bytes `on` $stream "
        "(`in` $segment^)? (`memory` $memory^)? attr-dict `:` functional-type($values, $outputs)"
    )

    def __init__(self, *given: Any, direction: str, **named: Any) -> None:
        super().__init__(*given, direction=direction, stream=host_stream(direction), **named)

    @property
    def node_name(self) -> str:
        return self.direction.data

    def action(self, numbers: NodeNumbers) -> NodeAction:
        return HostCopy(self.direction.data, numbers.num_bytes(self.num_bytes.data))

    @property
    def memory_effects(self) -> Effects:
        """What is copied to the host, or to NVMe, is there; what is loaded comes from there: into memory of its own, or to where it stays."""
        made = {"load": Kind.PARAMETERS if self.home else Kind.FETCHED, "write": Kind.NVME}
        return Effects(makes=made.get(self.direction.data, Kind.HOST))

    @property
    def is_of_nvme(self) -> bool:
        """Whether it is between the host and NVMe."""
        return self.direction.data in NVME

    def verify_(self) -> None:
        super().verify_()
        if self.direction.data not in DIRECTIONS:
            raise self.mistake(f"`{self.direction.data}` is not a direction")
        if len(self.values) != len(self.outputs):
            raise self.mistake("one result per value")


@op_definition
class HostUpdateOp(DefaultBuilder, CommunicationOp):
    """What the CPU of the host computes: its results are there, and no memory of the device moves.

    It is the optimizer's step, which reads gradients and makes weights of the same shapes, or what it is `called`. `flops` are floating-point operations,
    `bytes` what is read from and written to the host's memory.
    """

    name = "sched.host_update"

    inputs = var_operand_def()
    flops = prop_def(SizeAttr)
    num_bytes = prop_def(SizeAttr, prop_name="bytes")
    effects = opt_prop_def(EffectsAttr)
    called = opt_prop_def(StringAttr)
    outputs = var_result_def()

    assembly_format = (
        "(`called` $called^)? `(` $inputs `)` `flops` $flops `bytes` $bytes `on` $stream (`in` $segment^)? "
        "(`effects` $effects^)? (`memory` $memory^)? attr-dict `:` functional-type($inputs, $outputs)"
    )

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, stream=UPDATE_STREAM, **named)

    @property
    def node_name(self) -> str:
        return "host_update" if self.called is None else self.called.data

    def action(self, numbers: NodeNumbers) -> NodeAction:
        flops = numbers.flops(self.flops.data)
        return HostUpdate(flops, numbers.num_bytes(self.num_bytes.data))

    @property
    def sums(self) -> tuple[Sum, ...]:
        return (self.flops.data,), (self.num_bytes.data,)

    def verify_(self) -> None:
        super().verify_()
        if self.memory_effects.makes != Kind.HOST:
            raise self.mistake("what it makes is on the host")
