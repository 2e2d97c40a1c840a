"""Write down what keeps a row from being issued early, besides its data and the queues of its streams.

Before `chain-streams`:

    !s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    dist.mesh <dp = 2>
    stg.program "M" (%x : !t) {
      %ws = stg.weight "w" : !stg.stack<"4" x !s>
      stg.accumulate over "mb" {
        %z = stg.repeat "4" carry(%h = %x : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
          %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in F.0
            {lag = 1 : i64} : (!s) -> !t
          %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t, !t) -> !t
          stg.yield %b : !t
        }
        stg.yield
      }
      stg.output
    }
    sched.tasks @model of "" layers {} {
      F = "(0@0+1 1@0+1)*4"
    }
    sched.program @all runs [0 @model] order "(F:0.0+1)*2"
    sched.ranks "all" at {} run @all

After:

    ...
    sched.tasks @model of "" layers {} {
      F = "(0@0+1 1@0+1)*4"
    }
    sched.program @all runs [0 @model] order "F:0.0 F:0.1" waits {
      0 = "0 (-1 2)*3 -1",
      1 = "(2 -1)*4"
    } "0 1"
    sched.ranks "all" at {} run @all

A stream is a queue: each node follows the one before it on its stream, a communication that is `serial` also computation, and a
reduction of a tied weight all communication, because its ranks come to it with different things behind them. On most devices that
leaves a communication free to be issued before the computation around it, where it would only take memory, or a link that is
needed first. So a number `n` of `waits` says: the computation issued before the row n rows before this one has ended; 0: before this
one; -1: no computation.

- A gather of parameters reads nothing. One in the forward pass begins when the gather `lag` before it is due, any other where it stands.
- A reduction of a gradient that is `late`, or that a schedule places, waits for the end of the backward pass.
- One that is issued as soon as it is ready stands behind the row that completes the gradient. Where rows communicate too, it waits for
  all of that row, and so does what stands behind it. Else ranks that are a little faster than others, and have one slot for all
  communication, would issue the two the other way round, and wait for each other.
  The message of that pass waits too, where a rest of the pass stands before it: a send is issued behind what its host has issued.
- So does what communicates a value just received: that may be there while the rank still computes what it is to send.
- A gather of parameters behind their update, which is in place, waits for that.
- A load from the host begins where it stands: earlier it would only fill memory.

The same can happen to a gather that is due before tensor-parallel collectives and stands behind them, but only if ranks of one class do not
keep step; waiting for those would leave nothing to overlap it with. The rules are those that `stagec check` proves of traces
(`stagec/checking/deadlock.py`).

NCCL asks for this: ranks that use several communicators have to issue their collectives in one order, or may wait for each other
for ever (its guide, "Using multiple NCCL communicators concurrently").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.communication import gathers_updated
from stagec.analysis.segments import whole_number
from stagec.arrays import Bools, Ints
from stagec.dialects import sched, stg
from stagec.dialects.sched.tasks import PerRow, PerRowAttr
from stagec.unrolling.module import KeepsRows, arranged_programs
from stagec.unrolling.rank import Arrangement
from stagec.unrolling.stage import RowBody

NAME = "chain-streams"


NEVER = -1
"""Stands for a row that waits for no computation."""


@dataclass(frozen=True)
class ChainStreams(KeepsRows, ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program, arranged in arranged_programs(op, ctx):
            arrangement = arranged()
            program.waits = PerRowAttr(PerRow(held_back(arrangement), arrangement.lengths))


def held_back(rank: Arrangement) -> Ints:
    """For each row how many rows before it the one is whose computation before it must have ended; -1 for none."""
    bodies = [each.body for each in rank.bodies]
    body = rank.body[rank.order]
    held = np.full(len(body), NEVER, np.int64)

    def of_rows(belongs: Callable[[RowBody], bool]) -> Bools:
        return np.array([belongs(each) for each in bodies] or [False])[body]

    lag = np.array([whole_number(each.ops[0], "lag", NEVER) for each in bodies] or [NEVER])[body]
    is_free = np.all(rank.source_row[rank.order] < 0, axis=1)
    gathers = np.flatnonzero((of_rows(gathers_alone) & is_free & (lag < 0)) | (lag >= 0))
    number = np.arange(len(gathers)) - np.maximum(0, lag[gathers])
    held[gathers] = gathers - gathers[np.maximum(0, number)]
    held[of_rows(lambda body: all(map(gathers_updated, body.ops)))] = 0
    held[of_rows(loads_alone)] = 0
    held[of_rows(is_late)] = 0
    if any(map(communicates, bodies)):
        ready = of_rows(is_ready)
        held[ready] = 0
        after = np.flatnonzero(ready[:-1] & ~ready[1:]) + 1
        held[after] = 0
        held[messages_of_rest(rank, of_rows(sends_alone), after)] = 0
        held[is_received(rank, bodies)[rank.order]] = 0
    found = np.empty_like(held)
    found[rank.order] = held
    return found


def messages_of_rest(rank: Arrangement, sends: Bools, after: Ints) -> Ints:
    """Of the rows `after` that go on with a pass: the row behind the rest of the pass, where that is its message. All are places in issue order."""
    task = np.repeat(np.arange(len(rank.lengths)), rank.lengths)[rank.order]
    ends = np.append(np.flatnonzero(np.diff(task)) + 1, len(task))
    behind = ends[np.searchsorted(ends, after[~sends[after]], side="right")]
    behind = behind[behind < len(task)]
    return behind[sends[behind]]


def is_received(rank: Arrangement, bodies: Sequence[RowBody]) -> Ints:
    """Whether a row reads what another rank sends."""
    arrives = np.array([any(map(receives, each.nodes)) for each in bodies] or [False])
    sources = rank.source_row
    return np.any((sources >= 0) & arrives[rank.body[sources]], axis=1)


def receives(op: Operation) -> bool:
    return isinstance(op, sched.RecvOp | sched.StageRecvOp | sched.PoolRecvOp)


def sends_alone(body: RowBody) -> bool:
    """Whether a body is a message to another rank."""
    return all(isinstance(op, sched.SendOp | sched.StageSendOp) for op in body.ops)


def gathers_alone(body: RowBody) -> bool:
    """Whether a body is a gather."""
    op = body.ops[0]
    return (
        body.num_nodes == 1 and isinstance(op, sched.CollectiveOp) and op.kind.data == "all_gather"
    )


def loads_alone(body: RowBody) -> bool:
    """Whether a body is a load from the host, or a read from NVMe."""
    return all(
        isinstance(op, sched.HostCopyOp) and op.direction.data in ("load", "read")
        for op in body.ops
    )


def communicates(body: RowBody) -> bool:
    """Whether computation and communication are mixed in a body."""
    others = [
        op
        for op in body.nodes
        if not isinstance(op, sched.ComputeOp | sched.HostCopyOp | sched.HostUpdateOp)
    ]
    return 0 < len(others) < body.num_nodes


def is_moved(body: RowBody) -> bool:
    """Whether a body is a reduction that is issued by itself."""
    return stg.phase_of(body.ops[0]) == "grad_reduce" and "tied" not in stg.marks(body.ops[0])


def is_late(body: RowBody) -> bool:
    return is_moved(body) and bool({"late", stg.OF_STAGE} & body.ops[0].properties.keys())


def is_ready(body: RowBody) -> bool:
    return is_moved(body) and not is_late(body)
