"""When each node of a step starts and ends: the longest path through what waits for what.

Within a piece a node's end is the largest of `end of what the piece waits for + longest path from there`. Those paths are found
once for all instances of the piece (max-plus algebra: Baccelli, Cohen, Olsder and Quadrat 1992, "Synchronization and Linearity"), so
that an instance costs one small array operation, however many nodes it has.
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
from stagec.estimate.graph import GraphPiece, PieceGraph, build_graph
from stagec.estimate.network import Network
from stagec.estimate.prices import Prices

FEW = 8
"""Plans that are quicker solved one by one than together."""
Arrivals = Mapping[tuple[int, int, int], Floats]
"""When what other pools send is there, in µs: by class, segment, and node of the segment, for each instance. What is not named is there from the start."""


@dataclass(frozen=True)
class Timeline:
    """Times of all nodes of a rank of each class, in µs from the start of the step.

    Class c has the positions `begins[c]` to `begins[c + 1]`, its nodes in issue order.
    """

    start_us: Floats
    end_us: Floats
    begins: tuple[int, ...]
    launched_us: Floats | None = None
    """When hosts have launched what runs, where no graphs do it; NaN of what is launched with others."""

    def of_class(self, number: int) -> tuple[Floats, Floats]:
        """Starts and ends of the nodes of one class."""
        here = slice(self.begins[number], self.begins[number + 1])
        return self.start_us[here], self.end_us[here]

    @property
    def makespan_us(self) -> float:
        return float(self.end_us.max(initial=0.0))


def simulate(traces: TraceSet, prices: Prices) -> Timeline:
    """Of a job, whose nodes take what `prices` says."""
    graph = build_graph(traces, launches=prices.host_launch_us > 0)
    return simulate_graph(graph, traces, prices)


def simulate_graph(
    graph: PieceGraph,
    traces: TraceSet,
    prices: Prices,
    factors: Floats | None = None,
    arrived: Arrivals | None = None,
) -> Timeline:
    """`factors`: by which the computation of each class is slower than it would be alone."""
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
    """The same, of pieces that take so long, each on a network."""
    if factors is not None:
        durations = slower(graph, durations, factors)
    came = arrived_by_piece(graph, arrived or {})
    times = solve(graph, durations, came=came, hosts=hosts)
    starts, ends = times.starts, times.ends
    for i, piece in enumerate(graph.pieces):
        if piece.sends or i in came:
            starts[piece.first] = arrivals(piece, ends, networks[i], came.get(i))
    launched = hosts.launched_us(graph, times.ends) if hosts is not None else None
    return Timeline(starts, ends[:-1], tuple(graph.begins), launched)


@dataclass(frozen=True)
class Hosts:
    """Hosts that launch the kernels of their devices one after the other, in issue order.

    They are ahead of a device that is busy, but for sizes that it makes: how many tokens come to a rank's experts they have to know before they launch
    the exchange (`MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize` of Megatron-LM, HybridEP without a budget, torchtitan's `.tolist()`). Each step
    begins with nothing launched, as the one before ends with a number that the host reads: a norm of gradients or a loss (`MegatronOptimizer.step`,
    `DistributedTrainer.train_step_logs` of nanotron).
    """

    each_us: Floats
    """Of each piece: what a launch takes."""
    kernels: Sequence[Floats]
    """Of each piece: how many are launched for each node, those that cost less than a launch in part."""
    before_us: Sequence[Floats]
    """Of each piece: when each instance's first node can be launched, from when the host knew what it had to know last."""
    told: Sequence[Ints]
    """Of each piece: where for each instance that is, -1 for the start of the step."""

    @staticmethod
    def of(graph: PieceGraph, owners: Sequence[tuple[TraceSet, Prices]]) -> Hosts | None:
        """Of pieces of these jobs, whose classes have the numbers that their pieces say; nothing where graphs launch all of them."""
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
        """To the end of each node of a piece, from when its first can be launched."""
        launch = self.each_us[number] * np.cumsum(self.kernels[number])
        found = np.zeros_like(durations)
        for i, inside in enumerate(piece.inside):
            found[i] = durations[i] + np.max(
                [launch[i] + 0 * found[i], *(found[j] for j in inside)], axis=0
            )
        return found

    def launched_us(self, graph: PieceGraph, ends: Floats) -> Floats:
        """When each node is launched, in a step whose nodes end so."""
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
    of_segment = prices.segment(traces.classes[piece.rank_class], piece.segment).us
    return of_segment[piece.begin : piece.begin + len(piece.nodes)]


def slower(graph: PieceGraph, durations: list[Floats], factors: Floats) -> list[Floats]:
    """What nodes take if the computation of each class takes so many times as long: `[class]`, or `[class, plan]`."""
    found: list[Floats] = []
    for piece, own in zip(graph.pieces, durations, strict=True):
        computes = np.array([node.computes for node in piece.nodes], bool)
        scaled = own.copy()
        scaled[computes] *= factors[piece.rank_class]
        found.append(scaled)
    return found


@dataclass(frozen=True)
class Times:
    """When each node ends: `[node + 1]`, the last is the start of the step. Of several plans that wait alike all arrays are `[..., plan]`."""

    graph: PieceGraph
    durations: list[Floats]
    """Of the nodes of each piece."""
    slowest: dict[int, Floats]
    """Of pieces that are collectives of several classes, what each instance takes."""
    ends: Floats

    @property
    def makespan(self) -> Floats:
        """When the last node ends."""
        return np.fmax.reduce(self.ends, axis=0)

    @cached_property
    def starts(self) -> Floats:
        """When each node starts; a receive at its end, as if all came at once."""
        starts = np.empty((len(self.ends) - 1, *self.ends.shape[1:]))
        for i, (piece, own) in enumerate(zip(self.graph.pieces, self.durations, strict=True)):
            if i in self.slowest:
                starts[piece.first] = self.ends[piece.first] - self.slowest[i]
                continue
            for at, duration in enumerate(own):
                starts[piece.first + at] = self.ends[piece.first + at] - duration
        return starts


def shared_durations(graph: PieceGraph, durations: list[Floats]) -> dict[int, Floats]:
    """How long each instance of a collective of several classes takes, by piece: as long as the slowest member.

    Members may send more and less in one all-to-all.
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
    """The same by the number of the piece, which is the receive alone."""
    keys = [(piece.rank_class, piece.segment, piece.begin) for piece in graph.pieces]
    return {number: arrived[key] for number, key in enumerate(keys) if key in arrived}


def arrivals(piece: GraphPiece, ends: Floats, network: Network, came: Floats | None) -> Floats:
    """When something starts to arrive: its send has started, and the receive waits for nothing else. `came` is when what another pool sends is there."""
    action = piece.nodes[0].action
    assert isinstance(action, Transfer)
    known = [] if came is None else [came]
    sent = np.max([*known, *(ends[piece.columns[k]] for k in piece.sends)], axis=0)
    own = [column for k, column in enumerate(piece.columns) if k not in piece.sends]
    ready = np.max([ends[column] for column in own], axis=0) if own else np.zeros(len(sent))
    return np.minimum(ends[piece.first], np.maximum(ready, sent - network.transfer_us(action)))


def longest_paths(piece: GraphPiece, durations: Floats) -> Floats:
    """To the end of each node from each column, and from the start of the step: `[node, column + 1]`, of several plans `[..., plan]`."""
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
"""Of a piece: to the end of each node from when its host can launch the first; when that is for each instance, from what the host had to know last; and where
that is."""


def launch_paths(
    graph: PieceGraph, durations: Sequence[Floats], hosts: Hosts | None
) -> list[Launches]:
    """Nothing where graphs launch."""
    if hosts is None:
        return []
    paths = [
        hosts.paths(i, *own) for i, own in enumerate(zip(graph.pieces, durations, strict=True))
    ]
    return list(zip(paths, hosts.before_us, hosts.told, strict=True))


def solve(
    graph: PieceGraph,
    durations: list[Floats],
    only_exits: bool = False,
    came: Mapping[int, Floats] | None = None,
    hosts: Hosts | None = None,
) -> Times:
    """The end of every node; or of the exits of pieces alone, which the ends of others and of the step follow from: NaN for what is not told.

    `came`: when what other pools send is there, by piece, of one plan.
    """
    came = came or {}
    slowest = shared_durations(graph, durations)
    plans = durations[0].shape[1:] if durations else ()
    if plans and plans[0] < FEW:
        each = [
            solve(graph, [own[:, p] for own in durations], only_exits, hosts=hosts)
            for p in range(*plans)
        ]
        return Times(graph, durations, slowest, np.stack([one.ends for one in each], axis=1))
    ends = np.full((graph.begins[-1] + 1, *plans), np.nan)
    ends[-1] = 0.0
    lasting = [0 * each if i in slowest else each for i, each in enumerate(durations)]
    paths = [longest_paths(piece, own) for piece, own in zip(graph.pieces, lasting, strict=True)]
    behind = launch_paths(graph, lasting, hosts)
    follow = follow_each if plans else follow_levels
    follow(graph, paths, slowest, came, behind, ends)
    if not only_exits:
        for number, (piece, own) in enumerate(zip(graph.pieces, paths, strict=True)):
            found = own[:, -1] + np.zeros((len(piece.first), *own[:, -1].shape))
            later = np.empty_like(found)
            for column, path in zip(piece.columns, np.moveaxis(own, 1, 0), strict=False):
                np.maximum(found, np.add(path, ends[column][:, None], out=later), out=found)
            if behind:
                path, before, at = behind[number]
                begin = np.expand_dims(before, tuple(range(1, ends.ndim))) + ends[at]
                np.maximum(found, begin[:, None] + path, out=found)
            if number in slowest:
                found += slowest[number][:, None]
            if number in came:
                found = np.maximum(found, came[number][:, None])
            ends[piece.first[:, None] + np.arange(len(own))] = found
    return Times(graph, durations, slowest, ends)


def follow_each(
    graph: PieceGraph,
    paths: Sequence[Floats],
    slowest: Mapping[int, Floats],
    came: Mapping[int, Floats],
    behind: Sequence[Launches],
    ends: Floats,
) -> None:
    """Find the ends of all exits, instance by instance, of several plans at once."""
    exits = [own[at] for own, at in zip(paths, graph.exits, strict=True)]
    # Column -1, which is 0, stands for the start of the step.
    tables = [
        np.stack([*piece.columns, np.full(len(piece.first), -1)], axis=1) for piece in graph.pieces
    ]
    instances = graph.instances
    for number, row in zip(instances.piece.tolist(), instances.row.tolist(), strict=True):
        found = (exits[number] + ends[tables[number][row]]).max(axis=1)
        if behind:
            path, before, at = behind[number]
            found = np.maximum(found, path[graph.exits[number]] + before[row] + ends[at[row]])
        if number in slowest:
            found += slowest[number][row]
        if number in came:
            found = np.maximum(found, came[number][row])
        ends[graph.exits[number] + int(graph.pieces[number].first[row])] = found


def follow_levels(
    graph: PieceGraph,
    paths: Sequence[Floats],
    slowest: Mapping[int, Floats],
    came: Mapping[int, Floats],
    behind: Sequence[Launches],
    ends: Floats,
) -> None:
    """The same of one plan: of the instances of a level together, whatever pieces they are of.

    The columns and exits of all pieces are put side by side, to the width of the widest.
    """
    pieces, exits, table_of = graph.pieces, graph.exits, graph.columns
    widths, heights = table_of.widths, table_of.heights
    width, height = widths.max(initial=0), heights.max(initial=0)
    table = np.full((width, len(pieces), height), -np.inf)
    for number, (piece, at, own) in enumerate(zip(pieces, exits, paths, strict=True)):
        used = len(piece.columns) + 1
        table[:used, number, : len(at)] = np.roll(own[at], 1, axis=1).T
        # What is said of exits too many, is said of the last one.
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
