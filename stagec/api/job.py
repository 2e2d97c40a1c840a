"""`stagec.compile(...)`: a model and a plan, compiled, as an object that can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stagec.advice import warnings
from stagec.api.arguments import checks_arguments
from stagec.api.tables import Table, framed
from stagec.api.traces import PassFiles, WithTraces, chosen, files_of
from stagec.backend.files import write_whole
from stagec.backend.program import TraceSet
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.driver import Stops, compile_checked
from stagec.estimate.step import Estimate, estimate, estimate_if_known, on_device
from stagec.explaining.algebra import as_text, simplified
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.frontend import CheckedModel, check, lower, parse_file, parse_text, warnings_of
from stagec.frontend.files import Source
from stagec.ir_text import print_ir
from stagec.memory import TITLES
from stagec.plans.clauses import Plan
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import Registry, registry
from stagec.reports.headline import Headline, headline
from stagec.reports.memory_charts import Scene, memory_section
from stagec.reports.step_report import report_page
from stagec.reports.step_timeline import picture, task_rows
from stagec.simulators.infragraph import on_network
from stagec.summary import Summary, summarize
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest, computed
from stagec.sweeping.pools import names_of_plan, table_of
from stagec.sweeping.run import SweepTable

Sizes = Mapping[str, int | str]


@checks_arguments("stagec.compile")
def compile_job(
    source: str | Path,
    plan: str | None = None,
    set: Sizes | None = None,
    device: str | None = None,
    network: str | Path | None = None,
    load_pass: PassFiles = (),
) -> Job:
    """Compile a model: a file's path, or a text (a string of several lines).

    `plan` names one of its plans, the first if none is named; `set` has the sizes of dims and mesh axes that are to be others;
    `device` puts the plan on another device, by its name or file, and `network` on the cluster of an InfraGraph file. `load_pass` are Python
    files with passes that plans run and ops that models call. `CompileError` with all mistakes.
    """
    read = read_source(source)
    sizes = {name: str(size) for name, size in (set or {}).items()}
    plug_ins = registry(files_of(load_pass))
    asked = Asked(read, plan, sizes, plug_ins, devices(device, network))

    def checked() -> CheckedModel:
        return check(read, plan, sizes, plug_ins.functions).adapted(asked.adapt)

    with mistakes_of_plug_ins():
        compiled = compile_checked(checked, load_pass=plug_ins.make_pass)

    def rolled() -> Compiled:
        stops = Stops(unroll=False)
        return compile_checked(checked, stops=stops, load_pass=plug_ins.make_pass)

    def doubts() -> Sequence[Diagnostic]:
        made = checked()
        return warnings_of(made, lower(made))

    return Job(compiled, asked, rolled, doubts)


def devices(device: str | None, network: str | Path | None) -> Callable[[Plan], Plan]:
    """A function that puts a plan on another device, and on another network."""

    def adapt(plan: Plan) -> Plan:
        plan = plan if device is None else on_device(plan, device)
        return plan if network is None else on_network(plan, os.fspath(network))

    return adapt


@dataclass(frozen=True)
class Asked:
    """The arguments of a compilation; a sweep compiles them again with other sizes."""

    source: Source
    plan: str | None
    sizes: Mapping[str, str]
    plug_ins: Registry
    adapt: Callable[[Plan], Plan]

    def sweep(
        self, quantities: Sequence[str], varied: Mapping[str, int | str | Sequence[int]]
    ) -> SweptTable:
        texts = [f"{name}={listed(values)}" for name, values in varied.items()]
        known = names_of_plan(self.source, self.plan)
        names = grid(texts, known)
        request = SweepRequest(
            self.source,
            self.plan,
            self.sizes,
            names,
            computed(quantities, names),
            self.adapt,
            self.plug_ins,
        )
        with mistakes_of_plug_ins():
            found = table_of(request)
        return SweptTable(found)


def read_source(source: str | Path) -> Source:
    """A path, or a text if there is a line break in it."""
    if isinstance(source, str) and "\n" in source:
        return parse_text(source)
    return parse_file(os.fspath(source))


@dataclass(frozen=True)
class Explanation:
    """A quantity of one step: of the rank that has most."""

    title: str
    unit: str
    value: int | float
    form: str
    """The closed form, in the names of dims and mesh axes."""
    classes: Table
    """Its value on a rank of each class."""
    parts: Table
    """What each place of the model contributes to the value, the largest first."""

    def __repr__(self) -> str:
        return f"{self.title}: {self.value:,} {self.unit} = {self.form}"

    def _repr_html_(self) -> str:
        return framed(f"<p>{self!r}</p>") + self.parts._repr_html_()


class Job(WithTraces):
    """A compiled model and plan. Everything is computed when it is first asked for, and kept."""

    def __init__(
        self,
        compiled: Compiled,
        asked: Asked,
        rolled: Callable[[], Compiled],
        doubts: Callable[[], Sequence[Diagnostic]],
    ) -> None:
        """`rolled` compiles it once more, with its layers still in loops: what questions are about. `doubts` are those before any pass."""
        self._compiled = compiled
        self._asked = asked
        self._rolled = rolled
        self._doubts = doubts

    # What it is

    @property
    def model(self) -> str:
        return self._summary.model

    @property
    def plan(self) -> str:
        """The plan's name."""
        return self._compiled.plan.name

    @property
    def mesh(self) -> dict[str, int]:
        """Axes and their sizes, the slowest-varying first."""
        mesh = self._compiled.trace_set.mesh
        return dict(zip(mesh.axes, mesh.sizes, strict=True))

    @property
    def num_ranks(self) -> int:
        return self._summary.num_ranks

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, each counted once."""
        return self._summary.num_parameters

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Warnings about the model and its plan: diagnostics with a code, a message and advice."""
        return (
            *self._doubts(),
            *warnings(self._compiled, estimate_if_known(self._compiled)),
        )

    @property
    def ir(self) -> str:
        """The program of a rank after the last pass, as text."""
        return print_ir(self._compiled.module)

    # What a step costs

    @property
    def step_time(self) -> float:
        """How long a step takes, in seconds. E0410 if the plan names no device."""
        return self._estimate.step_time_us / 1e6

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, from 0 to 1."""
        return self._estimate.mfu

    @property
    def peak_bytes(self) -> int:
        """Peak memory of a step in bytes, of the rank that needs most."""
        return max(each.peak_bytes for each in self._compiled.memory)

    @property
    def peak_bytes_along_time(self) -> int:
        """Peak memory along the estimated time of the step, where communication that lags behind keeps its buffers. E0410 if the plan names no device."""
        return max(each.num_bytes for each in self._estimate.timed_peaks)

    @cached_property
    def headline(self) -> Headline:
        """What the command line prints first: time, utilisation, throughput, and whether it fits."""
        return headline(self._compiled)

    @cached_property
    def summary(self) -> Table:
        """What one rank of each class does in one step, [rank classes]: counts of ranks, nodes and parameters, FLOPs, bytes."""
        names = (
            "class",
            "ranks",
            "nodes",
            "parameters",
            "matrix_flops",
            "other_flops",
            "moved_bytes",
        )
        rows = (
            (
                each.name,
                each.num_ranks,
                each.num_nodes,
                each.parameters.count,
                each.matrix_flops,
                each.other_flops,
                each.bytes_moved,
            )
            for each in self._summary.classes
        )
        return Table.of_rows(names, rows, f"{self.model}, plan {self.plan}: one rank, one step")

    @cached_property
    def communication(self) -> Table:
        """Collectives and transfers of one rank in one step, [rank classes x axes x kinds]: how many, and their bytes before and after on that rank."""
        names = ("class", "over", "kind", "count", "operand_bytes", "result_bytes")
        rows = (
            (
                each.name,
                "+".join(t.axes) or "host",
                t.kind,
                t.count,
                t.operand_bytes,
                t.result_bytes,
            )
            for each in self._summary.classes
            for t in each.traffic
        )
        return Table.of_rows(names, rows, "communication of one rank, one step")

    @cached_property
    def memory(self) -> MemoryTable:
        """Memory of one rank of each class at its peak, by kind, [rank classes]: bytes."""
        kinds = [kind for kind in TITLES if any(c.at_peak()[kind] for c in self._compiled.memory)]
        columns: dict[str, list[Any]] = {
            "class": [each.name for each in self._compiled.memory],
            "peak_bytes": [each.peak_bytes for each in self._compiled.memory],
        }
        for kind in kinds:
            columns[TITLES[kind]] = [each.at_peak()[kind] for each in self._compiled.memory]
        return MemoryTable(columns, self._scene)

    @cached_property
    def timeline(self) -> TimelineTable:
        """The tasks of each rank class in time, [tasks]: starts and ends in µs from the start of the step. E0410 if the plan names no device."""
        rows = task_rows(self._compiled, self._estimate)
        names = ("class", "task", "stage", "microbatch", "start_us", "end_us")
        drawn = picture(rows, self._estimate.step_time_us)
        return TimelineTable(Table.of_rows(names, (row.values for row in rows)), drawn)

    # Questions

    @checks_arguments("Job.explain")
    def explain(self, what: str) -> Explanation:
        """A quantity, its closed form and its parts: `flops`, `comm.tp.all_gather`, `memory.peak`, ... E0715 if there is no such."""
        answer = ask(self._question, what)
        worst = answer.worst
        classes = Table.of_rows(
            ("class", "value"), ((each.name, plain(each.value)) for each in answer.classes)
        )
        parts = Table.of_rows(
            ("value", "module", "op", "source", "made_by"),
            (
                (p.value, p.scope, p.op, p.location, p.made_by)
                for p in sorted(worst.parts, key=lambda p: -p.value)
            ),
        )
        written = self._question.names.written_out(worst.form)
        form = as_text(simplified(worst.form, written))
        return Explanation(answer.title, answer.unit, plain(worst.value), form, classes, parts)

    @checks_arguments("Job.sweep")
    def sweep(self, *quantities: str, **varied: int | str | Sequence[int]) -> SweptTable:
        """A row per plan: `job.sweep("flops", "memory.peak", tp=[1, 2, 4, 8], pp="1..16")`. Of plans that do not compile `infeasible` says why."""
        return self._asked.sweep(quantities, varied)

    # Traces and pages

    @checks_arguments("Job.report")
    def report(self, path: str | Path) -> None:
        """Write the page of `--report`: one file with the timeline, memory, traffic and costs."""
        write_whole(os.fspath(path), report_page([self._compiled]).encode())

    def __repr__(self) -> str:
        return f"{self.model}, plan {self.plan}, {self.num_ranks:,} ranks\n" + "\n".join(
            self.headline.lines()
        )

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{line}</p>" for line in repr(self).splitlines())
        return framed(lines) + self.summary._repr_html_()

    # Inside

    def _chosen(self, track_memory: bool) -> TraceSet:
        return chosen(self._compiled, track_memory)

    @cached_property
    def _summary(self) -> Summary:
        compiled = self._compiled
        return summarize(compiled.module, compiled.counts, compiled.plan.name)

    @cached_property
    def _estimate(self) -> Estimate:
        return estimate(self._compiled)

    @cached_property
    def _scene(self) -> Scene:
        try:
            timeline = self._estimate.timeline
        except CompileError:
            timeline = None
        return Scene(self._compiled.memory, timeline, self._compiled.plan.device.capacity)

    @cached_property
    def _question(self) -> NamedJob:
        with mistakes_of_plug_ins():
            return NamedJob(self._rolled())


class MemoryTable(Table):
    """The table of memory, which a notebook shows with memory over time."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], scene: Scene) -> None:
        super().__init__(columns, "memory of one rank at its peak (bytes)")
        self.scene = scene

    def _repr_html_(self) -> str:
        return framed(memory_section(self.scene)) + super()._repr_html_()


class SweptTable(Table):
    """The plans of a sweep. It prints how many there are, and why the others do not compile, as the command does."""

    def __init__(self, found: SweepTable) -> None:
        columns = {name: column.tolist() for name, column in found.columns.items()}
        super().__init__(columns, "one step; of the rank that has most")
        self.num_plans = found.num_points
        """How many plans were asked for."""
        self.infeasible = dict(found.reasons)
        """Why plans are no rows, and how many for each reason."""
        self._in_words = found.in_words()

    def left_out(self) -> list[str]:
        return [*super().left_out(), *self._in_words]


class TimelineTable(Table):
    """The tasks of a step, which a notebook shows as a timeline."""

    def __init__(self, table: Table, drawn: str) -> None:
        super().__init__(table, "tasks of a step (µs)")
        self.drawn = drawn

    def _repr_html_(self) -> str:
        return framed(self.drawn)


def plain(value: Any) -> int | float:
    """A whole number, or a float of a fraction."""
    return value if isinstance(value, int) else float(value)


def listed(values: int | str | Sequence[int]) -> str:
    if isinstance(values, str) or not isinstance(values, Collection):
        return str(values)
    return ",".join(map(str, values))
