"""Which module calls which: what is needed, what goes round, what becomes too large."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from stagec.diagnostics import Diagnostics
from stagec.frontend import syntax
from stagec.frontend.checker.definitions import Definitions
from stagec.frontend.checker.steps import CallStep, CheckedBody, RepeatStep, Step

DEEPEST_CALLS = 50
DEEPEST_REPEATS = 16
"""Repeats in repeats, through calls too."""

MOST_OPS = 2_500
"""Ops after all calls are written out. Layers belong in a `repeat`."""


def calls_of(item: syntax.Module | syntax.Model, known: Container[str]) -> list[syntax.Name]:
    """What of the known a body calls, as written."""
    return [call.function for call in item.body.calls if call.function.text in known]


def dims_of_dispatches(definitions: Definitions, argument: str) -> set[str]:
    """The dims that dispatches of the model call `experts`, or the `tokens` of one."""
    return {
        each.value.name.text
        for item in (*definitions.modules.values(), *definitions.models)
        for call in item.body.calls
        if call.function.text == "dispatch"
        for each in call.arguments
        if each.name is not None
        and each.name.text == argument
        and isinstance(each.value, syntax.Reference)
    }


def needed(
    file: str, definitions: Definitions, also: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Modules and ops of the file itself, those that are asked for `also`, and all that they and the model call."""
    own = [n for n, m in definitions.modules.items() if m.span.file == file or n in also]
    items: list[syntax.Module | syntax.Model] = [definitions.modules[name] for name in own]
    items += definitions.models[:1]
    modules = dict.fromkeys(own)
    ops = dict.fromkeys(name for name, op in definitions.ops.items() if op.span.file == file)
    while items:
        item = items.pop()
        for call in calls_of(item, definitions.modules):
            if call.text not in modules:
                modules[call.text] = None
                items.append(definitions.modules[call.text])
        ops |= dict.fromkeys(call.text for call in calls_of(item, definitions.ops))
    return list(modules), list(ops)


def call_order(
    names: Iterable[str], definitions: Definitions, findings: Diagnostics
) -> list[str] | None:
    """Modules after those that they call. A module that calls itself is a finding."""
    calls = {n: calls_of(definitions.modules[n], definitions.modules) for n in names}
    graph = {name: [call.text for call in found] for name, found in calls.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        circle: list[str] = error.args[1][::-1]
    caller, callee = circle[0], circle[1]
    (place, *_) = [call for call in calls[caller] if call.text == callee]
    notes = (" -> ".join(circle),) if len(circle) > 2 else ()
    message = f"module `{caller}` calls itself"
    help_ = "layers that follow each other are a `repeat`"
    findings.say("E0206", message, place.span, notes=notes, help=help_)
    return None


def check_extent(
    order: Iterable[str],
    model: syntax.Model,
    bodies: Mapping[str, CheckedBody],
    findings: Diagnostics,
) -> None:
    """Calls may not nest too deeply, nor come to too many ops."""
    depth: dict[str, int] = {}
    ops: dict[str, int] = {}
    repeats: dict[str, int] = {}
    for name in (*order, model.name.text):
        called = [step.module for step in bodies[name].calls()]
        depth[name] = 1 + max((depth[c] for c in called), default=0)
        own = 1 + len(bodies[name].parameters) + sum(1 for _ in bodies[name].walk())
        ops[name] = own + sum(ops[c] for c in called)
        repeats[name] = _repeats(bodies[name].steps, repeats)
    name = model.name
    for what, levels, most in (
        ("calls of modules", depth, DEEPEST_CALLS),
        ("repeats", repeats, DEEPEST_REPEATS),
    ):
        if levels[name.text] > most:
            message = f"{what} nest more than {most} levels deep"
            help_ = "write what the innermost ones do where they are called"
            findings.say("E0106", message, name.span, help=help_)
    if ops[name.text] > MOST_OPS:
        message = f"`{name}` has more than {MOST_OPS:,} ops"
        help_ = "write layers that follow each other as a `repeat`"
        findings.say("E0216", message, name.span, help=help_)


def _repeats(steps: Iterable[Step], known: Mapping[str, int]) -> int:
    """How deeply repeats nest in steps; `known` for the modules that they call."""
    levels = [0]
    for step in steps:
        if isinstance(step, CallStep):
            levels.append(known[step.module])
        elif isinstance(step, RepeatStep):
            levels.append(1 + _repeats(step.steps, known))
    return max(levels)
