"""Estimate several pools on one time axis: a value that a pool takes from another one is there when that pool has sent it.

Among pools that serve, waiting goes one way (E0423 otherwise), so each pool is estimated after those that it waits for. Pools that train wait for each other
in both directions, so all of them are one graph.
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
from stagec.estimate.costs import missing_numbers, require_numbers
from stagec.estimate.interference import factors_of
from stagec.estimate.joint_graph import JointGraph
from stagec.estimate.network import Network, latency_or_zero, rate
from stagec.estimate.prices import Prices
from stagec.estimate.step import Estimate, estimate
from stagec.estimate.timeline import Arrivals, Hosts, Timeline, piece_durations, simulate_pieces


@dataclass(frozen=True)
class HandOverTimes:
    """When one pool sends its messages to another one."""

    giver: str
    taker: str
    start_us: Floats
    """`[message]`: when its send starts."""
    end_us: Floats
    """`[message]`: when its send ends, and the message is there."""
    num_bytes: int
    """The bytes of all messages together."""


@dataclass(frozen=True)
class PoolsEstimate:
    """One iteration or step of each pool, in times from the start of the first one."""

    pools: Mapping[str, Estimate]
    ways: Sequence[HandOverTimes]
    """The messages of each pool to each other pool that it sends to."""
    mfu: float | None = None
    """Model FLOPs utilisation of the devices of all pools until all are done; None for pools that serve."""

    @property
    def joint(self) -> Mapping[str, Estimate]:
        """The estimates of pools that compute a step together, as pools that train do; empty for pools that serve."""
        return self.pools if self.mfu is not None else {}

    @property
    def end_us(self) -> float:
        """When all pools are done, in µs."""
        return max(each.step_time_us for each in self.pools.values())


def estimate_pools(
    pools: Mapping[str, Compiled], traces: PooledTraces | None = None
) -> PoolsEstimate:
    """Estimate all pools of a plan. E0410 for one that does not say how fast its device is."""
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
                ways.append(hand_over_times(giver, taker, sent, known.timeline))
        found[taker] = estimate(pools[taker], arrived=arrived)
    return PoolsEstimate({name: found[name] for name in pools}, ways)


def estimate_towers(pools: Mapping[str, Compiled], traces: PooledTraces) -> PoolsEstimate:
    """Estimate pools that are parts of one pipeline: the nodes of all pools are one graph."""
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
            ways.append(hand_over_times(giver, taker, sent, found[giver].timeline))
    could = {
        name: each.trace_set.mesh.num_ranks * (each.plan.device.flops_per_s or 0)
        for name, each in pools.items()
    }
    done = sum(found[name].mfu * could[name] for name in pools)
    return PoolsEstimate(found, ways, done / sum(could.values()))


def timeline_of_all(
    traces: PooledTraces, prices: Mapping[str, Prices]
) -> tuple[JointGraph, Timeline]:
    """The graph of pools that wait for each other, and when all of its nodes run."""
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
            factors_of(joint.own[name], prices[name], joint.of_pool(timeline, name))
            for name, _ in traces.pools
        ]
    )
    if (factors != 1).any():
        timeline = simulate_pieces(joint.graph, durations, networks, hosts, factors)
    return joint, timeline


def priced(compiled: Compiled) -> Prices:
    """The prices of a pool's nodes. E0410 if it does not say how fast its device is."""
    require_numbers(compiled.plan, compiled.trace_set.classes)
    return Prices.of(compiled.trace_set, compiled.plan)


def estimate_pools_if_known(pools: Mapping[str, Compiled]) -> PoolsEstimate | None:
    """The estimate of all pools. None if the plan does not say how fast all devices are, and for a series of iterations."""
    known = (
        each.traces is not None
        and each.num_iterations == 1
        and not missing_numbers(each.plan, each.trace_set.classes)
        for each in pools.values()
    )
    return estimate_pools(pools) if all(known) else None


def order(traces: PooledTraces) -> list[str]:
    """The names of pools in an order in which each comes behind those that it takes values from."""
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
    """The messages that one send or receive of a rank class makes: a row for each rank, and each time that the node runs."""

    key: tuple[int, int, int]
    """The number of the class, that of the segment, and the place of the node in the segment."""
    ends: Ints
    """`[2, row]`: the rank that sends and the rank that receives, as they are numbered in the whole job."""
    instance: Ints
    """`[row]`: how many times the node ran before."""
    tag: Ints
    """`[row]`: the tag of the message."""
    channel: int
    position: Ints
    """`[row]`: the position of the node on the timeline of its pool."""
    num_bytes: int
    """The bytes of one message."""


def messages(traces: PooledTraces, name: str, other: str, kind: str) -> Iterator[PoolMessages]:
    """The messages of the pool `name` to the pool `other` (`kind` is `send`), or from it (`recv`): one item for each node."""
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
    """The transfers of a class to or from another pool, each with the number of its segment and its place in the segment."""
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
    """When messages of another pool are there, given its `timeline`: the n-th one received on a channel and tag between two ranks is the n-th one sent.

    The ranks of a class do everything at the same time, so all of them wait for the last of their messages.
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
    """The order of the rows of all messages: by sender and receiver, channel and tag, and then by position."""
    columns = [
        np.concatenate([each.position for each in found]),
        np.concatenate([each.tag for each in found]),
        np.concatenate([np.full(len(each.tag), each.channel) for each in found]),
        *np.concatenate([each.ends for each in found], axis=1),
    ]
    return np.lexsort(columns)


def hand_over_times(
    giver: str, taker: str, sent: Sequence[PoolMessages], timeline: Timeline
) -> HandOverTimes:
    """When the giver sends these messages, by its timeline."""
    positions = np.concatenate([each.position for each in sent])
    num_bytes = sum(each.num_bytes * len(each.instance) for each in sent)
    at = np.unique(positions)
    return HandOverTimes(giver, taker, timeline.start_us[at], timeline.end_us[at], num_bytes)


def transfer_s(
    pools: Mapping[str, Compiled], giver: str, taker: str, engines: tuple[int, int]
) -> Callable[[int], float]:
    """A function that says how long an engine of one pool takes to hand positions of the cache to an engine of another: in seconds, by the number of positions.

    Messages follow one another. Their bytes are in proportion to those that a rank sends, or receives, in the iteration that the plan has for each pool.
    `engines` says for both pools how many devices have sequences of their own.
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
            fixed_us = max(
                fixed_us, sum(int(n) for n, _ in found) * latency_or_zero(far.latency_us)
            )
            each_us = max(each_us, 1e6 * moved / rate(far.bytes_per_s))
    return lambda count: (fixed_us + each_us * count) / 1e6
