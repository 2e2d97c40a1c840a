"""compile_model(): the whole compiler on one page.

    text -> syntax -> stg -> passes -> sched -> one rolled trace program per rank class

What remains, writing a file per rank, is `stagec.backend.write_traces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.sizes import mesh_of
from stagec.backend.program import Mesh, TraceSet
from stagec.classes import RankTasks, rank_classes, rank_tasks
from stagec.diagnostics import CompileError, Diagnostic, Span
from stagec.dialects import stg
from stagec.facts import ModelFacts
from stagec.frontend import CheckedModel, check, lower, parse_file, parse_text
from stagec.frontend.plans.plan import Argument, Plan
from stagec.ir_text import Verifier
from stagec.memory import (
    Change,
    ClassPlan,
    Tried,
    changes,
    doubt,
    explain,
    plan_memory,
    together,
    too_much,
    with_tensors,
)
from stagec.pipelines import default_pipeline, final_passes
from stagec.plugins import registry
from stagec.rewriting import programs
from stagec.schedules.catalogue import FORWARD_ONLY

PassLoader = Callable[[str, Mapping[str, Argument]], ModulePass]
"""Makes a pass from its name and its arguments."""


@dataclass(frozen=True)
class Compiled:
    """A model and a plan, compiled: the IR where it stopped, and the traces if it got there."""

    checked: CheckedModel
    module: ModuleOp
    traces: TraceSet | None
    facts: ModelFacts | None = None
    tasks: Sequence[RankTasks] = ()
    """What each rank class runs; its layouts serve the traces and the plan of memory."""

    @property
    def plan(self) -> Plan:
        return self.checked.plan

    @property
    def trace_set(self) -> TraceSet:
        assert self.traces is not None, "the compilation stopped before"
        return self.traces

    @cached_property
    def memory(self) -> list[ClassPlan]:
        """The memory of each rank class."""
        assert self.facts is not None, "the compilation stopped before"
        # Asked of tasks alone, as by `stagec explain`, there are no traces to share layouts with.
        return plan_memory(self.tasks or list(rank_tasks(self.module, self.facts)), self.plan)

    @cached_property
    def warnings(self) -> list[Diagnostic]:
        """What is doubtful, seen from the end: W0501."""
        fits = self.traces is None or self.plan.device.capacity is None
        return [] if fits else doubt(self.memory, self.plan.device)

    @cached_property
    def tracked(self) -> TraceSet:
        """The traces, with the tensors that each node reads and writes."""
        traces = self.trace_set
        pairs = zip(traces.classes, self.memory, strict=True)
        return replace(traces, classes=tuple(with_tensors(ranks, plan) for ranks, plan in pairs))


@dataclass(frozen=True)
class Stops:
    """Where to stop, and what to do on the way."""

    after: str | None = None
    """A pass' name, or `lower` for the IR of the frontend."""
    on_pass: Callable[[str, ModuleOp], None] | None = None
    """Told the IR after each pass."""


def compile_model(
    path: str | Path,
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    stops: Stops | None = None,
    load_pass: PassLoader | None = None,
) -> Compiled:
    """Compile the model in a file. Raises `CompileError` with every mistake that a phase found."""
    return compile_program(
        check(parse_file(path), plan, overrides or {}), stops=stops, load_pass=load_pass
    )


def compile_text(
    text: str,
    name: str = "<text>",
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    stops: Stops | None = None,
) -> Compiled:
    """Like `compile_model`, for a model that is in no file."""
    return compile_program(check(parse_text(text, name), plan, overrides or {}), stops=stops)


def compile_program(
    checked: CheckedModel, *, stops: Stops | None = None, load_pass: PassLoader | None = None
) -> Compiled:
    """From a checked model to trace programs."""
    stops = stops or Stops()
    module = lower(checked)
    if told(stops, "lower", module):
        return Compiled(checked, module, None)
    facts = model_facts(module, checked.plan)
    passes = [
        *default_pipeline(checked.plan, facts),
        *plan_passes(checked.plan, load_pass or registry().make_pass),
        *final_passes(checked.plan),
    ]
    check_stop(stops, passes)
    with shown_in_the_plan(checked.plan):
        if run_passes(module, passes, stops):
            return Compiled(checked, module, None, facts)
        tasks = list(rank_tasks(module, facts))
        traces = trace_set(module, tasks)
    compiled = Compiled(checked, module, traces, facts, tasks)
    check_memory(compiled, load_pass)
    return compiled


def check_memory(compiled: Compiled, load_pass: PassLoader | None) -> None:
    """E0501 if a rank needs more memory than the plan says a device has."""
    limit = compiled.plan.device.memory
    worst = too_much(compiled.memory, limit) if limit is not None else None
    if worst is None or limit is None:
        return
    assert compiled.facts is not None
    tried = [*tries(compiled, changes(compiled.plan, compiled.facts), load_pass)]
    if all(each.peak_bytes > limit for each in tried):
        combined = together(tried)
        tried += tries(compiled, [combined] if combined is not None else [], load_pass)
    raise CompileError([explain(worst, compiled.plan, tried)])


def tries(
    compiled: Compiled, changed: Iterable[Change], load_pass: PassLoader | None
) -> Iterator[Tried]:
    """Each change, compiled. One that does not compile is none to propose."""
    for change in changed:
        plan = change.applied(compiled.plan)
        try:
            other = compile_program(replace(compiled.checked, plan=plan), load_pass=load_pass)
        except CompileError:
            continue
        yield Tried(change, max(each.peak_bytes for each in other.memory))


PIPELINE_SETTINGS = {"E0405": (), "E0407": ("layers", "first", "last"), "E0409": ("schedule",)}
"""What is wrong if a pipeline cannot be had; the clause itself where none of them is written."""


@contextmanager
def shown_in_the_plan(plan: Plan) -> Iterator[None]:
    """Show mistakes of a pipeline or of microbatches where the plan makes them: the IR, which passes see, has no place for them."""
    try:
        yield
    except CompileError as error:
        found = [replace(d, span=place_in(plan, d.code) or d.span) for d in error.diagnostics]
        raise CompileError(found) from error


def place_in(plan: Plan, code: str) -> Span | None:
    pipeline = plan.pipeline
    if code == "E0308":
        own = pipeline.given.get("microbatch", plan.microbatch_span) if pipeline else None
        return own or plan.microbatch_span or (pipeline.span if pipeline else None)
    if pipeline is None or code not in PIPELINE_SETTINGS:
        return None
    settings = PIPELINE_SETTINGS[code]
    written = [pipeline.given[name] for name in settings if name in pipeline.given]
    return next(iter(written), pipeline.span)


def model_facts(module: ModuleOp, plan: Plan) -> ModelFacts:
    """What the passes depend on, read off the IR. A schedule without backward passes evaluates the loss alone."""
    (program,) = programs(module)
    output = program.body.block.last_op
    assert isinstance(output, stg.OutputOp)
    inputs = [stg.tensor_type(a) for a in program.body.block.args]
    batch = next((t.names[0] for t in inputs if t.names), "")
    is_loss = len(output.values) == 1 and not stg.tensor_type(output.values[0]).dims
    evaluates = plan.pipeline is not None and plan.pipeline.schedule == FORWARD_ONLY
    return ModelFacts(batch, is_loss and not evaluates)


def plan_passes(plan: Plan, load_pass: PassLoader) -> list[ModulePass]:
    """The third-party passes that a plan calls."""
    made: list[ModulePass] = []
    found: list[Diagnostic] = []
    for call in plan.passes:
        try:
            made.append(load_pass(call.name, call.arguments))
        except CompileError as error:
            found += [replace(d, span=call.span) for d in error.diagnostics]
    if found:
        raise CompileError(found)
    return made


def check_stop(stops: Stops, passes: Sequence[ModulePass]) -> None:
    """A `--stop-after` that never comes is a mistake."""
    names = [p.name for p in passes]
    if stops.after is not None and stops.after not in names:
        raise CompileError(
            [
                Diagnostic(
                    "E0706",
                    f"`{stops.after}` is not a pass of this compilation",
                    origin=f"--stop-after {stops.after}",
                    help=f"its passes are {', '.join(['lower', *names])}",
                )
            ]
        )


def run_passes(module: ModuleOp, passes: Sequence[ModulePass], stops: Stops) -> bool:
    """Run the passes with the verifier around each; whether it stopped at the one asked for."""
    context, verifier = Context(), Verifier()
    for each in passes:
        each.apply(context, module)
        verify(module, each, verifier)
        if told(stops, each.name, module):
            return True
    return False


def verify(module: ModuleOp, after: ModulePass, verifier: Verifier) -> None:
    """IR that does not verify is a pass' mistake: ours is no user's."""
    try:
        verifier.verify(module)
    except CompileError as error:
        ours = type(after).__module__.startswith("stagec.")
        assert not ours, f"the IR after `{after.name}` does not verify: {error}"
        notes = [f"after the pass `{after.name}`"]
        raise CompileError([replace(d, notes=notes) for d in error.diagnostics]) from error


def told(stops: Stops, name: str, module: ModuleOp) -> bool:
    if stops.on_pass is not None:
        stops.on_pass(name, module)
    return stops.after == name


def trace_set(module: ModuleOp, tasks: Sequence[RankTasks]) -> TraceSet:
    """The trace programs of every rank class."""
    sizes = mesh_of(module)
    mesh = Mesh(tuple(sizes), tuple(sizes.values()))
    return TraceSet(programs(module)[0].model.data, mesh, tuple(rank_classes(tasks)))
