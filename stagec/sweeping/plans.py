"""Check and compile single plans of a sweep, as `stagec` compiles any plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.coordinates import axes_in, sizes_stated
from stagec.analysis.expert_loads import Loads
from stagec.analysis.sequences import ModuleSequences
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_checked, resumed
from stagec.explaining.job import NamedJob
from stagec.explaining.names import MICROBATCH
from stagec.frontend import CheckedModel, check
from stagec.frontend.checker import sizes_of as named_sizes
from stagec.frontend.files import Source
from stagec.plans.clauses import Plan
from stagec.plugins import Registry, registry
from stagec.schedules.catalogue import CATALOGUE
from stagec.sweeping.grid import Grid, Listed
from stagec.symbolic.columns import Columns
from stagec.symbolic.conditions import Conditions
from stagec.symbolic.verdict import Verdict, verdict

Point = Mapping[str, int]
"""One plan of a sweep: the value of each name that varies."""
MOST_TRIED = 64
"""How many points are tried before a sweep is refused because none of them compiles."""
MOST_KEPT = 16
"""How many programs of a request are kept for its next sweeps."""

Made = TypeVar("Made")
Seen = Callable[[str, ModuleOp], None]


@dataclass(frozen=True)
class Followed(Generic[Made]):
    """A compilation of one plan, whose questions about sizes tell which other plans are the same program."""

    plan: Plan
    asked: Conditions
    made: Made | None
    """What the compilation made; nothing if it ended in an error."""
    message: str = ""
    """The error."""

    def verdict(self, sizes: Columns) -> Verdict:
        return verdict(self.asked, sizes, is_compiled=self.made is not None)


def computed(wanted: Iterable[str], varied: Grid | Listed) -> tuple[str, ...]:
    """The quantities that a table is asked for beside those that it always has: what varies, and the number of ranks."""
    own = (*varied.names, "ranks")
    return tuple(dict.fromkeys(name for name in wanted if name not in own))


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep is asked for: a file, a plan in it, sizes that `--set` gives, the sizes to vary and the quantities to tell of each plan."""

    source: Source
    plan: str | None
    sizes: Mapping[str, str]
    grid: Grid | Listed
    quantities: tuple[str, ...]
    adapt: Callable[[Plan], Plan] = lambda plan: plan
    """Changes each plan before it is compiled, in settings that change no program, such as its device."""
    plug_ins: Registry = field(default_factory=registry)
    """The passes and functions of the language that a model may use, plug-ins included."""
    bases: dict[object, NamedJob] = field(default_factory=dict, compare=False)
    """Plans that were compiled to find out whether the quantities can be asked for, by pool or by point. Requests that `replace` makes with another
    grid or other quantities share them."""
    programs: dict[object, deque[Any]] | None = field(default=None, compare=False)
    """Where there will be further sweeps of the same names: the last programs that were met. They are shared like `bases`."""

    def programs_of(self, *key: object) -> deque[Any]:
        """The last programs of sweeps with the same names that vary, and the same `key`; where none are kept, room for the one at hand."""
        if self.programs is None:
            return deque(maxlen=1)
        return self.programs.setdefault((self.grid.names, *key), deque(maxlen=MOST_KEPT))

    def checked_at(self, point: Point, limited: bool = False) -> CheckedModel:
        """The model and its plan at one point. The plan has no limit of memory, unless it is to keep that of its device (`limited`)."""
        is_setting = MICROBATCH not in named_sizes(self.source, self.plan)
        named = {n: str(v) for n, v in point.items() if n != MICROBATCH or not is_setting}
        checked = check(self.source, self.plan, {**self.sizes, **named}, self.plug_ins.functions)
        checked = checked.adapted(self.adapt)
        if MICROBATCH in point and is_setting:
            plan = with_microbatch(checked.plan, point[MICROBATCH])
            checked = replace(checked, plan=plan)
        return checked if limited else without_limit(checked)

    def compiled_at(
        self,
        point: Point,
        verify: bool = True,
        until: str | None = None,
        seen: Seen | None = None,
    ) -> Compiled:
        """The plan of one point, compiled but not unrolled. `until` names the last pass to run; `seen` is told the IR after each.

        Inside `stagec.symbolic.conditions.recording` this also notes what the structure of the plan depends on.
        """
        return self.compiled_from(lambda: self.checked_at(point), verify, until, seen)

    def compiled_from(
        self,
        make: Callable[[], CheckedModel],
        verify: bool = True,
        until: str | None = None,
        seen: Seen | None = None,
    ) -> Compiled:
        """Compile the model and plan that `make` checks; see `compiled_at`."""
        stops = Stops(after=until, on_pass=seen, unroll=False, verify=verify)
        return compile_checked(make, stops=stops, load_pass=self.plug_ins.make_pass)

    def resumed(self, like: Compiled, module: ModuleOp) -> Compiled:
        """What becomes of a module in the middle of its compilation; see `stagec.driver.resumed`."""
        return resumed(like, module, self.plug_ins.make_pass)


def without_limit(checked: CheckedModel) -> CheckedModel:
    """The same model and plan, without the limit of its device's memory: however much memory it needs, it is no error."""
    plan = checked.plan
    return replace(checked, plan=replace(plan, device=replace(plan.device, memory=None)))


def with_microbatch(plan: Plan, size: int) -> Plan:
    """The plan with another size of its microbatches, in sequences."""
    if plan.pipeline is not None:
        return replace(plan, pipeline=replace(plan.pipeline, microbatch=size))
    return replace(plan, microbatch=size)


def first_that_checks(request: SweepRequest, points: Sequence[Point]) -> CheckedModel:
    """The model and plan of the first point that the frontend accepts, with the limit of its device's memory. If there is none, the first error is raised."""
    first: CompileError | None = None
    for point in points:
        try:
            return request.checked_at(point, limited=True)
        except CompileError as error:
            first = first or error
    assert first is not None
    raise first


def first_that_compiles(
    request: SweepRequest, points: Sequence[Point], until: str | None = None
) -> tuple[NamedJob, Point]:
    """The plan as the file has it, or else at the first point at which it compiles, and that point. If none of `MOST_TRIED` compiles, an error is raised."""
    first: CompileError | None = None
    for point in [{}, *points[:MOST_TRIED]]:
        if MICROBATCH in request.grid.names and MICROBATCH not in point:
            point = {**point, MICROBATCH: request.grid.values.get(MICROBATCH, (1,))[0]}
        key = (until, tuple(sorted(point.items())))
        try:
            if key not in request.bases:
                request.bases[key] = NamedJob(request.compiled_at(point, until=until), rounded=True)
            return request.bases[key], point
        except CompileError as error:
            first = error
    assert first is not None
    raise first


def differs_in_sizes_alone(job: NamedJob) -> bool:
    """Whether the closed forms of one compiled plan hold for all plans of its structure. If not, each of them has to be compiled by itself.

    They do not hold with passes of a user's own (which may read numbers without our knowledge), a schedule of a user's own, a pipeline that cuts several
    repeats, costs that depend on a rank's coordinates or on the loads of experts, and buckets whose ends are multiples of a number: how much padding such a
    bucket has depends on the gradients in it.
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
    names = {name for size in sizes_stated(module) for name in size.names}
    return not axes_in(names) and not Loads.of(module).loads and ModuleSequences.of(module) is None
