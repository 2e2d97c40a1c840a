"""Check whether a plan states all numbers of its device that are needed to estimate times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagec.backend.program import RankClass
from stagec.devices import names
from stagec.diagnostics import quoted, refused
from stagec.dialects.sched.actions import Collective, HostCopy, HostUpdate, Transfer
from stagec.plans.clauses import Plan


def missing_numbers(plan: Plan, classes: Iterable[RankClass]) -> list[str]:
    """The names of the device's settings that the plan does not state, but without which the actions of these rank classes have no durations."""
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
    if any(isinstance(action, HostCopy) and action.is_of_nvme for action in actions):
        wanted.append("nvme_bytes_per_s")
    if any(isinstance(action, HostUpdate) for action in actions):
        wanted.append("host_memory_bytes_per_s")
    return [name for name in wanted if getattr(plan.device, name) is None]


def why_unknown(plan: Plan, classes: Iterable[RankClass]) -> str:
    """A few words for the user on why there are no times."""
    missing = missing_numbers(plan, classes)
    if plan.device.span is None or not missing:
        return "the plan names no device (`device h100`)"
    settings = ", ".join(f"{name} = ..." for name in missing)
    return (
        f"the plan does not say its device's {quoted(missing, 'and')} (`device {{ {settings} }}`)"
    )


def require_numbers(plan: Plan, classes: Iterable[RankClass]) -> None:
    """E0410 unless the plan says how fast everything is that the classes do."""
    missing = missing_numbers(plan, classes)
    if not missing:
        return
    raise refused(
        "E0410",
        f"how long a step takes depends on the device's {quoted(missing, 'and')}",
        plan.device.span or plan.span,
        help=advice(plan, missing),
    )


def advice(plan: Plan, missing: Sequence[str]) -> str:
    """The help of E0410: what to write so that nothing is missing."""
    settings = ", ".join(f"{name} = ..." for name in missing)
    preset = plan.device.preset
    if preset is not None:
        named = preset if preset in names() else f'"{preset}"'
        return f"that device does not say it: `device {named} {{ {settings} }}`"
    if plan.span is None:
        todo = "write a plan, `plan one { device h100 }`"
    elif plan.device.span is None:
        todo = "add `device h100` to the plan"
    else:
        todo = f"name a device, `device h100`, or add `{settings}`"
    return f"{todo}; devices that ship are {quoted(names(), 'and')}"
