"""What a rank class runs, as sums that users can read: each op of the count of a step, with its closed forms.

How often an op runs is the trip counts of the repeats around it, times the microbatches that the schedule gives to its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from stagec import symbolic
from stagec.analysis.sequences import MICROBATCH
from stagec.backend.program import Node
from stagec.dialects.sched.tasks import ONCE
from stagec.dialects.types import TIME_AXIS
from stagec.explaining.names import Names
from stagec.step_count import ClassCount, Costs, CountedOp, count_classes
from stagec.symbolic import ZERO, Size
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import RankRun


@dataclass(frozen=True)
class Amount:
    """A size of one op: its closed form, and the number that the trace has for it."""

    form: Size = ZERO
    number: int = 0


@dataclass(frozen=True)
class Term:
    """One op of a rank class, in names that users know."""

    counted: CountedOp
    count: Amount
    """Runs in one step."""
    forms: Forms = field(repr=False, compare=False)

    @cached_property
    def amounts(self) -> Costs[Amount]:
        """What one run costs on one device."""
        return self.counted.costs.evaluated(lambda size: self.forms.amount(size, self.counted))

    @property
    def rows(self) -> Size:
        """Runs in one run of its task."""
        return self.forms.rows(self.counted)

    @property
    def op(self) -> str:
        return self.counted.name

    @property
    def phase(self) -> str:
        return self.counted.phase

    @property
    def scope(self) -> str:
        return self.counted.scope

    @property
    def location(self) -> str:
        return self.counted.location

    @property
    def made_by(self) -> str:
        return self.counted.made_by

    @property
    def task(self) -> str:
        return self.counted.task

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which a communication runs."""
        return self.counted.axes

    @cached_property
    def node(self) -> Node:
        """What it is in a trace of the plan that was compiled. Which stage the peer of a transfer is in, is left open."""
        return self.counted.node()

    @property
    def is_communication(self) -> bool:
        return not self.is_computation and not self.is_copy

    @property
    def is_copy(self) -> bool:
        """Between host and device."""
        return self.counted.is_copy

    @property
    def is_computation(self) -> bool:
        return self.counted.is_computation

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that choose it: `contract`, `matrix`, `bwd`, `SwiGLU`, `Block.SwiGLU`."""
        words = {self.op, self.phase, *self.scope.split(".")} - {""}
        if self.is_computation:
            words.add("matrix" if self.counted.on_matrix_units else "other")
        return frozenset(words)


@dataclass(frozen=True)
class ClassOperations:
    """One rank class."""

    run: RankRun
    terms: tuple[Term, ...]

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def where(self) -> Mapping[str, tuple[int, ...]]:
        return self.run.where


def class_operations(names: Names, sampled: bool = False) -> list[ClassOperations]:
    """The terms of every rank class; if `sampled`, of classes that stand for all of a sweep's.

    These are the first rank of a pipeline, one in the middle, and the last; all, if layers are listed.
    """
    runs = rank_runs(names.module)
    pipeline = names.plan.pipeline
    is_even = pipeline is not None and not pipeline.layers
    if sampled and is_even and len(runs) > 3:
        runs = [runs[0], runs[1], runs[-1]]
    return [ClassOperations(each.run, tuple(terms_of(each, names))) for each in count_classes(runs)]


def terms_of(counted: ClassCount, names: Names) -> Iterator[Term]:
    forms: dict[int, Forms] = {}
    for each in counted.operations:
        stage = each.stage.stage
        if stage not in forms:
            forms[stage] = Forms(names, stage)
        yield forms[stage].term(each)


@dataclass
class Forms:
    """Writes what is counted of one virtual stage as closed forms."""

    names: Names
    stage: int
    _known: dict[tuple[Size, int | None, int], Amount] = field(default_factory=dict)

    def term(self, each: CountedOp) -> Term:
        return Term(each, self.count(each), self)

    def amount(self, size: Size, each: CountedOp) -> Amount:
        """A fraction of an operation counts as a whole one, as in traces."""
        microbatch = int(each.values.get(MICROBATCH, -1))
        key = size, each.layer, microbatch
        if key not in self._known:
            own = size.substitute({n: symbolic.constant(load) for n, load in each.load.items()})
            own = self.names.in_microbatch(own, microbatch)
            form = self.names.write(own, self.stage)
            if self.names.rounded or own.evaluate(each.values).denominator != 1:
                form = symbolic.ceildiv(form, 1)
            self._known[key] = Amount(form, each.known.whole(size, each.values))
        return self._known[key]

    def rows(self, each: CountedOp) -> Size:
        """How often an op runs in one run of its task: as a number where its rows are not those of its repeats."""
        form = symbolic.product(repeat.count.data for repeat in each.repeats)
        if form.evaluate(each.values) != each.rows:
            form = symbolic.constant(each.rows)
        return self.names.write(form, self.stage)

    def count(self, each: CountedOp) -> Amount:
        """How often an op runs in a step."""
        form = self.rows(each)
        if each.task not in ONCE:
            whole = each.stage.values[TIME_AXIS]
            form = form * self.names.times(self.names.num_microbatches, each.passes, whole)
        return Amount(form, each.runs)
