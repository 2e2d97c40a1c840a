"""Which dims of a model say what of a request, as its caches tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from stagec import symbolic
from stagec.diagnostics import Diagnostics, Span
from stagec.frontend.checker.steps import AppendStep, CheckedBody, PartsStep, StateStep
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import Plan, Rule
from stagec.symbolic.quantity import Quantity


@dataclass(frozen=True)
class Roles:
    """Which dims of a model say what of a request."""

    batch: str
    """Sequences."""
    new: str
    """Positions that are computed."""
    positions: Mapping[str, Quantity | None] = field(default_factory=dict)
    """Positions that caches hold, and how many at most."""
    spans: Mapping[str, Span] = field(default_factory=dict)
    shapes: frozenset[tuple[str, ...]] = frozenset()
    """The dims of caches that hold positions."""
    in_front: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """New positions of text, and those of images that stand in front of them where a sequence begins."""


def in_front_of(bodies: Iterable[CheckedBody], new: str) -> dict[str, tuple[str, ...]]:
    """`Roles.in_front`: what is joined to new positions, of which the last part is text."""
    steps = (step for body in bodies for step in body.walk() if isinstance(step, PartsStep))
    return {s.parts[-1]: tuple(s.in_front) for s in steps if s.joins and s.whole == new}


def roles_of(bodies: Iterable[CheckedBody], findings: Diagnostics) -> Roles | None:
    """The roles of dims, as the caches of a model tell them."""
    bodies = list(bodies)
    batch = new = ""
    seen: Span | None = None
    positions: dict[str, Quantity | None] = {}
    spans: dict[str, Span] = {}
    shapes: set[tuple[str, ...]] = set()
    for body in bodies:
        for step in body.walk():
            if not isinstance(step, AppendStep | StateStep):
                continue
            seen = seen or step.span
            first = step.cache.type.names[0]
            batch, new = batch or first, new or step.new_dim
            if first != batch or step.new_dim != new:
                message = f"caches disagree: their sequences are `{batch}` and `{first}`, new positions `{new}` and `{step.new_dim}`"
                help_ = "give all caches the same dims of sequences and of positions"
                findings.say("E0205", message, step.span, secondary=[(seen, "here")], help=help_)
                return None
            if isinstance(step, StateStep):
                continue
            shapes.add(tuple(step.cache.type.names))
            known = positions.setdefault(step.position_dim, step.window)
            where = [(spans.setdefault(step.position_dim, step.span), "here")]
            if (known and known.value) != (step.window and step.window.value):
                message = f"`{step.position_dim}` counts positions under two windows"
                help_ = "give those of each window a dim of their own"
                findings.say("E0205", message, step.span, secondary=where, help=help_)
                return None
    in_front = in_front_of(bodies, new)
    roles = Roles(batch, new, positions, spans, frozenset(shapes), in_front)
    return roles if batch else None


def unserved(
    plan: Plan,
    roles: Roles | None,
    table: SizeTable,
    findings: Diagnostics,
    sized: Collection[str] = (),
) -> Plan:
    """A plan without `serve`: all positions are new, and what splits or pads these splits and pads those. Dims that it has `sized` it sizes itself."""
    if roles is None or not roles.positions:
        return plan
    for name in roles.positions:
        pad_with(name, roles.new, table)
        sizes = table.values.get(name), table.values.get(roles.new)
        if None not in sizes and sizes[0] != sizes[1]:
            message = f"`{name} = {sizes[0]}` positions, but `{roles.new} = {sizes[1]}` are new"
            help_ = f"write `dim {name} = {roles.new}`: a plan with `serve` gives it its size"
            if (flag := table.origins.get(name)) or name in sized:
                help_ = f"leave out `{flag or f'set {name}'}`"
            notes = ["without `serve` nothing is cached before"]
            findings.say("E0413", message, roles.spans[name], notes=notes, help=help_)
    ruled = {dim for rule in plan.rules for dim in rule.dims}
    also = tuple(name for name in roles.positions if name not in ruled)
    return replace(plan, rules=tuple(with_positions(r, roles.new, also) for r in plan.rules))


def pad_with(name: str, new: str, table: SizeTable) -> None:
    """Let positions be the new ones, which a rule pads; other sizes that the text makes of them are of as many as it says."""
    hidden = table.unpadded.get(new)
    if hidden is None or name in table.unpadded or table.values[name] != table.values[hidden]:
        return
    padded, said = table.dims[new].value, table.dims[name]
    for other, each in table.dims.items():
        of = said.size if other == hidden else symbolic.symbol(hidden)
        table.dims[other] = replace(each, size=each.size.substitute({name: of}))
    table.dims[name] = replace(said, size=symbolic.symbol(new), value=padded)
    table.values[name] = padded


def with_positions(rule: Rule, new: str, positions: tuple[str, ...]) -> Rule:
    if new not in rule.dims:
        return rule
    after = rule.dims.index(new) + 1
    return replace(rule, dims=(*rule.dims[:after], *positions, *rule.dims[after:]))
