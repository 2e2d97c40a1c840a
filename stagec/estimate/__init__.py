"""How long a step takes on a device of given numbers: a roofline with an alpha-beta network, not a simulator.

`step_time(compiled)` is the one number, `estimate(traces, plan)` all of them. Where the formulas come from: `costs.py` and
`network.py`. What they leave out: kernels that do not reach a peak, launches, contention, stragglers.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagec.backend.program import Compute, TraceSet
from stagec.driver import Compiled
from stagec.estimate.costs import require_numbers
from stagec.estimate.network import Network
from stagec.estimate.timeline import Timeline, simulate
from stagec.frontend.plans.plan import Plan
from stagec.summary import MATRIX_OPS, counted_nodes, num_ranks

__all__ = ["Estimate", "Timeline", "estimate", "step_time"]


@dataclass(frozen=True)
class Estimate:
    """A step of a whole job."""

    timeline: Timeline
    mfu: float
    """Model FLOPs utilisation: the matrix FLOPs of all ranks, without those that are computed again, over what the
    devices could have done in that time (Chowdhery et al. 2022, "PaLM", appendix B)."""

    @property
    def step_time_us(self) -> float:
        return self.timeline.makespan_us


def estimate(traces: TraceSet, plan: Plan) -> Estimate:
    """When everything happens in a step. E0410 if the plan does not say how fast its device is."""
    require_numbers(plan, traces.classes)
    timeline = simulate(traces, Network.of(plan, traces.mesh))
    flops = sum(
        num_ranks(traces.mesh, each) * count * node.action.num_ops
        for each in traces.classes
        for node, count in counted_nodes(each)
        if isinstance(node.action, Compute) and node.op in MATRIX_OPS and node.phase != "recompute"
    )
    peak = (plan.device.flops_per_s or 0) * traces.mesh.num_ranks
    seconds = timeline.makespan_us / 1e6
    return Estimate(timeline, flops / (peak * seconds) if seconds else 0.0)


def step_time(compiled: Compiled) -> float:
    """Seconds that a step of a compiled model takes: the makespan over all ranks.

    An estimate: a roofline for each node's computation, an alpha-beta network for what is communicated, and the order that the
    traces state. The plan has to name a device: `device h100`, or `device { flops_per_s = ... }`; else E0410.
    """
    return estimate(compiled.trace_set, compiled.plan).step_time_us / 1e6
