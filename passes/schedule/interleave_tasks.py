"""Let tasks that overlap take turns: each computes while what the other waits for is on its way.

Before `interleave-tasks`:

    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    dist.mesh <ep = 2>
    stg.program "M" (%x : !t) {
      stg.accumulate over "mb" {
        %a = sched.compute "attention" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
        %d = sched.collective "all_to_all" (%a) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in F.0
          {gives_way} : (!t) -> !t
        %f = sched.compute "experts" (%d) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t) -> !t
        %g = sched.collective "all_to_all" (%f) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in B.2
          {gives_way, phase = "bwd"} : (!t) -> !t
        %h = sched.compute "experts_grad" (%g) flops "B" reads "B" writes "B" on "compute" in B.3
          {phase = "bwd"} : (!t) -> !t
        stg.yield
      }
      stg.output
    }
    sched.tasks @model of "" layers {} {
      F = "0 1",
      B = "2 3"
    }
    sched.program @all runs [0 @model] order "F:0.0 F:0.1 &B:0.0 B:0.1"
    sched.ranks "all" at {} run @all

After:

    ...
    sched.tasks @model of "" layers {} {
      F = "0 1",
      B = "2 3"
    }
    sched.program @all runs [0 @model] order "F:0.0 F:0.1 &B:0.0 B:0.1" rounds {
      0 = "0 0",
      1 = "1 3",
      2 = "0 2"
    } "0 1 2 0"
    sched.ranks "all" at {} run @all

Tokens that travel to their experts leave the device idle, and so do their gradients on the way back. DualPipe puts the forward pass of one microbatch
beside the backward pass of another, and computes one while the other's tokens travel (DeepSeek-V3, arXiv:2412.19437, figure 4): the
gradients of experts while tokens go to their experts, the experts while gradients come back, the gradients of attention while the experts'
outputs come back, and attention while the next gradients leave.

In serving there is no backward pass, and two microbatches go forward side by side: the attention of one is computed while the other's tokens go to experts or
come back (DeepSeek-V3, section 3.4.1; DeepSeek-V3/R1 Inference System Overview, February 2025). Where experts are on a pool of their own, all microbatches
take turns (MegaScale-Infer, arXiv:2504.02263).

That is one rule. A task gives way where it would wait for an exchange (`gives_way`); then the other goes on up to where it waits. The backward pass
begins, as its first exchange depends on nothing that is computed in it. Where the backward
pass is two halves, the gradients of weights are made as soon as what they read is there, in the same round. A task that waits for nothing, of
layers without experts, is spread over the rounds of the other, row by row. Where neither waits, tasks follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.dialects import sched
from stagec.dialects.sched.tasks import NOWHERE, TASKS, PerRow, PerRowAttr
from stagec.unrolling.module import KeepsRows, arranged_programs
from stagec.unrolling.rank import Arrangement

NAME = "interleave-tasks"

Ints = np.ndarray


@dataclass(frozen=True)
class InterleaveTasks(KeepsRows, ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program, arranged in arranged_programs(op, ctx):
            interleave(program, arranged)


def interleave(program: sched.RankProgramOp, arranged: Callable[[], Arrangement]) -> None:
    """Write down in which rounds the tasks of a rank take turns."""
    program.rounds = None
    if program.order.data.joined.any():
        rank = arranged()
        rounds = rounds_of(rank)
        if rounds.any():
            program.rounds = PerRowAttr(PerRow(rounds, rank.lengths))


def rounds_of(rank: Arrangement) -> Ints:
    """For each row, task by task, in which round of turns it is issued; 0 in tasks that overlap none, and where nobody waits."""
    gives_way = [
        np.array(["gives_way" in op.properties for op in each.body.nodes]) for each in rank.bodies
    ]
    order = rank.run.order
    ends = np.cumsum(rank.lengths)
    found = np.zeros(len(rank.body), np.int64)
    known: dict[tuple[tuple[int, int], ...], list[Ints]] = {}
    edges = np.append(np.flatnonzero(order.joined == 0), len(order))
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if end - first < 2:
            continue
        rows = [
            slice(int(ends[task] - rank.lengths[task]), int(ends[task]))
            for task in range(first, end)
        ]
        alike = tuple(map(tuple, order.table[first:end, :2].tolist()))
        if alike not in known:
            known[alike] = turns_of(rank, rows, [TASKS[task] for task, _ in alike], gives_way)
        for own, turns in zip(rows, known[alike], strict=True):
            found[own] = turns
    return found


def turns_of(
    rank: Arrangement, rows: Sequence[slice], tasks: Sequence[str], gives_way: Sequence[Ints]
) -> list[Ints]:
    """The rounds of the rows of tasks that overlap; 0 everywhere if none of them waits."""
    waits = [waits_before(rank, own, gives_way) for own in rows]
    if not any(own.any() for own in waits):
        return waits
    most = max(int(own.max()) for own in waits)
    rounds = np.full(len(rank.body), NOWHERE)
    is_alike = len(set(tasks)) == 1
    for place, (own, task, before) in enumerate(zip(rows, tasks, waits, strict=True)):
        if task == "W":
            # With the last gradient that it reads, and behind the rows before it.
            sources = rank.source_row[own]
            ready = np.where(sources >= 0, rounds[sources], 0).max(axis=1, initial=0)
            before = np.maximum.accumulate(ready)
        else:
            if not before.any():  # beside one that waits
                before = np.arange(len(before)) * (most + 1) // len(before)
            before = len(rows) * before + place if is_alike else 2 * before + (task == "F")
        rounds[own] = before
    return [rounds[own] for own in rows]


def waits_before(rank: Arrangement, rows: slice, gives_way: Sequence[Ints]) -> Ints:
    """For each row of a task, how often the task has waited for an exchange of its own before it computes that row."""
    source_row, source_node = rank.source_row[rows].tolist(), rank.source_node[rows].tolist()
    body = rank.body.tolist()
    waited: list[int] = []
    for reads in zip(source_row, source_node, strict=True):
        now = waited[-1] if waited else 0
        for row, node in zip(*reads, strict=True):
            own = row - rows.start
            if 0 <= own < len(waited) and waited[own] == now and gives_way[body[row]][node]:
                waited.append(now + 1)
                break
        else:
            waited.append(now)
    return np.array(waited, np.int64)
