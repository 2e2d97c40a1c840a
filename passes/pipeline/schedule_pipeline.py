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

Ranks send and receive in the order that the schedule's source has, unless the plan says which: under DualPipe `transfers="as_sent"` is that
of PyTorch's runtime. `sched.schedule` says it too (`transfers "as_sent"`), but not where the schedule has that order anyway, or a pipeline one rank.
Where computation waits for transfers (`waits`), interleaved 1F1B has them in batches without a word, as in Megatron-LM with
`--no-overlap-p2p-communication`: computation would wait at receives of what it needs later.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.sizes import size_values
from stagec.dialects import dist, sched
from stagec.dialects.op import first_op
from stagec.dialects.types import TIME_AXIS
from stagec.rewriting import insert_before, programs
from stagec.schedules import usual_transfers
from stagec.symbolic import conditions, symbol


@dataclass(frozen=True)
class SchedulePipeline(ModulePass):
    name = "schedule-pipeline"

    schedule: str
    """A schedule of `stagec.schedules`, or a user's: `mine.csv`, `mine.py:function`."""
    axis: str
    """The mesh axis of the stages."""
    virtual: int = 1
    """Virtual stages on each rank."""
    transfers: str = ""
    """The order in which ranks send and receive, one of `stagec.schedules.TRANSFERS`; that of the schedule if nothing is said."""
    waits: bool = False
    """Whether computation waits for transfers."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = programs(op)[0]
        ranks, microbatches = symbol(self.axis), symbol(TIME_AXIS)
        part = part_of(op)
        is_alone = part is None and not conditions.compare(ranks, ">", 1, size_values(op))
        in_batches = self.waits and self.schedule == "interleaved_1f1b"
        order = self.transfers or ("batched" if in_batches else "")
        is_usual = not order or order in usual_transfers(self.schedule, self.virtual)
        made = sched.ScheduleOp(
            self.schedule,
            ranks,
            self.virtual,
            microbatches,
            *(part or ()),
            transfers=None if is_alone or is_usual else order,
        )
        insert_before(first, [made])


def part_of(module: ModuleOp) -> tuple[int, int] | None:
    """Where the ranks of a pool that trains are in the pipeline of all pools, and how many that has."""
    pool, towers = dist.pool_of(module), first_op(module, dist.TowersOp)
    if pool is None or towers is None:
        return None
    number = towers.number_of(pool.pool.data)
    return towers.first_rank(number), towers.first_rank(len(towers.towers.data))
