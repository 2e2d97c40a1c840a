"""What an op says of itself to those who do not know it: what it costs a device, and which tasks it becomes.

Interfaces are base classes of ops, as `xdsl.interfaces` are. Every op that a device runs has them, those of
plug-ins too; nobody keeps a table of ops beside them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Operation, SSAValue

from stagec import symbolic
from stagec.dialects import sched
from stagec.dialects.marks import MarkedOp
from stagec.dialects.memory import PLAIN, Effects
from stagec.dialects.types import ValueType
from stagec.dialects.work import Work
from stagec.symbolic import ONE, ZERO, Size, conditions

NO_FLOPS = (0, "")
"""The FLOPs of what computes nothing."""


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


class TaskInterface(MarkedOp, ABC):
    """An op that `lower-to-tasks` replaces."""

    def effects(self) -> Effects:
        """What it does with memory, besides reading its operands and writing results into memory of their own."""
        return PLAIN

    @abstractmethod
    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        """The `sched` ops that do its work, in order. The last results are the op's.

        `mesh` has the size of each axis: what moves along axes of size one stays where it is.
        """


class CostInterface(TaskInterface):
    """An op that a device computes, as one kernel unless it says otherwise.

    Costs are those of one device, exact expressions over dims and mesh axes. 2 FLOPs per multiply-add; an elementwise
    function counts as one operation per element, whatever the hardware makes of it: what matters of such an op is its bytes.
    """

    WORK: ClassVar[Work] = Work.OTHER
    """The kind of work that it is."""

    FLOPS: ClassVar[tuple[int, str]] = (1, "")
    """How many there are for each element, and of which operand or result: of the first result where none is named."""

    SOURCE: ClassVar[str] = ""
    """The paper or the program that its costs follow, where `stagec explain` is to say so."""

    @property
    def node_name(self) -> str:
        """What its node is called in traces and tables."""
        return kind_of(self)

    def flops(self) -> Size:
        """As `FLOPS` says, unless they are no multiple of elements."""
        number, value = self.FLOPS
        if not number or not (value or self.results):
            return ZERO
        return number * elements(getattr(self, value) if value else self.results[0])

    def flops_again(self) -> Size:
        """The part of its FLOPs that another op has done before, but whose results nobody kept."""
        return ZERO

    def num_kernels(self) -> Size:
        """How many kernels a device launches for it."""
        return ONE

    def num_scalars(self) -> Size:
        """How many elements its kernels compute one by one, where they do not load vectors."""
        return ZERO

    def stream(self) -> str:
        """Where it runs: beside communication if a kernel that communicates does it."""
        return sched.COMPUTE_STREAM

    def moved_bytes(self) -> Bytes:
        """Each operand read once, each result written once."""
        return Bytes(all_bytes(self.operands), all_bytes(self.results))

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        moved = self.moved_bytes()
        return [
            sched.ComputeOp(
                self.node_name,
                self.operands,
                self.result_types,
                self.flops(),
                moved.read,
                moved.written,
                self.stream(),
                effects=self.effects(),
                work=self.WORK,
                again=self.flops_again(),
                kernels=self.num_kernels(),
                scalars=self.num_scalars(),
            )
        ]


def kind_of(op: Operation) -> str:
    """What an op is called in traces and tables: its name without that of its dialect."""
    return op.name.partition(".")[2]


def views(op: Operation) -> list[Operation]:
    """Each result is the memory of the op's first operand under another type."""
    return [sched.ViewOp(op.operands[0], result.type) for result in op.results]


def spread(axes: Sequence[str], mesh: Mapping[str, int]) -> list[str]:
    """The axes along which there is more than one rank, in mesh order."""
    return [a for a in mesh if a in axes and conditions.is_split(a, mesh)]
