"""How much computation is slowed by the communication that runs beside it.

A collective's kernel occupies some multiprocessors while it runs (the device's file says how many: `collective_units`, or `exchange_units` for an
all-to-all). Kernels that compute at the same time have only the rest, and are slower by the share that is taken. So a step is timed twice: the first
timeline says how much computation of each rank class runs beside communication, and in the second that computation takes longer accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import Node, RankClass, TraceProgram, TraceSet
from stagec.dialects.sched.actions import Collective, Compute
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

    `starts` and `ends` are those of its nodes in µs, `[node]`, or `[node, plan]` for several plans, whose results are `[plan]`. Of several collectives that
    run at once, the one counts that takes most multiprocessors.
    """
    computing = nodes_of(rank_class.program, lambda node: node.computes)
    shares = share_by_node(device)
    known = {shares(n) for each in rank_class.program.segments for n in each.nodes} - {0.0}
    moving = {
        share: nodes_of(rank_class.program, lambda node, s=share: shares(node) >= s)
        for share in sorted(known, reverse=True)
    }
    if starts.ndim == 1:
        found = lost_in(starts, ends, computing, moving)
        return np.array(found[0]), np.array(found[1])
    columns = zip(
        map(np.ascontiguousarray, starts.T), map(np.ascontiguousarray, ends.T), strict=True
    )
    each = [lost_in(begun, ended, computing, moving) for begun, ended in columns]
    busy, lost = zip(*each, strict=True)
    return np.array(busy), np.array(lost)


def lost_in(
    starts: Floats, ends: Floats, computing: Ints, moving: Mapping[float, Ints]
) -> tuple[float, float]:
    """The same for one plan. `computing` are the positions of nodes that compute; `moving` has, for each share of multiprocessors in descending order, the
    positions of nodes that take at least that share.
    """
    busy = intervals.union(starts[computing], ends[computing])
    lost, before = 0.0, 0.0
    for share, nodes in moving.items():
        running = intervals.union(starts[nodes], ends[nodes])
        hidden = float(intervals.overlap(busy, running[:, 0], running[:, 1]).sum())
        lost += share * (hidden - before)
        before = hidden
    return intervals.length(busy), lost


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
