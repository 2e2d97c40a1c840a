"""`--device NAME|FILE`, `--network FILE` and `--link AXIS=SPEED`: the device of a plan from the command line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from stagec.cli.usage import CommandParser, add_flag, add_repeated, some_text, usage_error
from stagec.devices.file import MOST, is_path
from stagec.diagnostics import CompileError, Diagnostics, Span, quoted
from stagec.frontend import parse_text, syntax
from stagec.frontend.plans.merge import merge
from stagec.frontend.plans.resolve import resolve_plan
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import Device, Link, Plan

UNITS = {"B": 1} | {
    f"{prefix}{binary}B": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("KMGT", 1)
    for binary in ("", "i")
}
LINK = re.compile(
    r"(?P<axis>[A-Za-z_]\w*)=(?P<speed>\d+(?:\.\d+)?(?:e\d+)?)(?:(?P<unit>(?:[kKMGT]i?)?B)(?:/s)?)?(?:,(?P<latency>\d+(?:\.\d+)?)(?:us)?)?"
)

SETTINGS = re.compile(r'\s*(?P<name>"[^"{}]*"|[^"{}]*?)\s*(?P<settings>\{[^{}]*\})\s*')
"""What a plan's `device` says: a name, or the path of a file with or without quotes, and settings."""
ALONE = ("flops_per_s", "memory_bytes_per_s", "memory")
"""Settings of which a device without a name says one. Others are of how a plan uses its device, which this one replaces."""


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


def device_said(text: str) -> str | Device:
    """A name or a file, or what a plan's `device` says of one. E0710 for what no plan can say."""
    if not {*"{}"} & {*text}:
        return text
    match = SETTINGS.fullmatch(text)
    if match is None:
        message = "a device is a name, a file, or a name with settings"
        raise usage_error(f"--device {text}", message, "E0710", "write `h100 { node = 4 }`")
    name = match["name"].strip('"')
    said = f"{name if name.isidentifier() or not name else json.dumps(name, ensure_ascii=False)} {match['settings']}"
    whole = f"plan any {{ device {said} }}"
    flag = InText(text, match.start("settings"), whole, whole.index(match["settings"]))
    findings = Diagnostics()
    try:
        (plan,) = parse_text(whole, "").files[""].items
        assert isinstance(plan, syntax.Plan)
        device = resolve_plan(merge(plan, {}, findings), SizeTable(), findings).device
        findings.raise_errors({})
    except CompileError as error:
        raise of_flag(error, flag) from None
    if not name and all(getattr(device, each) is None for each in ALONE):
        message = f"a device without a name says {quoted(ALONE, 'or')}"
        help_ = f"write a name in front of settings: `h100 {match['settings']}`"
        raise usage_error(f"--device {text}", message, "E0710", help_)
    if device.captured:
        message = "`captured` names modules of a model"
        help_ = "say it in the plan: `device h100 { captured = [Attention] }`"
        raise usage_error(f"--device {text}", message, "E0710", help_)
    return replace(device, given={name: flag.place(span) for name, span in device.given.items()})


@dataclass(frozen=True)
class InText:
    """What `--device` says, from a character on, and where that stands in a text that was parsed."""

    said: str
    first: int
    whole: str
    begins: int

    @property
    def typed(self) -> str:
        return re.sub(r"\s", " ", f"--device {self.said}")

    def place(self, span: Span) -> Span:
        """Where in the flag stands what stands there in the text; the flag, for what is not all of it."""
        starts = [0, *accumulate(len(line) + 1 for line in self.whole.split("\n"))]
        further = len(self.typed) - len(self.said) + self.first - self.begins
        ends = (span.line, span.column), (span.end_line, span.end_column)
        first, last = (starts[line - 1] + column - 1 + further for line, column in ends)
        is_inside = len(self.typed) - len(self.said) + self.first <= first < len(self.typed)
        return Span.flag(self.typed, *((first, min(last, len(self.typed))) if is_inside else ()))


def of_flag(error: CompileError, flag: InText) -> CompileError:
    """What is wrong with a device that `--device` says: E0417 in the file that it names, else E0710, where it was typed."""
    if error.diagnostics[0].code == "E0417":
        return of_file(error, flag.said)
    return CompileError(
        replace(
            each,
            code="E0710",
            span=flag.place(each.span) if each.span else Span.flag(flag.typed),
            secondary=[(flag.place(span), label) for span, label in each.secondary],
        )
        for each in error.diagnostics
    )


def of_file(error: CompileError, said: str) -> CompileError:
    """What is wrong with the file of a device, or that there is none: E0417."""
    first = error.diagnostics[0]
    span = first.span if first.span and is_path(first.span.file) else None
    found = replace(first, span=span, secondary=(), origin=f"--device {said}")
    return CompileError([found], error.sources)


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
