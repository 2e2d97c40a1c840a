"""Single plans of a sweep: compiled as any plan is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagec.analysis.coordinates import axes_in, sizes_of
from stagec.analysis.expert_loads import Loads
from stagec.analysis.sequences import ModuleSequences
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_program
from stagec.explaining.job import NamedJob
from stagec.explaining.names import MICROBATCH
from stagec.frontend import CheckedModel, check
from stagec.frontend.checker import sizes_of as named_sizes
from stagec.frontend.files import Source
from stagec.plans.clauses import Plan
from stagec.plugins import Registry, registry
from stagec.schedules.catalogue import CATALOGUE
from stagec.sweeping.grid import Grid, Listed

Point = Mapping[str, int]
MOST_TRIED = 64


@dataclass(frozen=True)
class SweepRequest:
    """What to compile: a file, a plan of it, sizes of `--set`, what to vary, what to tell."""

    source: Source
    plan: str | None
    sizes: Mapping[str, str]
    grid: Grid | Listed
    quantities: tuple[str, ...]
    adapt: Callable[[Plan], Plan] = lambda plan: plan
    """What to change of each plan that decides no program: its device."""
    plug_ins: Registry = field(default_factory=registry)
    """What the plan's passes and the functions of the language are, with those of plug-ins."""

    def checked_at(self, point: Point, limited: bool = False) -> CheckedModel:
        """The model and its plan at one point, without the limit of its device's memory if not said otherwise."""
        is_setting = MICROBATCH not in named_sizes(self.source, self.plan)
        named = {n: str(v) for n, v in point.items() if n != MICROBATCH or not is_setting}
        checked = check(self.source, self.plan, {**self.sizes, **named}, self.plug_ins.functions)
        plan = self.adapt(checked.plan)
        if MICROBATCH in point and is_setting:
            plan = with_microbatch(plan, point[MICROBATCH])
        checked = replace(checked, plan=plan)
        return checked if limited else without_limit(checked)

    def compiled_at(self, point: Point, verify: bool = True, until: str | None = None) -> Compiled:
        """One plan as `stagec` compiles it, before its programs are unrolled, or `until` a pass. Who records, notes what its structure depends on."""
        return self.compiled_from(self.checked_at(point), verify, until)

    def compiled_from(
        self, checked: CheckedModel, verify: bool = True, until: str | None = None
    ) -> Compiled:
        """A plan that was checked, compiled."""
        stops = Stops(after=until, unroll=False, verify=verify)
        return compile_program(checked, stops=stops, load_pass=self.plug_ins.make_pass)


def without_limit(checked: CheckedModel) -> CheckedModel:
    """The same, whatever memory its device has."""
    plan = checked.plan
    return replace(checked, plan=replace(plan, device=replace(plan.device, memory=None)))


def with_microbatch(plan: Plan, size: int) -> Plan:
    if plan.pipeline is not None:
        return replace(plan, pipeline=replace(plan.pipeline, microbatch=size))
    return replace(plan, microbatch=size)


def first_that_checks(request: SweepRequest, points: Sequence[Point]) -> CheckedModel:
    """The first point in whose text nothing is wrong, with the limit of its device's memory. The first mistake if there is none."""
    first: CompileError | None = None
    for point in points:
        try:
            return request.checked_at(point, limited=True)
        except CompileError as error:
            first = first or error
    assert first is not None
    raise first


def first_that_compiles(request: SweepRequest, points: Sequence[Point]) -> tuple[Compiled, Point]:
    """The plan as it is in the file, or else the first point that is one. The first mistake if none is."""
    first: CompileError | None = None
    for point in [{}, *points[:MOST_TRIED]]:
        if MICROBATCH in request.grid.names and MICROBATCH not in point:
            point = {**point, MICROBATCH: request.grid.values.get(MICROBATCH, (1,))[0]}
        try:
            return request.compiled_at(point), point
        except CompileError as error:
            first = error
    assert first is not None
    raise first


def is_plain(job: NamedJob) -> bool:
    """Whether plans of one structure differ in sizes alone.

    Not so with passes of a user's own, which may look at numbers behind our back, a user's schedule, several repeats that are
    cut, costs that depend on a rank's coordinates or on loads of experts, and buckets that end at multiples: what pads them, if anything does,
    depends on what is in each.
    """
    plan, stages = job.compiled.plan, job.names.stages
    if stages is not None and any(len(each.layers) > 1 for each in stages.stages.data):
        return False
    if plan.pipeline is not None and plan.pipeline.schedule not in CATALOGUE:
        return False
    if plan.passes:
        return False
    module = job.compiled.module
    if any("bucket_end" in op.properties for op in module.walk()):
        return False
    names = {name for size in sizes_of(module) for name in size.names}
    return not axes_in(names) and not Loads.of(module).loads and ModuleSequences.of(module) is None
