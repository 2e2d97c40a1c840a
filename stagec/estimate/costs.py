"""How long each node takes: a roofline for computation, the network's formulas for the rest.

A roofline (Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model"): computation takes as long
as its FLOPs at the device's peak or as its bytes at the memory's bandwidth, whichever is longer. One peak holds for all
dtypes, launching a kernel costs nothing, and what runs at the same time does not slow each other down.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagec.backend.program import Action, Collective, Compute, HostCopy, RankClass, Transfer
from stagec.diagnostics import CompileError, Diagnostic, quoted
from stagec.estimate.network import Network, rate
from stagec.frontend.plans.plan import Plan
from stagec.frontend.plans.presets import PRESETS


def duration_us(action: Action, network: Network) -> float:
    """Of a receive: none of its own, it ends when what is sent is there."""
    device = network.device
    if isinstance(action, Compute):
        # A node of a trace has at least one operation and one byte.
        return 1e6 * max(
            max(1, action.num_ops) / rate(device.flops_per_s),
            max(1, action.num_bytes) / rate(device.memory_bytes_per_s),
        )
    if isinstance(action, Collective):
        return network.collective_us(action)
    if isinstance(action, HostCopy):
        return 1e6 * action.num_bytes / rate(device.host_bytes_per_s)
    return network.transfer_us(action) if action.kind == "send" else 0.0


def missing_numbers(plan: Plan, classes: Iterable[RankClass]) -> list[str]:
    """The settings of the device that a plan would need to say, for the classes' actions to have durations."""
    actions = [n.action for c in classes for s in c.program.segments for n in s.nodes]
    linked = {axis for link in plan.links if link.bytes_per_s is not None for axis in link.axes}
    wanted = ["flops_per_s", "memory_bytes_per_s"]
    if any(
        isinstance(action, Collective | Transfer) and not linked >= set(action.axes)
        for action in actions
    ):
        wanted.append("link_bytes_per_s")
    if any(isinstance(action, HostCopy) for action in actions):
        wanted.append("host_bytes_per_s")
    return [name for name in wanted if getattr(plan.device, name) is None]


def require_numbers(plan: Plan, classes: Iterable[RankClass]) -> None:
    """E0410 unless the plan says how fast everything is that the classes do."""
    missing = missing_numbers(plan, classes)
    if not missing:
        return
    raise CompileError(
        [
            Diagnostic(
                "E0410",
                f"how long a step takes depends on the device's {quoted(missing, 'and')}",
                plan.device.span or plan.span,
                help=f"{advice(plan, missing)}; presets are {quoted(PRESETS, 'and')}",
            )
        ]
    )


def advice(plan: Plan, missing: list[str]) -> str:
    if plan.span is None:
        return "write a plan, `plan one { device h100 }`"
    if plan.device.span is None:
        return "add `device h100` to the plan"
    settings = ", ".join(f"{name} = ..." for name in missing)
    return f"name a preset, `device h100`, or add `{settings}`"
