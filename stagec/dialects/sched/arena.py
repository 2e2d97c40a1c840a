"""Where the buffers of a rank begin, in one arena."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import I64, IntegerAttr, StringAttr
from xdsl.irdl import irdl_attr_definition, prop_def

from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.tasks import Patterns


@irdl_attr_definition
class OffsetsAttr(Patterns):
    """Offsets in bytes of what each task makes, each pattern once, then which task has which: `{0 = "(0+4096)*8"} "0*7"`."""

    name = "sched.offsets"
    GROWS: ClassVar[bool] = True


@op_definition
class ArenaOp(DefaultBuilder):
    """The arena of a class of ranks: for each task of their order, where the buffers begin that come to be in it.

    Node by node in issue order, and those of one node in the order of stages and of what `plan-memory` calls memory of its own; what is received is a buffer
    of communication until it is read, and a sum over microbatches one more. No two that are alive together share a byte.
    `live` is the most that is alive at once, in bytes, which no arena can be below. What stays from step to step is not in it.
    """

    name = "sched.arena"

    class_name = prop_def(StringAttr)
    size = prop_def(IntegerAttr[I64])
    live = prop_def(IntegerAttr[I64])
    offsets = prop_def(OffsetsAttr)

    assembly_format = "`of` $class_name `bytes` $size `live` $live $offsets attr-dict"

    def verify_(self) -> None:
        size, live = self.size.value.data, self.live.value.data
        offsets = self.offsets.data.numbers
        if not 0 <= live <= size:
            raise self.mistake(f"{live} bytes are alive at once, and it has {size}")
        if len(offsets) and not 0 <= offsets.min() <= offsets.max() <= size:
            raise self.mistake("a buffer begins outside of it")
