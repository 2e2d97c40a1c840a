"""The files that a plan names: lengths, loads, schedules and devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace

from stagec.devices.file import load, with_bases
from stagec.diagnostics import CompileError, Diagnostics
from stagec.frontend import syntax
from stagec.frontend.plans.merge import Merged
from stagec.trust import may_read, outside


def check_files(merged: Merged, folders: Iterable[str], findings: Diagnostics) -> None:
    """E0721 for what is neither below the folders of the texts that the user names, nor trusted.

    The file of a device may be anywhere, as it tells numbers alone; but what is wrong with one elsewhere is not shown.
    """
    device, schedule = merged.get(syntax.Device), schedule_in(merged)
    for name in texts_in(merged.clauses.values()):
        path = os.path.join(os.path.dirname(name.span.file), name.text)
        is_device = device is not None and name is device.preset
        if is_device and is_device_file(path):
            continue
        if name is schedule and is_code(name.text):
            continue
        read = with_bases(path) if is_device else [path]
        for file in read:
            if not any(may_read(file, folder) for folder in folders):
                notes = [] if file == path else [f"`{name.text}` is built upon it"]
                findings.add(replace(outside(file, name.span), notes=notes))
                break


def is_device_file(path: str) -> bool:
    """Whether it reads as a device."""
    try:
        load(path)
    except CompileError:
        return False
    return True


def schedule_in(merged: Merged) -> syntax.Value | None:
    """What a pipeline says of its schedule."""
    pipeline = merged.get(syntax.Pipeline)
    entries = pipeline.settings.entries if pipeline is not None and pipeline.settings else ()
    return next((each.value for each in entries if each.name.text == "schedule"), None)


def is_code(text: str) -> bool:
    """Whether a schedule is in Python, with its function behind the name of the file: that is E0722 where it may not run."""
    return ":" in text and not text.endswith(".csv")


def texts_in(nodes: Iterable[object]) -> Iterator[syntax.Text]:
    """What stands in quotes and is no name of a value, or argument of an op or a pass: the names of files."""
    stack = [*nodes]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack += node
        elif isinstance(node, syntax.Text):
            yield node
        elif isinstance(node, syntax.SyntaxNode) and not isinstance(
            node, syntax.ListValue | syntax.Argument | syntax.Pass
        ):
            stack += [getattr(node, each.name) for each in fields(node)]
