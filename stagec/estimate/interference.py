"""What communication takes from the computation that hides it.

A collective's kernel occupies some multiprocessors while it runs (`collective_units` of the device's file), and kernels that compute beside it
have the rest: in that time they are slower by the share that is taken. The first timeline says how long that is on each rank class; in
the second, computation of that class takes so much longer.
"""

from __future__ import annotations

import numpy as np

from stagec.backend.program import Collective, Compute, RankClass, TraceSet
from stagec.estimate import intervals
from stagec.estimate.graph import PieceGraph, build_graph
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Arrivals, Timeline, simulate_graph


def slowed(
    traces: TraceSet,
    prices: Prices,
    graph: PieceGraph | None = None,
    arrived: Arrivals | None = None,
) -> Timeline:
    """The timeline of a job, with what ranks' own collectives cost their computation. Its graph is built if nobody did."""
    graph = graph or build_graph(traces)
    timeline = simulate_graph(graph, traces, prices, arrived=arrived)
    model = prices.plan.device.model
    if model is None or not model.collective_units:
        return timeline
    taken = model.collective_units / model.units
    factors = [
        1 + taken / (1 - taken) * hidden_share(each, *timeline.of_class(number))
        for number, each in enumerate(traces.classes)
    ]
    if max(factors) < 1.001:
        return timeline
    return simulate_graph(graph, traces, prices, factors, arrived)


def hidden_share(rank_class: RankClass, starts: np.ndarray, ends: np.ndarray) -> float:
    """Of the time that a rank computes, the share in which collectives run too."""
    program = rank_class.program
    first = program.first_node
    computing = np.zeros(len(starts), bool)
    moving = np.zeros(len(starts), bool)
    for index, segment in enumerate(program.segments):
        rows = np.flatnonzero(program.segment == index)
        for i, node in enumerate(segment.nodes):
            computing[first[rows] + i] = isinstance(node.action, Compute)
            moving[first[rows] + i] = isinstance(node.action, Collective)
    busy = intervals.union(starts[computing], ends[computing])
    total = intervals.length(busy)
    if not total or not moving.any():
        return 0.0
    running = intervals.union(starts[moving], ends[moving])
    return intervals.length(intervals.intersection(busy, running)) / total
