"""`stagec MODEL.stg`: compile a model, print what a step costs, write its traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from stagec.advice import too_much
from stagec.cli.compile_flags import read_flags
from stagec.cli.compiled_programs import (
    one_step,
    refuse_in_series,
    save,
    show_parts,
    tell_memory,
    write_page,
)
from stagec.cli.device_flags import planned
from stagec.cli.inputs import (
    compile_input,
    compile_iterations,
    is_ir,
    modules_of_ir,
)
from stagec.cli.usage import overrides
from stagec.cli.watched_passes import watched
from stagec.compiled import Compiled, CompiledSeries
from stagec.diagnostics import quoted, refused, render
from stagec.dialects import dist
from stagec.driver import Stops
from stagec.estimate.many_microbatches import ManyMicrobatches, look
from stagec.frontend import Source, parse_file
from stagec.frontend.checker import pools_in
from stagec.frontend.plans.merge import DOT
from stagec.ir_text import refuse_about_ir
from stagec.plans.clauses import Plan
from stagec.plugins import Registry, registry


def run(arguments: Sequence[str]) -> int:
    options = read_flags(arguments)
    plug_ins = registry(options.load_pass)
    if plug_ins.warnings:
        sys.stderr.write(render(plug_ins.warnings))
    source = None if is_ir(options.model) else parse_file(options.model)
    if source is not None and pools_in(source, options.plan):
        from stagec.cli.compiled_pools import run_pools

        run_pools(options, plug_ins, source)
        return 0
    if source is None and len(texts := modules_of_ir(options.model)) > 1:
        from stagec.cli.compiled_pools import pools_of_ir, tell_pools

        tell_pools(pools_of_ir(options, plug_ins, texts), options)
        return 0
    if options.out is not None:
        from stagec.backend.destination import check_destination

        check_destination(options.out, force=bool(options.force))
    if options.iterations is not None:
        run_series(options, plug_ins, source)
        return 0
    try:
        compiled = compile_with(options, plug_ins, source, is_brief=is_brief(options))
    except ManyMicrobatches as many:
        if show_brief(options, plug_ins, source, many):
            return 0
        compiled = compile_with(options, plug_ins, source)
    if options.out is not None or options.bundle is not None:
        check_is_whole(compiled, options)
    tell(one_step(compiled), options)
    return 0


def check_is_whole(compiled: Compiled, options: argparse.Namespace) -> None:
    """E0422 for traces of one pool whose messages have their other ends in the traces of others."""
    ops = list(compiled.module.body.ops)
    others = dict.fromkeys(op.pool.data for op in ops if isinstance(op, dist.HandedOp))
    own = next((op.pool.data for op in ops if isinstance(op, dist.PoolOp)), None)
    if own is None or not others:
        return
    flag = "-o" if options.out is not None else "--bundle"
    message = f"traces of `{own}` alone: what it sends to {quoted(others)}, or takes, has no other end in them"
    plan = compiled.plan.name.removesuffix(f"{DOT}{own}")
    help_ = f"write those of all pools, `--plan {plan} {flag} ...`, or leave out `{flag}`"
    raise refused("E0422", message, compiled.plan.span, help=help_)


def run_series(options: argparse.Namespace, plug_ins: Registry, source: Source | None) -> None:
    """Compile a series of iterations: show each of its programs, and write one set of traces."""
    if source is None:
        refuse_about_ir(options.model, {"--iterations": options.iterations})
    with watched(options) as stops:
        series = compile_iterations(
            options.model,
            options.iterations,
            options.plan,
            overrides(options.set),
            source=source,
            stops=stops(),
            plug_ins=plug_ins,
            adapt=lambda plan: planned(plan, options),
        )
    tell(series, options)


def tell(series: CompiledSeries, options: argparse.Namespace) -> None:
    """Show what was asked for of a compilation, or of each program of a series, and write what is to be written."""
    is_step = series.num_iterations == 1
    if not is_step and options.stop_after is None:
        refuse_in_series(options)
    show_parts(series, options)
    if options.stop_after is not None:
        return
    if options.timeline is not None and not is_step:
        from stagec.cli.series_page import show_series

        show_series(series)
    if options.report is not None:
        from stagec.reports.step_report import report_page

        write_page(options.report, report_page(series.parts), "one page", options)
    save(series, options)


def is_brief(options: argparse.Namespace) -> bool:
    """Whether nothing is asked for but the summary, memory, and a drawing of the step."""
    names = ("out", "bundle", "stop_after", "schedule", "report", "print_ir")
    return all(getattr(options, name) in (None, False) for name in names) and not options.timeline


def show_brief(
    options: argparse.Namespace, plug_ins: Registry, source: Source | None, many: ManyMicrobatches
) -> bool:
    """Show the summary of a step of many microbatches by what a step of few says of it; whether it says so."""
    from stagec.reports.many_microbatches import brief

    limit = planned(many.plan, options).device.memory

    def compile_few(batch: str, size: int, memory: int | None = None) -> Compiled:
        """`memory` is what a device may need; what few microbatches need is shown of the whole step first."""
        made = compile_input(
            options.model,
            options.plan,
            {**overrides(options.set), batch: str(size)},
            source=source,
            stops=Stops(places_buffers=options.memory is not None),
            plug_ins=plug_ins,
            warn=lambda text: None,  # the whole step has been warned of
            adapt=lambda plan: with_memory(planned(plan, options), memory),
        )
        return replace(made, plan=with_memory(made.plan, limit))

    found = brief(many, compile_few)
    if found is None:
        return False
    steps = found.steps
    arenas = [{n: each.num_bytes for n, each in j.arenas.items()} for j in (steps.few, steps.more)]
    if arenas[0] != arenas[1]:
        return False
    if limit is not None and too_much(steps.memory, limit) is not None:
        # This raises E0501, which says what would fit.
        compile_few(many.batch, many.size * steps.num_more // many.number, limit)
    if found.warnings:
        sys.stderr.write(render(found.warnings, steps.few.sources))
    if not options.quiet:
        from stagec.cli.tables import show

        show(found.summary, found.headline)
    if options.memory is not None:
        note = few_drawn(steps.num_more, many.number)
        tell_memory(steps.more, steps.memory, found.timeline, found.timed, options, note)
    if options.timeline is not None:
        from stagec.cli.timeline import show_timeline

        show_timeline(steps.few, few_drawn(steps.num_few, many.number))
    return True


def with_memory(plan: Plan, memory: int | None) -> Plan:
    """The plan on a device that has so much memory; None for no limit."""
    return replace(plan, device=replace(plan.device, memory=memory))


def few_drawn(few: int, many: int) -> str:
    return f"drawn with {few:,} of {many:,} microbatches: what lies between repeats"


def compile_with(
    options: argparse.Namespace,
    plug_ins: Registry,
    source: Source | None,
    is_brief: bool = False,
) -> Compiled:
    """Compile, with warnings, progress and IR on the way. What is brief may raise `ManyMicrobatches`."""
    with watched(options, look if is_brief else None) as stops:
        return compile_input(
            options.model,
            options.plan,
            overrides(options.set),
            source=source,
            stops=stops(),
            plug_ins=plug_ins,
            adapt=lambda plan: planned(plan, options),
        )
