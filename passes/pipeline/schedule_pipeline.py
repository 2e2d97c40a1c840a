"""Say in which order the stages run their microbatches.

Before `schedule-pipeline{schedule="1f1b" virtual=2 axis="pp"}`:

    dist.mesh <pp = 4>
    stg.program "M" () {
      stg.output
    }

After:

    dist.mesh <pp = 4>
    sched.schedule "1f1b" ranks "pp" virtual 2 microbatches "mb"
    stg.program "M" () {
      stg.output
    }

The order itself is data that `stagec.schedules` makes from these numbers, and proves; it is unrolled where records are written.

GPipe is that of Huang et al. (arXiv:1811.06965), 1F1B with and without interleaving that of Megatron-LM
(arXiv:2104.04473), zero-bubble schedules those of Qi et al. (arXiv:2401.10241); `stagec.schedules` names the source of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.dialects import dist, sched
from stagec.dialects.op import first_op
from stagec.dialects.types import TIME_AXIS
from stagec.rewriting import insert_before, programs
from stagec.symbolic import symbol


@dataclass(frozen=True)
class SchedulePipeline(ModulePass):
    name = "schedule-pipeline"

    schedule: str
    """A schedule of `stagec.schedules`, or a user's: `mine.csv`, `mine.py:function`."""
    axis: str
    """The mesh axis of the stages."""
    virtual: int = 1
    """Virtual stages on each rank."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = programs(op)[0]
        ranks, microbatches = symbol(self.axis), symbol(TIME_AXIS)
        made = sched.ScheduleOp(
            self.schedule, ranks, self.virtual, microbatches, *(part_of(op) or ())
        )
        insert_before(first, [made])


def part_of(module: ModuleOp) -> tuple[int, int] | None:
    """Where the ranks of a pool that trains are in the pipeline of all pools, and how many that has."""
    pool, towers = dist.pool_of(module), first_op(module, dist.TowersOp)
    if pool is None or towers is None:
        return None
    number = towers.number_of(pool.pool.data)
    return towers.first_rank(number), towers.first_rank(len(towers.towers.data))
