"""Pools against one time: what a pool takes from another is there when that one has sent it.

Pools that serve wait for each other one way (E0423), so that each is estimated when those that it waits for are. Those that train
wait for each other, so that all are one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.pool_links import waits_both_ways
from stagec.backend.program import PooledTraces, RankClass
from stagec.backend.ranks import at_coordinates, ranks_where
from stagec.compiled import Compiled
from stagec.dialects.sched.actions import Transfer
from stagec.estimate import Estimate, estimate
from stagec.estimate.costs import missing_numbers, require_numbers
from stagec.estimate.interference import factors_of
from stagec.estimate.joint_graph import JointGraph
from stagec.estimate.network import Network, number as latency, rate
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Arrivals, Hosts, Timeline, piece_durations, simulate_pieces


@dataclass(frozen=True)
class HandOverTimes:
    """When a pool hands over to another: of each message, the start and the end of its send, in µs."""

    giver: str
    taker: str
    start_us: Floats
    end_us: Floats
    num_bytes: int
    """Of all messages."""


@dataclass(frozen=True)
class PoolsEstimate:
    """An iteration of each pool, from the time when the first begins."""

    pools: Mapping[str, Estimate]
    ways: Sequence[HandOverTimes]
    mfu: float | None = None
    """Model FLOPs utilisation of all devices until all pools are done, for pools that train."""

    @property
    def joint(self) -> Mapping[str, Estimate]:
        """Of pools that train: of one step of all, which none of them does by itself."""
        return self.pools if self.mfu is not None else {}

    @property
    def end_us(self) -> float:
        """When all are done."""
        return max(each.step_time_us for each in self.pools.values())


def estimate_pools(
    pools: Mapping[str, Compiled], traces: PooledTraces | None = None
) -> PoolsEstimate:
    """All pools of a plan. E0410 for one that does not say how fast its device is."""
    traces = traces or PooledTraces(tuple((name, c.trace_set) for name, c in pools.items()))
    if waits_both_ways(traces):
        return estimate_towers(pools, traces)
    found: dict[str, Estimate] = {}
    ways: list[HandOverTimes] = []
    for taker in order(traces):
        arrived: dict[tuple[int, int, int], Floats] = {}
        for giver, known in found.items():
            sent = list(messages(traces, giver, taker, "send"))
            if sent:
                arrived |= arrivals(
                    sent, list(messages(traces, taker, giver, "recv")), known.timeline
                )
                ways.append(way(giver, taker, sent, known.timeline))
        found[taker] = estimate(pools[taker], arrived=arrived)
    return PoolsEstimate({name: found[name] for name in pools}, ways)


def estimate_towers(pools: Mapping[str, Compiled], traces: PooledTraces) -> PoolsEstimate:
    """Of pools that are parts of one pipeline: all nodes of all pools on one graph."""
    prices = {name: priced(compiled) for name, compiled in pools.items()}
    joint, timeline = timeline_of_all(traces, prices)
    found = {
        name: Estimate(joint.of_pool(timeline, name), compiled, prices[name], timeline.makespan_us)
        for name, compiled in pools.items()
    }
    ways: list[HandOverTimes] = []
    for giver, taker in permutations(pools, 2):
        sent = list(messages(traces, giver, taker, "send"))
        if sent:
            ways.append(way(giver, taker, sent, found[giver].timeline))
    could = {
        name: each.trace_set.mesh.num_ranks * (each.plan.device.flops_per_s or 0)
        for name, each in pools.items()
    }
    done = sum(found[name].mfu * could[name] for name in pools)
    return PoolsEstimate(found, ways, done / sum(could.values()))


def timeline_of_all(
    traces: PooledTraces, prices: Mapping[str, Prices]
) -> tuple[JointGraph, Timeline]:
    """Of pools that wait for each other: one graph of all, and when everything in it runs."""
    joint = JointGraph.of(traces)
    durations = [
        piece_durations(piece, each, prices[name])
        for name, each in traces.pools
        for piece in joint.own_pieces(name)
    ]
    networks = [prices[name].network for name in joint.pool_of]
    owners = [(each, prices[name]) for name, each in traces.pools for _ in joint.own_pieces(name)]
    hosts = Hosts.of(joint.graph, owners)
    timeline = simulate_pieces(joint.graph, durations, networks, hosts)
    factors = np.concatenate(
        [
            factors_of(each, prices[name], joint.of_pool(timeline, name))
            for name, each in traces.pools
        ]
    )
    if (factors != 1).any():
        timeline = simulate_pieces(joint.graph, durations, networks, hosts, factors)
    return joint, timeline


def priced(compiled: Compiled) -> Prices:
    require_numbers(compiled.plan, compiled.trace_set.classes)
    return Prices.of(compiled.trace_set, compiled.plan)


def estimate_pools_if_known(pools: Mapping[str, Compiled]) -> PoolsEstimate | None:
    """Likewise; nothing where the plan does not say how fast all devices are."""
    known = (
        each.traces is not None
        and each.num_iterations == 1
        and not missing_numbers(each.plan, each.trace_set.classes)
        for each in pools.values()
    )
    return estimate_pools(pools) if all(known) else None


def order(traces: PooledTraces) -> list[str]:
    """The names of pools, each behind those that it takes something from."""
    waits = {
        name: {
            action.peer.pool
            for each in pool.classes
            for node in each.program.nodes_that_run()
            if isinstance(action := node.action, Transfer)
            and action.peer is not None
            and action.kind == "recv"
        }
        for name, pool in traces.pools
    }
    found: list[str] = []
    while len(found) < len(waits):
        ready = [n for n, others in waits.items() if n not in found and others <= set(found)]
        assert ready, "pools wait for each other"
        found += ready
    return found


@dataclass(frozen=True)
class PoolMessages:
    """What a node of a class sends or takes: a row for each rank and each time that it runs."""

    key: tuple[int, int, int]
    """The class, the segment, the node of the segment."""
    ends: Ints
    """[2, rows]: the rank of the giver and that of the taker, in the whole job."""
    instance: Ints
    """Which time it is."""
    tag: Ints
    channel: int
    position: Ints
    """Of the node, on the timeline of its pool."""
    num_bytes: int
    """Of one message."""


def messages(traces: PooledTraces, name: str, other: str, kind: str) -> Iterator[PoolMessages]:
    """What a pool sends to another, or takes from it."""
    pool, first = dict(traces.pools)[name], traces.firsts[name]
    begin = 0
    for number, each in enumerate(pool.classes):
        ranks = ranks_where(pool.mesh, each.where)
        for segment, node, action in handed(each, other, kind):
            rows = np.flatnonzero(each.program.segment == segment)
            assert action.peer is not None
            peers = at_coordinates(pool.mesh, action.peer.rank, ranks)
            ways = (ranks + first, peers) if kind == "send" else (peers, ranks + first)
            yield PoolMessages(
                (number, segment, node),
                np.repeat(np.stack(ways), len(rows), axis=1),
                np.tile(np.arange(len(rows)), len(ranks)),
                np.tile(each.program.tag[rows], len(ranks)),
                action.channel,
                np.tile(begin + each.program.first_node[rows] + node, len(ranks)),
                action.num_bytes,
            )
        begin += int(each.program.first_node[-1])


def handed(each: RankClass, other: str, kind: str) -> Iterator[tuple[int, int, Transfer]]:
    """Segments and nodes of a class that exchange with another pool."""
    for number, segment in enumerate(each.program.segments):
        for place, node in enumerate(segment.nodes):
            action = node.action
            if not isinstance(action, Transfer) or action.peer is None:
                continue
            if action.kind == kind and action.peer.pool == other:
                yield number, place, action


def arrivals(
    sent: Sequence[PoolMessages], got: Sequence[PoolMessages], timeline: Timeline
) -> Arrivals:
    """When what is taken is there. The n-th message of a channel and tag between two ranks is the n-th that was sent.

    Ranks of a class keep step: all wait for what comes last.
    """
    one, other = in_order(sent), in_order(got)
    assert len(one) == len(other), "a receive without its send"
    when = np.empty(len(other))
    when[other] = timeline.end_us[np.concatenate([each.position for each in sent])[one]]
    found: dict[tuple[int, int, int], Floats] = {}
    begin = 0
    for each in got:
        here = when[begin : begin + len(each.instance)]
        times = np.zeros(int(each.instance.max()) + 1)
        np.maximum.at(times, each.instance, here)
        found[each.key] = times
        begin += len(each.instance)
    return found


def in_order(found: Sequence[PoolMessages]) -> Ints:
    """Rows of all, by who sends to whom, channel and tag, and then as their nodes follow each other."""
    columns = [
        np.concatenate([each.position for each in found]),
        np.concatenate([each.tag for each in found]),
        np.concatenate([np.full(len(each.tag), each.channel) for each in found]),
        *np.concatenate([each.ends for each in found], axis=1),
    ]
    return np.lexsort(columns)


def way(giver: str, taker: str, sent: Sequence[PoolMessages], timeline: Timeline) -> HandOverTimes:
    positions = np.concatenate([each.position for each in sent])
    num_bytes = sum(each.num_bytes * len(each.instance) for each in sent)
    at = np.unique(positions)
    return HandOverTimes(giver, taker, timeline.start_us[at], timeline.end_us[at], num_bytes)


def transfer_s(
    pools: Mapping[str, Compiled], giver: str, taker: str, engines: tuple[int, int]
) -> Callable[[int], float]:
    """How long the positions take that an engine of one pool hands to one of another, one message after the other: in seconds, by their number.

    In proportion to what a rank sends, and one takes, in the iteration that the plan has of each pool. `engines` are the devices of both
    that have sequences of their own.
    """
    traces = PooledTraces(tuple((name, each.trace_set) for name, each in pools.items()))
    batch = pools[giver].checked.batch
    assert batch is not None
    positions = sum(int(s.count.value) * int(s.new.value) for s in batch.serve.sequences)
    fixed_us = each_us = 0.0
    ends = ((giver, taker, "send", engines[0]), (taker, giver, "recv", engines[1]))
    for name, other, kind, number in ends:
        far = Network.of(pools[name].plan, dict(traces.pools)[name].mesh).far
        for rank_class in dict(traces.pools)[name].classes:
            runs = np.bincount(
                rank_class.program.segment, minlength=len(rank_class.program.segments)
            )
            found = [(runs[s], action) for s, _, action in handed(rank_class, other, kind)]
            moved = sum(int(n) * action.num_bytes for n, action in found) * number / positions
            fixed_us = max(fixed_us, sum(int(n) for n, _ in found) * latency(far.latency_us))
            each_us = max(each_us, 1e6 * moved / rate(far.bytes_per_s))
    return lambda count: (fixed_us + each_us * count) / 1e6
