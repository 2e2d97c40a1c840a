"""`stagec.compile(...)`: a model and a plan, compiled, as an object that can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stagec.advice import warnings
from stagec.api.arguments import checks_arguments
from stagec.api.asked import Asked, Files, Sizes, asked_for, while_allowed
from stagec.api.tables import SweptTable, Table, framed
from stagec.api.traces import WithTraces, chosen
from stagec.backend.files import write_whole
from stagec.backend.program import TraceSet
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.driver import Stops
from stagec.estimate.step import Estimate, estimate, estimate_if_known
from stagec.explaining.algebra import as_text, simplified
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.ir_text import print_ir
from stagec.memory import TITLES
from stagec.reports.headline import Headline, headline
from stagec.reports.memory_charts import Scene, memory_section
from stagec.reports.step_report import report_page
from stagec.reports.step_timeline import picture, task_rows
from stagec.summary import Summary, summarize


@checks_arguments("stagec.compile")
def compile_job(
    source: str | Path,
    plan: str | None = None,
    set: Sizes | None = None,
    device: str | Path | None = None,
    network: str | Path | None = None,
    load_pass: Files = (),
    *,
    allow_code: bool = False,
    trust: Files = (),
) -> Job:
    """Compile a model: a file's path, the name of one that ships, or a text (a string of several lines).

    `plan` names one of its plans, the first if none is named; `set` has the sizes of dims and mesh axes that are to be others;
    `device` puts the plan on another device, by its name or file or as a plan says it (`h100 { node = 4 }`), and `network` on the cluster of an
    InfraGraph file. `load_pass` are Python files with passes that plans run and ops that models call. Python that the model names (a schedule of its
    own) runs with `allow_code`, or from a folder that you `trust`; files that it names are read from its own folder and from those. `CompileError`
    with all mistakes.
    """
    asked = asked_for(
        source, plan, set, device, network, load_pass, allow_code=allow_code, trust=trust
    )
    return Job(asked.compiled(), asked, lambda: asked.compiled(Stops(unroll=False)), asked.doubts)


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
    @while_allowed
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
    @while_allowed
    def mfu(self) -> float:
        """Model FLOPs utilisation, from 0 to 1."""
        return self._estimate.mfu

    @property
    @while_allowed
    def peak_bytes(self) -> int:
        """Peak memory of a step in bytes, of the rank that needs most."""
        return max(each.peak_bytes for each in self._compiled.memory)

    @property
    @while_allowed
    def peak_bytes_along_time(self) -> int:
        """Peak memory along the estimated time of the step, where communication that lags behind keeps its buffers. E0410 if the plan names no device."""
        return max(each.num_bytes for each in self._estimate.timed_peaks)

    @cached_property
    @while_allowed
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
    @while_allowed
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
    @while_allowed
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
    @while_allowed
    def timeline(self) -> TimelineTable:
        """The tasks of each rank class in time, [tasks]: starts and ends in µs from the start of the step. E0410 if the plan names no device."""
        rows = task_rows(self._compiled, self._estimate)
        names = ("class", "task", "stage", "microbatch", "start_us", "end_us")
        drawn = picture(rows, self._estimate.step_time_us)
        return TimelineTable(Table.of_rows(names, (row.values for row in rows)), drawn)

    # Questions

    @checks_arguments("Job.explain")
    @while_allowed
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
        write_whole(os.fspath(path), self._page.encode())

    def __repr__(self) -> str:
        return f"{self.model}, plan {self.plan}, {self.num_ranks:,} ranks\n" + "\n".join(
            self.headline.lines()
        )

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{line}</p>" for line in repr(self).splitlines())
        return framed(lines) + self.summary._repr_html_()

    # Inside

    @while_allowed
    def _chosen(self, track_memory: bool) -> TraceSet:
        return chosen(self._compiled, track_memory)

    @property
    @while_allowed
    def _page(self) -> str:
        return report_page([self._compiled])

    @cached_property
    @while_allowed
    def _summary(self) -> Summary:
        compiled = self._compiled
        return summarize(compiled.module, compiled.counts, compiled.plan.name)

    @cached_property
    @while_allowed
    def _estimate(self) -> Estimate:
        return estimate(self._compiled)

    @cached_property
    @while_allowed
    def _scene(self) -> Scene:
        try:
            timeline = self._estimate.timeline
        except CompileError:
            timeline = None
        return Scene(self._compiled.memory, timeline, self._compiled.plan.device.capacity)

    @cached_property
    @while_allowed
    def _question(self) -> NamedJob:
        return NamedJob(self._rolled())


class MemoryTable(Table):
    """The table of memory, which a notebook shows with memory over time."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], scene: Scene) -> None:
        super().__init__(columns, "memory of one rank at its peak (bytes)")
        self.scene = scene

    def _repr_html_(self) -> str:
        return framed(memory_section(self.scene)) + super()._repr_html_()


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
