"""How much computation is slowed by the communication that runs beside it.

What communication's kernels occupy of multiprocessors while they run the device's file says: `collective_units`, `exchange_units` of an all-to-all, and
`message_units` of a message between two ranks, on the one that sends it. (The other's kernel runs at the same time, in which a rank of a ring sends, too, and
one of a pipeline where stages are in step.) Kernels that compute at the same time have only the rest, and are slower by the share that is taken. So a step is
timed twice: the first timeline says how much computation of each rank class runs beside communication, and in the second that computation takes longer
accordingly.

Products lose more where their kernels have a block for each multiprocessor, among which they deal out their tiles beforehand (`tile_scheduler = static`).
Blocks for which a collective leaves no multiprocessor run when it has ended, or when the others have: such a product takes up to twice as long
(pytorch/pytorch, issue 143988 and pull request 144974; "Static Scheduler" in CUTLASS's "Blackwell Cluster Launch Control").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.arrays import Floats, Ints, distinct
from stagec.backend.program import Node, TraceProgram, TraceSet
from stagec.devices.model import TAKEN_UNITS
from stagec.dialects.sched.actions import Collective, Compute, Transfer
from stagec.dialects.work import Work
from stagec.estimate import intervals
from stagec.estimate.graph import PieceGraph, build_graph
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Arrivals, Timeline, simulate_graph
from stagec.estimate.waits import Waits
from stagec.plans.clauses import Device

LEAST = 1.001
"""If no rank's computation is slowed by this factor or more, none is taken to be slowed at all."""


def slowed(
    traces: TraceSet,
    prices: Prices,
    graph: PieceGraph | None = None,
    arrived: Arrivals | None = None,
) -> Timeline:
    """The timeline of a job in which computation is slowed by communication beside it. `graph` is built if it is not given."""
    graph = graph or build_graph(traces, launches=prices.host_launch_us > 0)
    timeline = simulate_graph(graph, traces, prices, arrived=arrived)
    factors = factors_of(graph, prices, timeline)
    if (factors == 1).all():
        return timeline
    return simulate_graph(graph, traces, prices, factors, arrived)


def factors_of(graph: PieceGraph, prices: Prices, timeline: Timeline) -> Floats:
    """`[class]`: how many times as long the computation of each rank class takes as its prices say, given what runs at the same time in `timeline`."""
    if not takes_units(prices.plan.device):
        return np.ones(len(graph.classes))
    return slowdown(*lost_by_class(graph, prices, timeline))


def lost_by_class(graph: PieceGraph, prices: Prices, timeline: Timeline) -> tuple[Floats, Floats]:
    """`[class]` each, in µs: how long its ranks compute, and how much longer they would because of collectives that run at the same time."""
    beside = neighbours(prices.plan.device, graph)
    computing = [
        computing_us(
            (len(rows), segment.nodes, prices.segment(rank_class, index).us)
            for index, (segment, rows) in enumerate(
                zip(rank_class.program.segments, waits.rows, strict=True)
            )
        )
        for rank_class, waits in zip(graph.classes, graph.waits, strict=True)
    ]
    lost = [each.lost(*timeline.of_class(number)) for number, each in enumerate(beside)]
    return np.array(computing), np.array(lost)


def computing_us(parts: Iterable[tuple[int, Sequence[Node], Floats]]) -> Floats:
    """How long nodes compute, given how often some of them run one after the other, and what each of these takes: `[node]`, or `[node, plan]`."""
    found = np.zeros(())
    for times, nodes, us in parts:
        computes = np.array([node.computes for node in nodes], bool)
        found = found + times * us[computes].sum(axis=0)
    return found


def takes_units(device: Device) -> bool:
    """Whether the plan, or the device's file, says how many multiprocessors communication takes from computation."""
    model = device.model
    if model is None or model.units <= 1:
        return False
    return any(getattr(device, name) or getattr(model, name) for name in TAKEN_UNITS)


def slowdown(computing: Floats, lost: Floats) -> Floats:
    """`[class]` or `[class, plan]`: how many times as long computation takes. Both arguments are in µs: how long a class computes, and what it loses."""
    share = np.divide(lost, computing, out=np.zeros_like(lost), where=computing > 0)
    factors = 1 + share
    return np.where(factors.max(axis=0) < LEAST, 1.0, factors)


def neighbours(device: Device, graph: PieceGraph) -> list[Neighbours]:
    """For each class what may run beside its computation."""
    classes = zip(graph.classes, graph.waits, strict=True)
    return [Neighbours.of(device, each.program, waits) for each, waits in classes]


Shares = Mapping[float, Ints]
"""For each share of multiprocessors in descending order, the positions of the nodes that take at least that share."""


@dataclass(frozen=True)
class Neighbours:
    """Which nodes of a program compute, and which take multiprocessors from those that run beside them.

    Where nothing is shared out beforehand, nodes that never run at the same time, because of what they wait for, are left out.
    """

    computing: Ints
    """The positions of nodes that compute but for `products`."""
    moving: Shares
    """What nodes take from computation beside them."""
    products: Ints
    """Products whose tiles are dealt out beforehand."""
    awaited: Ints
    """The nodes that leave some blocks of these products no multiprocessor."""

    @staticmethod
    def of(device: Device, program: TraceProgram, waits: Waits) -> Neighbours:
        shares, is_static = share_by_node(device), device.tile_scheduler == "static"
        known = {shares(node) for each in program.segments for node in each.nodes} - {0.0}
        computing = nodes_of(program, lambda node: node.computes)
        moving = {
            share: nodes_of(program, lambda node, least=share: shares(node) >= least)
            for share in sorted(known, reverse=True)
        }
        if not is_static:
            computing, moving = beside_each_other(waits, computing, moving)
        products = nodes_of(program, lambda node: is_static and is_product(node))
        return Neighbours(
            np.setdiff1d(computing, products, assume_unique=True),
            moving,
            products,
            nodes_of(
                program, lambda node: is_static and shares(node) > 0 and not leaves_units(node)
            ),
        )

    @property
    def positions(self) -> Ints:
        """All nodes whose times are asked for, in ascending order."""
        return distinct(np.concatenate(self.parts))

    @property
    def parts(self) -> list[Ints]:
        return [self.computing, *self.moving.values(), self.products, self.awaited]

    def numbered(self, numbers: Ints) -> Neighbours:
        """The same with other `numbers` for the positions: `[position]`."""
        return Neighbours(
            numbers[self.computing],
            {share: numbers[nodes] for share, nodes in self.moving.items()},
            numbers[self.products],
            numbers[self.awaited],
        )

    def is_same(self, other: Neighbours) -> bool:
        """Whether the other one has the same positions."""
        is_alike = [*self.moving] == [*other.moving]
        return is_alike and all(map(np.array_equal, self.parts, other.parts))

    def lost(self, starts: Floats, ends: Floats) -> Floats:
        """How much longer nodes compute because of what runs beside them, in µs. `starts` and `ends` are `[node]` in µs, or `[node, plan]`.

        Of several plans it is `[plan]`.
        """
        lost = lost_in(starts, ends, self.computing, self.moving)
        if not len(self.products):
            return lost
        shared = lost_in(starts, ends, self.products, self.moving, self.awaited)
        if starts.ndim == 1:
            return lost + shared + lost_in_waves(starts, ends, self.products, self.awaited)
        waited = [
            lost_in_waves(*each, self.products, self.awaited)
            for each in zip(starts.T, ends.T, strict=True)
        ]
        return lost + shared + np.array(waited)


def beside_each_other(waits: Waits, computing: Ints, moving: Shares) -> tuple[Ints, Shares]:
    """The nodes that compute, in ascending order, and those that move, without those that wait for all of the others or are waited for by them."""
    is_beside = np.zeros(len(computing) + 1, np.int64)
    found: dict[float, Ints] = {}
    for share, nodes in moving.items():
        begin, end = waits.between(nodes, computing)
        is_apart = begin >= end
        found[share] = nodes[~is_apart]
        np.add.at(is_beside, begin[~is_apart], 1)
        np.subtract.at(is_beside, end[~is_apart], 1)
    return computing[np.cumsum(is_beside[:-1]) > 0], found


def lost_in(
    starts: Floats, ends: Floats, computing: Ints, moving: Shares, apart: Ints | None = None
) -> Floats:
    """How much longer nodes compute beside those that move, in µs. Of several that run at once, the one counts that takes most.

    `starts` and `ends` are `[node]`, or `[node, plan]`; then it is `[plan]`. `computing` are the positions of nodes that compute. What runs beside nodes that
    are `apart` loses nothing here.
    """
    busy = intervals.Covered.of(starts[computing], ends[computing])
    free = np.zeros(0, np.int64) if apart is None else apart

    def hidden(nodes: Ints) -> Floats:
        """How long any of some nodes runs while others compute."""
        return busy.shared_with(intervals.Covered.of(starts[nodes], ends[nodes]))

    lost, before = np.zeros(starts.shape[1:]), hidden(free)
    for share, nodes in moving.items():
        beside = hidden(np.concatenate([free, nodes]))
        lost = lost + share * (beside - before)
        before = beside
    return lost


def lost_in_waves(starts: Floats, ends: Floats, products: Ints, awaited: Ints) -> float:
    """How much longer products take, in µs, whose last blocks wait until a collective has ended or the other blocks have.

    What a product loses is what is left of the collective as it starts, and no more than the product takes. The collective goes on while products of its own
    time take longer, so that fewer start beside it than in a timeline in which none is slowed. It begins between two products, whose blocks are all it can
    wait for.
    """
    running = intervals.union(starts[awaited], ends[awaited])
    if not len(running):
        return 0.0
    order = np.argsort(starts[products], kind="stable")
    begun, us = starts[products][order], (ends - starts)[products][order]
    collective = np.searchsorted(running[:, 0], begun, side="right") - 1
    lasts = running[collective, 1] > begun * (1 + intervals.SAME)
    beside = np.flatnonzero((collective >= 0) & lasts)
    if not len(beside):
        return 0.0
    own = collective[beside]
    is_first = np.concatenate([[True], own[1:] != own[:-1]])
    first = beside[is_first][np.cumsum(is_first) - 1]
    multiplied = np.concatenate([[0.0], np.cumsum(us)])
    gone = begun[beside] - begun[first] + multiplied[beside] - multiplied[first]
    left = running[own, 1] - running[own, 0] - gone
    return float(np.clip(left, 0, us[beside]).sum())


def pause_by_node(device: Device) -> Callable[[Node], float]:
    """A function that gives, for a node beside which products run for long, how much longer they take for each of its seconds.

    Products that wait for it take twice as long, and so lose half of them.
    """
    share, is_static = share_by_node(device), device.tile_scheduler == "static"
    return lambda node: 0.5 if is_static and share(node) and not leaves_units(node) else share(node)


def is_product(node: Node) -> bool:
    """Whether a node computes a product of matrices."""
    action = node.action
    kernel = action.kernel if node.computes and isinstance(action, Compute) else None
    return kernel is not None and kernel.kind == Work.PRODUCT


def leaves_units(node: Node) -> bool:
    """Whether a node, that runs beside products, takes none of the multiprocessors that their blocks are for: they have fewer blocks, or it is a copy."""
    return node.leaves_units or node.pieces > 1


def share_by_node(device: Device) -> Callable[[Node], float]:
    """A function that gives, for a node, the number of multiprocessors that it takes over the number that it leaves to computation.

    It is 0 for a node that computes, and for a copy, which other engines of the device do: so are messages between pools, which network cards read from
    memory (NIXL, and before it vLLM's connectors). It is taken to be 0 for other messages, too, where a plan does not say how many they take and tiles are
    dealt out as blocks ask for them: two of 132 for as long as messages take are less than a tenth of a percent of a step, and finding out when they run
    makes sweeps of pipelines four times as long.
    """
    model = device.model
    if model is None:
        return lambda _: 0.0
    summing = device.collective_units or model.collective_units
    exchanging = device.exchange_units or model.exchange_units or summing
    uncounted = device.tile_scheduler == "dynamic"
    sending = device.message_units or (0 if uncounted else model.message_units)

    def share(node: Node) -> float:
        action = node.action
        if isinstance(action, Transfer):
            taken = sending if action.kind == "send" and action.peer is None else 0
        elif not isinstance(action, Collective | Compute) or node.computes:
            return 0.0
        else:
            # What computes on another stream than computation forwards what an exchange brings.
            exchanges = isinstance(action, Compute) or action.kind == "all_to_all"
            taken = exchanging if exchanges else summing
        return taken / max(model.units - taken, 1)

    return share


def nodes_of(program: TraceProgram, holds: Callable[[Node], bool]) -> Ints:
    """The positions, in ascending order, of the nodes of a program for which `holds` is true."""
    first = program.first_node
    found = [np.zeros(0, np.int64)]
    for index, segment in enumerate(program.segments):
        rows = np.flatnonzero(program.segment == index)
        own = [i for i, node in enumerate(segment.nodes) if holds(node)]
        found.append((first[rows][:, None] + np.array(own, np.int64)).ravel())
    return np.sort(np.concatenate(found))
