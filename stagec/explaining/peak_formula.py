"""What is in memory at one moment, as closed forms: buffers counted by layers and microbatches.

At a node of the program a value is alive in some microbatches, in some or all of its layers. All layers are written as their
number, and so are the microbatches in flight where the schedule's paper says how many those are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from xdsl.ir import OpResult

from stagec import symbolic
from stagec.analysis.buffers import repeats_around
from stagec.explaining.job import NamedJob
from stagec.explaining.quantities import Contribution
from stagec.memory import TITLES, ClassPlan, Kind
from stagec.memory.value_table import ValueTable
from stagec.symbolic import Size, constant, symbol

NEARLY_ALL = 2
"""`L - 1` layers, not 31, if so few are missing."""


IN_FLIGHT = (Kind.SAVED, Kind.INPUTS)
"""Kinds of which each microbatch in flight has its own."""


Group = tuple[int, int, bool, int, int]
"""Buffers of one form: of which stage and value, whether of its sum, of which kind, and in which microbatch where that makes a difference."""


@dataclass(frozen=True)
class Moments:
    """Answers for one rank class."""

    job: NamedJob
    plan: ClassPlan

    @cached_property
    def rank(self) -> int:
        """The coordinate along the axis of the stages; 0 without stages."""
        stages = self.job.names.stages
        return self.plan.where[stages.axis.data][0] if stages is not None else 0

    def parts(self, node: int, kinds: Sequence[Kind]) -> list[Contribution]:
        """The buffers of these kinds that are alive at a node."""
        lives = self.plan.lives
        alive = lives.alive_at(node)
        return self.of_rows(alive[np.isin(lives.kind[alive], kinds)])

    def saved_by_one(self) -> list[Contribution]:
        """What the first microbatch of each virtual stage saves for its backward pass."""
        lives = self.plan.lives
        chosen: list[np.ndarray] = []
        for stage in range(len(self.plan.tables)):
            own = (lives.kind == Kind.SAVED) & (lives.stage == stage)
            first = lives.microbatch[own].min(initial=np.iinfo(np.int32).max)
            chosen.append(np.flatnonzero(own & (lives.microbatch == first)))
        return self.of_rows(np.concatenate(chosen))

    def of_rows(self, alive: np.ndarray) -> list[Contribution]:
        """Buffers, those of one op together."""
        lives = self.plan.lives
        groups: dict[Group, dict[int, int]] = defaultdict(dict)
        numbers: dict[Group, int] = defaultdict(int)
        for row in alive.tolist():
            stage, value = int(lives.stage[row]), int(lives.value[row])
            table = self.plan.tables[stage]
            is_sum = (
                bool(table.accumulated[value]) and table.num_bytes[value] != lives.num_bytes[row]
            )
            microbatch = int(lives.microbatch[row])
            own = -1 if table.in_microbatches is None else microbatch
            key = (stage, self.result_ids(stage)[value], is_sum, int(lives.kind[row]), own)
            groups[key][microbatch] = groups[key].get(microbatch, 0) + 1
            numbers[key] += int(lives.num_bytes[row])
        return [self.part(key, counts, numbers[key]) for key, counts in groups.items()]

    def result_ids(self, stage: int) -> list[int]:
        """For each value of a stage, the first that is an instance of the same result; of those that are as large, where layers have other loads."""
        if stage not in self._ids:
            table = self.plan.tables[stage]
            alike: Sequence[object] = table.results
            if self.plan.stages[stage].layout.loads.loads:
                alike = [*zip(table.results, table.forms, table.sums, strict=True)]
            first: dict[object, int] = {}
            self._ids[stage] = [first.setdefault(each, i) for i, each in enumerate(alike)]
        return self._ids[stage]

    @cached_property
    def _ids(self) -> dict[int, list[int]]:
        return {}

    def part(self, key: Group, counts: Mapping[int, int], number: int) -> Contribution:
        stage, value, is_sum, kind, microbatch = key
        table = self.plan.tables[stage]
        written = table.sums if is_sum else table.forms
        form = self.job.names.in_microbatch(written[value], microbatch)
        size = self.job.names.write(form, self.plan.stages[stage].stage)
        said = table.abouts[int(table.about[value])]
        count = self.count(stage, table, value, counts, kind in IN_FLIGHT)
        return Contribution(
            said.scope,
            said.location,
            f"{said.op}: {TITLES[Kind(kind)]}",
            said.made_by,
            count * size,
            number,
        )

    def count(
        self,
        stage: int,
        table: ValueTable,
        value: int,
        counts: Mapping[int, int],
        in_flight: bool,
    ) -> Size:
        """How many instances: layers times microbatches, as far as all layers of some are alive."""
        made = table.results[value]
        repeats = [*repeats_around(made.op)] if isinstance(made, OpResult) else []
        names, number = self.job.names, self.plan.stages[stage].stage
        form = symbolic.product(names.write(r.count.data, number) for r in repeats)
        values = self.plan.stages[stage].values
        every = symbolic.product(r.count.data for r in repeats).integer(values)
        whole = sum(1 for n in counts.values() if n == every)
        total = form * (self.microbatches(whole) if in_flight else whole)
        for n in counts.values():
            if n != every:
                total = total + (form - (every - n) if every - n <= NEARLY_ALL < n else n)
        return total

    def microbatches(self, number: int) -> Size:
        """Microbatches in flight, as the schedule's paper counts them, or as a number."""
        for form in self.in_flight():
            exact = form.evaluate(self.job.names.values)
            if exact == number:
                return form
            if exact == number + 1 and number > 1:
                return form - 1
        return constant(number)

    def in_flight(self) -> Iterator[Size]:
        """What a schedule is known to keep on this rank."""
        names = self.job.names
        pipeline = names.plan.pipeline
        if pipeline is None or names.stages is None:
            return
        ranks, number = symbol(names.stages.axis.data), names.num_microbatches
        if pipeline.schedule == "1f1b":
            yield symbolic.call("min", number, ranks - self.rank)
        elif pipeline.schedule in ("gpipe", "looped_bfs"):
            yield number
        elif pipeline.schedule == "zb_h1":
            yield symbolic.call("min", number, ranks)
