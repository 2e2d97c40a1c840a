"""What `stagec MODEL.stg` shows and writes of each program that it compiled: of a step, of a series of iterations, of pools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stagec.advice import warnings
from stagec.cli.inputs import SEPARATOR
from stagec.cli.usage import usage_error
from stagec.cli.watched_passes import ir_of
from stagec.compiled import Compiled, CompiledPoolSeries, CompiledSeries
from stagec.diagnostics import render
from stagec.ir_text import print_ir

if TYPE_CHECKING:
    from stagec.estimate.step import Estimate
    from stagec.estimate.timeline import Timeline
    from stagec.memory import ClassPlan, TimedPeak
    from stagec.pools import CompiledPools


def show_parts(
    series: CompiledSeries,
    options: argparse.Namespace,
    timed: Sequence[Estimate | None] = (),
    is_pool: bool = False,
) -> None:
    """Each program of a series, or the one of a step, with its times if they are known already. Pages and time lines of pools are of all of them."""
    for number, compiled in enumerate(series.parts):
        found = timed[number] if timed else None if options.quiet else estimated(compiled)
        doubts = warnings(compiled, found)
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
    from stagec.estimate.step import estimate_if_known

    found = estimate_if_known(compiled)
    timeline = found.timeline if found is not None else None
    timed = [] if options.memory else timed_peaks(found)
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


def one_step(compiled: Compiled) -> CompiledSeries:
    return CompiledSeries([compiled], np.zeros(1, np.int64))


def save(
    job: CompiledSeries | CompiledPools | CompiledPoolSeries, options: argparse.Namespace
) -> None:
    """Write the bundle, the traces, or both, where that is asked for."""
    if options.out is not None or options.bundle is not None:
        from stagec.cli.written_traces import write_all

        write_all(job, options)


def write_page(path: str, page: str, what: str, options: argparse.Namespace) -> None:
    from stagec.backend.files import write_whole
    from stagec.pictures.scales import amount

    data = page.encode()
    write_whole(path, data)
    if not options.quiet:
        sys.stdout.write(f"{path}: {what} ({amount(len(data))}B written)\n")
