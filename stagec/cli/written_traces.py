"""What `stagec MODEL.stg` writes: traces, a bundle, or both, and what lies beside them."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagec import __version__
from stagec.backend.bundle import Bundle, write_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.encoded import SCHEMA_VERSION, Encoded, TraceOptions
from stagec.backend.program import TraceSet
from stagec.cli.output import write
from stagec.cli.usage import overrides
from stagec.compiled import Compiled, CompiledPoolSeries, CompiledSeries
from stagec.pass_arguments import schedule_files
from stagec.pictures.scales import amount
from stagec.reading import read_file

if TYPE_CHECKING:
    from stagec.pools import CompiledPools


def write_all(
    job: CompiledSeries | CompiledPools | CompiledPoolSeries, options: argparse.Namespace
) -> None:
    """Write the bundle, the traces, or both, and what lies beside them."""
    joined = job.joined if isinstance(job, CompiledSeries) else job.pooled
    traces = encode_traces(joined(lambda each: programs_of(each, options)), chosen_options(options))
    beside: dict[str, str] = {}
    if options.simulator is not None:
        from stagec.cli.simulator_files import files_beside

        beside = files_beside(job, options)  # wrong input ends before anything is written
    about = about_job(job.first, job.name, options)
    if options.bundle is not None:
        save_bundle(traces, options, about)
    if options.out is not None:
        write(traces, options, about, {name: text.encode() for name, text in beside.items()})
        for name in beside:
            if name.endswith(".sh"):
                os.chmod(os.path.join(options.out, name), 0o755)
        if beside and not options.quiet:
            sys.stdout.write(f"{options.out}: {', '.join(beside)}\n")


def chosen_options(options: argparse.Namespace) -> TraceOptions:
    return TraceOptions(names=options.names or "full", provenance=bool(options.provenance))


def programs_of(compiled: Compiled, options: argparse.Namespace) -> TraceSet:
    """What traces are to say besides what runs."""
    programs = compiled.tracked if options.track_memory else compiled.trace_set
    if not options.durations:
        return programs
    from stagec.estimate.series import Clock
    from stagec.estimate.step import with_durations

    is_series = compiled.num_iterations > 1
    return (
        Clock(compiled).with_durations() if is_series else with_durations(programs, compiled.plan)
    )


def save_bundle(traces: Encoded, options: argparse.Namespace, about: dict[str, Any]) -> None:
    num_bytes = write_bundle(options.bundle, Bundle(traces, about))
    if not options.quiet:
        ranks = f"{traces.num_ranks:,} ranks"
        sys.stdout.write(f"{options.bundle}: {ranks} ({amount(num_bytes)}B written)\n")


def about_job(compiled: Compiled, plan: str, options: argparse.Namespace) -> dict[str, Any]:
    """What decides the traces: texts, by name and hash, and flags. No path of this machine."""
    folder = os.path.dirname(options.model)
    texts = {
        Path(os.path.relpath(file, folder or ".")).as_posix(): text.encode()
        for file, text in compiled.sources.items()
    }
    files = [*options.load_pass, *schedule_files(compiled.plan)]
    texts |= {Path(path).name: read_file(path) for path in files}
    tracked = {"track_memory": True} if options.track_memory else {}
    if options.durations:
        tracked |= {"durations": compiled.plan.device.preset or True}
    return {
        "versions": {"stagec": __version__, "chakra": SCHEMA_VERSION},
        "inputs": {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()},
        "plan": plan,
        "set": overrides(options.set),
        **tracked,
    }
