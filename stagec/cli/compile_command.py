"""`stagec MODEL.stg`: compile a model, print what a step costs, write its traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec import __version__
from stagec.advice import too_much, warnings
from stagec.cli.device_flags import add_device_flags, planned
from stagec.cli.inputs import (
    SEPARATOR,
    compile_input,
    compile_iterations,
    is_ir,
    modules_of_ir,
    refuse_about_ir,
)
from stagec.cli.names import COMMANDS
from stagec.cli.output import WRITING_FLAGS, add_writing_flags, refuse_idle_flags
from stagec.cli.progress import pass_progress
from stagec.cli.usage import (
    CommandParser,
    add_flag,
    add_load_pass,
    add_repeated,
    add_switch,
    add_trust_flags,
    file_like,
    one_of,
    overrides,
    some_text,
    usage_error,
)
from stagec.compiled import Compiled, CompiledPoolSeries, CompiledSeries
from stagec.diagnostics import quoted, refused, render
from stagec.dialects import dist
from stagec.driver import Stops
from stagec.estimate.many_microbatches import ManyMicrobatches, look
from stagec.frontend import Source, parse_file
from stagec.frontend.checker import pools_in
from stagec.frontend.plans.merge import DOT
from stagec.ir_text import print_ir
from stagec.plans.clauses import Plan
from stagec.plugins import Registry, registry

if TYPE_CHECKING:
    from stagec.estimate.step import Estimate
    from stagec.estimate.timeline import Timeline
    from stagec.memory import ClassPlan, TimedPeak
    from stagec.pools import CompiledPools

EPILOG = """\
other commands (each has its own --help):
{commands}

examples:
  stagec examples/llama3_8b.stg                               what a step costs
  stagec examples/llama3_70b.stg --plan dp8_tp8 -o traces/    a trace per rank
  stagec examples/llama3_70b.stg --set S=131072 --set tp=4 --ranks 0 -o traces/
  stagec examples/mixtral_8x7b.stg --timeline                 a step against time
  stagec examples/gpt2.stg --stop-after build-backward        the IR after a pass
  stagec gpt2.mlir -o traces/                                 on from there, when it was written to a file
"""


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


def one_step(compiled: Compiled) -> CompiledSeries:
    return CompiledSeries([compiled], np.zeros(1, np.int64))


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


def show_parts(
    series: CompiledSeries,
    options: argparse.Namespace,
    timed: Sequence[Estimate | None] = (),
    is_pool: bool = False,
) -> None:
    """Each program of a series, or the one of a step, with its times if they are known already. Pages and time lines of pools are of all of them."""
    for number, compiled in enumerate(series.parts):
        found = timed[number] if timed else None if options.quiet else estimated(compiled)
        doubts = warnings(compiled, found.timeline if found is not None else None)
        if doubts:
            sys.stderr.write(render(doubts, compiled.sources))
        if options.stop_after is not None:
            separator = SEPARATOR if number else ""
            sys.stdout.write(f"{separator}{print_ir(compiled.module, ir_of(options))}")
            continue
        if options.timeline or options.durations:
            from stagec.estimate.costs import require_numbers

            require_numbers(compiled.plan, compiled.trace_set.classes)  # before anything is written
        if not options.quiet:
            sys.stdout.write(part_of_series(series, number))
            show_step(compiled, found)
        if options.memory == "" or (options.memory is not None and not is_pool):
            explain_memory(compiled, options)
        if options.timeline is not None and series.num_iterations == 1 and not is_pool:
            explain_timeline(compiled, options)
        if options.schedule:
            from stagec.cli.timeline import show_schedule

            show_schedule(compiled)


def estimated(compiled: Compiled) -> Estimate | None:
    from stagec.estimate.step import estimate_if_known

    return estimate_if_known(compiled)


def show_step(compiled: Compiled, found: Estimate | None) -> None:
    """The first screen."""
    from stagec.cli.tables import show
    from stagec.reports.headline import headline
    from stagec.summary import summarize

    summary = summarize(compiled.module, compiled.counts, compiled.plan.name)
    show(summary, headline(compiled, found))


def part_of_series(series: CompiledSeries, number: int) -> str:
    """Above the numbers of one of several programs: which iterations these are of."""
    if len(series.parts) == 1:
        return ""
    own = np.flatnonzero(series.which == number).tolist()
    some = ", ".join(map(str, own[:MOST_NAMED])) + (", ..." if len(own) > MOST_NAMED else "")
    line = f"program {number + 1} of {len(series.parts)}: {len(own):,} of {series.num_iterations:,} iterations ({some})\n"
    return "\n" * bool(number) + line


MOST_NAMED = 8
"""Iterations of a program that are named."""


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


def refuse_in_series(options: argparse.Namespace) -> None:
    """E0711 for what is about one step, where a series of iterations is served."""
    flags = {
        "--schedule": options.schedule,
        "--track-memory": options.track_memory,
        f"--timeline {options.timeline}": options.timeline,
        "--memory FILE": options.memory,
    }
    for flag, value in flags.items():
        if value:
            message = f"`{flag}` is about one step, and this is a series of iterations"
            help_ = "compile one of them: a file of one line, or the plan's own `serve`"
            raise usage_error(flag, message, "E0711", help_)


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    options = make_parser().read(arguments)
    if options.model is None:
        raise usage_error("", "no model is given", help="`stagec MODEL.stg`, or `stagec --help`")
    if options.out is None:
        refuse_idle_flags(options, WRITING_FLAGS, "`-o DIR`")
        if options.bundle is None:
            refuse_idle_flags(
                options, ("names", "provenance", "track_memory", "durations"), "`-o DIR`"
            )
        if options.simulator is not None:
            message = "`--for` writes files beside traces, and none are written"
            raise usage_error("--for", message, "E0711", "add `-o DIR`")
    elif options.simulator is not None and "://" in options.out:
        message = "`--for` writes files of this machine, and the traces go elsewhere"
        raise usage_error("--for", message, "E0711", "name a directory of this machine")
    if options.stop_after is not None:
        names = ("out", "bundle", "memory", "timeline", "schedule", "report")
        wanting = [("-o" if n == "out" else f"--{n}", getattr(options, n)) for n in names]
        for flag, value in wanting:
            if value is not None and value is not False:
                message = f"`{flag}` wants traces, and `--stop-after` ends before there are any"
                raise usage_error(flag, message, "E0711", "leave out one of the two")
    return options


def make_parser() -> CommandParser:
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    parser = CommandParser(
        "stagec",
        "Compile a model and a plan for spreading it into one Chakra execution trace per rank.",
        EPILOG.format(commands=commands),
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL.stg|IR.mlir",
        help="a model with its plans, or the name of one that ships; IR that `--stop-after` printed is compiled to the end, `-` from standard input",
    )
    parser.add_argument("--version", action="version", version=f"stagec {__version__}")
    add_switch(
        parser, "-q", "--quiet", help="print errors, warnings and what is asked for, no summary"
    )
    add_model_flags(parser)
    add_flag(
        parser,
        "--iterations",
        "FILE.csv",
        "serve a series of iterations, a line for each: what is prefilled, what is decoded",
        some_text,
    )
    add_device_flags(parser)
    add_pass_flags(parser)
    add_trust_flags(parser)
    add_flag(
        parser,
        "--memory",
        "FILE.html",
        "show what memory each rank needs, when and what for; or write it as a page",
        file_like("memory.html", may_be_bare=True),
        nargs="?",
        const="",
    )
    add_flag(
        parser,
        "--timeline",
        "FILE.json",
        "draw a step against time, a row for each pipeline rank; or write it for ui.perfetto.dev",
        file_like("step.json", may_be_bare=True),
        nargs="?",
        const="",
    )
    add_switch(parser, "--schedule", help="list the tasks of each pipeline rank in order")
    add_flag(
        parser,
        "--report",
        "FILE.html",
        "write one page with the step in time, memory, traffic, and where costs come from",
        file_like("report.html"),
    )
    add_writing_flags(parser)
    add_flag(
        parser,
        "--for",
        "astra-sim|infragraph",
        "write beside the traces what ASTRA-sim needs (network, system, memory, and a script that runs it), or the network as MLCommons InfraGraph",
        one_of("astra-sim", "infragraph"),
        dest="simulator",
    )
    more = parser.add_argument_group("what traces contain")
    add_flag(
        more,
        "--names",
        "full|short|typed|none",
        "names of nodes: phase, module, op and layer (the default); the op alone; "
        "the op behind its Chakra type, as Chakra's timeline visualizer wants it; none",
        one_of("full", "short", "typed", "none"),
    )
    add_switch(
        more,
        "--provenance",
        help="give each node its source line, the pass that made it, and its place in the schedule",
        default=None,
    )
    add_switch(
        more,
        "--track-memory",
        help="give each node the tensors that it reads and writes, for trackers of local memory",
        default=None,
    )
    add_switch(
        more,
        "--durations",
        help="give each node what it is estimated to take on the plan's device (`duration_micros`)",
        default=None,
    )
    add_flag(
        more,
        "--bundle",
        "FILE",
        "write one file for `stagec expand`, however many ranks",
        some_text,
    )
    return parser


def explain_timeline(compiled: Compiled, options: argparse.Namespace) -> None:
    """Draw the timeline, or write it as events."""
    from stagec.cli.timeline import show_timeline, write_timeline

    if options.timeline:
        write_timeline(compiled, options.timeline, options.quiet)
    else:
        show_timeline(compiled)


def explain_memory(compiled: Compiled, options: argparse.Namespace) -> None:
    """Print the plan of memory, or write it as a page."""
    from stagec.estimate.memory import timed_peaks
    from stagec.estimate.step import timeline_of

    timeline = timeline_of(compiled)
    timed = [] if options.memory else timed_peaks(compiled, timeline)
    tell_memory(compiled, compiled.memory, timeline, timed, options)


def tell_memory(
    compiled: Compiled,
    memory: Sequence[ClassPlan],
    timeline: Timeline | None,
    timed: Sequence[TimedPeak],
    options: argparse.Namespace,
    note: str = "",
) -> None:
    """The same, given the plan of memory of each class, when nodes run, and the peaks along that time. `note` says what is drawn."""
    if options.memory:
        from stagec.backend.files import write_whole
        from stagec.reports.memory_charts import Scene, memory_page

        title = f"Memory of one rank of {compiled.trace_set.model}, plan {compiled.plan.name}"
        title += f", {note}" if note else ""
        scene = Scene(memory, timeline, compiled.plan.device.capacity)
        write_whole(options.memory, memory_page(scene, title).encode())
        if not options.quiet:
            sys.stdout.write(f"{options.memory}: memory of {len(memory)} rank classes\n")
    else:
        from stagec.cli.memory_tables import show_memory

        show_memory(memory, compiled.arenas, timed, note)


def add_model_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("the model")
    add_flag(group, "--plan", "NAME", "a plan of the file (the first by default), or FILE.stg:NAME")
    add_repeated(group, "--set", "NAME=SIZE", "the size of a dim or a mesh axis; may be repeated")


def add_pass_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("passes")
    add_flag(
        group,
        "--stop-after",
        "PASS",
        "stop there and print the IR; `lower` is what the passes start from",
    )
    add_switch(group, "--print-ir", help="print the IR after each pass")
    add_load_pass(group)


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


@contextmanager
def watched(
    options: argparse.Namespace, look: Callable[[ModuleOp], object] | None = None
) -> Iterator[Callable[..., Stops]]:
    """What is asked of the passes, of each pool by its name: where they stop, and who hears of each. `look` sees how many microbatches there are."""
    printer = PassPrinter(options)
    with pass_progress(options.quiet or printer.prints) as told:

        def stops(pool: str = "") -> Stops:
            def on_pass(name: str, module: ModuleOp) -> None:
                told(name)
                if look is not None and name == "split-microbatches":
                    look(module)
                printer.after(f"{name}, pool {pool}" if pool else name, module)

            places = options.memory is not None
            return Stops(
                options.stop_after, on_pass, shows_each=printer.prints, places_buffers=places
            )

        yield stops


def ir_of(options: argparse.Namespace) -> str | None:
    """The file of IR that is compiled, if it is one."""
    return options.model if is_ir(options.model) else None


class PassPrinter:
    """Prints the IR after each pass, if that is asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.prints = bool(options.print_ir and options.stop_after is None)
        self.read_from = ir_of(options)
        self.is_first = True

    def after(self, name: str, module: ModuleOp) -> None:
        if self.prints:
            separator = "" if self.is_first else SEPARATOR
            sys.stdout.write(f"{separator}// IR after {name}\n{print_ir(module, self.read_from)}")
            self.is_first = False


def save(
    job: CompiledSeries | CompiledPools | CompiledPoolSeries, options: argparse.Namespace
) -> None:
    """Write the bundle, the traces, or both, where that is asked for."""
    if options.out is not None or options.bundle is not None:
        from stagec.cli.written_traces import write_all

        write_all(job, options)


def write_page(path: str, page: str, what: str, options: argparse.Namespace) -> None:
    from stagec.backend.files import write_whole
    from stagec.cli.tables import amount

    data = page.encode()
    write_whole(path, data)
    if not options.quiet:
        sys.stdout.write(f"{path}: {what} ({amount(len(data))}B written)\n")
