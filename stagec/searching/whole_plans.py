"""Compile a plan as a whole: the task of a worker process that proves a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects.sched.actions import Compute
from stagec.driver import compile_program
from stagec.estimate import Timeline, estimate
from stagec.estimate.graph import build_graph
from stagec.frontend import check, parse_text
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import loaded
from stagec.searching.evaluation import NAME
from stagec.searching.sensitivity import with_twice


@dataclass(frozen=True)
class WholePlan:
    """A plan to compile as a whole."""

    file: str
    text: str
    """The text of the model's file, with the plan at its end."""
    number: int
    """The number of the plan, by which its answer is found."""
    overrides: tuple[tuple[str, str], ...] = ()
    """The sizes that `--set` gives."""
    wants_twice: bool = False
    """Whether the step is also estimated with twice of each number of the device (`stagec.searching.sensitivity`)."""
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""


@dataclass(frozen=True)
class WholeAnswer:
    """The result of compiling a plan as a whole."""

    number: int
    """The number of the plan."""
    step_time: float = 0.0
    """Seconds of a step."""
    peak_bytes: int = 0
    """Bytes of the rank that needs most."""
    compute: float = 0.0
    """Seconds that the rank which computes longest computes."""
    with_twice: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step with twice of each number of the device, by the number's name, if that was asked."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """The errors, if the plan does not compile."""

    @property
    def error(self) -> str:
        """The message of the first error; empty if the plan compiles."""
        return self.diagnostics[0].message if self.diagnostics else ""


def compiled_whole(proof: WholePlan) -> WholeAnswer:
    """Compile a plan to its trace programs, follow a step of all ranks, and plan its memory."""
    try:
        with mistakes_of_plug_ins():
            known = loaded(proof.plug_ins)
            source, sizes = parse_text(proof.text, proof.file), dict(proof.overrides)
            checked = check(source, NAME, sizes, known.functions)
            plan = replace(checked.plan, device=replace(checked.plan.device, memory=None))
            compiled = compile_program(replace(checked, plan=plan), load_pass=known.make_pass)
            launches = not plan.device.graphs
            graph = (
                build_graph(compiled.trace_set, launches=launches) if proof.wants_twice else None
            )
            found = estimate(compiled, graph=graph)
    except CompileError as error:
        return WholeAnswer(proof.number, diagnostics=tuple(error.diagnostics))
    return WholeAnswer(
        proof.number,
        found.step_time_us / 1e6,
        max(each.peak_bytes for each in compiled.memory),
        computing(compiled, found.timeline),
        with_twice(compiled, graph) if graph is not None else {},
    )


def computing(compiled: Compiled, timeline: Timeline) -> float:
    """Seconds that the rank which computes longest computes."""
    longest = 0.0
    for number, rank_class in enumerate(compiled.trace_set.classes):
        start, end = timeline.of_class(number)
        program = rank_class.program
        first = program.first_node
        total = 0.0
        for index, segment in enumerate(program.segments):
            rows = np.flatnonzero(program.segment == index)
            for at, node in enumerate(segment.nodes):
                if isinstance(node.action, Compute) and len(rows):
                    total += float((end - start)[first[rows] + at].sum())
        longest = max(longest, total)
    return longest / 1e6
