"""What every op has that becomes a node of a trace: a stream, the segment that it is in, its plan of memory; and the numbers that its action is said in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.marks import MarkedOp, flag_mark
from stagec.dialects.memory import (
    PLAIN,
    Effects,
    EffectsAttr,
    MemoryAttr,
    NodeMemory,
    verify_memory,
)
from stagec.dialects.sched.actions import Kernel, NodeAction, Sum
from stagec.dialects.sched.tasks import SegmentAttr
from stagec.symbolic import Size

NAME_OF_STREAM = re.compile(r"[^\s]+")


class NodeNumbers(ABC):
    """The numbers that sizes have where a node is, and whom it communicates with."""

    @abstractmethod
    def number(self, size: Size) -> int:
        """The number of a size; a fraction of an operation counts as a whole one."""

    @abstractmethod
    def num_bytes(self, size: Size) -> int: ...

    @abstractmethod
    def flops(self, size: Size) -> int: ...

    @abstractmethod
    def kernel(self, op: NodeOp) -> Kernel | None:
        """What decides how fast it runs besides FLOPs and bytes."""

    @abstractmethod
    def read_before(self, op: NodeOp) -> float:
        """The share of what it reads that ops in front of it read too, which can be one kernel with it."""

    @abstractmethod
    def among(self, weight: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The ranks that share a weight."""

    @abstractmethod
    def neighbour(self, op: NodeOp) -> tuple[tuple[str, ...], int, int]:
        """For what crosses a boundary of stages: the axis of the stages, how far along it the peer is, and the channel."""

    @property
    @abstractmethod
    def layer_of_node(self) -> int:
        """The layer of the node; -1 for none."""


class NodeOp(MarkedOp, ABC):
    """Shared by all ops that become nodes."""

    CROSSES: ClassVar[bool] = False
    """Whether it is between stages of a pipeline, or between pools."""

    stream = prop_def(StringAttr)
    segment = opt_prop_def(SegmentAttr)
    memory = opt_prop_def(MemoryAttr)

    @property
    def node_name(self) -> str:
        """What the node is called in traces and tables: `contract`, `all_gather`, `send`."""
        return self.name.rpartition("_")[2].rpartition(".")[2]

    @abstractmethod
    def action(self, numbers: NodeNumbers) -> NodeAction:
        """What the node does, in numbers."""

    @property
    def sums(self) -> tuple[Sum, ...]:
        """What the numbers of its node are made of, in the order of `Node.sizes`: bytes are last, and alone unless an op says more."""
        moved = self.properties["bytes"]
        assert isinstance(moved, SizeAttr)
        return ((moved.data,),)

    @property
    def moved(self) -> Size:
        """Bytes that it moves."""
        return symbolic.total(self.sums[-1])

    @property
    def memory_effects(self) -> Effects:
        """What it does with memory, besides reading operands and writing results into memory of their own: what `effects` says, if it has that."""
        said = self.properties.get("effects")
        return said.data if isinstance(said, EffectsAttr) else PLAIN

    @property
    def planned(self) -> NodeMemory | None:
        """The plan of its memory, if there is one."""
        return self.memory.data if self.memory is not None else None

    def verify_(self) -> None:
        if not NAME_OF_STREAM.fullmatch(self.stream.data):
            message = f"{self.name}: a stream's name has no blanks, as `comm.dp` has none, and is not empty"
            raise VerifyException(message)
        verify_memory(self, self.memory_effects, self.planned)


class CommunicationOp(NodeOp):
    """Shared by all nodes but those that compute."""

    serial = flag_mark("serial")
    """Computation waits for it, and it for computation."""
