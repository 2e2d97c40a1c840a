"""Time series of iterations of several pools on one time axis.

All pools begin at time 0, and each runs its iterations one after the other. An iteration begins when all of the one before has ended, except its messages to
other pools. Within an iteration a pool waits, layer by layer, for the messages of other pools. Messages of different iterations do not slow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.arrays import Floats
from stagec.backend.program import PooledTraces, TraceSet
from stagec.compiled import CompiledPoolSeries, Handover
from stagec.estimate.interference import slowed
from stagec.estimate.pools import PoolMessages, arrivals, messages, timeline_of_all
from stagec.estimate.prices import Prices
from stagec.estimate.series import Clock
from stagec.estimate.timeline import Timeline


@dataclass
class IterationTimes:
    """The times of a pool's iterations. All arrays are `[iteration]`, in µs."""

    begin_us: Floats
    end_us: Floats
    waited_us: Floats
    """How much longer each iteration takes because it waits for messages of other pools."""


@dataclass
class PoolClock:
    """The iterations of a pool, each as a job of its own. A pool may be compiled to several programs, each of which is some of its iterations."""

    clocks: list[Clock]
    """The clock of each program."""
    which: np.ndarray
    """`[iteration]`: the number of its program."""
    number: np.ndarray
    """`[iteration]`: its number among the iterations of its program."""

    def traces(self, iteration: int) -> TraceSet:
        """The traces of one iteration."""
        return self.clocks[self.which[iteration]].traces(int(self.number[iteration]))

    def prices(self, traces: TraceSet) -> Prices:
        """The times of the nodes of these traces on the pool's device."""
        return Prices.of(traces, self.clocks[0].compiled.plan)


@dataclass
class SeriesTimes:
    """Times the iterations of all pools of a series, pool by pool."""

    series: CompiledPoolSeries
    clocks: dict[str, PoolClock] = field(default_factory=dict)
    times: dict[str, IterationTimes] = field(default_factory=dict)
    """The times of the pools that have run."""
    given: dict[int, tuple[TraceSet, Timeline, float]] = field(default_factory=dict)
    """For each handover by its number, the iteration that gives it: its traces, its timeline, and when it begins in µs."""

    def __post_init__(self) -> None:
        for name, each in self.series.pools.items():
            number = np.zeros(each.num_iterations, np.int64)
            for part in range(len(each.parts)):
                here = each.which == part
                number[here] = np.arange(int(here.sum()))
            self.clocks[name] = PoolClock(list(map(Clock, each.parts)), each.which, number)

    def run(self, name: str) -> None:
        """Time all iterations of a pool. The pools that it takes values from have run before."""
        clock = self.clocks[name]
        count = len(clock.which)
        times = IterationTimes(*(np.zeros(count) for _ in range(3)))
        taken, given = self.of_iterations(name)
        now = 0.0
        for at in range(count):
            traces = clock.traces(at)
            prices = clock.prices(traces)
            timeline = slowed(traces, prices)
            took = self.ends(name, traces, timeline)
            if at in taken:
                arrived = {
                    key: np.maximum(when - now, 0)
                    for number in taken[at]
                    for key, when in self.arrived(name, traces, number).items()
                }
                timeline = slowed(traces, prices, arrived=arrived)
                waited = self.ends(name, traces, timeline)
                times.waited_us[at], took = waited - took, waited
            times.begin_us[at], times.end_us[at] = now, now + took
            for number in given.get(at, ()):
                self.given[number] = traces, timeline, now
            now += took
        self.times[name] = times

    def run_together(self) -> None:
        """Time iterations that all pools compute together. Each begins when all of the one before has ended."""
        count = next(iter(self.clocks.values())).which.size
        end = np.zeros(count)
        for at in range(count):
            traces = {name: clock.traces(at) for name, clock in self.clocks.items()}
            prices = {name: self.clocks[name].prices(each) for name, each in traces.items()}
            end[at] = end_of_all_us(traces, prices)
        end = np.cumsum(end)
        begin = np.concatenate([[0.0], end[:-1]])
        self.times = {name: IterationTimes(begin, end, np.zeros(count)) for name in self.clocks}

    def of_iterations(self, name: str) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """The numbers of the handovers that each iteration of a pool takes, and of those that it gives, by the number of the iteration."""
        taken: dict[int, list[int]] = {}
        given: dict[int, list[int]] = {}
        for number, each in enumerate(self.series.handovers):
            if each.taker == name:
                taken.setdefault(each.taken, []).append(number)
            if each.giver == name:
                given.setdefault(each.given, []).append(number)
        return taken, given

    def ends(self, name: str, traces: TraceSet, timeline: Timeline) -> float:
        """When an iteration of a pool has ended in µs, its sends to other pools apart."""
        ends = timeline.end_us.copy()
        for other in self.series.pools:
            if other != name:
                for each in messages(self.pooled({name: traces}), name, other, "send"):
                    ends[each.position] = 0
        return float(ends.max(initial=0.0))

    def pooled(self, known: Mapping[str, TraceSet]) -> PooledTraces:
        """One iteration of each pool as a job: those that are `known`, and of other pools their first ones."""
        return PooledTraces(
            tuple(
                (name, known.get(name, each.parts[0].trace_set))
                for name, each in self.series.pools.items()
            )
        )

    def arrived(
        self, name: str, traces: TraceSet, number: int
    ) -> Mapping[tuple[int, int, int], Floats]:
        """When each message of a handover is there, in µs on the time axis of all pools, by the receive (`Arrivals`)."""
        each = self.series.handovers[number]
        theirs, timeline, begin = self.given[number]
        pooled = self.pooled({each.giver: theirs, name: traces})
        sent = list(self.messages(pooled, each, number, "send"))
        got = list(self.messages(pooled, each, number, "recv"))
        found = arrivals(sent, got, timeline)
        return {key: when + begin for key, when in found.items()}

    def messages(
        self, pooled: PooledTraces, each: Handover, number: int, kind: str
    ) -> Iterator[PoolMessages]:
        """The messages of one handover at its giver (`kind` is `send`) or its taker (`recv`), with the channels that the first handover of a series has."""
        here, there = (each.giver, each.taker) if kind == "send" else (each.taker, each.giver)
        at = each.given if kind == "send" else each.taken
        channels = self.series.channels
        place = self.series.place(here, at, number)
        for message in messages(pooled, here, there, kind):
            if message.channel // channels == place:
                yield replace(message, channel=message.channel % channels)


def end_of_all_us(traces: Mapping[str, TraceSet], prices: Mapping[str, Prices]) -> float:
    """The time in µs until the last rank is done with an iteration that all pools compute together."""
    return timeline_of_all(PooledTraces(tuple(traces.items())), prices)[1].makespan_us


def time_together_us(
    clocks: Mapping[str, Clock], devices: Sequence[Sequence[tuple[int, int, int]]]
) -> float:
    """The time in µs of an iteration that all pools compute together, for any sequences on the devices that have their caches (`Clock.time_of_us`)."""
    traces: dict[str, TraceSet] = {}
    for name, clock in clocks.items():
        clock.serve(devices)
        traces[name] = clock.traces(0)
    prices = {name: Prices.of(traces[name], clocks[name].compiled.plan) for name in traces}
    return end_of_all_us(traces, prices)


def times_of_series(series: CompiledPoolSeries) -> dict[str, IterationTimes]:
    """The times of the iterations of each pool. E0410 for a pool that does not say how fast its device is."""
    axis = SeriesTimes(series)
    if series.is_together:
        axis.run_together()
        return axis.times
    waits = {name: {h.giver for h in series.handovers if h.taker == name} for name in series.pools}
    while len(axis.times) < len(waits):
        ready = [n for n in waits if n not in axis.times and waits[n] <= axis.times.keys()]
        assert ready, "pools wait for each other"
        for name in ready:
            axis.run(name)
    return {name: axis.times[name] for name in series.pools}
