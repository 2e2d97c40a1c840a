"""`--device NAME|FILE`, `--network FILE` and `--link AXIS=SPEED`: the device of a plan from the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from stagec.cli.usage import CommandParser, add_flag, add_repeated, some_text, usage_error
from stagec.devices.file import MOST
from stagec.diagnostics import CompileError, quoted
from stagec.frontend.typed_device import device_said, of_file
from stagec.plans.clauses import Link, Plan

UNITS = {"B": 1} | {
    f"{prefix}{binary}B": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("KMGT", 1)
    for binary in ("", "i")
}
LINK = re.compile(
    r"(?P<axis>[A-Za-z_]\w*)=(?P<speed>\d+(?:\.\d+)?(?:e\d+)?)(?:(?P<unit>(?:[kKMGT]i?)?B)(?:/s)?)?(?:,(?P<latency>\d+(?:\.\d+)?)(?:us)?)?"
)


def add_device_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("the device")
    add_flag(
        group,
        "--device",
        "DEVICE",
        "in place of the plan's: a name (`stagec devices` lists them), a FILE.toml, or as a plan says it: `h100 { node = 4 }`",
        some_text,
    )
    add_repeated(
        group,
        "--link",
        "AXIS=SPEED[,US]",
        "what joins the ranks along an axis: bytes per second in one direction, and latency; may be repeated",
    )
    add_flag(
        group,
        "--network",
        "FILE",
        "an InfraGraph of the cluster, which says how many devices a node has and how fast links are",
        some_text,
    )


def planned(plan: Plan, options: argparse.Namespace) -> Plan:
    """E0417 or E0710 for a device that is none, E0419 for a network, E0710 for a link that does not read."""
    if options.device is not None:
        from stagec.estimate.step import on_device

        device = device_said(options.device)
        try:
            plan = on_device(plan, device)
        except CompileError as error:
            raise of_file(error, options.device) from None
    if options.network is not None:
        from stagec.simulators.infragraph import on_network

        plan = on_network(plan, options.network)
    if not options.link:
        return plan
    if plan.device.flops_per_s is None or plan.device.memory_bytes_per_s is None:
        message = "`--link` changes nothing, as there are no times without a device"
        help_ = "add `--device h100`, or leave it out"
        raise usage_error(f"--link {options.link[0]}", message, "E0711", help_)
    links = list(links_of(plan, options.link))
    given = {axis for link in links for axis in link.axes}
    kept = [link for link in plan.links if not given >= set(link.axes)]
    return replace(plan, links=(*kept, *links))


def links_of(plan: Plan, texts: Iterable[str]) -> Iterator[Link]:
    said: dict[str, str] = {}
    for text in texts:
        match = LINK.fullmatch(text.strip())
        if match is None:
            help_ = "write `--link tp=450GB`, or `--link tp=450GB,2us`"
            raise usage_error(
                f"--link {text}", "`--link` wants an axis and a speed", "E0710", help_
            )
        speed = float(match["speed"]) * UNITS[(match["unit"] or "B").replace("k", "K")]
        if speed <= 0:
            help_ = f"write bytes per second: `--link {match['axis']}=450GB`"
            raise usage_error(f"--link {text}", "a speed must be more than 0", "E0710", help_)
        if match["unit"] is None:
            given = f"--link {match['axis']}={match['speed']}"
            help_ = f"write `{given}GB`, or `{given}B` for single bytes"
            raise usage_error(
                f"--link {text}", "a speed is bytes per second, in some unit", "E0710", help_
            )
        axes = plan.products.get(match["axis"], (match["axis"],))
        if not set(axes) <= set(plan.mesh):
            help_ = f"there are {quoted(plan.mesh)}" if plan.mesh else "the plan has no mesh"
            message = f"the mesh has no axis `{match['axis']}`"
            raise usage_error(f"--link {text}", message, "E0710", help_)
        for axis in axes:
            if said.setdefault(axis, text) != text:
                message = f"`{axis}` has two links, `{said[axis]}` and `{text}`"
                raise usage_error(f"--link {text}", message, "E0711", "leave out one")
        latency = float(match["latency"]) if match["latency"] else None
        if max(speed, latency or 0) > MOST:
            message = "no link is so fast, or takes so long"
            help_ = "speeds are bytes per second, and latencies microseconds: `450GB,2us`"
            raise usage_error(f"--link {text}", message, "E0710", help_)
        yield Link(axes=tuple(axes), bytes_per_s=speed, latency_us=latency)
