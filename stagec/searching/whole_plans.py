"""Compile a plan as a whole: the task of a worker process that proves a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan, nan
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp

from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.driver import Stops, compile_checked
from stagec.estimate.breakdown import breakdown, computing_us_of_classes, longest
from stagec.estimate.few_microbatches import FewMicrobatches, told_by_few
from stagec.estimate.graph import build_graph
from stagec.estimate.many_microbatches import ManyMicrobatches, look
from stagec.estimate.step import estimate
from stagec.frontend import CheckedModel, check, parse_text
from stagec.plans.clauses import Plan
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import loaded
from stagec.searching.evaluation import NAME, NO_MEMORY
from stagec.searching.sensitivity import with_twice

MOST_OPS = 2**17
"""Ops that microbatches run on the ranks of one pipeline: of more, few microbatches are asked first. A search compiles many plans."""


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


class IdleSetting(NamedTuple):
    """A setting that changes nothing, and where it stands in a line of the plan."""

    message: str
    label: str
    help: str
    line: str
    start: int
    end: int

    @staticmethod
    def of(compiled: Compiled) -> Iterator[IdleSetting]:
        """Those that the plan itself says."""
        for each in (*compiled.checked.warnings, *compiled.idle):
            if each.code != "W0304" or each.span is None:
                continue
            line = compiled.sources[each.span.file].split("\n")[each.span.line - 1]
            start = each.span.column - 1 - (len(line) - len(line.lstrip()))
            end = start + each.span.end_column - each.span.column
            yield IdleSetting(
                each.message, each.label, "; ".join(each.helps), line.strip(), start, end
            )


@dataclass(frozen=True)
class WholeAnswer:
    """The result of compiling a plan as a whole."""

    number: int
    """The number of the plan."""
    step_time: float = 0.0
    """Seconds of a step."""
    peak_bytes: int = 0
    """Bytes of the rank that needs most."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Where they go on the rank that computes longest, in seconds (`stagec.estimate.breakdown`). The parts add up to the step."""
    with_twice: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step with twice of each number of the device, by the number's name, if that was asked."""
    idle: tuple[IdleSetting, ...] = ()
    """Settings that change nothing in the plan."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """The errors, if the plan does not compile."""

    @property
    def lacks_memory(self) -> bool:
        """Whether this machine has too little to compile it."""
        return any(each.code == "E0717" for each in self.diagnostics)

    @property
    def error(self) -> str:
        """The message of the first error; empty if the plan compiles."""
        return self.diagnostics[0].message if self.diagnostics else ""


def compiled_whole(proof: WholePlan) -> WholeAnswer:
    """Compile a plan to its trace programs, follow a step of all ranks, and plan its memory. Of very many microbatches two steps of few tell that, if they are
    shown to (`stagec.estimate.few_microbatches`).
    """
    try:
        with mistakes_of_plug_ins():
            return answered(proof, partial(compile_plan, proof))
    except CompileError as error:
        return WholeAnswer(proof.number, diagnostics=tuple(error.diagnostics))
    except MemoryError:
        return without_memory(proof)


def without_memory(proof: WholePlan) -> WholeAnswer:
    """The result of a plan for which there is too little memory here."""
    return WholeAnswer(proof.number, diagnostics=(Diagnostic("E0717", NO_MEMORY),))


def compile_plan(
    proof: WholePlan, stops: Stops | None = None, sizes: Mapping[str, str] | None = None
) -> Compiled:
    """Compile a plan, with further sizes if they are given. How much memory a device has is no limit here: the search has its own."""
    known = loaded(proof.plug_ins)
    source, sizes = parse_text(proof.text, proof.file), {**dict(proof.overrides), **(sizes or {})}

    def make() -> CheckedModel:
        checked = check(source, NAME, sizes, known.functions)
        plan = replace(checked.plan, device=replace(checked.plan.device, memory=None))
        return replace(checked, plan=plan)

    return compile_checked(make, stops=stops, load_pass=known.make_pass)


def answered(proof: WholePlan, compile_with: Callable[..., Compiled]) -> WholeAnswer:
    """The result of a plan that compiles."""

    def on_pass(name: str, module: ModuleOp) -> None:
        if name == "split-microbatches":
            look(module, MOST_OPS)

    try:
        compiled = compile_with(Stops(on_pass=on_pass))
    except ManyMicrobatches as many:
        steps = told_by_few(many, lambda dim, size: compile_with(None, {dim: str(size)}))
        found = (answered_by_few(proof, each) for each in steps)
        answer = next((each for each in found if each is not None), None)
        if answer is not None:
            return answer
        compiled = compile_with()
    launches = not compiled.plan.device.graphs
    graph = build_graph(compiled.trace_set, launches=launches) if proof.wants_twice else None
    found = estimate(compiled, graph=graph)
    twice: dict[str, float] = {}
    if proof.wants_twice:
        twice = with_twice(compiled.plan, lambda plan: estimate(compiled, plan, graph).step_time_us)
    return WholeAnswer(
        proof.number,
        found.step_time_us / 1e6,
        max(each.peak_bytes for each in compiled.memory),
        in_seconds(found.breakdown.parts),
        twice,
        tuple(IdleSetting.of(compiled)),
    )


def answered_by_few(proof: WholePlan, steps: FewMicrobatches) -> WholeAnswer | None:
    """The same of a step of many microbatches, by two of few; None if its time does not follow from theirs."""

    def step_us(plan: Plan | None = None) -> float:
        found = steps.estimates(plan)
        return steps.grown(*(e.step_time_us for e in found)) if found is not None else nan

    found = steps.estimates()
    twice = with_twice(steps.more.plan, step_us) if proof.wants_twice else {}
    if found is None or any(map(isnan, twice.values())):
        return None
    computing = (computing_us_of_classes(e.compiled.trace_set, e.timeline) for e in found)
    number = longest(steps.grown(*computing))
    few, more = (breakdown(e.compiled.trace_set, e.timeline, e.prices, number).parts for e in found)
    grown = {name: steps.grown(few.get(name, 0.0), more.get(name, 0.0)) for name in more}
    return WholeAnswer(
        proof.number,
        steps.grown(*(e.step_time_us for e in found)) / 1e6,
        max(each.peak_bytes for each in steps.more.memory),
        in_seconds(grown),
        twice,
        tuple(IdleSetting.of(found[1].compiled)),
    )


def in_seconds(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of a step in seconds, given those in µs."""
    return {name: us / 1e6 for name, us in parts.items()}
