"""Find out which number of the device decides the time of a plan: estimate the step again with twice of each number."""

from __future__ import annotations

from dataclasses import replace

from stagec.compiled import Compiled
from stagec.estimate import estimate
from stagec.estimate.graph import PieceGraph

DEVICE_NUMBERS = {
    "flops_per_s": "FLOPs per second",
    "memory_bytes_per_s": "memory bandwidth",
    "link_bytes_per_s": "bandwidth in the node",
    "network_bytes_per_s": "bandwidth of the network",
}
"""The settings of a device that are tried, and their names for the user."""


def with_twice(compiled: Compiled, graph: PieceGraph) -> dict[str, float]:
    """For each number that the device states, the seconds of a step on a device with twice of it. `graph` is the plan's graph of what waits for what."""
    plan = compiled.plan
    found: dict[str, float] = {}
    for name in DEVICE_NUMBERS:
        number = getattr(plan.device, name)
        if number is not None:
            device = replace(plan.device, **{name: number * 2})
            found[name] = estimate(compiled, replace(plan, device=device), graph).step_time_us / 1e6
    return found
