"""Series of iterations of pools against one time.

All pools begin at 0, and each runs its iterations one behind the other: one begins when all of the one before has ended, but for what that hands to another
pool, and waits in it, layer by layer, for what is handed over. Messages of different iterations do not slow each other.
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
    """Of a pool: when each iteration begins and ends, in µs, and for how long of that it waits for what is handed over."""

    begin_us: Floats
    end_us: Floats
    waited_us: Floats


@dataclass
class PoolClock:
    """The iterations of a pool, each as a job of its own."""

    clocks: list[Clock]
    which: np.ndarray
    number: np.ndarray
    """Of each iteration, its number in its part."""

    def traces(self, iteration: int) -> TraceSet:
        return self.clocks[self.which[iteration]].traces(int(self.number[iteration]))

    def prices(self, traces: TraceSet) -> Prices:
        return Prices.of(traces, self.clocks[0].compiled.plan)


@dataclass
class _Axis:
    series: CompiledPoolSeries
    clocks: dict[str, PoolClock] = field(default_factory=dict)
    times: dict[str, IterationTimes] = field(default_factory=dict)
    given: dict[int, tuple[TraceSet, Timeline, float]] = field(default_factory=dict)
    """Of each handover, the iteration that gives it: its traces, its timeline and when it begins."""

    def __post_init__(self) -> None:
        for name, each in self.series.pools.items():
            number = np.zeros(each.num_iterations, np.int64)
            for part in range(len(each.parts)):
                here = each.which == part
                number[here] = np.arange(int(here.sum()))
            self.clocks[name] = PoolClock(list(map(Clock, each.parts)), each.which, number)

    def run(self, name: str) -> None:
        """All iterations of a pool whose givers have run."""
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
        """Iterations that all pools compute together, one behind the other: each begins when all of the one before has ended."""
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
        """The numbers of the handovers that iterations of a pool take, and give."""
        taken: dict[int, list[int]] = {}
        given: dict[int, list[int]] = {}
        for number, each in enumerate(self.series.handovers):
            if each.taker == name:
                taken.setdefault(each.taken, []).append(number)
            if each.giver == name:
                given.setdefault(each.given, []).append(number)
        return taken, given

    def ends(self, name: str, traces: TraceSet, timeline: Timeline) -> float:
        """When all is done but what is sent to other pools."""
        ends = timeline.end_us.copy()
        for other in self.series.pools:
            if other != name:
                for each in messages(self.pooled({name: traces}), name, other, "send"):
                    ends[each.position] = 0
        return float(ends.max(initial=0.0))

    def pooled(self, known: Mapping[str, TraceSet]) -> PooledTraces:
        """Iterations of all pools, of which these are `known`, as a job."""
        return PooledTraces(
            tuple(
                (name, known.get(name, each.parts[0].trace_set))
                for name, each in self.series.pools.items()
            )
        )

    def arrived(
        self, name: str, traces: TraceSet, number: int
    ) -> Mapping[tuple[int, int, int], Floats]:
        """When each message of a handover is there."""
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
        """Those of a handover, over the channels of the first."""
        here, there = (each.giver, each.taker) if kind == "send" else (each.taker, each.giver)
        at = each.given if kind == "send" else each.taken
        channels = self.series.channels
        place = self.series.place(here, at, number)
        for message in messages(pooled, here, there, kind):
            if message.channel // channels == place:
                yield replace(message, channel=message.channel % channels)


def end_of_all_us(traces: Mapping[str, TraceSet], prices: Mapping[str, Prices]) -> float:
    """Of an iteration that all pools compute together: until the last rank is done."""
    return timeline_of_all(PooledTraces(tuple(traces.items())), prices)[1].makespan_us


def time_together_us(
    clocks: Mapping[str, Clock], devices: Sequence[Sequence[tuple[int, int, int]]]
) -> float:
    """Of any sequences on the devices that have their caches, as an iteration of the program of all pools."""
    traces: dict[str, TraceSet] = {}
    for name, clock in clocks.items():
        clock.serve(devices)
        traces[name] = clock.traces(0)
    prices = {name: Prices.of(traces[name], clocks[name].compiled.plan) for name in traces}
    return end_of_all_us(traces, prices)


def times_of_series(series: CompiledPoolSeries) -> dict[str, IterationTimes]:
    """Of all pools. E0410 for one that does not say how fast its device is."""
    axis = _Axis(series)
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
