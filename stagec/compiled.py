"""What a compilation gives: the IR where it stopped, and what is asked of it when it got to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sequences import ModuleSequences
from stagec.arrays import Ints
from stagec.backend.lowering.programs import Unroller
from stagec.backend.program import PooledTraces, PoolSeries, SeriesTraces, TraceSet
from stagec.diagnostics import Diagnostic, refused, told_of_parts
from stagec.dialects import dist, sched
from stagec.dialects.work import Work
from stagec.plans.clauses import Plan
from stagec.plans.in_ir import stated_plan
from stagec.rewriting import programs
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import RankRun

if TYPE_CHECKING:
    from stagec.frontend import CheckedModel
    from stagec.memory import ClassPlan
    from stagec.memory.arena import Arena
    from stagec.step_count import ClassCount


@dataclass(frozen=True)
class Compiled:
    """A model and a plan, compiled: the IR where it stopped, and the traces if it got there."""

    plan: Plan
    module: ModuleOp
    traces: TraceSet | None
    runs: Sequence[RankRun] = ()
    """What each rank class runs."""
    unroller: Unroller = field(default_factory=Unroller)
    """What it unrolled serves the traces and the plan of memory."""
    model: CheckedModel | None = None
    """The text that it was compiled from; nothing for IR."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The texts of the files that were read."""
    idle: tuple[Diagnostic, ...] = ()
    """W0703 and W0304: what of the plan changed nothing."""

    @property
    def stated(self) -> dist.PlanOp:
        """What the module says of its model: the dim of its batch, whether it trains."""
        return stated_plan(self.module)

    @property
    def checked(self) -> CheckedModel:
        """The model as it is written. E0711 of IR, which says what became of it."""
        if self.model is None:
            message = "this asks about the model as it is written, and what was compiled is IR"
            raise refused("E0711", message, help="ask it of the model's text: `MODEL.stg`")
        return self.model

    @property
    def as_written(self) -> ModuleOp:
        """The model in IR, before any pass."""
        from stagec.frontend import lower

        return lower(self.checked)

    @property
    def with_caches(self) -> ModuleOp | None:
        """Likewise, with all of its caches. A plan that serves nothing does not say how one position is split: it is whole. Nothing of a model without any."""
        from stagec.frontend import lower
        from stagec.frontend.serving.batch import batch_of_one

        checked = self.checked
        if checked.roles is None:
            return None
        if checked.batch is None:
            batch = batch_of_one(checked.roles, checked.body.span)
            plan = replace(checked.plan, rules=(), contexts=())
            checked = replace(checked, batch=batch, plan=plan)
        return lower(checked)

    @property
    def name(self) -> str:
        return programs(self.module)[0].model.data

    @property
    def trace_set(self) -> TraceSet:
        assert self.traces is not None, "the compilation stopped before"
        return self.traces

    @property
    def has_programs(self) -> bool:
        """Whether it is said what ranks run: `build-programs` has been there."""
        return any(isinstance(op, sched.RankProgramOp) for op in self.module.body.ops)

    @property
    def works(self) -> set[Work]:
        """The kinds of work of its ops."""
        ops = (op for op in self.module.walk() if isinstance(op, sched.ComputeOp))
        return set(map(sched.work_of, ops))

    @property
    def num_iterations(self) -> int:
        """The number of iterations of the series that it serves, if it serves one."""
        sequences = ModuleSequences.of(self.module)
        return 1 if sequences is None else sequences.num_iterations

    @cached_property
    def counts(self) -> list[ClassCount]:
        """What each rank class runs in a step, and how often."""
        from stagec.step_count import count_classes

        return count_classes(self.runs or rank_runs(self.module))

    @cached_property
    def memory(self) -> list[ClassPlan]:
        """The memory of each rank class; in a series, of the iteration in which it needs most."""
        from stagec.memory import plan_module

        return plan_module(self.module, self.runs, self.unroller.arrangements)

    @property
    def arenas(self) -> dict[str, Arena]:
        """Where the buffers of a class are, by its name; nothing unless `place-buffers` has run."""
        from stagec.memory.arena import read_arena

        plans = {plan.name: plan for plan in self.memory}
        ops = (op for op in self.module.body.ops if isinstance(op, sched.ArenaOp))
        return {
            op.class_name.data: read_arena(op, plans[op.class_name.data])
            for op in ops
            if op.class_name.data in plans
        }

    @cached_property
    def tracked(self) -> TraceSet:
        """The traces, with the tensors that each node reads and writes. E0711 for a series of iterations, whose memory is that of one of them."""
        if self.num_iterations > 1:
            message = "tensors are tracked in one step, and this is a series of iterations"
            help_ = "compile one of them: a file of one line, or the plan's own `serve`"
            raise refused("E0711", message, help=help_)
        from stagec.tracking import with_tensors

        traces = self.trace_set
        pairs = zip(traces.classes, self.memory, strict=True)
        return replace(traces, classes=tuple(with_tensors(ranks, plan) for ranks, plan in pairs))


def told_once(parts: Sequence[Compiled]) -> list[Compiled]:
    """The programs of one job, with what each is told of."""
    told = told_of_parts([part.idle for part in parts], [part.plan.says for part in parts])
    return [replace(part, idle=tuple(own)) for part, own in zip(parts, told, strict=True)]


@dataclass(frozen=True)
class CompiledSeries:
    """A series of iterations: of each program that some of them run, these."""

    parts: Sequence[Compiled]
    which: Ints
    """For each iteration, the part that it belongs to."""

    @property
    def num_iterations(self) -> int:
        return len(self.which)

    @property
    def first(self) -> Compiled:
        return self.parts[0]

    @property
    def name(self) -> str:
        """The name of the plan."""
        return self.first.plan.name

    @property
    def traces(self) -> TraceSet | SeriesTraces:
        return self.joined(lambda compiled: compiled.trace_set)

    def joined(self, of: Callable[[Compiled], TraceSet]) -> TraceSet | SeriesTraces:
        """The traces of all parts as one series."""
        traces = tuple(map(of, self.parts))
        return traces[0] if len(traces) == 1 else SeriesTraces(traces, self.which)


@dataclass(frozen=True)
class Handover:
    """What an iteration of a pool hands to one of another."""

    giver: str
    given: int
    """The number of the iteration."""
    taker: str
    taken: int
    sequences: tuple[tuple[int, int], ...]
    """How many, of how many positions."""

    def number(self, window: int | None) -> int:
        """Positions of a cache under a window."""
        return sum(n * min(at, at if window is None else window) for n, at in self.sequences)

    @property
    def count(self) -> int:
        return sum(number for number, _ in self.sequences)


@dataclass(frozen=True)
class CompiledPoolSeries:
    """Series of all pools of a plan."""

    name: str
    """The name of the plan."""
    pools: Mapping[str, CompiledSeries]
    handovers: Sequence[Handover]
    handed: Mapping[str, Ints]
    """For each pool, [n, iterations]: which handover of the job each handover of an iteration is."""
    channels: int
    """How many channels a handover has: the caches of a layer; 0 where all pools compute each iteration together."""

    @property
    def is_together(self) -> bool:
        return not self.channels

    def place(self, pool: str, iteration: int, handover: int) -> int:
        """Which of the handovers of an iteration one of the job is."""
        return self.handed[pool][:, iteration].tolist().index(handover)

    def pooled(self, of: Callable[[Compiled], TraceSet]) -> PoolSeries:
        """The traces of all pools as one job."""
        return PoolSeries(
            tuple(
                (
                    name,
                    SeriesTraces(
                        tuple(map(of, each.parts)), each.which, self.handed[name], self.channels
                    ),
                )
                for name, each in self.pools.items()
            )
        )

    @property
    def traces(self) -> PoolSeries:
        return self.pooled(lambda compiled: compiled.trace_set)

    @property
    def plans(self) -> Mapping[str, Plan]:
        return {name: each.first.plan for name, each in self.pools.items()}

    @property
    def one_of_each(self) -> PooledTraces:
        """An iteration of each pool."""
        return PooledTraces(tuple((n, s.parts[0].trace_set) for n, s in self.pools.items()))

    @property
    def first(self) -> Compiled:
        return next(iter(self.pools.values())).parts[0]
