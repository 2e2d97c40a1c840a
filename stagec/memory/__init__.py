"""What `plan-memory` wrote into the IR, unrolled: what each rank class keeps, since when, until when, and what for.

`plan_memory` answers for every rank class of a compiled module, and decides nothing. `value_table` tells what is made and read, `lifetimes` when, in the order
of the schedule; `static` what stays from step to step.
"""

from stagec.dialects.memory import Kind as Kind, MemoryLevel as MemoryLevel
from stagec.memory.along_time import TimedPeak as TimedPeak, peak_along_time as peak_along_time
from stagec.memory.kinds import TITLES as TITLES
from stagec.memory.plan import (
    BufferGroup as BufferGroup,
    ClassPlan as ClassPlan,
    Moment as Moment,
    plan_memory as plan_memory,
)
from stagec.memory.whole_module import plan_module as plan_module
