"""What communication takes from the computation that hides it.

A collective's kernel occupies some multiprocessors while it runs (`collective_units` of the device's file), and kernels that compute beside it
have the rest: in that time they are slower by the share that is taken. The first timeline says how long that is on each rank class; in
the second, computation of that class takes so much longer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import Node, RankClass, TraceProgram, TraceSet
from stagec.devices import DeviceModel
from stagec.dialects.sched.actions import Collective, Compute
from stagec.estimate import intervals
from stagec.estimate.graph import PieceGraph, build_graph
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Arrivals, Timeline, simulate_graph

LEAST = 1.001
"""A rank whose computation is slower by less is as fast as it would be alone, if all are."""


def slowed(
    traces: TraceSet,
    prices: Prices,
    graph: PieceGraph | None = None,
    arrived: Arrivals | None = None,
) -> Timeline:
    """The timeline of a job, with what ranks' own collectives cost their computation. Its graph is built if nobody did."""
    graph = graph or build_graph(traces)
    timeline = simulate_graph(graph, traces, prices, arrived=arrived)
    factors = factors_of(traces, prices, timeline)
    if (factors == 1).all():
        return timeline
    return simulate_graph(graph, traces, prices, factors, arrived)


def factors_of(traces: TraceSet, prices: Prices, timeline: Timeline) -> Floats:
    """By which the computation of each rank class is slower than its prices say, in this timeline."""
    model = prices.plan.device.model
    if model is None or not model.collective_units:
        return np.ones(len(traces.classes))
    classes = enumerate(traces.classes)
    spent = [hidden_us(each, *timeline.of_class(number)) for number, each in classes]
    return slowdown(model, *(np.array(column) for column in zip(*spent, strict=True)))


def slowdown(model: DeviceModel, computing: Floats, hiding: Floats) -> Floats:
    """By which the computation of each rank class is slower, `[class]` or `[class, plan]`, that computes so long and hides communication so long."""
    taken = (model.collective_units or 0) / model.units
    share = np.divide(hiding, computing, out=np.zeros_like(hiding), where=computing > 0)
    factors = 1 + taken / (1 - taken) * share
    return np.where(factors.max(axis=0) < LEAST, 1.0, factors)


def hidden_us(rank_class: RankClass, starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """How long a rank computes, and how long collectives run in that time; of several plans with times of nodes as `[node, plan]`."""
    computing = nodes_of(rank_class.program, lambda node: node.computes)
    moving = nodes_of(rank_class.program, takes_units)
    if starts.ndim == 1:
        found = hidden_in(starts[computing], ends[computing], starts[moving], ends[moving])
        return np.array(found[0]), np.array(found[1])
    times = (starts[computing].T, ends[computing].T, starts[moving].T, ends[moving].T)
    each = [hidden_in(*own) for own in zip(*map(np.ascontiguousarray, times), strict=True)]
    busy, hidden = zip(*each, strict=True)
    return np.array(busy), np.array(hidden)


def hidden_in(
    starts: Floats, ends: Floats, moving_from: Floats, moving_to: Floats
) -> tuple[float, float]:
    """The time that something computes, and of that the time in which something moves."""
    busy = intervals.union(starts, ends)
    running = intervals.union(moving_from, moving_to)
    shared = intervals.overlap(busy, running[:, 0], running[:, 1])
    return intervals.length(busy), float(shared.sum())


def takes_units(node: Node) -> bool:
    """Whether a kernel that communicates does it."""
    return isinstance(node.action, Collective | Compute) and not node.computes


def nodes_of(program: TraceProgram, holds: Callable[[Node], bool]) -> Ints:
    """The nodes of a program of which something holds, by position."""
    first = program.first_node
    found = [np.zeros(0, np.int64)]
    for index, segment in enumerate(program.segments):
        rows = np.flatnonzero(program.segment == index)
        own = [i for i, node in enumerate(segment.nodes) if holds(node)]
        found.append((first[rows][:, None] + np.array(own, np.int64)).ravel())
    return np.sort(np.concatenate(found))
