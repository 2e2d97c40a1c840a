"""`use Absorbed for Attention`: calls of one module become calls of another that computes the same from the same weights."""

from __future__ import annotations

from collections.abc import Mapping

from stagec.diagnostics import Diagnostics, quoted, suggestion
from stagec.dialects.types import TensorType
from stagec.frontend.checker.definitions import Definitions
from stagec.frontend.checker.steps import CheckedBody
from stagec.frontend.checker.types import shown
from stagec.frontend.paths import Scope, weights_of
from stagec.plans.clauses import Plan


def with_replacements(
    bodies: Mapping[str, CheckedBody], plan: Plan, definitions: Definitions, findings: Diagnostics
) -> dict[str, CheckedBody]:
    """The body of each module, as the plan wants it. What does not fit is E0401."""
    for old, new in plan.replaced.items():
        problem = misnamed(definitions, old, new)
        if problem is None and old in bodies and new in bodies:
            problem = misfit(bodies, old, new)
        if problem is not None:
            message, help_ = problem
            findings.say("E0401", message, plan.replaced_span, help=help_)
            return dict(bodies)
    return {name: bodies.get(plan.replaced.get(name, name), body) for name, body in bodies.items()}


def misnamed(definitions: Definitions, old: str, new: str) -> tuple[str, str] | None:
    for name in (old, new):
        if name not in definitions.modules:
            return f"there is no module `{name}`", suggestion(name, sorted(definitions.modules))
    return None


def misfit(bodies: Mapping[str, CheckedBody], old: str, new: str) -> tuple[str, str] | None:
    """Why a module cannot stand for another."""
    if old == new:
        return f"`{old}` stands for itself", "name another module, or leave it out"
    if calls(bodies, new, old):
        return f"`{new}` calls `{old}` itself", "write what it needs of it out"
    for what, of in (("takes", parameters), ("returns", results)):
        types = of(bodies[old]), of(bodies[new])
        if types[0] != types[1]:
            listed = [", ".join(f"{shown(t)}: {t.dtype}" for t in each) for each in types]
            message = f"`{old}` {what} {listed[0]}, and `{new}` {listed[1]}"
            return message, "one stands for the other where both take and return the same"
    weights = [stored(bodies, name) for name in (old, new)]
    differing = sorted({name for name, _ in weights[0].items() ^ weights[1].items()})
    if differing:
        message = f"`{old}` and `{new}` differ in {quoted(differing)}"
        help_ = "one stands for the other where the weights of both are the same: their names, shapes and dtypes"
        return message, help_
    return None


def calls(bodies: Mapping[str, CheckedBody], caller: str, callee: str) -> bool:
    waiting, seen = [caller], set[str]()
    while waiting:
        for call in bodies[waiting.pop()].calls():
            if call.module == callee:
                return True
            if call.module not in seen:
                seen.add(call.module)
                waiting.append(call.module)
    return False


def parameters(body: CheckedBody) -> list[TensorType]:
    return [parameter.value.type for parameter in body.parameters]


def results(body: CheckedBody) -> list[TensorType]:
    return [result.type for result in body.results]


def stored(
    bodies: Mapping[str, CheckedBody], module: str
) -> dict[str, tuple[TensorType, int | None]]:
    """The weights of a module and of those that it calls."""
    found = weights_of(bodies[module], bodies, Scope(module))
    return {scope.path(step.name): (step.result.type, step.num_rows) for scope, step in found}
