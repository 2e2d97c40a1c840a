"""`stagec MODEL.stg` of a plan of several pools: compile them, show each after the other, and write the traces of all as one job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stagec.cli.compiled_programs import (
    one_step,
    refuse_in_series,
    save,
    show_parts,
    write_page,
)
from stagec.cli.device_flags import planned
from stagec.cli.inputs import (
    SEPARATOR,
    once,
    tell_doubts_of_pools,
    text_of_ir,
)
from stagec.cli.series_page import file_of_pool, handed_over, show_series_of_pools
from stagec.cli.timeline import pools_text, show_pools, show_timeline, write_pools_timeline
from stagec.cli.usage import overrides
from stagec.cli.watched_passes import watched
from stagec.compiled import CompiledPoolSeries, CompiledSeries, told_once
from stagec.diagnostics import quoted, refused
from stagec.driver import compile_ir
from stagec.estimate.pools import PoolsEstimate, estimate_pools, estimate_pools_if_known
from stagec.estimate.step import Estimate
from stagec.frontend import Source
from stagec.frontend.checker import plan_of_pool, pools_in
from stagec.frontend.plans.iterations import Iterations, read_iterations
from stagec.frontend.plans.merge import DOT
from stagec.ir_text import refuse_about_ir
from stagec.plugins import Registry
from stagec.pools import CompiledPools, compile_pools, plan_around
from stagec.pools.series import compile_series_of_parts, compile_series_of_pools
from stagec.reports.memory_charts import Scene, memory_page_of_pools
from stagec.reports.step_report import pools_page, report_page, times_of_pools


def run_pools(options: argparse.Namespace, plug_ins: Registry, source: Source) -> None:
    """Compile all pools of a plan: show each after the other, and write the traces of all as one job."""
    asked, tell_once = (source, options.plan, overrides(options.set)), once(set())
    iterations = iterations_of_pools(options, source)
    with watched(options) as stops:
        said: dict[str, Any] = {
            "known": plug_ins,
            "stops": stops,
            "adapt": lambda plan: planned(plan, options),
        }
        seen = partial(tell_doubts_of_pools, tell=tell_once)
        if iterations is None:
            compiled = compile_pools(*asked, **said, seen=seen)
        elif isinstance(iterations, Iterations):
            compiled = compile_series_of_parts(
                lambda some: compile_pools(*asked, **said, seen=seen, iterations=some), iterations
            )
        else:
            compiled = compile_series_of_pools(*asked, iterations, **said, seen=seen)
    if isinstance(compiled, CompiledPools):
        tell_pools(compiled, options)
    else:
        tell_series_of_pools(compiled, options)


def pools_of_ir(
    options: argparse.Namespace, plug_ins: Registry, texts: Sequence[str]
) -> CompiledPools:
    """Compile the modules of all pools of a plan to the end. E0709 where it is programs of a series, of which they do not say who runs them when."""
    path = options.model
    said = {"--plan": options.plan, "--set": options.set, "--iterations": options.iterations}
    refuse_about_ir(path, said)
    with watched(options) as stops:
        found = [
            compile_ir(
                text,
                path,
                stops=stops(),
                plug_ins=plug_ins,
                adapt=lambda plan: planned(plan, options),
            )
            for text in texts
        ]
    whole = {each.plan.name.rpartition(DOT)[0] for each in found}
    pools = {
        each.plan.name.rpartition(DOT)[2]: replace(each, sources={path: text_of_ir(path)})
        for each in told_once(found)
    }
    if len(whole) > 1 or whole == {""} or len(pools) < len(found):
        message = "these are several modules, and not those of the pools of one plan"
    elif any(each.num_iterations > 1 for each in found):
        message = "these are pools that serve a series of iterations, and nothing says which hands what to which"
    else:
        return CompiledPools(whole.pop(), pools)
    help_ = "compile the model itself, or one module alone"
    raise refused("E0709", message, origin=path, help=help_)


def iterations_of_pools(
    options: argparse.Namespace, source: Source
) -> Mapping[str, Iterations] | Iterations | None:
    """The series of each pool, in a file of its own, or of pools that compute iterations together; nothing for a step."""
    if options.iterations is None:
        return None
    if options.stop_after is None:
        refuse_in_series(options)
    names = pools_in(source, options.plan)
    if plan_around(source, plan_of_pool(source, options.plan, names[0])) is not None:
        return read_iterations(options.iterations)
    files = {name: file_of_pool(options.iterations, name) for name in names}
    help_ = f"the series of each pool is in a file of its own: {quoted(files.values())}"
    return {name: read_iterations(file, help_) for name, file in files.items()}


def tell_pools(compiled: CompiledPools, options: argparse.Namespace) -> None:
    found = None if options.stop_after is not None else estimate_pools_if_known(compiled.pools)
    timed: Sequence[Estimate | None] = [None] * len(compiled.pools)
    if not options.quiet and options.stop_after is None:
        timed = times_of_pools(compiled.pools, found)
    show_each_pool({name: one_step(each) for name, each in compiled.pools.items()}, options, timed)
    if options.stop_after is None:
        explain_pools(compiled, found, options)
        save(compiled, options)


def tell_series_of_pools(compiled: CompiledPoolSeries, options: argparse.Namespace) -> None:
    show_each_pool(compiled.pools, options)
    if options.stop_after is not None:
        return
    if not options.quiet:
        sys.stdout.write(f"\n{handed_over(compiled)}")
    if options.timeline is not None:
        show_series_of_pools(compiled)
    if options.report is not None:
        parts = [part for series in compiled.pools.values() for part in series.parts]
        write_page(options.report, report_page(parts), "one page", options)
    save(compiled, options)


def show_each_pool(
    pools: Mapping[str, CompiledSeries],
    options: argparse.Namespace,
    timed: Sequence[Estimate | None] = (),
) -> None:
    for number, (name, series) in enumerate(pools.items()):
        if options.stop_after is not None:
            separator = SEPARATOR if number else ""
            sys.stdout.write(f"{separator}// pool {name}\n")
        elif number and not options.quiet:
            sys.stdout.write("\n")
        show_parts(series, options, timed[number : number + 1], is_pool=True)


def explain_pools(
    compiled: CompiledPools, found: PoolsEstimate | None, options: argparse.Namespace
) -> None:
    """What is asked about all pools of a plan: on one time axis, or side by side."""
    model, name = compiled.first.trace_set.model, compiled.name
    if found is not None and not options.quiet:
        sys.stdout.write("\n" + "\n".join(pools_text(found)) + "\n")
    if options.timeline:
        found = found or estimate_pools(compiled.pools)
        write_pools_timeline(compiled.traces, name, found, options.timeline, options.quiet)
    elif options.timeline is not None and found is not None:
        show_pools(compiled.pools, found)
    elif options.timeline is not None:
        for each in compiled.pools.values():
            show_timeline(each)
    if options.memory:
        scenes = {
            pool: Scene(
                each.memory,
                found.pools[pool].timeline if found is not None else None,
                each.plan.device.capacity,
                1 / len(compiled.pools),
            )
            for pool, each in compiled.pools.items()
        }
        page = memory_page_of_pools(scenes, f"Memory of one rank of {model}, plan {name}")
        write_page(options.memory, page, f"memory of {len(scenes)} pools", options)
    if options.report is not None:
        page = pools_page(name, compiled.pools, found)
        write_page(options.report, page, f"one page of {len(compiled.pools)} pools", options)
