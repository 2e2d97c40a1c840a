"""What delayed scaling tells ranks of each other: the largest numbers that products have met.

dist.reduce_maxima "forward" "12*L" over [dp, tp]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation
from xdsl.irdl import prop_def

from stagec.dialects import sched
from stagec.dialects.attributes import NamesAttr, SizeAttr
from stagec.dialects.interfaces import TaskInterface, spread
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.types import StackType, TensorType
from stagec.symbolic import ZERO

PASSES = ("forward", "backward")


@op_definition
class ReduceMaximaOp(DefaultBuilder, TaskInterface):
    """Let ranks agree on the maxima from which the scales of the next products follow: one all-reduce of `count` numbers in fp32.

    One kernel copies the maxima of all layers next to each other, and another makes scales of what comes back, both of which read and write
    as many numbers twice at most: a maximum beside the history that it goes into, which has one entry, and a scale
    (`reduce_and_update_fp8_tensors` of Transformer Engine, `nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction`).

    What a rank computes next waits for it. A ring of n devices sends 2(n-1)/n of the bytes.
    """

    name = "dist.reduce_maxima"

    direction = prop_def(StringAttr)
    count = prop_def(SizeAttr)
    axes = prop_def(NamesAttr)

    assembly_format = "$direction $count `over` $axes attr-dict"

    def verify_(self) -> None:
        if self.direction.data not in PASSES:
            raise self.mistake(f"a pass is {' or '.join(PASSES)}, not `{self.direction.data}`")
        if not self.axes.data:
            raise self.mistake("there is no axis to reduce over")

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        axes = spread(self.axes.data, mesh)
        if not axes:
            return []
        maxima = StackType.of(self.count.data, TensorType.of((), "fp32"))
        size = 4 * self.count.data
        found = sched.ComputeOp("maxima", [], [maxima], ZERO, size, size)
        largest = sched.CollectiveOp(
            "all_reduce", found.outputs, axes, [maxima], "fp32", size, size
        )
        scales = sched.ComputeOp("scales", largest.outputs, [], ZERO, 2 * size, 2 * size)
        return [found, largest, scales]
