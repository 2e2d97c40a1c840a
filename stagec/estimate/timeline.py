"""When each node of a step starts and ends: the longest path through the graph of what waits for what (`stagec.estimate.graph`).

A node of a piece ends at the latest of these times: for each column, the end of the node that the piece waits for, plus the longest path from there to the
node. These paths are the same in all instances of a piece, so they are found once (max-plus algebra: Baccelli, Cohen, Olsder and Quadrat 1992,
"Synchronization and Linearity"). An instance then costs one small array operation, however many nodes it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import TraceSet
from stagec.dialects.sched.actions import Transfer
from stagec.estimate.graph import AskedNodes, GraphPiece, PieceGraph
from stagec.estimate.network import Network
from stagec.estimate.prices import Prices

FEW = 8
"""With fewer plans than this, solving them one by one is quicker than together."""
Arrivals = Mapping[tuple[int, int, int], Floats]
"""When messages of other pools are there, in µs: `[instance]` for each receive, which is named by its class, its segment and its place in the segment.

A message that is not listed is there from the start."""


@dataclass(frozen=True)
class Timeline:
    """The times of all nodes of one rank of each class, in µs from the start of the step. All arrays are `[position]`.

    The nodes of class c have the positions `begins[c]` to `begins[c + 1]` - 1, in issue order.
    """

    start_us: Floats
    end_us: Floats
    begins: tuple[int, ...]
    launched_us: Floats | None = None
    """When the host has launched each node; NaN for a node that is launched with another one. None where graphs launch all nodes."""

    def of_class(self, number: int) -> tuple[Floats, Floats]:
        """When the nodes of one class start and end, in µs: `[node]` each."""
        here = slice(self.begins[number], self.begins[number + 1])
        return self.start_us[here], self.end_us[here]

    @property
    def makespan_us(self) -> float:
        """When the last node of any class ends."""
        return float(self.end_us.max(initial=0.0))


def simulate_graph(
    graph: PieceGraph,
    traces: TraceSet,
    prices: Prices,
    factors: Floats | None = None,
    arrived: Arrivals | None = None,
) -> Timeline:
    """The timeline of a job whose nodes take as long as `prices` says. `factors`, `[class]`: how many times as long computation takes as `prices` says.
    `arrived`: when messages of other pools are there.
    """
    durations = [piece_durations(piece, traces, prices) for piece in graph.pieces]
    networks = [prices.network] * len(graph.pieces)
    hosts = Hosts.of(graph, [(traces, prices)] * len(graph.pieces))
    return simulate_pieces(graph, durations, networks, hosts, factors, arrived)


def simulate_pieces(
    graph: PieceGraph,
    durations: list[Floats],
    networks: Sequence[Network],
    hosts: Hosts | None = None,
    factors: Floats | None = None,
    arrived: Arrivals | None = None,
) -> Timeline:
    """The timeline of a graph, given for each piece the durations of its nodes in µs, `[node]`, and the network that its transfers run on."""
    if factors is not None:
        durations = slower(graph, durations, factors)
    came = arrived_by_piece(graph, arrived or {})
    times = solve(graph.every_node, durations, came=came, hosts=hosts)
    starts, ends = times.starts, times.ends
    for i, piece in enumerate(graph.pieces):
        if piece.sends or i in came:
            starts[piece.first] = arrivals(piece, ends, networks[i], came.get(i))
    launched = hosts.launched_us(graph, times.ends) if hosts is not None else None
    return Timeline(starts, ends[:-1], tuple(graph.begins), launched)


@dataclass(frozen=True)
class Hosts:
    """Hosts that launch the kernels of their devices one after the other, in issue order.

    A host runs ahead of a busy device until it has to read a size that the device computes: before it launches the exchange of tokens, it has to know how
    many come to a rank's experts (`MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize` of Megatron-LM, HybridEP without a budget, torchtitan's
    `.tolist()`), and before it launches a sum of gradients that are checked, what their norm is (`check_grads` of Megatron-LM). Each step begins with nothing
    launched, since the step before ends with a number that the host reads: a norm of gradients or a loss (`MegatronOptimizer.step`,
    `DistributedTrainer.train_step_logs` of nanotron).
    """

    each_us: Floats
    """`[piece]`: how long a launch takes."""
    kernels: Sequence[Floats]
    """For each piece, `[node]`: how many kernels are launched for the node. A kernel that costs less than a launch counts in part."""
    before_us: Sequence[Floats]
    """For each piece, `[instance]`: how long the host needs, from reading the last result that it has to read, until it can launch the first node."""
    told: Sequence[Ints]
    """For each piece, `[instance]`: the position of the node with that result; -1 for the start of the step."""

    @staticmethod
    def of(graph: PieceGraph, owners: Sequence[tuple[TraceSet, Prices]]) -> Hosts | None:
        """The hosts of a graph, given the traces and prices of the job that each piece belongs to. None where graphs launch all kernels."""
        each_us = np.array([prices.host_launch_us for _, prices in owners])
        if not each_us.any():
            return None
        known: dict[tuple[int, int, int], Floats] = {}
        kernels: list[Floats] = []
        count = np.zeros(graph.begins[-1] + 1)
        for piece, (traces, prices) in zip(graph.pieces, owners, strict=True):
            key = (id(traces), piece.rank_class, piece.segment)
            if key not in known:
                program = graph.classes[piece.rank_class].program
                nodes, escaping = program.segments[piece.segment].nodes, prices.escaping(program)
                known[key] = prices.launches(nodes, escaping[piece.segment])
            own = known[key][piece.begin : piece.begin + len(piece.nodes)]
            kernels.append(own)
            count[piece.first[:, None] + 1 + np.arange(len(own))] = own
        total = np.cumsum(count)
        first = np.array(graph.begins)
        told = [
            np.full(len(piece.first), -1) if piece.told is None else piece.columns[piece.told]
            for piece in graph.pieces
        ]
        before = [
            us * (total[piece.first] - total[np.where(at < 0, first[piece.rank_class], at + 1)])
            for us, piece, at in zip(each_us.tolist(), graph.pieces, told, strict=True)
        ]
        return Hosts(each_us, kernels, before, told)

    def paths(self, number: int, piece: GraphPiece, durations: Floats) -> Floats:
        """The longest path in µs to the end of each node of a piece, from the time at which its first node can be launched: like `durations`, `[node]` or
        `[node, plan]`. `number` is that of the piece.
        """
        launch = self.each_us[number] * np.cumsum(self.kernels[number])
        found = np.zeros_like(durations)
        for i, inside in enumerate(piece.inside):
            found[i] = durations[i] + np.max(
                [launch[i] + 0 * found[i], *(found[j] for j in inside)], axis=0
            )
        return found

    def launched_us(self, graph: PieceGraph, ends: Floats) -> Floats:
        """`[position]`: when each node is launched, given when nodes end; NaN for a node without a launch of its own."""
        found = np.full(graph.begins[-1], np.nan)
        for piece, us, own, before, at in zip(
            graph.pieces,
            self.each_us.tolist(),
            self.kernels,
            self.before_us,
            self.told,
            strict=True,
        ):
            offset = np.where(own > 0, us * np.cumsum(own), np.nan)
            begin = (before + ends[at])[:, None]
            found[piece.first[:, None] + np.arange(len(own))] = begin + offset
        return found


def piece_durations(piece: GraphPiece, traces: TraceSet, prices: Prices) -> Floats:
    """`[node]`: how long the nodes of a piece take, in µs."""
    of_segment = prices.segment(traces.classes[piece.rank_class], piece.segment).us
    return of_segment[piece.begin : piece.begin + len(piece.nodes)]


def slower(graph: PieceGraph, durations: list[Floats], factors: Floats) -> list[Floats]:
    """The durations of the nodes of each piece if computation takes `factors` times as long: `[class]`, or `[class, plan]`."""
    found: list[Floats] = []
    for piece, own in zip(graph.pieces, durations, strict=True):
        computes = np.array([node.computes for node in piece.nodes], bool)
        scaled = own.copy()
        scaled[computes] *= factors[piece.rank_class]
        found.append(scaled)
    return found


@dataclass(frozen=True)
class Times:
    """When nodes of a graph end, in µs, in one plan, or in several plans with the same graph: then all arrays have a last axis `plan`."""

    asked: AskedNodes
    """The nodes."""
    durations: list[Floats]
    """For each piece, `[node]`."""
    slowest: dict[int, Floats]
    """For each piece that is a collective of several classes, by its number, `[instance]`: how long it takes."""
    ends: Floats
    """`[number]`: of the nodes that are asked for (`AskedNodes.index`), and last the start of the step."""

    @property
    def makespan(self) -> Floats:
        """When the last node ends."""
        return self.ends.max(axis=0)

    def exits_of(self, number: int) -> Floats:
        """When the exits of a class end, in ascending order of their positions."""
        begin = self.asked.graph.begins[number]
        here = np.flatnonzero(self.asked.graph.exits_of(number)) + begin
        return self.ends[self.asked.index[here]]

    @cached_property
    def starts(self) -> Floats:
        """`[number]`: when each node starts, if all nodes of its instance are asked for. A receive starts at its end, as if the whole message came at once."""
        starts = np.full((len(self.ends) - 1, *self.ends.shape[1:]), np.nan)
        pieces = zip(self.asked.graph.pieces, self.durations, self.asked.rows, strict=True)
        for i, (piece, own, rows) in enumerate(pieces):
            first = self.asked.index[piece.first[rows]]
            if i in self.slowest:
                starts[first] = self.ends[first] - self.slowest[i][rows]
                continue
            for at, duration in enumerate(own):
                starts[first + at] = self.ends[first + at] - duration
        return starts


def shared_durations(graph: PieceGraph, durations: list[Floats]) -> dict[int, Floats]:
    """How long each instance of a collective of several classes takes in µs, `[instance]`, by the number of its piece: as long as on its slowest member.

    Members of one all-to-all may send different numbers of bytes.
    """
    found: dict[int, Floats] = {}
    for by_class in graph.meetings:
        firsts = {
            number: np.concatenate([graph.pieces[i].first for i in which])
            for number, which in by_class.items()
        }
        own = {
            number: np.concatenate(
                [np.repeat(durations[i][:1], len(graph.pieces[i].first), axis=0) for i in which]
            )
            for number, which in by_class.items()
        }
        longest = np.max([own[n][np.argsort(firsts[n])] for n in by_class], axis=0)
        for number, which in by_class.items():
            order = np.sort(firsts[number])
            for i in which:
                found[i] = longest[np.searchsorted(order, graph.pieces[i].first)]
    return found


def arrived_by_piece(graph: PieceGraph, arrived: Arrivals) -> dict[int, Floats]:
    """When messages of other pools are there, `[instance]` in µs, by the number of the piece that is the receive."""
    keys = [(piece.rank_class, piece.segment, piece.begin) for piece in graph.pieces]
    return {number: arrived[key] for number, key in enumerate(keys) if key in arrived}


def arrivals(piece: GraphPiece, ends: Floats, network: Network, came: Floats | None) -> Floats:
    """`[instance]`: when the message of a receive starts to arrive, in µs. Its send has started then, and the receive waits for nothing else.

    `ends` are the ends of all nodes; `came` is when the message of another pool is there, None if it comes from this one.
    """
    action = piece.nodes[0].action
    assert isinstance(action, Transfer)
    known = [] if came is None else [came]
    sent = np.max([*known, *(ends[piece.columns[k]] for k in piece.sends)], axis=0)
    own = [column for k, column in enumerate(piece.columns) if k not in piece.sends]
    ready = np.max([ends[column] for column in own], axis=0) if own else np.zeros(len(sent))
    return np.minimum(ends[piece.first], np.maximum(ready, sent - network.transfer_us(action)))


def longest_paths(piece: GraphPiece, durations: Floats) -> Floats:
    """The longest paths in µs to the end of each node of a piece, from each of its columns, and last from the start of the step: `[node, column + 1]`, or
    with several plans `[node, column + 1, plan]`.
    """
    width = len(piece.columns)
    paths = np.full((len(piece.nodes), width + 1, *durations.shape[1:]), -np.inf)
    paths[:, width] = 0.0
    for i, (inside, outside) in enumerate(zip(piece.inside, piece.outside, strict=True)):
        row = paths[i]
        row[outside] = 0.0
        for other in inside:
            np.maximum(row, paths[other], out=row)
        row += durations[i]
    return paths


Launches = tuple[Floats, Floats, Ints]
"""What launching means for a piece: the longest path to the end of each node from the launch of its first, `[node]`; how long after the last result that the
host has to read that launch can be, `[instance]`; and the number of the node with that result, `[instance]`."""


def launch_paths(
    asked: AskedNodes, durations: Sequence[Floats], hosts: Hosts | None
) -> list[Launches]:
    """The launches of each piece; empty where graphs launch all kernels."""
    if hosts is None:
        return []
    paths = [
        hosts.paths(i, *own)
        for i, own in enumerate(zip(asked.graph.pieces, durations, strict=True))
    ]
    told = [asked.index[at] for at in hosts.told]
    return list(zip(paths, hosts.before_us, told, strict=True))


def solve(
    asked: AskedNodes,
    durations: list[Floats],
    came: Mapping[int, Floats] | None = None,
    hosts: Hosts | None = None,
) -> Times:
    """Find when nodes end, given for each piece the durations of its nodes in µs, `[node]`, or for several plans `[node, plan]`.

    `came`: when messages of other pools are there, `[instance]` by the number of the piece, if there is one plan.
    """
    came, graph = came or {}, asked.graph
    slowest = shared_durations(graph, durations)
    plans = durations[0].shape[1:] if durations else ()
    if plans and plans[0] < FEW:
        each = [solve(asked, [own[:, p] for own in durations], hosts=hosts) for p in range(*plans)]
        return Times(asked, durations, slowest, np.stack([one.ends for one in each], axis=1))
    ends = np.zeros((asked.count, *plans))
    lasting = [0 * each if i in slowest else each for i, each in enumerate(durations)]
    paths = [longest_paths(piece, own) for piece, own in zip(graph.pieces, lasting, strict=True)]
    behind = launch_paths(asked, lasting, hosts)
    follow = follow_each if plans else follow_levels
    follow(asked, paths, slowest, came, behind, ends)
    for number, (rows, own) in enumerate(zip(asked.rows, paths, strict=True)):
        if not len(rows):
            continue
        found = own[:, -1] + np.zeros((len(rows), *own[:, -1].shape))
        later = np.empty_like(found)
        # The last column is the start of the step.
        for column, path in zip(
            asked.awaited[number][rows].T[:-1], np.moveaxis(own, 1, 0), strict=False
        ):
            np.maximum(found, np.add(path, ends[column][:, None], out=later), out=found)
        if behind:
            path, before, at = behind[number]
            begin = np.expand_dims(before[rows], tuple(range(1, ends.ndim))) + ends[at[rows]]
            np.maximum(found, begin[:, None] + path, out=found)
        if number in slowest:
            found += slowest[number][rows, None]
        if number in came:
            found = np.maximum(found, came[number][rows, None])
        first = asked.index[graph.pieces[number].first[rows]]
        ends[first[:, None] + np.arange(len(own))] = found
    return Times(asked, durations, slowest, ends)


def follow_each(
    asked: AskedNodes,
    paths: Sequence[Floats],
    slowest: Mapping[int, Floats],
    came: Mapping[int, Floats],
    behind: Sequence[Launches],
    ends: Floats,
) -> None:
    """Write the ends of all exits into `ends`, instance by instance, for several plans at once."""
    graph = asked.graph
    exits = [own[at] for own, at in zip(paths, graph.exits, strict=True)]
    instances = graph.instances
    for number, row in zip(instances.piece.tolist(), instances.row.tolist(), strict=True):
        found = (exits[number] + ends[asked.awaited[number][row]]).max(axis=1)
        if behind:
            path, before, at = behind[number]
            found = np.maximum(found, path[graph.exits[number]] + before[row] + ends[at[row]])
        if number in slowest:
            found += slowest[number][row]
        if number in came:
            found = np.maximum(found, came[number][row])
        ends[asked.exits[number][row]] = found


def follow_levels(
    asked: AskedNodes,
    paths: Sequence[Floats],
    slowest: Mapping[int, Floats],
    came: Mapping[int, Floats],
    behind: Sequence[Launches],
    ends: Floats,
) -> None:
    """Write the ends of all exits into `ends` for one plan. All instances of a level are solved together, whatever their pieces.

    To that end the columns and exits of all pieces are put side by side, as wide as those of the piece that has most.
    """
    graph, table_of = asked.graph, asked.columns
    pieces, exits = graph.pieces, graph.exits
    widths, heights = table_of.widths, table_of.heights
    width, height = widths.max(initial=0), heights.max(initial=0)
    table = np.full((width, len(pieces), height), -np.inf)
    for number, (piece, at, own) in enumerate(zip(pieces, exits, paths, strict=True)):
        used = len(piece.columns) + 1
        table[:used, number, : len(at)] = np.roll(own[at], 1, axis=1).T
        # A piece with fewer exits repeats its last one.
        table[:used, number, len(at) :] = table[:used, number, len(at) - 1, None]
    instances, place, number = graph.instances, table_of.place, graph.instances.piece
    longer = np.zeros(len(place))
    there = np.full(len(place), -np.inf)
    for among, said in ((slowest, longer), (came, there)):
        for piece, values in among.items():
            own = number == piece
            said[own] = values[instances.row[own]]
    launched, told = np.zeros((0, 0)), np.zeros(0, np.int64)
    if behind:
        of_launch = np.zeros((len(pieces), height))
        for own, (path, *_), at in zip(of_launch, behind, exits, strict=True):
            own[: len(at)] = path[at]
            own[len(at) :] = path[at[-1]]
        launched = of_launch[number] + np.concatenate([own for _, own, _ in behind])[place][:, None]
        told = np.concatenate([at for *_, at in behind])[place]
    levels = instances.begins[:-1]
    wide = np.maximum.reduceat(widths[number], levels).tolist() if levels else []
    high = np.maximum.reduceat(heights[number], levels).tolist() if levels else []
    reads, writes = table_of.reads, table_of.writes
    for (start, stop), w, h in zip(pairwise(instances.begins), wide, high, strict=True):
        now = slice(start, stop)
        lasting = table[:w].take(number[now], axis=1)[:, :, :h]
        found = (lasting + ends.take(reads[:w, now])[:, :, None]).max(axis=0)
        if behind:
            np.maximum(found, launched[now, :h] + ends[told[now], None], out=found)
        if slowest:
            found += longer[now][:, None]
        if came:
            np.maximum(found, there[now][:, None], out=found)
        ends[writes[now, :h]] = found
