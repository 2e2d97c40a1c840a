"""Which number of the device an answer hangs on: the same plans with twice of each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from stagec.driver import compile_program
from stagec.estimate import estimate
from stagec.estimate.graph import build_graph
from stagec.frontend import check, parse_text
from stagec.searching.search import NAME, WholePlan

DEVICE_NUMBERS = {
    "flops_per_s": "FLOPs per second",
    "memory_bytes_per_s": "memory bandwidth",
    "link_bytes_per_s": "bandwidth in the node",
    "network_bytes_per_s": "bandwidth of the network",
}
"""Numbers of a device, and what they are called."""


@dataclass(frozen=True)
class Scaled:
    """Seconds of a step."""

    step_time: float
    with_twice: dict[str, float]


def scaled(proofs: Sequence[WholePlan], times: Sequence[float], executor: Executor) -> list[Scaled]:
    """Of plans that take so many seconds."""
    found = executor.map(with_twice, proofs)
    return [Scaled(own, twice) for own, twice in zip(times, found, strict=True)]


def with_twice(proof: WholePlan) -> dict[str, float]:
    """Compiled once, estimated for each device."""
    checked = check(parse_text(proof.text, proof.file), NAME, dict(proof.overrides))
    plan = replace(checked.plan, device=replace(checked.plan.device, memory=None))
    compiled = compile_program(replace(checked, plan=plan))
    graph = build_graph(compiled.trace_set)
    found: dict[str, float] = {}
    for name in DEVICE_NUMBERS:
        number = getattr(plan.device, name)
        if number is not None:
            device = replace(plan.device, **{name: number * 2})
            found[name] = estimate(compiled, replace(plan, device=device), graph).step_time_us / 1e6
    return found
