"""What a plan's `serve` makes of sizes: a batch of sequences that differ in length, as sums.

Sequences of one kind are rows of the batch. Of several kinds, each device has one row: the tokens of all its sequences, one after the
other, as engines run them (a flattened batch with a table of where each sequence starts). Either way products count tokens, caches
count positions, and attention counts pairs of a query and a key of the same sequence.

With n sequences of s new positions after c others, of each kind: s n tokens, (c + s) n positions, n (s c + s (s + 1) / 2) pairs under
a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from stagec import symbolic
from stagec.diagnostics import Diagnostic, Findings, Span
from stagec.dialects import stg
from stagec.frontend import syntax
from stagec.frontend.checker.steps import AppendStep, Body, StateStep
from stagec.frontend.numbers import Sizes, whole
from stagec.frontend.plans.merge import Merged
from stagec.frontend.plans.settings import SettingsReader
from stagec.frontend.sizes import NamedSize, SizeTable
from stagec.plans.clauses import Plan, Rule, Sequences, Serve
from stagec.symbolic import ONE, Size, conditions
from stagec.symbolic.quantity import Quantity

HALF = ONE / 2

NEW, CONTEXT = "x", "at"
"""The words before the numbers of a sequence's new tokens, and of those before them."""


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


def roles_of(bodies: Iterable[Body], findings: Findings) -> Roles | None:
    """The roles of dims, as the caches of a model tell them."""
    batch = new = ""
    seen: Span | None = None
    positions: dict[str, Quantity | None] = {}
    spans: dict[str, Span] = {}
    for body in bodies:
        for step in body.walk():
            if not isinstance(step, AppendStep | StateStep):
                continue
            seen = seen or step.span
            first = step.cache.type.names[0]
            batch, new = batch or first, new or step.new_dim
            if first != batch or step.new_dim != new:
                message = f"caches disagree: their sequences are `{batch}` and `{first}`, new positions `{new}` and `{step.new_dim}`"
                findings.add(Diagnostic("E0205", message, step.span, secondary=[(seen, "here")]))
                return None
            if isinstance(step, StateStep):
                continue
            known = positions.setdefault(step.position_dim, step.window)
            where = [(spans.setdefault(step.position_dim, step.span), "here")]
            if (known and known.value) != (step.window and step.window.value):
                message = f"`{step.position_dim}` counts positions under two windows"
                help_ = "give those of each window a dim of their own"
                findings.add(Diagnostic("E0205", message, step.span, secondary=where, help=help_))
                return None
    return Roles(batch, new, positions, spans) if batch else None


def unserved(plan: Plan, roles: Roles | None, table: SizeTable, findings: Findings) -> Plan:
    """A plan without `serve`: all positions are new, and what splits these splits those."""
    if roles is None or not roles.positions:
        return plan
    for name in roles.positions:
        sizes = table.values.get(name), table.values.get(roles.new)
        if None not in sizes and sizes[0] != sizes[1]:
            message = f"`{name} = {sizes[0]}` positions, but `{roles.new} = {sizes[1]}` are new"
            help_ = f"write `dim {name} = {roles.new}`: a plan with `serve` gives it its size"
            notes = ["without `serve` nothing is cached before"]
            findings.add(Diagnostic("E0413", message, roles.spans[name], notes=notes, help=help_))
    ruled = {dim for rule in plan.rules for dim in rule.dims}
    also = tuple(name for name in roles.positions if name not in ruled)
    return replace(plan, rules=tuple(with_positions(r, roles.new, also) for r in plan.rules))


def with_positions(rule: Rule, new: str, positions: tuple[str, ...]) -> Rule:
    if new not in rule.dims:
        return rule
    after = rule.dims.index(new) + 1
    return replace(rule, dims=(*rule.dims[:after], *positions, *rule.dims[after:]))


class ServeReader:
    """Reads a `serve` clause under known sizes."""

    def __init__(self, clause: syntax.Serve, sizes: Sizes, findings: Findings) -> None:
        self.clause, self.sizes, self.findings = clause, sizes, findings

    def read(self) -> Serve | None:
        what = self.clause.what
        if isinstance(what, syntax.Reference):
            if what.name.text != "none":
                help_ = "write `serve { decode 128 at 1500 }`, or `serve none`"
                message = "`serve` says what is served"
                self.findings.add(Diagnostic("E0401", message, what.span, help=help_))
            return None
        found = [self.sequences(e) for e in what.entries if not isinstance(e, syntax.Setting)]
        settings = syntax.Settings(
            tuple(e for e in what.entries if isinstance(e, syntax.Setting)), span=what.span
        )
        read = SettingsReader(self.sizes, self.findings).read(settings, Serve, "`serve`")
        sequences = tuple(s for s in found if s is not None)
        if not found:
            help_ = "write `serve { prefill 4 x 2048 }`, or `serve { decode 128 at 1500 }`"
            message = "`serve` has no sequences"
            self.findings.add(Diagnostic("E0401", message, self.clause.span, help=help_))
        if not sequences or len(sequences) < len(found):
            return None
        return Serve(sequences=sequences, span=self.clause.span, **read)

    def sequences(self, entry: syntax.Prefill | syntax.Decode) -> Sequences | None:
        is_prefill = isinstance(entry, syntax.Prefill)
        given = {measure.word.text: measure for measure in entry.measures}
        needed = NEW if is_prefill else CONTEXT
        known = set(given) <= {NEW, CONTEXT} and len(given) == len(entry.measures)
        if not known or needed not in given:
            help_ = "write `prefill 4 x 2048`, and `at 512` for what is cached before"
            if not is_prefill:
                help_ = "write `decode 128 at 1500`, and `x 4` for so many new tokens of each"
            message = "sequences have new tokens (`x`), and tokens before them (`at`)"
            self.findings.add(Diagnostic("E0401", message, entry.span, help=help_))
            return None
        count = self.number(entry.count, "the number of sequences")
        new = context = None
        if NEW in given:
            new = self.number(given[NEW].number, "the number of new tokens")
        if CONTEXT in given:
            context = self.number(given[CONTEXT].number, "the number of tokens before", 0)
        if count is None or (NEW in given and new is None) or (CONTEXT in given and not context):
            return None
        one, none = (Quantity(size, size.evaluate({})) for size in (ONE, symbolic.ZERO))
        return Sequences(count, new or one, context or none, entry.span)

    def number(self, expr: syntax.Expr, what: str, least: int = 1) -> Quantity | None:
        return whole(expr, self.sizes, self.findings, what, least)


@dataclass(frozen=True)
class Batch:
    """The sequences of an iteration, as sums over all of them and as rows of a batch."""

    serve: Serve
    roles: Roles
    rows: Quantity
    """What the batch dim is: all sequences, or a row for each device."""
    is_packed: bool
    sizes: Mapping[str, NamedSize] = field(default_factory=dict)
    """Of the dims that the batch gives their sizes."""
    is_imagined: bool = False
    """No plan serves it: it stands for any, to see which caches a model has."""

    def in_numbers(self, size: Size) -> Size:
        """A size in which the dims that the batch defines are numbers."""
        numbers = {n: symbolic.constant(s.value) for n, s in self.sizes.items()}
        return substituted(size, numbers)

    def per_row(self, total: Size) -> Size:
        return total / self.rows.size

    @property
    def tokens(self) -> Size:
        return symbolic.total(s.count.size * s.new.size for s in self.serve.sequences)

    @property
    def sequences(self) -> Size:
        return symbolic.total(s.count.size for s in self.serve.sequences)

    def in_a_row(self, of_one: Callable[[Size, Size], Size]) -> Size:
        """A sum over the sequences of a row, of what their new tokens and the tokens before them make."""
        sizes = (s.count.size * of_one(s.new.size, s.context.size) for s in self.serve.sequences)
        return self.in_numbers(self.per_row(symbolic.total(sizes)))

    def kinds_of_row(
        self, window: Size | None, cached: bool
    ) -> tuple[tuple[Size, Size, Size], ...]:
        """Sequences of a row by kind: how many, their new positions, and those that these attend to."""
        found: list[tuple[Size, Size, Size]] = []
        for each in self.serve.sequences:
            keys = each.new.size
            if cached:
                keys = keys + reach(each.context.size, window, -1)
            sizes = (self.per_row(each.count.size), each.new.size, keys)
            count, new, keys = map(self.in_numbers, sizes)
            found.append((count, new, keys))
        return tuple(found)

    def positions(self, window: Size | None) -> Size:
        """Those that new positions attend to: under a window of W the last W - 1 and they themselves."""
        return symbolic.total(
            s.count.size * (s.new.size + reach(s.context.size, window, -1))
            for s in self.serve.sequences
        )

    def stored(self, window: Size | None) -> Size:
        """Those that memory is set aside for, in whole blocks."""
        block = symbolic.constant(self.serve.block)
        return symbolic.total(
            s.count.size
            * block
            * symbolic.ceildiv(reach(s.context.size + s.new.size, window, 0), block)
            for s in self.serve.sequences
        )

    def pairs(self, causal: bool, window: Size | None) -> Size:
        """Pairs of a new position and one that it attends to, in the same sequence."""
        return symbolic.total(
            s.count.size * pairs(s.new.size, s.context.size, causal, window)
            for s in self.serve.sequences
        )

    def pairs_among_new(self, causal: bool, window: Size | None) -> Size:
        """The same where nothing is cached, as in an encoder."""
        return symbolic.total(
            s.count.size * pairs(s.new.size, symbolic.ZERO, causal, window)
            for s in self.serve.sequences
        )


def reach(positions: Size, window: Size | None, more: int) -> Size:
    return positions if window is None else symbolic.call("min", positions, window + more)


def pairs(new: Size, context: Size, causal: bool, window: Size | None) -> Size:
    """Pairs of s queries and the c + s keys up to their own; without a mask, of each with all.

    A query at position p, counted from 1, sees p keys, or W under a window of W: the sum of min(p, W) for p from c + 1 to c + s.
    """
    if not causal:
        keys = context + new
        return new * (keys if window is None else symbolic.call("min", keys, window))
    return below(context + new, window) - below(context, window)


def below(position: Size, window: Size | None) -> Size:
    """The sum of min(p, W) for p from 1 to a position: a triangle, then a band."""
    if window is None:
        return position * (position + 1) * HALF
    edge = symbolic.call("min", position, window)
    return edge * (edge + 1) * HALF + (position - edge) * window


def batch_of(
    serve: Serve, roles: Roles, merged: Merged, table: SizeTable, findings: Findings
) -> Batch | None:
    """The batch of an iteration. Sequences that do not divide over the devices that have rows of their own are E0414."""
    axes = [
        part
        for rule in merged.rules
        if any(str(target.path) == roles.batch for target in rule.targets)
        for name in rule.axes
        for part in table.products.get(name.text, (name.text,))
    ]
    axes = list(dict.fromkeys(a for a in axes if table.values.get(a)))
    ways = prod(table.values[a] or 1 for a in axes)
    is_packed = len(serve.sequences) > 1
    for each in serve.sequences:
        share = each.count.size / symbolic.product(map(symbolic.symbol, axes))
        reason = f"`{each.count.size}` sequences do not divide over the devices that have rows of their own"
        if not conditions.whole(share, table.known, reason):
            message = f"{int(each.count.value)} sequences do not divide over {ways} devices"
            notes = [
                f"`{roles.batch}` is split over {', '.join(f'{a} = {table.values[a]}' for a in axes)}"
            ]
            help_ = "serve a number of sequences that divides: each device is dealt as many of each kind"
            findings.add(Diagnostic("E0414", message, each.span, notes=notes, help=help_))
            return None
    rows = serve.sequences[0].count
    if is_packed:
        size = symbolic.product(map(symbolic.symbol, axes))
        rows = Quantity(size, size.evaluate(conditions.unread(table.known)))
    batch = Batch(serve, roles, rows, is_packed)
    return replace(batch, sizes=served_sizes(batch, roles, merged, table, findings))


def served_sizes(
    batch: Batch, roles: Roles, merged: Merged, table: SizeTable, findings: Findings
) -> dict[str, NamedSize]:
    """The dims that `serve` gives their sizes."""
    found: dict[str, Size] = {
        roles.batch: batch.rows.size,
        roles.new: batch.per_row(batch.tokens),
        stg.SEQUENCES: batch.per_row(batch.sequences),
    }
    for name, window in roles.positions.items():
        size = window.size if window is not None else None
        found[name] = batch.per_row(batch.positions(size))
        found[stg.stored(name)] = batch.per_row(batch.stored(size))
    # `serve { decode B at 1500 }` says the size of `B` by itself.
    changed = {name: size for name, size in found.items() if size != symbolic.symbol(name)}
    known = conditions.unread(table.known)
    numbers = {n: symbolic.constant(v) for n, v in known.items() if n in changed}
    span = batch.serve.span
    assert span is not None
    for name in changed:
        said = merged.sizes.get(name)
        if name in table.origins:
            message = f"`serve` says how large `{name}` is"
            help_ = f"leave it out, or say it by `{name}`: `serve {{ decode {name} at 1500 }}`"
            findings.add(Diagnostic("E0702", message, origin=table.origins[name], help=help_))
        elif said is not None:
            message = f"`serve` says how large `{name}` is"
            where = [(span, "here")]
            findings.add(
                Diagnostic("E0401", message, said.span, secondary=where, help="leave it out")
            )
    exact = {name: substituted(size, numbers) for name, size in changed.items()}
    return {name: NamedSize(size, int(size.evaluate(known)), span) for name, size in exact.items()}


def substituted(size: Size, numbers: Mapping[str, Size]) -> Size:
    """A size in other names than those that it is to define."""
    mentioned = {name: number for name, number in numbers.items() if name in size.names}
    return size.substitute(mentioned) if mentioned else size


def batch_of_one(roles: Roles, span: Span) -> Batch:
    """One sequence of one position: under it a model has all of its caches, whatever its plan."""
    one, none = (Quantity(size, size.evaluate({})) for size in (ONE, symbolic.ZERO))
    serve = Serve(sequences=(Sequences(one, one, none, span),), span=span)
    return Batch(serve, roles, one, False, is_imagined=True)
