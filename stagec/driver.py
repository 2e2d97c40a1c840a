"""compile_model(): the whole compiler on one page.

    text -> syntax -> stg -> passes -> sched -> one rolled trace program per rank class

What remains, writing a file per rank, is `stagec.backend.write_traces`. A series of iterations is compiled by `stagec.series`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.advice import Suggestion, check_memory
from stagec.analysis.placement import contexts_of_nothing
from stagec.backend.lowering.programs import Unroller
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Span
from stagec.frontend import (
    CheckedModel,
    check,
    check_not_a_part,
    extended,
    lower,
    parse_file,
    parse_text,
    plan_of_model,
)
from stagec.frontend.checker import Adapt, on_device_of_command
from stagec.idle_times import idle_exchanges, idle_in_times
from stagec.ir_text import Said, locate, parse_ir, verify_ir
from stagec.pass_manager import (
    PassLoader,
    Stops,
    check_names,
    check_stop,
    check_whole,
    not_watched,
    plan_passes,
    remaining_passes,
    run_passes,
    told,
    with_notes_closed,
    write_down,
)
from stagec.pipelines import default_pipeline, final_passes, make
from stagec.plans.clauses import Plan
from stagec.plans.in_ir import stated_plan
from stagec.plugins import Registry, registry
from stagec.rewriting import programs
from stagec.symbolic import conditions
from stagec.unrolling.module import UnrollingContext, rank_runs
from stagec.without_effect import IdleParts


def compile_model(
    path: str | Path,
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    stops: Stops | None = None,
    plug_ins: Registry | None = None,
) -> Compiled:
    """Compile the model in a file. Raises `CompileError` with every mistake that a phase found."""
    source = parse_file(path)
    known = plug_ins or registry()
    return compile_checked(
        lambda: check(source, plan, overrides or {}, known.functions),
        stops=stops,
        load_pass=known.make_pass,
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
    source = parse_text(text, name)
    return compile_checked(
        lambda: check(source, plan, overrides or {}, registry().functions), stops=stops
    )


def compile_checked(
    make: Callable[[], CheckedModel],
    *,
    stops: Stops | None = None,
    load_pass: PassLoader | None = None,
    seen: Callable[[CheckedModel, ModuleOp], object] = lambda checked, module: None,
    handed: Sequence[Operation] = (),
) -> Compiled:
    """Compile the model that `make` checks; `seen` is told of it before any pass. `handed` says which pool of a job it is, and what that hands over.

    Where devices or iterations have other sequences, what sizes decide is noted on the way, and has to come out the same for all.
    """

    def compiled(checked: CheckedModel) -> Compiled:
        module = lower(checked)
        with conditions.unrecorded():
            seen(checked, module)
        return compile_program(checked, module, stops=stops, load_pass=load_pass, handed=handed)

    checked = make()
    is_noted = conditions.recorder() is not None
    if is_noted or checked.batch is None or checked.batch.sums is None:
        return compiled(checked)
    with conditions.recording():
        return compiled(make())


def compile_program(
    checked: CheckedModel,
    module: ModuleOp | None = None,
    *,
    stops: Stops | None = None,
    load_pass: PassLoader | None = None,
    handed: Sequence[Operation] = (),
) -> Compiled:
    """Compile a checked model to trace programs. `module` is its IR, if it has been lowered already."""
    stops = stops or Stops()
    if not handed:
        check_not_a_part(checked)
        checked = checked.alone
    module, texts = module or lower(checked), checked.source.texts
    plan = without_idle_contexts(checked, module)
    stated = plan_of_model(replace(checked, plan=plan), module)
    passes = [
        *default_pipeline(plan, stated, checked.sends_unequally, handed),
        *plan_passes(plan, load_pass or registry().make_pass),
        *final_passes(plan),
        *map(make, stops.further),
    ]
    check_names(module, plan)
    write_down(module, stated, passes)
    module.body.block.insert_ops_before(handed, programs(module)[0])
    numbers = checked.batch.sums.numbers if checked.batch and checked.batch.sums else ()
    stops = with_notes_closed(stops, numbers)
    start = Compiled(plan, module, None, model=checked, sources=texts)
    if told(stops, "lower", module):
        return start
    check_stop(stops, passes)
    return finish(start, passes, stops, load_pass, checked.unsaid_settings, handed)


def without_idle_contexts(checked: CheckedModel, module: ModuleOp) -> Plan:
    """The plan without contexts that are about nothing, of which a user is told (W0304). They leave `module` too."""
    plan, idle = checked.plan, contexts_of_nothing(module, checked.batch_dim)
    for op in idle:
        op.detach()
    gone = {op.axes.data for op in idle}
    contexts = (c for c in plan.contexts if plan.products.get(c.axis, (c.axis,)) not in gone)
    return replace(plan, contexts=tuple(contexts)) if idle else plan


def compile_ir(
    text: str,
    name: str,
    *,
    stops: Stops | None = None,
    plug_ins: Registry | None = None,
    adapt: Adapt = lambda plan: plan,
) -> Compiled:
    """Compile IR, printed after any pass, to trace programs, with the plan and the passes that it names. E0709 for a program without an end."""
    known = plug_ins or registry()
    context = Context()
    for dialect, factory in known.dialects.items():
        context.register_dialect(dialect, factory)
    said: Said = {}
    module = parse_ir(context, text, name, said=said)
    verify_ir(module, {name: text})
    try:
        plan, passes = check_whole(module, known.make_pass)
        locate(said)
        stops = stops or Stops()
        passes += [make(name) for name in stops.further if name not in {p.name for p in passes}]
        check_stop(stops, passes)
        stated = stated_plan(module)
        plan, own, idle = on_device_of_command(
            plan, adapt, frozenset(), serves=stated.new_dim is not None, trains=stated.is_training
        )
        start = Compiled(plan, module, None, sources={name: text}, idle=tuple(idle))
        own -= {each.span for each in idle}
        return finish(start, passes, stops, known.make_pass, own)
    except CompileError as error:
        raise CompileError(error.diagnostics, {name: text, **error.sources}) from error


def finish(
    start: Compiled,
    passes: Sequence[ModulePass],
    stops: Stops,
    load_pass: PassLoader | None,
    own: Collection[Span] = (),
    handed: Sequence[Operation] = (),
) -> Compiled:
    """Run the passes that are left, and unroll what they say into trace programs. Of settings at `own` it is told whether they change something."""
    module = start.module
    parts, context = IdleParts(start.plan, own), UnrollingContext()
    watching = parts.watching if stops.verify else not_watched
    stopped = run_passes(module, passes, stops, watching, context)
    start = replace(start, idle=(*start.idle, *parts.diagnostics()))
    if stops.verify:
        start = replace(start, idle=(*start.idle, *idle_in_times(start)))
    if stopped:
        return start
    runs = rank_runs(module, context.unrolled)
    unroller = Unroller(context.unrolled.arrangements, context.unrolled.queues)
    start = replace(start, runs=runs, unroller=unroller)
    if not stops.unroll:
        return start
    traces = unroller.trace_set(module, runs)
    idle = (*start.idle, *idle_exchanges(start, lambda: traces))
    compiled = replace(start, traces=traces, idle=idle)
    check_memory(compiled, lambda change: compiled_with(start, change, load_pass, handed))
    return compiled


def resumed(like: Compiled, module: ModuleOp, load_pass: PassLoader) -> Compiled:
    """What becomes of a module in the middle of its compilation, whose plan is that of a compiled one but for sizes. It is neither verified nor unrolled."""
    start = replace(like, module=module, traces=None, runs=(), unroller=Unroller(), idle=())
    stops = Stops(unroll=False, verify=False)
    return finish(start, remaining_passes(module, load_pass), stops, load_pass)


def compiled_with(
    start: Compiled,
    change: Suggestion,
    load_pass: PassLoader | None,
    handed: Sequence[Operation],
) -> Compiled | None:
    """The model with a changed plan; nothing where that does not compile, or there is no model."""
    model, plan = start.model, start.plan
    if model is None:
        return None
    try:
        found = extended(model, change.texts, registry().functions)
        if found is None:
            found = replace(model, plan=change.applied(plan))
        # The device and its links may be those of a command. Its limit is what the change is for.
        device = replace(plan.device, memory=None)
        found = replace(found, plan=replace(found.plan, device=device, links=plan.links))
        stops, said = Stops(verify=False), [op.clone() for op in handed]
        return compile_program(found, stops=stops, load_pass=load_pass, handed=said)
    except CompileError:
        return None
