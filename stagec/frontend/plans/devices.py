"""The device of a plan, and the links between devices."""

from __future__ import annotations

import os
from collections.abc import Iterable

from stagec.devices import file
from stagec.diagnostics import CompileError, quoted
from stagec.frontend import syntax
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved


def read_device(reader: PlanReader) -> resolved.Device:
    clause = reader.merged.get(syntax.Device)
    if clause is None:
        return resolved.Device()
    own = reader.merged.plan.clauses if reader.merged.plan is not None else ()
    bare = next((c for c in own if isinstance(c, syntax.Device)), clause)
    if bare.preset is None and bare.settings is None:
        help_ = f"name one of {quoted(file.names())}, or write `{{ memory = 80GiB }}`"
        reader.error("E0401", "`device` says nothing", bare, help_)
    read = reader.settings.read(clause.settings, resolved.Device, "`device`")
    name = device_name(reader, clause.preset) if clause.preset is not None else None
    device = resolved.Device.of(name, span=clause.span, **read)
    for setting, message in device.too_many_units.items():
        help_ = "choose fewer: computation needs one"
        reader.findings.say("E0403", message, device.given[setting], help=help_)
    return device


def device_name(reader: PlanReader, name: syntax.Name | syntax.Text) -> str | None:
    """A device that ships, or the path of a file that reads: it is beside the text."""
    if isinstance(name, syntax.Name):
        if name.text in (*file.names(), *file.ALIASES):
            return name.text
        reader.error("E0403", f"there is no device `{name}`", name, file.no_device(name.text))
        return None
    path = os.path.join(os.path.dirname(name.span.file), name.text)
    try:
        file.load(path)
    except CompileError as error:
        for each in error.diagnostics:
            reader.findings.add(file.placed(each, name.span, "the plan names it"))
        return None
    return path


def read_links(reader: PlanReader) -> Iterable[resolved.Link]:
    for clause in reader.merged.all(syntax.Link):
        axes = reader.real_axes([clause.axis], "`link`")
        read = reader.settings.read(clause.settings, resolved.Link, "`link`")
        if axes and not (clause.settings and clause.settings.entries):
            help_ = f"write `link {clause.axis} {{ bytes_per_s = 450GB, latency_us = 2 }}`"
            reader.error("E0401", "`link` says nothing", clause, help_)
        yield resolved.Link(axes=tuple(axes), span=clause.span, **read)
