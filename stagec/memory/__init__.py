"""What `plan-memory` wrote into the IR, unrolled: what each rank class keeps, since when, until when, and what for.

`plan_memory` answers for every rank class of a compiled module, and decides nothing. `value_table` tells what is made and read, `lifetimes` when, in the order
of the schedule; `static` what stays from step to step.
"""

from stagec.dialects.memory import Kind
from stagec.memory.along_time import TimedPeak, peak_along_time
from stagec.memory.kinds import TITLES
from stagec.memory.plan import BufferGroup, ClassPlan, Moment, plan_memory
from stagec.memory.whole_module import plan_module

__all__ = [
    "TITLES",
    "BufferGroup",
    "ClassPlan",
    "Kind",
    "Moment",
    "TimedPeak",
    "peak_along_time",
    "plan_memory",
    "plan_module",
]
