"""How long the iterations of a series take, each by itself, where a plan serves a series of iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.backend.program import Node, TraceProgram, TraceSegment, TraceSet
from stagec.compiled import Compiled
from stagec.dialects.dist.sequences import DealtSequences
from stagec.dialects.sched.actions import Sum
from stagec.estimate.costs import require_numbers
from stagec.estimate.interference import slowed
from stagec.estimate.prices import Prices
from stagec.symbolic import symbol
from stagec.unrolling.module import ModuleReader


def timed(
    program: TraceProgram, durations: Sequence[np.ndarray], names: dict[bytes, Sum]
) -> TraceProgram:
    """The program of a series with the time that each node takes in each iteration. `durations` has for each segment `[iteration, node]` in µs.

    Nodes refer to a column of times by a name; `names` gives equal columns the same one.
    """
    assert program.series is not None
    numbers = dict(program.series.numbers)
    segments: list[TraceSegment] = []
    for segment, rows in zip(program.segments, durations, strict=True):
        nodes: list[Node] = []
        for node, column in zip(segment.nodes, rows.astype(np.int64).T, strict=True):
            name = names.setdefault(column.tobytes(), (symbol(f"duration.{len(names)}"),))
            numbers[name] = column
            nodes.append(replace(node, durations=name))
        segments.append(replace(segment, nodes=tuple(nodes)))
    return replace(
        program, segments=tuple(segments), series=replace(program.series, numbers=numbers)
    )


@dataclass
class Clock:
    """Times the iterations of a compiled series, and other iterations of the same program. E0410 if the plan does not say how fast its device is."""

    compiled: Compiled
    reader: ModuleReader = field(init=False)

    def __post_init__(self) -> None:
        require_numbers(self.compiled.plan, self.compiled.trace_set.classes)
        self.reader = ModuleReader(self.compiled.module)

    def traces(self, iteration: int) -> TraceSet:
        """The traces of one iteration, as if it were a job of its own."""
        runs = self.reader.at(iteration)
        return self.compiled.unroller.trace_set(self.compiled.module, runs)

    def time_of_us(self, devices: Sequence[Sequence[tuple[int, int, int]]]) -> float:
        """The time in µs of an iteration with any sequences. For each device, `devices` lists kinds of sequences: how many there are, how many new positions
        each has, and how many positions came before these.
        """
        self.serve(devices)
        return self.time_us(0)

    def serve(self, devices: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        """Make the first iteration serve these sequences, which are given as to `time_of_us`."""
        known = self.reader.sequences
        assert known is not None
        kinds = [[(*kind, 1) for kind in device] for device in devices]
        self.reader.sequences = served = known.serving(DealtSequences.of([kinds]))
        self.compiled.unroller.serve(served)

    def times_us(self) -> np.ndarray:
        """`[iteration]`: the time of every iteration in µs, each as if it ran alone."""
        return np.array([self.time_us(number) for number in range(self.compiled.num_iterations)])

    def with_durations(self) -> TraceSet:
        """The series, each node with what it is estimated to take in each iteration, in whole µs, at least 1."""
        series = self.compiled.trace_set
        found: list[list[list[np.ndarray]]] = [
            [[] for _ in each.program.segments] for each in series.classes
        ]
        """For each class and each of its segments, the times of its nodes in each iteration."""
        for number in range(self.compiled.num_iterations):
            traces = self.traces(number)
            prices = Prices.of(traces, self.compiled.plan)
            for own, segments in zip(traces.classes, found, strict=True):
                for index, rows in enumerate(segments):
                    rows.append(np.maximum(np.rint(prices.segment(own, index).us), 1))
        names: dict[bytes, Sum] = {}
        classes = [
            replace(each, program=timed(each.program, [*map(np.array, segments)], names))
            for each, segments in zip(series.classes, found, strict=True)
        ]
        return replace(series, classes=tuple(classes))

    def time_us(self, iteration: int) -> float:
        """The time of one iteration in µs, if it ran alone, until the last rank is done."""
        traces = self.traces(iteration)
        return slowed(traces, Prices.of(traces, self.compiled.plan)).makespan_us
