"""What `stagec MODEL.stg --for SIMULATOR` writes beside the traces."""

from __future__ import annotations

import argparse
import sys

from stagec.backend.program import TraceSet
from stagec.compiled import CompiledPoolSeries, CompiledSeries
from stagec.diagnostics import render
from stagec.estimate.costs import require_numbers
from stagec.plans.clauses import Plan
from stagec.pools import CompiledPools
from stagec.simulators.astra_sim import as_one, astra_sim_files, doubts_of_network
from stagec.simulators.infragraph import infragraph_json


def files_beside(
    job: CompiledSeries | CompiledPools | CompiledPoolSeries, options: argparse.Namespace
) -> dict[str, str]:
    """What the simulator reads besides, by file name. What it may take otherwise than it is meant is told."""
    found: dict[str, str] = {}
    for each in simulated(job):
        found |= simulator_files(*each, options)
    if options.simulator == "astra-sim":
        doubts = doubts_of_network(*simulated(job)[0])
        sys.stderr.write(render(doubts, job.first.sources))
    return found


def simulated(
    job: CompiledSeries | CompiledPools | CompiledPoolSeries,
) -> list[tuple[TraceSet, Plan]]:
    """What a simulator runs: each program of a series, or one of each pool as ranks of one cluster."""
    if isinstance(job, CompiledSeries):
        return [(each.trace_set, each.plan) for each in job.parts]
    traces = job.traces if isinstance(job, CompiledPools) else job.one_of_each
    return [as_one(job.plans, traces)]


def simulator_files(traces: TraceSet, plan: Plan, options: argparse.Namespace) -> dict[str, str]:
    """What `--for` asks for, by file name."""
    if options.simulator == "infragraph":
        require_numbers(plan, traces.classes)
        return {"infragraph.json": infragraph_json(traces.mesh, plan)}
    return astra_sim_files(traces, plan, bool(options.track_memory))
