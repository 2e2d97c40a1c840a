"""Find out which number of the device decides the time of a plan: estimate the step again with twice of each number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stagec.plans.clauses import Plan

DEVICE_NUMBERS = {
    "flops_per_s": "FLOPs per second",
    "memory_bytes_per_s": "memory bandwidth",
    "link_bytes_per_s": "bandwidth in the node",
    "network_bytes_per_s": "bandwidth of the network",
}
"""The settings of a device that are tried, and their names for the user."""


def with_twice(plan: Plan, step_us: Callable[[Plan], float]) -> dict[str, float]:
    """For each number that the device of a plan states, the seconds of a step on a device with twice of it. `step_us` gives those of a plan in µs."""
    found: dict[str, float] = {}
    for name in DEVICE_NUMBERS:
        number = getattr(plan.device, name)
        if number is not None:
            device = replace(plan.device, **{name: number * 2})
            found[name] = step_us(replace(plan, device=device)) / 1e6
    return found
