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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.segments import whole
from stagec.arrays import Ints
from stagec.dialects import sched
from stagec.dialects.sched.tasks import HeldAttr, Lines, PerRow, PerRowAttr
from stagec.unrolling.module import KeepsRows, arranged_programs, unrolled_in
from stagec.unrolling.queues import Queues, stream_of, turns
from stagec.unrolling.rank import Arrangement
from stagec.unrolling.stage import OWN

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
    pairs = held(rank, graph, turns(ahead))
    if len(pairs):
        program.held = HeldAttr(Lines(pairs))


@dataclass(frozen=True)
class NodeGraph:
    """All nodes by position: what they wait for, and the stream that they follow one another on."""

    begin: Ints
    dep: Ints
    stream: Ints
    """-1 for a collective."""
    num_streams: int

    @staticmethod
    def of(rank: Arrangement, queues: Queues) -> NodeGraph:
        first, body = rank.first, rank.body[rank.order]
        total = int(first[-1])
        owners: list[Ints] = []
        deps: list[Ints] = []
        stream = np.full(total, -1, np.int64)
        names: dict[str, int] = {}
        for number in np.unique(body).tolist():
            at = np.flatnonzero(body == number)
            own = rank.bodies[number].body
            for j, (op, data) in enumerate(zip(own.nodes, own.deps, strict=True)):
                place = first[at] + j
                if not isinstance(op, sched.CollectiveOp):
                    stream[place] = names.setdefault(stream_of(op), len(names))
                for slot, node in dict.fromkeys((*data, *queues.added[number][j])):
                    awaited = first[at] + node if slot == OWN else queues.slots[at, slot]
                    there = awaited >= 0
                    owners.append(place[there])
                    deps.append(awaited[there])
        owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
        dep = np.concatenate(deps) if deps else np.zeros(0, np.int64)
        by_owner = np.argsort(owner, kind="stable")
        begin = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=total))])
        return NodeGraph(begin, dep[by_owner], stream, len(names))


def moved_ahead(rank: Arrangement, graph: NodeGraph) -> Ints:
    """For each row in issue order, how many rows before it the one is behind which the device takes it; 0: in its place.

    A gather that may begin early comes right after the last thing that it waits for, and after the gather before it.
    """
    may_begin = np.array([whole(each.body.ops[0], "lag", -1) >= 0 for each in rank.bodies] or [0])
    first, body = rank.first, rank.body[rank.order]
    place = np.arange(len(body), dtype=np.float64)
    """Where rows are issued: right behind another of the same number if they are moved there."""
    ahead = np.zeros(len(body), np.int64)
    previous = -1.0
    for row in np.flatnonzero(may_begin[body]).tolist():
        position = int(first[row])
        awaited = graph.dep[graph.begin[position] : graph.begin[position + 1]]
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


def held(rank: Arrangement, graph: NodeGraph, order: Ints) -> Ints:
    """What collectives are to wait for besides, as lines of `HeldAttr`.

    Nodes of a stream follow one another, so that it is enough to know the last one of each that a node waits for, directly
    or not. `asked` is what later collectives must wait for; `sure` is done when all so far are issued.
    """
    first, stream = rank.first.tolist(), graph.stream.tolist()
    begin, dep = graph.begin.tolist(), graph.dep.tolist()
    width = range(graph.num_streams)
    # A node of a stream is itself the last of it.
    positions = np.arange(len(stream))
    latest = [np.where(graph.stream == k, positions, -1).tolist() for k in width]
    others = [[latest[k] for k in width if k != own] for own in (*width, -1)]
    asked, sure = [-1] * len(width), [-1] * len(width)
    found: list[tuple[int, int, int]] = []
    for row, node in in_turn(rank, order, graph):
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


def in_turn(rank: Arrangement, order: Ints, graph: NodeGraph) -> Iterator[tuple[int, int]]:
    """The nodes as they are issued, each with its row; with a single stream only collectives, as the other nodes wait for no other stream."""
    num_nodes = np.diff(rank.first)[order]
    rows = np.repeat(order, num_nodes)
    start = np.cumsum(num_nodes) - num_nodes
    nodes = np.arange(len(rows)) + np.repeat(rank.first[order] - start, num_nodes)
    if graph.num_streams == 1:
        collectives = graph.stream[nodes] < 0
        rows, nodes = rows[collectives], nodes[collectives]
    return zip(rows.tolist(), nodes.tolist(), strict=True)
