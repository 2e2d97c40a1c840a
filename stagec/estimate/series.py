"""How long iterations of serving take, each by itself: the clock of a series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.backend.program import TraceSet
from stagec.compiled import Compiled
from stagec.dialects.dist.sequences import Sequences, SequencesAttr
from stagec.estimate.costs import require_numbers
from stagec.estimate.interference import slowed
from stagec.estimate.prices import Prices
from stagec.unrolling.module import Reader


@dataclass
class Clock:
    """Times of iterations of a compiled series, or of others of the same program. E0410 if the plan does not say how fast its device is."""

    compiled: Compiled
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        require_numbers(self.compiled.plan, self.compiled.trace_set.classes)
        self.reader = Reader(self.compiled.module)

    def traces(self, iteration: int) -> TraceSet:
        """One iteration as a job of its own."""
        runs = self.reader.at(iteration)
        return self.compiled.unroller.trace_set(self.compiled.module, runs)

    def time_of_us(self, devices: Sequence[Sequence[tuple[int, int, int]]]) -> float:
        """Of any sequences on each device, as an iteration of the program: how many, of how many new positions, after how many."""
        known = self.reader.sequences
        assert known is not None
        known.op.sequences = SequencesAttr(
            Sequences.of([[[(*kind, 1) for kind in device] for device in devices]])
        )
        self.reader.sequences = served = replace(known, _columns={})
        self.compiled.unroller.serve(served)
        return self.time_us(0)

    def times_us(self) -> np.ndarray:
        """Of all iterations, each alone."""
        return np.array([self.time_us(number) for number in range(self.compiled.num_iterations)])

    def time_us(self, iteration: int) -> float:
        """How long it takes alone, until the last rank is done."""
        traces = self.traces(iteration)
        return slowed(traces, Prices.of(traces, self.compiled.plan)).makespan_us
