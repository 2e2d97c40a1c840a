"""The op of `sched` that copies between a device and its host."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import SizeAttr
from stagec.dialects.marks import MarkedOp, count_mark, flag_mark
from stagec.dialects.memory import PLAIN, MemoryAttr, verify_memory
from stagec.dialects.sched.tasks import SegmentAttr
from stagec.symbolic import Size

DIRECTIONS = ("store", "load")


@irdl_op_definition
class HostCopyOp(MarkedOp):
    """`store` values in the memory of the host, or `load` them from there: a stream for each direction."""

    name = "sched.host_copy"

    direction = prop_def(StringAttr)
    values = var_operand_def()
    num_bytes = prop_def(SizeAttr, prop_name="bytes")
    stream = prop_def(StringAttr)
    segment = opt_prop_def(SegmentAttr)
    lag = count_mark("lag")
    prefetch = count_mark("prefetch")
    """How many units ahead it may begin, and is issued: see `sched.collective`."""
    apart = flag_mark("apart")
    """It is issued apart from its neighbours."""
    serial = flag_mark("serial")
    memory = opt_prop_def(MemoryAttr)
    outputs = var_result_def()

    assembly_format = (
        "$direction `(` $values `)` `bytes` $bytes `on` $stream "
        "(`in` $segment^)? (`memory` $memory^)? attr-dict `:` functional-type($values, $outputs)"
    )

    def __init__(
        self,
        direction: str,
        values: Sequence[SSAValue],
        result_types: Sequence[Attribute],
        num_bytes: Size,
    ) -> None:
        super().__init__(
            operands=[list(values)],
            result_types=[list(result_types)],
            properties={
                "direction": StringAttr(direction),
                "bytes": SizeAttr(num_bytes),
                "stream": StringAttr(f"host.{direction}"),
            },
        )

    def verify_(self) -> None:
        if self.direction.data not in DIRECTIONS:
            raise VerifyException(f"sched.host_copy: `{self.direction.data}` is no direction")
        if len(self.values) != len(self.outputs):
            raise VerifyException("sched.host_copy: one result per value")
        verify_memory(self, PLAIN, self.memory.data if self.memory is not None else None)
