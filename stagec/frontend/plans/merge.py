"""What a plan says together with the plans that it extends, still as syntax.

A clause replaces the clause of its kind in the plan that is extended; `none` removes it. But:

- `precision`, `collectives`, `gradients`, `overlap`, `offload`, and `device` without a preset replace only the
  settings that they name; so does `set`, size by size.
- `shard` rules for dims are ordered: a plan that has some replaces them all. An override replaces
  one of the same value, a `context` or a `link` one of the same axis, a `pass` one of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stagec.diagnostics import Diagnostic, Findings, did_you_mean
from stagec.frontend import syntax

_BY_SETTING = (
    syntax.Precision,
    syntax.Collectives,
    syntax.Gradients,
    syntax.Overlap,
    syntax.Offload,
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


def merge(plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan], findings: Findings) -> Merged:
    """Apply the plans from the one that extends nothing to `plan`."""
    merged = Merged(plan)
    for step in reversed(_chain(plan, plans, findings)):
        own = _own(step, findings)
        _apply(own, merged)
    return merged


def _chain(
    plan: syntax.Plan | None, plans: Mapping[str, syntax.Plan], findings: Findings
) -> list[syntax.Plan]:
    chain: list[syntax.Plan] = []
    while plan is not None:
        chain.append(plan)
        if plan.base is None:
            break
        base = plans.get(plan.base.text)
        if base is None:
            message = f"there is no plan `{plan.base}`"
            help_ = did_you_mean(plan.base.text, plans)
            findings.add(Diagnostic("E0404", message, plan.base.span, help=help_))
        elif base in chain:
            names = [p.name.text for p in chain[chain.index(base) :]] + [base.name.text]
            message = f"plan `{base.name}` extends itself"
            notes = (f"{' -> '.join(names)}",) if len(names) > 2 else ()
            findings.add(Diagnostic("E0206", message, plan.base.span, notes=notes))
            break
        plan = base
    return chain


def _own(plan: syntax.Plan, findings: Findings) -> Merged:
    """The clauses of one plan alone; the same clause twice is a finding."""
    own = Merged(plan)
    for clause in plan.clauses:
        if isinstance(clause, syntax.Resize):
            for new in clause.sizes:
                first = own.sizes.setdefault(new.name.text, new)
                if first is not new:
                    _twice(f"the size of `{new.name}`", new, first, findings)
        elif isinstance(clause, syntax.Shard):
            rules = tuple(t for t in clause.targets if is_rule(t))
            if rules:
                own.rules.append(replace(clause, targets=rules))
            for target in clause.targets:
                if target not in rules:
                    first, _ = own.overrides.setdefault(str(target.path), (target, clause))
                    if first is not target:
                        _twice(f"the override of `{target.path}`", target, first, findings)
        else:
            key = _key(clause)
            first = own.clauses.setdefault(key, clause)
            if first is not clause:
                _twice(f"`{' '.join(key).lower()}`", clause, first, findings)
    return own


def _twice(
    what: str, second: syntax.SyntaxNode, first: syntax.SyntaxNode, findings: Findings
) -> None:
    findings.add(
        Diagnostic(
            "E0401",
            f"{what} stands twice in one plan",
            second.span,
            secondary=[(first.span, "first here")],
        )
    )


def _key(clause: syntax.Clause) -> _Key:
    if isinstance(clause, syntax.Context | syntax.Link):
        return (type(clause).__name__, clause.axis.text)
    if isinstance(clause, syntax.Pass):
        return ("Pass", clause.name.text)
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
