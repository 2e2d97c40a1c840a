"""How much computation is slowed by the communication that runs beside it.

A collective's kernel occupies some multiprocessors while it runs (the device's file says how many: `collective_units`, or `exchange_units` for an
all-to-all). Kernels that compute at the same time have only the rest, and are slower by the share that is taken. So a step is timed twice: the first
timeline says how much computation of each rank class runs beside communication, and in the second that computation takes longer accordingly.

Products lose more where their kernels have a block for each multiprocessor, among which they deal out their tiles beforehand (`tile_scheduler = static`).
Blocks for which a collective leaves no multiprocessor run when it has ended, or when the others have: such a product takes up to twice as long
(pytorch/pytorch, issue 143988 and pull request 144974; "Static Scheduler" in CUTLASS's "Blackwell Cluster Launch Control").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import Node, RankClass, TraceProgram, TraceSet
from stagec.dialects.sched.actions import Collective, Compute
from stagec.dialects.work import Work
from stagec.estimate import intervals
from stagec.estimate.graph import PieceGraph, build_graph
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Arrivals, Timeline, simulate_graph
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
    factors = factors_of(traces, prices, timeline)
    if (factors == 1).all():
        return timeline
    return simulate_graph(graph, traces, prices, factors, arrived)


def factors_of(traces: TraceSet, prices: Prices, timeline: Timeline) -> Floats:
    """`[class]`: how many times as long the computation of each rank class takes as its prices say, given what runs at the same time in `timeline`."""
    device = prices.plan.device
    if not takes_units(device):
        return np.ones(len(traces.classes))
    classes = enumerate(traces.classes)
    spent = [lost_us(device, each, *timeline.of_class(number)) for number, each in classes]
    return slowdown(*(np.array(column) for column in zip(*spent, strict=True)))


def takes_units(device: Device) -> bool:
    """Whether the device's file says how many multiprocessors a collective takes from computation."""
    return device.model is not None and device.model.collective_units > 0


def slowdown(computing: Floats, lost: Floats) -> Floats:
    """`[class]` or `[class, plan]`: how many times as long computation takes. Both arguments are in µs: how long a class computes, and what it loses."""
    share = np.divide(lost, computing, out=np.zeros_like(lost), where=computing > 0)
    factors = 1 + share
    return np.where(factors.max(axis=0) < LEAST, 1.0, factors)


def lost_us(
    device: Device, rank_class: RankClass, starts: Floats, ends: Floats
) -> tuple[Floats, Floats]:
    """How long a rank of a class computes, and how much longer it would because of collectives that run at the same time, both in µs.

    `starts` and `ends` are those of its nodes in µs, `[node]`, or `[node, plan]` for several plans, whose results are `[plan]`.
    """
    beside = Neighbours.of(device, rank_class.program)
    if starts.ndim == 1:
        found = beside.lost(starts, ends)
        return np.array(found[0]), np.array(found[1])
    columns = zip(
        map(np.ascontiguousarray, starts.T), map(np.ascontiguousarray, ends.T), strict=True
    )
    each = [beside.lost(begun, ended) for begun, ended in columns]
    busy, lost = zip(*each, strict=True)
    return np.array(busy), np.array(lost)


Shares = Mapping[float, Ints]
"""For each share of multiprocessors in descending order, the positions of the nodes that take at least that share."""


@dataclass(frozen=True)
class Neighbours:
    """Which nodes of a program compute, and which take multiprocessors from those that run beside them."""

    computing: Ints
    """The positions of all nodes that compute but for `products`."""
    moving: Shares
    """What nodes take from computation beside them."""
    products: Ints
    """Products whose tiles are dealt out beforehand."""
    awaited: Ints
    """The nodes that leave some blocks of these products no multiprocessor."""

    @staticmethod
    def of(device: Device, program: TraceProgram) -> Neighbours:
        shares, is_static = share_by_node(device), device.tile_scheduler == "static"
        known = {shares(node) for each in program.segments for node in each.nodes} - {0.0}
        return Neighbours(
            nodes_of(program, lambda node: node.computes and not (is_static and is_product(node))),
            {
                share: nodes_of(program, lambda node, least=share: shares(node) >= least)
                for share in sorted(known, reverse=True)
            },
            nodes_of(program, lambda node: is_static and is_product(node)),
            nodes_of(program, lambda node: shares(node) > 0 and not leaves_units(node)),
        )

    def lost(self, starts: Floats, ends: Floats) -> tuple[float, float]:
        """How long the nodes compute, and how much longer they would because of what runs beside them, in µs. `starts` and `ends` are `[node]`, in µs."""
        computed, lost = lost_in(starts, ends, self.computing, self.moving)
        if not len(self.products):
            return computed, lost
        multiplied, shared = lost_in(starts, ends, self.products, self.moving, self.awaited)
        waited = lost_in_waves(starts, ends, self.products, self.awaited)
        return computed + multiplied, lost + shared + waited


def lost_in(
    starts: Floats, ends: Floats, computing: Ints, moving: Shares, apart: Ints | None = None
) -> tuple[float, float]:
    """How long nodes compute, and how much longer they would beside those that move, in µs. Of several that run at once, the one counts that takes most.

    `computing` are the positions of nodes that compute. What runs beside nodes that are `apart` loses nothing here.
    """
    busy = intervals.union(starts[computing], ends[computing])
    free = np.zeros(0, np.int64) if apart is None else apart
    lost, before = 0.0, hidden_by(busy, starts, ends, free)
    for share, nodes in moving.items():
        hidden = hidden_by(busy, starts, ends, np.concatenate([free, nodes]))
        lost += share * (hidden - before)
        before = hidden
    return intervals.length(busy), lost


def hidden_by(busy: intervals.Intervals, starts: Floats, ends: Floats, nodes: Ints) -> float:
    """How long any of some nodes runs within `busy`."""
    running = intervals.union(starts[nodes], ends[nodes])
    return float(intervals.overlap(busy, running[:, 0], running[:, 1]).sum())


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

    It is 0 for a node that computes, and for a copy, which other engines of the device do.
    """
    model = device.model
    if model is None:
        return lambda _: 0.0
    exchanging = device.exchange_units or model.exchange_units or model.collective_units

    def share(node: Node) -> float:
        action = node.action
        if not isinstance(action, Collective | Compute) or node.computes:
            return 0.0
        # What computes on another stream than computation forwards what an exchange brings.
        exchanges = isinstance(action, Compute) or action.kind == "all_to_all"
        taken = exchanging if exchanges else model.collective_units
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
