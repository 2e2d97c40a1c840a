"""`stagec diff` of two models or plans."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from stagec.cli.diff_side import DiffSide
from stagec.cli.diff_tables import comparison_json, sections_text
from stagec.cli.inputs import ONE_MESH, compile_parts, plan_written
from stagec.cli.progress import pass_progress
from stagec.cli.tables import heading
from stagec.comparing.comparison import differ
from stagec.comparing.jobs import ComparedJob, compare_pools, job_of
from stagec.diagnostics import render
from stagec.driver import Stops
from stagec.plugins import Registry, registry

SAME = "no difference in FLOPs, communication or memory\n"


def diff_jobs(
    sides: tuple[DiffSide, DiffSide],
    sizes: Sequence[Mapping[str, str]],
    options: argparse.Namespace,
) -> bool:
    """Compile both and print what differs; whether anything does."""
    plug_ins = registry(options.load_pass)
    if plug_ins.warnings:
        sys.stderr.write(render(plug_ins.warnings))
    warned: set[str] = set()
    jobs = [
        compiled_jobs(side, own, plug_ins, options.quiet, warned)
        for side, own in zip(sides, sizes, strict=True)
    ]
    comparisons = compare_pools(*jobs)
    differs = differ(comparisons)
    if options.quiet:
        return differs
    if options.format == "json":
        found = {
            "version": 1,
            "same": not differs,
            "a": side_json(sides[0], sizes[0], jobs[0]),
            "b": side_json(sides[1], sizes[1], jobs[1]),
            "sections": [comparison_json(each) for each in comparisons],
        }
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return differs
    heads = [
        f"{name}: {heading(job.summary)}"
        for name, pools in zip("AB", jobs, strict=True)
        for job in pools.values()
    ]
    sys.stdout.write("".join(heads) + "\n")
    if not differs:
        sys.stdout.write(SAME)
    sys.stdout.write(sections_text(comparisons, options.all))
    return differs


def compiled_jobs(
    side: DiffSide, sizes: Mapping[str, str], plug_ins: Registry, quiet: bool, warned: set[str]
) -> dict[str, ComparedJob]:
    """The job of a side, or that of each of its pools. A doubt that both sides share is told once."""

    def warn(text: str) -> None:
        if text not in warned:
            warned.add(text)
            sys.stderr.write(text)

    with plan_written(side.text, side.plan), pass_progress(quiet) as told:
        stops = Stops(on_pass=lambda name, _: told(name))
        parts = compile_parts(
            side.path, side.plan, sizes, stops=stops, plug_ins=plug_ins, warn=warn
        )
        return {name: job_of(each) for name, each in parts.items()}


def side_json(
    side: DiffSide, sizes: Mapping[str, str], jobs: Mapping[str, ComparedJob]
) -> dict[str, object]:
    first = next(iter(jobs.values())).summary
    meshes = {
        name: {
            "mesh": dict(zip(job.summary.mesh.axes, job.summary.mesh.sizes, strict=True)),
            "ranks": job.summary.num_ranks,
        }
        for name, job in jobs.items()
    }
    return {
        "model": first.model,
        "file": side.path,
        "plan": first.plan if ONE_MESH in jobs else first.plan.rpartition(".")[0],
        "set": sizes,
        **(meshes[ONE_MESH] if ONE_MESH in jobs else {"pools": meshes}),
    }
