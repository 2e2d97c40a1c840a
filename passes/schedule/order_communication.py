"""Give each rank's communication one order, whatever the run times.

Before `order-communication`:

    !s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    dist.mesh <dp = 2, ep = 2, tp = 2>
    stg.program "M" (%x : !t) {
      %w = stg.weight "w" : !s
      stg.accumulate over "mb" {
        %a = sched.compute "layer" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
        %b = sched.collective "all_reduce" (%a) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in F.1 : (!t) -> !t
        %c = sched.collective "all_reduce" (%x) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in F.2 : (!t) -> !t
        %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in F.3
          {lag = 1 : i64} : (!s) -> !t
        stg.yield
      }
      stg.output
    }
    sched.tasks @model of "" layers {} {
      F = "0 1 2 3"
    }
    sched.program @all runs [0 @model] order "F:0.0 F:0.1"
    sched.ranks "all" at {} run @all

After:

    ...
    sched.tasks @model of "" layers {} {
      F = "0 1 2 3"
    }
    sched.program @all runs [0 @model] order "F:0.0 F:0.1" ahead {
      0 = "(0)*3 4",
      1 = "(0)*3 8"
    } "0 1" held "2.0<2.0 6.0<2.0"
    sched.ranks "all" at {} run @all

A device with one slot for a rank's communication, like ASTRA-sim's, gives it to the ready node of lowest number, and keeps a
collective in it until the last member is there. Where run times decide which of two collectives is ready first, ranks
may issue them the other way round, and wait for each other for ever. They cannot if, whenever a collective is ready, all
with lower numbers are ready too, or done: what an earlier one waits for, each later one waits for as well, unless a
still earlier one did. `stagec check` proves this of traces (`stagec/checking/any_timing.py`).

Two things make it so:

- A gather of parameters that begins while its host still issues what stands before it has a number where it begins: `ahead`.
- What could be ready before an earlier collective waits for the computation that the earlier one waits for: `held`.

See docs/decisions/one-order-of-communication.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.node_waits import Waiting, deps_of, edges, ready_early
from stagec.analysis.segments import whole_number
from stagec.arrays import Bools, Ints, laid_out, places_of_each
from stagec.dialects import sched
from stagec.dialects.sched.tasks import HeldAttr, Lines, PerRow, PerRowAttr
from stagec.unrolling.module import KeepsRows, arranged_programs, unrolled_in
from stagec.unrolling.queues import Queues, stream_of, turns
from stagec.unrolling.rank import Arrangement

NAME = "order-communication"


@dataclass(frozen=True)
class OrderCommunication(KeepsRows, ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        finder = unrolled_in(ctx).queues
        for program, arranged in arranged_programs(op, ctx):
            rank = arranged()
            program.ahead = program.held = None
            if len(streams_of_collectives(rank)) > 1:
                order(program, rank, finder.of(rank))


def streams_of_collectives(rank: Arrangement) -> set[str]:
    """Where there is one, each collective follows the one before it."""
    ops = [op for each in rank.bodies for op in each.body.nodes]
    return {stream_of(op) for op in ops if isinstance(op, sched.CollectiveOp)}


def order(program: sched.RankProgramOp, rank: Arrangement, queues: Queues) -> None:
    """Write down what is issued ahead, and what is held back."""
    graph = NodeGraph.of(rank, queues)
    ahead = moved_ahead(rank, graph)
    if ahead.any():
        in_order = np.empty_like(ahead)
        in_order[rank.order] = ahead
        program.ahead = PerRowAttr(PerRow(in_order, rank.lengths))
    in_turn = turned(rank, turns(ahead))
    if may_overtake(graph, in_turn[1]):
        pairs = held(rank, graph, *in_turn)
        program.held = HeldAttr(Lines(pairs)) if len(pairs) else None


@dataclass(frozen=True)
class NodeGraph:
    """All nodes by position: what they wait for, and the streams that they follow one another on."""

    waiting: Waiting
    is_collective: Bools

    @staticmethod
    def of(rank: Arrangement, queues: Queues) -> NodeGraph:
        body = rank.body[rank.order]
        names: dict[str, int] = {}
        ops: list[Operation] = []
        deps: list[Ints] = []
        for each, added in zip(rank.bodies, queues.added, strict=True):
            ops += each.body.nodes
            both = zip(each.body.deps, added, strict=True)
            deps.append(deps_of(dict.fromkeys((*data, *more)) for data, more in both))
        _, node = laid_out(body, np.array([len(each.body.nodes) for each in rank.bodies]))
        streams = [names.setdefault(stream_of(op), len(names)) for op in ops]
        queue = np.array(streams, np.int16)[node]
        is_collective = np.array([isinstance(op, sched.CollectiveOp) for op in ops])[node]
        waiting = Waiting(queue, *edges(deps, body, rank.first, queues.slots))
        return NodeGraph(waiting, is_collective)

    @cached_property
    def streams(self) -> list[Ints]:
        """The nodes of each stream, but for collectives."""
        return places_of_each(np.where(self.is_collective, -1, self.waiting.queue))

    @cached_property
    def awaited(self) -> tuple[Ints, Ints]:
        """Where what each node waits for begins in what they all wait for."""
        owner, dep = self.waiting.owner, self.waiting.dep
        count = np.bincount(owner, minlength=len(self.waiting.queue))
        return np.concatenate([[0], np.cumsum(count)]), dep[np.argsort(owner, kind="stable")]


def moved_ahead(rank: Arrangement, graph: NodeGraph) -> Ints:
    """For each row in issue order, how many rows before it the one is behind which the device takes it; 0: in its place.

    A gather that may begin early comes right after the last thing that it waits for, and after the gather before it.
    """
    may_begin = np.array(
        [whole_number(each.body.ops[0], "lag", -1) >= 0 for each in rank.bodies] or [0]
    )
    first, body = rank.first, rank.body[rank.order]
    place = np.arange(len(body), dtype=np.float64)
    """Where rows are issued: right behind another of the same number if they are moved there."""
    ahead = np.zeros(len(body), np.int64)
    previous = -1.0
    for row in np.flatnonzero(may_begin[body]).tolist():
        position = int(first[row])
        begin, dep = graph.awaited
        awaited = dep[begin[position] : begin[position + 1]]
        latest = previous
        if len(awaited):
            rows = np.searchsorted(first, awaited, side="right") - 1
            latest = max(latest, float(place[rows].max()))
        behind = int(np.floor(latest))
        if behind + 1 < row:
            place[row] = behind + 0.5
            ahead[row] = row - behind
        previous = float(place[row])
    return ahead


def may_overtake(graph: NodeGraph, nodes: Ints) -> bool:
    """Whether a collective may be ready before an earlier one, as nodes are issued."""
    collectives = nodes[graph.is_collective[nodes]]
    done = graph.waiting.last_done(graph.streams, collectives)
    asked = graph.waiting.asked(graph.streams)[:, collectives]
    return bool(len(ready_early(done, asked)))


def held(rank: Arrangement, graph: NodeGraph, rows: Ints, nodes: Ints) -> Ints:
    """What collectives are to wait for besides, as lines of `HeldAttr`.

    Nodes of a stream follow one another, so that it is enough to know the last one of each that a node waits for, directly
    or not. `asked` is what later collectives must wait for; `sure` is done when all so far are issued.
    """
    first, (begin, dep) = rank.first.tolist(), (each.tolist() for each in graph.awaited)
    width = range(len(graph.streams))
    stream = [-1] * first[-1]
    # A node of a stream is itself the last of it.
    latest = [[-1] * first[-1] for _ in width]
    for k, on in enumerate(graph.streams):
        for node in on.tolist():
            stream[node], latest[k][node] = k, node
    others = [[latest[k] for k in width if k != own] for own in (*width, -1)]
    asked, sure = [-1] * len(width), [-1] * len(width)
    found: list[tuple[int, int, int]] = []
    for row, node in zip(rows.tolist(), nodes.tolist(), strict=True):
        before = dep[begin[node] : begin[node + 1]]
        for last in others[stream[node]]:
            most = -1
            for other in before:
                if last[other] > most:
                    most = last[other]
            last[node] = most
        if stream[node] >= 0:
            continue
        for k in width:
            if latest[k][node] < asked[k]:
                found.append((row, node - first[row], asked[k]))
                for last in latest:
                    last[node] = max(last[node], last[asked[k]])
        for other in before:
            k = stream[other]
            if k >= 0 and other > sure[k]:
                asked[k] = max(asked[k], other)
        for k in width:
            sure[k] = max(sure[k], latest[k][node])
    row, node, awaited = np.array(sorted(found), np.int64).reshape(-1, 3).T
    there = np.searchsorted(rank.first, awaited, side="right") - 1
    return np.stack([row, node, row - there, awaited - rank.first[there]], axis=1)


def turned(rank: Arrangement, order: Ints) -> tuple[Ints, Ints]:
    """The nodes as they are issued, each with its row."""
    num_nodes = np.diff(rank.first)[order]
    rows = np.repeat(order.astype(np.int32), num_nodes)
    start = np.cumsum(num_nodes, dtype=np.int32) - num_nodes
    nodes = np.repeat(rank.first[order] - start, num_nodes)
    return rows, nodes + np.arange(len(rows), dtype=np.int32)
