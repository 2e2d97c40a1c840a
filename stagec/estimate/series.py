"""How long iterations of serving take, each by itself: the clock of a series."""

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
    """A program whose nodes say what they take in each iteration: of each segment `[iteration, node]`. Equal columns have one name."""
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
    """Times of iterations of a compiled series, or of others of the same program. E0410 if the plan does not say how fast its device is."""

    compiled: Compiled
    reader: ModuleReader = field(init=False)

    def __post_init__(self) -> None:
        require_numbers(self.compiled.plan, self.compiled.trace_set.classes)
        self.reader = ModuleReader(self.compiled.module)

    def traces(self, iteration: int) -> TraceSet:
        """One iteration as a job of its own."""
        runs = self.reader.at(iteration)
        return self.compiled.unroller.trace_set(self.compiled.module, runs)

    def time_of_us(self, devices: Sequence[Sequence[tuple[int, int, int]]]) -> float:
        """Of any sequences on each device, as an iteration of the program: how many, of how many new positions, after how many."""
        self.serve(devices)
        return self.time_us(0)

    def serve(self, devices: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        """Let the first iteration be of these."""
        known = self.reader.sequences
        assert known is not None
        kinds = [[(*kind, 1) for kind in device] for device in devices]
        self.reader.sequences = served = known.serving(DealtSequences.of([kinds]))
        self.compiled.unroller.serve(served)

    def times_us(self) -> np.ndarray:
        """Of all iterations, each alone."""
        return np.array([self.time_us(number) for number in range(self.compiled.num_iterations)])

    def with_durations(self) -> TraceSet:
        """The series, each node with what it is estimated to take in each iteration, in whole µs, at least 1."""
        series = self.compiled.trace_set
        found: list[list[list[np.ndarray]]] = [
            [[] for _ in each.program.segments] for each in series.classes
        ]
        """Of each class and each of its segments what its nodes take, iteration by iteration."""
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
        """How long it takes alone, until the last rank is done."""
        traces = self.traces(iteration)
        return slowed(traces, Prices.of(traces, self.compiled.plan)).makespan_us
