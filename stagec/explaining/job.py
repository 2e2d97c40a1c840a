"""A plan as questions see it: the program after all passes, before sizes become numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from stagec import symbolic
from stagec.compiled import Compiled
from stagec.dialects import stg
from stagec.estimate.few_microbatches import of_whole_step, with_few_microbatches
from stagec.explaining.more_layers import with_more_layers
from stagec.explaining.names import Names
from stagec.explaining.rolled_operations import ClassOperations, class_operations
from stagec.memory import ClassPlan, Moment, plan_memory
from stagec.memory.plan import moment
from stagec.symbolic import Size
from stagec.unrolling.module import rank_runs


@dataclass(frozen=True)
class NamedJob:
    """A compiled module, and what its names stand for."""

    compiled: Compiled
    rounded: bool = False
    """Whether costs are rounded up in their forms too."""
    sampled: bool = False
    """Whether a few classes stand for all ranks of a pipeline, as in a sweep."""

    @cached_property
    def names(self) -> Names:
        return Names(self.compiled.module, self.compiled.plan, self.rounded)

    @cached_property
    def classes(self) -> list[ClassOperations]:
        return class_operations(self.names, self.sampled)

    @cached_property
    def unrolled(self) -> Compiled:
        """With its trace programs, unrolled for this question if nobody did."""
        compiled = self.compiled
        if compiled.traces is not None:
            return compiled
        runs = compiled.runs or rank_runs(compiled.module)
        traces = compiled.unroller.trace_set(compiled.module, runs)
        return replace(compiled, traces=traces, runs=runs)

    @cached_property
    def memory(self) -> list[ClassPlan]:
        """What each rank class keeps, and when."""
        runs = [each.run for each in self.classes]
        few = with_few_microbatches(self.compiled.module, self.compiled.plan, runs)
        arrangements = self.compiled.unroller.arrangements if few is runs else None
        found = plan_memory(few, arrangements)
        return [replace(plan, peak=self.moment(plan, plan.peak.node)) for plan in found]

    def moment(self, plan: ClassPlan, node: int) -> Moment:
        """What runs at a node, in the whole step, of which the plan of memory may show a part."""
        whole = next(each.run.order for each in self.classes if each.name == plan.name)
        return of_whole_step(moment(plan.arrangement, node), plan.arrangement, whole)

    def with_more_layers(self, plan: ClassPlan) -> ClassPlan | None:
        """A class of `memory` with more layers than its few; nothing where it has enough, or they cannot be had."""
        if plan.name not in self._larger:
            self._larger[plan.name] = with_more_layers(plan, self.names)
        return self._larger[plan.name]

    @cached_property
    def _larger(self) -> dict[str, ClassPlan | None]:
        return {}

    @cached_property
    def whole_parameters(self) -> Size:
        """The number of parameters of the model, each counted once."""
        ops = self.compiled.as_written.walk()
        return symbolic.total(op.num_parameters for op in ops if isinstance(op, stg.WeightOp))
