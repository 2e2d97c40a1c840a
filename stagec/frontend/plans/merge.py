"""What a plan says together with the plans that it extends, still as syntax.

A clause replaces the clause of its kind in the plan that is extended; `none` removes it. But:

- `precision`, `collectives`, `gradients`, `overlap`, `offload`, `process`, and `device` without a preset replace only the
  settings that they name; so does `set`, size by size.
- `shard` rules for dims are ordered: a plan that has some replaces them all. An override replaces
  one of the same value, a `context` or a `link` one of the same axis, a `pass` one of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stagec.diagnostics import Diagnostics, Mistake, suggestion
from stagec.frontend import syntax

_BY_SETTING = (
    syntax.Precision,
    syntax.Collectives,
    syntax.Gradients,
    syntax.Overlap,
    syntax.Offload,
    syntax.Process,
    syntax.Device,
)
_Key = tuple[str, ...]
C = TypeVar("C", bound=syntax.Clause)


@dataclass
class Merged:
    """Clauses by kind, as `("zero",)` or `("context", "cp")`."""

    plan: syntax.Plan | None
    clauses: dict[_Key, syntax.Clause] = field(default_factory=dict)
    rules: list[syntax.Shard] = field(default_factory=list)
    overrides: dict[str, tuple[syntax.ShardTarget, syntax.Shard]] = field(default_factory=dict)
    sizes: dict[str, syntax.NewSize] = field(default_factory=dict)

    def get(self, kind: type[C]) -> C | None:
        found = self.clauses.get((kind.__name__,))
        return found if isinstance(found, kind) else None

    def all(self, kind: type[C]) -> list[C]:
        return [c for c in self.clauses.values() if isinstance(c, kind)]


def is_rule(target: syntax.ShardTarget) -> bool:
    """A rule for a dim, rather than an override of one value."""
    return target.dims is None and len(target.path.names) == 1


def merge(
    plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan], findings: Diagnostics
) -> Merged:
    """Apply the plans from the one that extends nothing to `plan`."""
    merged = _together(plan, steps_of(plan, plans, findings), findings)
    for clause in (clause for step in own_steps(plan, plans) for clause in step.clauses):
        settings = clause.settings if isinstance(clause, _BY_SETTING) else None
        if settings is not None and not settings.entries:
            message = f"these braces of `{type(clause).__name__.lower()}` say nothing"
            findings.say("W0304", message, settings.span, help="leave them out")
    return merged


def merge_own(plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan]) -> Merged:
    """Likewise of what a plan says itself, and does not inherit."""
    return _together(plan, own_steps(plan, plans), Diagnostics())


def _together(
    plan: syntax.Plan | None, steps: Sequence[syntax.Plan], findings: Diagnostics
) -> Merged:
    merged = Merged(plan)
    for step in reversed(steps):
        _apply(_own(step, findings), merged)
    return merged


def own_steps(plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan]) -> Sequence[syntax.Plan]:
    """What a plan says itself; a pool has what its plan says in it, and then what that says for all pools."""
    if plan is None or DOT not in plan.name.text:
        return [plan] if plan is not None else []
    of_plan, _, name = plan.name.text.rpartition(DOT)
    step = plans[of_plan]
    said = [pool.clauses for pool in _pools_of_step(step) if pool.name.text == name]
    return [replace(plan, clauses=said[0] if said else ()), _for_all_pools(step)]


def _for_all_pools(plan: syntax.Plan) -> syntax.Plan:
    return replace(plan, clauses=tuple(c for c in plan.clauses if not isinstance(c, syntax.Pool)))


def steps_of(
    plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan], findings: Diagnostics
) -> list[syntax.Plan]:
    """The plans whose clauses make up one, the first one above all others.

    A pool has what it says, then what its plan says for all pools, then what the plan says that it extends.
    """
    if plan is None or DOT not in plan.name.text:
        return _chain(plan, plans, findings)
    of_plan, _, name = plan.name.text.rpartition(DOT)
    found: list[syntax.Plan] = []
    extended: list[syntax.Plan] = []
    for step in _chain(plans[of_plan], plans, Diagnostics()):
        for pool in _pools_of_step(step):
            if pool.name.text == name:
                own = replace(plan, base=pool.base, clauses=pool.clauses)
                found.append(own)
                extended += _chain(own, plans, findings)[1:]
        found.append(_for_all_pools(step))
    return [*found, *extended]


DOT = "."
"""Between the name of a plan and that of one of its pools."""


def _pools_of_step(plan: syntax.Plan) -> list[syntax.Pool]:
    return [clause for clause in plan.clauses if isinstance(clause, syntax.Pool)]


def pools_of(plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan]) -> list[syntax.Pool]:
    """The pools of a plan and of those that it extends, each once, in the order in which their ranks follow one another."""
    return list(_pools_of_each([plan], plans)[plan.name.text]) if plan is not None else []


def with_pools(plans: Mapping[str, syntax.Plan]) -> dict[str, syntax.Plan]:
    """The plans, and each of their pools as a plan by itself: `disaggregated.prefill`."""
    found = dict(plans)
    pools = _pools_of_each(plans.values(), plans)
    for plan in plans.values():
        for pool in pools[plan.name.text]:
            name = replace(pool.name, text=f"{plan.name}{DOT}{pool.name}")
            found[name.text] = syntax.Plan(name, pool.base, pool.clauses, span=plan.span)
    return found


def _pools_of_each(
    asked: Iterable[syntax.Plan], plans: Mapping[str, syntax.Plan]
) -> dict[str, tuple[syntax.Pool, ...]]:
    """The pools of plans and of all that they extend, as the last plan that names one says it, each plan looked at once."""
    found: dict[str, tuple[syntax.Pool, ...]] = {}
    for plan in asked:
        steps: list[syntax.Plan] = []
        for step in _lineage(plan, plans):
            steps.append(step)
            if step.name.text in found:
                break
        for step in reversed(steps):
            if step.name.text in found:
                continue
            base = step.base.text if step.base is not None else ""
            named = {pool.name.text: pool for pool in found[base]} if base in found else {}
            own: dict[str, syntax.Pool] = {}
            for pool in _pools_of_step(step):
                own.setdefault(pool.name.text, pool)
            found[step.name.text] = tuple((named | own).values())
    return found


def _lineage(plan: syntax.Plan, plans: Mapping[str, syntax.Plan]) -> Iterator[syntax.Plan]:
    """A plan, the one that it extends, and so on, each once."""
    names: set[str] = set()
    step: syntax.Plan | None = plan
    while step is not None and step.name.text not in names:
        names.add(step.name.text)
        yield step
        step = plans.get(step.base.text) if step.base is not None else None


def _chain(
    plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan], findings: Diagnostics
) -> list[syntax.Plan]:
    """The lineage of a plan: E0404 for a base that is not there, E0206 for one that is among those that extend it."""
    if plan is None:
        return []
    chain = list(_lineage(plan, plans))
    last = chain[-1].base
    if last is None:
        return chain
    if (base := plans.get(last.text)) is None:
        # A pool has the plan that its own plan extends, as often as there are pools.
        others = [name for name in plans if DOT not in name and name != chain[-1].name.text]
        help_ = suggestion(last.text, others) or "leave out `extends`"
        message = f"there is no plan `{last}`"
        findings.say("E0404", message, last.span, help=help_, mistake=Mistake("no plan", last.text))
        return chain
    names = [step.name.text for step in chain]
    names = [*names[names.index(base.name.text) :], base.name.text]
    notes = (f"{' -> '.join(names)}",) if len(names) > 2 else ()
    message = f"plan `{base.name}` extends itself"
    findings.say("E0206", message, last.span, notes=notes, help="let one of them extend no plan")
    return chain


def _own(plan: syntax.Plan, findings: Diagnostics) -> Merged:
    """The clauses of one plan alone; the same clause twice is a finding."""
    own = Merged(plan)
    for clause in plan.clauses:
        if isinstance(clause, syntax.Resize):
            for new in clause.sizes:
                first = own.sizes.setdefault(new.name.text, new)
                if first is not new:
                    mistake = Mistake("sizes said twice", str(clause.span))
                    _twice(f"the size of `{new.name}`", new, first, findings, mistake=mistake)
        elif isinstance(clause, syntax.Shard):
            rules = tuple(t for t in clause.targets if is_rule(t))
            if rules:
                own.rules.append(replace(clause, targets=rules))
            for target in clause.targets:
                if target not in rules:
                    first, _ = own.overrides.setdefault(str(target.path), (target, clause))
                    if first is not target:
                        help_ = "one dim of a value is split by overrides: give dims names of their own, and each a rule, to split several"
                        what = f"the override of `{target.path}`"
                        _twice(what, target, first, findings, help_)
        else:
            key = _key(clause)
            first = own.clauses.setdefault(key, clause)
            if first is not clause:
                _twice(f"`{' '.join(key).lower()}`", clause, first, findings)
    return own


def _twice(
    what: str,
    second: syntax.SyntaxNode,
    first: syntax.SyntaxNode,
    findings: Diagnostics,
    help_: str = "leave one of them out",
    mistake: Mistake | None = None,
) -> None:
    findings.say(
        "E0401",
        f"{what} stands twice in one plan",
        second.span,
        secondary=[(first.span, "first here")],
        help=help_,
        mistake=mistake,
    )


def _key(clause: syntax.Clause) -> _Key:
    if isinstance(clause, syntax.Context | syntax.Link):
        return (type(clause).__name__, clause.axis.text)
    if isinstance(clause, syntax.Pass | syntax.Pool):
        return (type(clause).__name__, clause.name.text)
    return (type(clause).__name__,)


def _apply(own: Merged, merged: Merged) -> None:
    if own.rules:
        merged.rules = own.rules
    merged.overrides |= own.overrides
    merged.sizes |= own.sizes
    for key, clause in own.clauses.items():
        if key in (("Context", "none"), ("Link", "none")):
            for inherited in [k for k in merged.clauses if k[0] == key[0]]:
                del merged.clauses[inherited]
            continue
        base = merged.clauses.pop(key, None)
        merged.clauses[key] = _merged_settings(clause, base)


def _merged_settings(clause: syntax.Clause, base: syntax.Clause | None) -> syntax.Clause:
    if not isinstance(clause, _BY_SETTING) or not isinstance(base, type(clause)):
        return clause
    if isinstance(clause, syntax.Device) and clause.preset:
        return clause
    settings, inherited = clause.settings, base.settings
    if settings is None or inherited is None:
        merged = settings or inherited
    else:
        named = {s.name.text for s in settings.entries}
        kept = tuple(s for s in inherited.entries if s.name.text not in named)
        merged = replace(settings, entries=(*kept, *settings.entries))
    if isinstance(clause, syntax.Device):
        assert isinstance(base, syntax.Device)
        return replace(clause, preset=base.preset, settings=merged)
    assert merged is not None
    return replace(clause, settings=merged)
