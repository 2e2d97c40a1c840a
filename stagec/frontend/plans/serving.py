"""What a plan's `serve` makes of sizes: a batch of sequences that differ in length, as sums.

Sequences of one kind are rows of the batch. Of several kinds, each device has one row: the tokens of all its sequences, one after the
other, as engines run them (a flattened batch with a table of where each sequence starts). Either way products count tokens, caches
count positions, and attention counts pairs of a query and a key of the same sequence.

With n sequences of s new positions after c others, of each kind: s n tokens, (c + s) n positions, n (s c + s (s + 1) / 2) pairs under
a causal mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from operator import mul

import numpy as np

from stagec import symbolic
from stagec.analysis.coordinates import joint_index
from stagec.analysis.placement import PlacementRule, split_dims
from stagec.analysis.sequences import OtherPrograms
from stagec.analysis.sizes import at_first
from stagec.diagnostics import Diagnostic, Diagnostics, Span, quoted
from stagec.dialects import stg
from stagec.dialects.dist import MAX
from stagec.dialects.dist.sequences import (
    CONTEXT as CONTEXT_OF_ONE,
    COUNT as COUNT_OF_ONE,
    NEW as NEW_OF_ONE,
    SAMPLED as SAMPLED_OF_ONE,
    TOKENS,
    DealtSequences,
)
from stagec.dialects.uneven_parts import INTERLEAVED, PART
from stagec.frontend import syntax
from stagec.frontend.checker.steps import AppendStep, CheckedBody, PartsStep, StateStep
from stagec.frontend.numbers import Sizes, as_read, whole
from stagec.frontend.plans.iterations import Iterations, deal
from stagec.frontend.plans.lengths import LengthsReader
from stagec.frontend.plans.merge import Merged
from stagec.frontend.plans.settings import SettingsReader
from stagec.frontend.sizes import ServedSize, SizeTable
from stagec.plans.clauses import Plan, Rule, Sequences, Serve
from stagec.symbolic import ONE, ZERO, Size, conditions
from stagec.symbolic.quantity import Quantity

HALF = ONE / 2

OfOne = Callable[[Size, Size], Size]
"""What the new positions of a sequence and those before them make."""

MOST_SEQUENCES = 1_000_000
"""Sequences that are not alike."""

NEW, CONTEXT, SHARED, SOURCE = "x", "at", "sharing", "from"
"""The words before the numbers of a sequence's new tokens, of those before them, of the first of these that all sequences share, and before the pool that
computes them."""


@dataclass(frozen=True)
class Spread:
    """Positions of caches that are dealt out in turns: so many of a sequence to one device, as many after them to the next.

    Engines do it so that new positions fall to all devices alike: position i to device i mod n (Helix, arXiv:2507.07120, and SGLang), or i / interleave
    mod n (vLLM, `cp_kv_cache_interleave_size` and `get_dcp_local_seq_lens`).
    """

    axes: tuple[str, ...]
    interleave: int
    by: str
    """How the results for each part of the keys are put together."""

    @property
    def ways(self) -> Size:
        return symbolic.product(map(symbolic.symbol, self.axes))

    def of_first(self, positions: Size, place: Size | None = None) -> Size:
        """How many of the first positions of a sequence a device has."""
        place = joint_index(self.axes) if place is None else place
        if self.interleave == 1:
            return symbolic.ceildiv(positions - place, self.ways)
        length = symbolic.constant(self.interleave)
        turns = symbolic.call("floordiv", positions, length * self.ways)
        rest = positions - turns * length * self.ways - place * length
        return turns * length + symbolic.call("min", length, symbolic.call("max", 0, rest))

    def of_new(self, new: Size, context: Size) -> Size:
        """How many of the new positions of a sequence a device has."""
        return self.of_first(context + new) - self.of_first(context)

    def pairs_of_first(self, positions: Size) -> Size:
        """Pairs of the first positions of a sequence, as queries, and those up to each of them that a device has."""
        place, length = joint_index(self.axes), symbolic.constant(self.interleave)
        period = length * self.ways
        turns = symbolic.call("floordiv", positions, period)
        rest = positions - turns * period
        # What a device has of turns that are over, then of the turn at hand: nothing, each further one, all that it gets.
        before = length * (period * turns * (turns - 1) * HALF + turns * rest)

        def of_turn(queries: Size) -> Size:
            behind = symbolic.call("max", 0, queries - place * length)
            if self.interleave == 1:
                return behind
            own = symbolic.call("min", length, behind)
            return own * (own + 1) * HALF + length * (behind - own)

        whole = length * (period - place * length) - length * (length - 1) * HALF
        return before + turns * whole + of_turn(rest)

    def pairs(self, new: Size, context: Size, causal: bool) -> Size:
        """Pairs of s queries and those of the c + s keys up to their own that a device has; without a mask, of each with all that it has."""
        if not causal or new == ONE:
            return new * self.of_first(context + new)
        return self.pairs_of_first(context + new) - self.pairs_of_first(context)


@dataclass(frozen=True)
class Share:
    """What a rank has of the new positions of each sequence: one chunk of as many as there are ranks, or, `balanced`, one from the front and one from the end.

    Engines cut prompts so (vLLM, prefill context parallelism; SGLang, `in-seq-split`), and have all keys on each rank.
    """

    axes: tuple[str, ...]
    balanced: bool

    @property
    def chunks(self) -> Size:
        """In how many a sequence is cut."""
        return symbolic.product(map(symbolic.symbol, self.axes)) * (2 if self.balanced else 1)

    def of(self, new: Size) -> list[tuple[Size, Size]]:
        """The chunks of a rank: the new positions before each, and how many are in it."""
        place, length = joint_index(self.axes), new / self.chunks
        places = [place, self.chunks - 1 - place] if self.balanced else [place]
        return [(each * length, length) for each in places]

    def as_one(self, new: Size) -> tuple[Size, Size]:
        """A chunk with as many new positions as those of a rank have, and as many pairs: of two chunks those in the middle of the sequence."""
        if not self.balanced:
            return self.of(new)[0]
        length = 2 * new / self.chunks
        return (new - length) / 2, length


WHOLE = Share((), balanced=False)


def rules_of(plan: Plan) -> list[PlacementRule]:
    return [PlacementRule(rule.dims, rule.axes, rule.copies) for rule in plan.rules]


def spreads_of(
    plan: Plan, roles: Roles, table: SizeTable, findings: Diagnostics
) -> dict[str, Spread]:
    """How rules and contexts spread the positions of caches. E0309 where a rule splits them, and no context says how attention sees that; E0303 where
    the axes of a rule split positions in part; E0402 for contexts that do not say the same."""
    contexts = {
        part: each for each in plan.contexts for part in plan.products.get(each.axis, (each.axis,))
    }
    found: dict[str, Spread] = {}
    for name, rule in [(name, each) for each in plan.rules for name in each.dims]:
        if name not in roles.positions or name in found:
            continue
        splits = {split_dims(shape, rules_of(plan)).get(name, ()) for shape in roles.shapes}
        split = {axis for axes in splits for axis in axes if axis in rule.axes}
        if not any(conditions.is_split(axis, table.known) for axis in sorted(split)):
            continue
        span = rule.dim_spans.get(name, rule.span)
        known = [contexts[a] for a in rule.axes if a in contexts]
        others = [a for a in rule.axes if a not in contexts or contexts[a].method != "partial"]
        if others:
            message = f"`{others[0]}` splits `{name}`, the positions of caches, and attention is to see all of them"
            help_ = f"say that each device attends to its own part: `context {others[0]} {{ method = partial }}`"
            place = contexts[others[0]].span if others[0] in contexts else None
            where = [(place, "here")] if place is not None else []
            findings.say("E0309", message, span, secondary=where, help=help_)
        elif not splits <= {(), rule.axes}:
            message = f"`{name}` is split over some of the axes of its rule, which split other dims of a cache"
            help_ = "name those alone that split positions, in a rule of its own"
            findings.say("E0303", message, span, help=help_)
        elif len({(each.interleave, each.combine) for each in known}) > 1:
            message = f"contexts along {quoted(rule.axes)} deal out `{name}` differently"
            help_ = "say the same `interleave` and `combine` in each"
            findings.say("E0402", message, known[1].span or span, help=help_)
        else:
            found[name] = Spread(rule.axes, known[0].interleave, known[0].combine)
    return found


def spread_rules(plan: Plan, spreads: Mapping[str, Spread]) -> Plan:
    """A plan whose rules say that positions are dealt out, and that memory is set aside as they are."""
    rules: list[Rule] = []
    for rule in plan.rules:
        rest = list(rule.dims)
        for name in [n for n in rule.dims if n in spreads and spreads[n].axes == rule.axes]:
            before, rest = rest[: rest.index(name)], rest[rest.index(name) + 1 :]
            if before:
                rules.append(replace(rule, dims=tuple(before)))
            rules.append(replace(rule, dims=(name, stg.stored(name)), uneven=INTERLEAVED))
        if rest:
            rules.append(replace(rule, dims=tuple(rest)))
    return replace(plan, rules=tuple(rules))


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


def unserved(plan: Plan, roles: Roles | None, table: SizeTable, findings: Diagnostics) -> Plan:
    """A plan without `serve`: all positions are new, and what splits these splits those."""
    if roles is None or not roles.positions:
        return plan
    for name in roles.positions:
        sizes = table.values.get(name), table.values.get(roles.new)
        if None not in sizes and sizes[0] != sizes[1]:
            message = f"`{name} = {sizes[0]}` positions, but `{roles.new} = {sizes[1]}` are new"
            help_ = f"write `dim {name} = {roles.new}`: a plan with `serve` gives it its size"
            notes = ["without `serve` nothing is cached before"]
            findings.say("E0413", message, roles.spans[name], notes=notes, help=help_)
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

    def __init__(self, clause: syntax.Serve, sizes: Sizes, findings: Diagnostics) -> None:
        self.clause, self.sizes, self.findings = clause, sizes, findings

    def read(self) -> Serve | None:
        what = self.clause.what
        if isinstance(what, syntax.Reference):
            if what.name.text != "none":
                help_ = "write `serve { decode 128 at 1500 }`, or `serve none`"
                message = "`serve` says what is served"
                self.findings.say("E0401", message, what.span, help=help_)
            return None
        entries = [e for e in what.entries if not isinstance(e, syntax.Setting)]
        found = [self.sequences(e) for e in entries]
        said = tuple(e for e in what.entries if isinstance(e, syntax.Setting))
        settings = syntax.Settings(said, span=what.span) if said else None
        read = SettingsReader(self.sizes, self.findings).read(settings, Serve, "`serve`")
        sequences = tuple(s for kinds in found for s in kinds)
        if not found:
            help_ = "write `serve { prefill 4 x 2048 }`, or `serve { decode 128 at 1500 }`"
            message = "`serve` has no sequences"
            self.findings.say("E0401", message, self.clause.span, help=help_)
        if not all(found) or not sequences:
            return None
        return Serve(sequences=sequences, span=self.clause.span, **read)

    def sequences(self, entry: syntax.Prefill | syntax.Decode) -> list[Sequences]:
        """The sequences of an entry, those that are alike together; nothing after a finding."""
        is_prefill = isinstance(entry, syntax.Prefill)
        given = {measure.word.text: measure for measure in entry.measures}
        needed = NEW if is_prefill else CONTEXT
        words = {NEW, CONTEXT, SHARED} if is_prefill else {NEW, CONTEXT, SHARED, SOURCE}
        known = set(given) <= words and len(given) == len(entry.measures)
        if not known or needed not in given:
            help_ = "write `prefill 4 x 2048`, and `at 512` for what is cached before"
            if not is_prefill:
                help_ = "write `decode 128 at 1500`, and `x 4` for so many new tokens of each"
            message = "sequences have new tokens (`x`), and tokens before them (`at`)"
            self.findings.say("E0401", message, entry.span, help=help_)
            return []
        count = self.number(entry.count, "the number of sequences")
        source = self.source(given.pop(SOURCE)) if SOURCE in given else ""
        sharing = given.pop(SHARED, None)
        if count is None or source is None:
            return []
        kinds = self.kinds(entry, given, count)
        if sharing is not None and kinds:
            shared = self.shared(sharing, kinds)
            at = sharing.span
            kinds = [replace(s, shared=shared, shared_at=at) for s in kinds]
            kinds = kinds if shared is not None else []
        is_verified = not is_prefill and NEW in given
        return [replace(s, source=source, is_verified=is_verified) for s in kinds]

    def shared(self, measure: syntax.Measure, kinds: list[Sequences]) -> Quantity | None:
        """The positions that sequences share. E0401 if they do not all have as many before their new ones."""
        least = min((s.context for s in kinds), key=lambda each: each.value)
        if isinstance(measure.number, syntax.ListValue | syntax.Lengths):
            message = "sequences of one entry share as many positions"
            help_ = "write a number, and an entry for each prefix"
            self.findings.say("E0401", message, measure.span, help=help_)
            return None
        found = self.number(measure.number, "the number of tokens that are shared")
        reason = "more positions are shared than a sequence has before its new ones"
        if found is not None and not conditions.note(
            ">=", least.size, found.size, holds=least.value >= found.value, reason=reason
        ):
            message = f"{found.value} positions are shared, and a sequence has {least.value} before its new ones"
            help_ = "share no more than `at` says"
            self.findings.say("E0401", message, measure.span, help=help_)
            return None
        return found

    def kinds(
        self,
        entry: syntax.Prefill | syntax.Decode,
        given: Mapping[str, syntax.Measure],
        count: Quantity,
    ) -> list[Sequences]:
        """The sequences of an entry by their lengths."""
        sizes: dict[str, syntax.Value] = {}
        for word, measure in given.items():
            if isinstance(measure.number, syntax.ListValue | syntax.Lengths):
                return self.ragged(entry, given, count)
            sizes[word] = measure.number
        new = context = None
        if NEW in sizes:
            new = self.number(sizes[NEW], "the number of new tokens")
        if CONTEXT in sizes:
            context = self.number(sizes[CONTEXT], "the number of tokens before", 0)
        if (NEW in given and new is None) or (CONTEXT in given and not context):
            return []
        return [Sequences(count, new or known_size(1), context or known_size(0), entry.span)]

    def source(self, measure: syntax.Measure) -> str | None:
        """The pool that sequences come from. E0401 if that is no name."""
        if isinstance(measure.number, syntax.Reference):
            return measure.number.name.text
        message = "sequences come from a pool"
        help_ = "write `decode 4 at 2048 from prefill`"
        self.findings.say("E0401", message, measure.span, help=help_)
        return None

    def ragged(
        self,
        entry: syntax.Prefill | syntax.Decode,
        given: Mapping[str, syntax.Measure],
        count: Quantity,
    ) -> list[Sequences]:
        """Sequences of different lengths: the first has the first length of each measure, and so on."""
        number = as_read(count)
        if number > MOST_SEQUENCES:
            message = f"{number:,} sequences, each of its own length"
            help_ = f"serve {MOST_SEQUENCES:,} at most"
            self.findings.say("E0401", message, entry.span, help=help_)
            return []
        lengths = {NEW: [1] * number, CONTEXT: [0] * number}
        for word, measure in given.items():
            found = self.lengths(measure, word, number)
            if found is None:
                return []
            lengths[word] = found
        alike = Counter(zip(lengths[NEW], lengths[CONTEXT], strict=True))
        return [
            Sequences(
                known_size(times),
                known_size(new),
                known_size(context),
                entry.span,
                named=frozenset(count.size.names),
            )
            for (new, context), times in alike.items()
        ]

    def lengths(self, measure: syntax.Measure, word: str, count: int) -> list[int] | None:
        what = measure.number
        if isinstance(what, syntax.ListValue | syntax.Lengths):
            return LengthsReader(self.sizes, self.findings, count, word).read(what)
        least = 0 if word == CONTEXT else 1
        found = self.number(what, "the number of tokens", least)
        return None if found is None else [as_read(found)] * count

    def number(self, expr: syntax.Value, what: str, least: int = 1) -> Quantity | None:
        return whole(expr, self.sizes, self.findings, what, least)


def known_size(number: int) -> Quantity:
    return Quantity(symbolic.constant(number), Fraction(number))


@dataclass
class BatchSums:
    """The sizes of a batch that is not the same on every device, or in every iteration: sums, by their names."""

    sequences: DealtSequences
    axes: tuple[str, ...]
    """The axes along which devices have sequences of their own."""
    named: dict[str, Size] = field(default_factory=dict)
    numbers: Sequence[int] = ()
    """Which iterations of a file these are; nothing for all."""
    derived: dict[str, Size] = field(default_factory=dict)
    """Dims that follow from sums: where sequences are rows, sums over them by their number."""
    are_joined: bool = False
    """The devices are of another pool, and each of this one has the sequences of all."""
    microbatches: int = 1
    """Of other sequences each, and below what they have as much of."""
    split: str = TOKENS

    @cached_property
    def computed(self) -> list[DealtSequences]:
        """The sequences that are computed at a time: those of each microbatch."""
        parts = [self.sequences]
        if self.microbatches > 1:
            parts = self.sequences.microbatches(self.microbatches, self.split)
        return [part.together for part in parts] if self.are_joined else parts

    @property
    def rows(self) -> Size:
        """On each device, where sequences are rows."""
        return self.size(lambda *_: ONE)

    def size(self, of_one: OfOne, name: str = "") -> Size:
        """The sum of what the new positions of each sequence and those before them make."""
        size = of_one(symbolic.symbol(NEW_OF_ONE), symbolic.symbol(CONTEXT_OF_ONE))
        if not name:
            known = next((n for n, other in self.named.items() if other == size), None)
            name = known or f"sequences.{len(self.named)}"
        self.named[name] = size
        return symbolic.symbol(name)

    def first_of(self, size: Size, known: Mapping[str, int]) -> int:
        """A size that follows from sums, on the first device in the first iteration."""
        own = {name: self.first(name, known) for name in size.names & self.named.keys()}
        return size.integer({**known, **own})

    def first(self, name: str, known: Mapping[str, int]) -> int:
        """The number on the first device in the first iteration, in its first microbatch."""
        return int(
            sum(
                count
                * at_first(self.named[name], known).evaluate(
                    {**known, NEW_OF_ONE: new, CONTEXT_OF_ONE: before, SAMPLED_OF_ONE: sampled}
                )
                for count, new, before, sampled in self.computed[0].at(0, 0)
            )
        )


@dataclass(frozen=True)
class Batch:
    """The sequences of an iteration, as sums over all of them and as rows of a batch."""

    serve: Serve
    roles: Roles
    rows: Quantity
    """What the batch dim is: all sequences, or a row for each device."""
    is_packed: bool
    sizes: Mapping[str, ServedSize] = field(default_factory=dict)
    """The sizes of the dims that the batch determines."""
    is_imagined: bool = False
    """No plan serves it: it stands for any, to see which caches a model has."""
    sums: BatchSums | None = None
    """Where devices or iterations differ; then all of the sizes below are names."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """Of positions of caches that devices share."""

    @property
    def begins(self) -> list[list[bool]]:
        """For each device and microbatch in each iteration: whether sequences begin in it."""
        if self.sums is not None:
            found = [
                (np.add.reduceat(own.kinds[:, 2] == 0, own.starts.ravel()) > 0).reshape(
                    own.starts.shape
                )
                for own in self.sums.computed
            ]
            return np.concatenate(found, axis=1).tolist()
        return [[any(not sequences.is_continued for sequences in self.serve.sequences)]]

    @property
    def longest(self) -> dict[str, int]:
        """New positions, and all, of the sequence that has most: dims that count those of a whole row."""
        if self.sums is not None:
            kinds = self.sums.sequences.kinds
            new, whole = int(kinds[:, 1].max()), int((kinds[:, 1] + kinds[:, 2]).max())
        else:
            numbers = [[int(n.value) for n in each.numbers] for each in self.serve.sequences]
            new, whole = (
                max(own) for own in zip(*((n, n + c) for _, n, c in numbers), strict=True)
            )
        return {self.roles.new: new, **dict.fromkeys(self.roles.positions, whole)}

    @property
    def numbers_of_sequences(self) -> list[tuple[int, int]]:
        """New positions of each kind of sequences, and those before them."""
        if self.sums is not None:
            kinds = self.sums.sequences.kinds
            return [
                (int(new), int(before))
                for new, before in zip(kinds[:, 1], kinds[:, 2], strict=True)
            ]
        return [(as_read(each.new), as_read(each.context)) for each in self.serve.sequences]

    @property
    def new_positions(self) -> list[Size]:
        """The new positions of each kind of sequences that are computed at a time."""
        if self.sums is None:
            return [each.new.size for each in self.serve.sequences]
        kinds = np.concatenate([own.kinds[:, 1] for own in self.sums.computed])
        return [symbolic.constant(int(new)) for new in np.unique(kinds)]

    @property
    def all_begin(self) -> bool:
        """Whether none goes on."""
        if self.sums is not None:
            return not self.sums.sequences.kinds[:, 2].any()
        return not any(sequences.is_continued for sequences in self.serve.sequences)

    @property
    def sequences_begun(self) -> Size:
        """On all devices together: those that begin."""
        return self.in_a_row(lambda _, before: begins(before)) * self.rows.size

    @property
    def positions_with_logits(self) -> str:
        """The dim that counts the new positions of which logits are made; that of all new ones, if these are."""
        logits = self.serve.logits
        if logits != "sampled":
            return stg.SEQUENCES if logits == "last" else self.roles.new
        if self.sums is not None:
            is_verifying = bool((self.sums.sequences.kinds[:, 3] > 1).any())
        else:
            is_verifying = any(each.is_verified for each in self.serve.sequences)
        return stg.SAMPLED if is_verifying else stg.SEQUENCES

    def per_row(self, total: Size) -> Size:
        return total / self.rows.size

    def in_a_row(self, of_one: OfOne) -> Size:
        """A sum over the sequences of a row, of what their new tokens and the tokens before them make."""
        if self.sums is None:
            return self.per_row(self.total(of_one))
        total = self.sums.size(of_one)
        return total if self.is_packed else total / self.sums.rows

    @property
    def packed_kinds(self) -> tuple[tuple[Size, Size, Size], ...]:
        """Where all sequences are one row: how many of each kind, and, twice, their new positions."""
        return self.kinds_of_row(stg.Reach(), cached=False) if self.is_packed else ()

    def kinds_of_row(
        self, seen: stg.Reach, cached: bool, share: Share = WHOLE
    ) -> tuple[tuple[Size, Size, Size], ...]:
        """Sequences of a row by kind, or what a rank has of these: how many, their new positions, and those that these attend to."""
        each = (sequences.numbers for sequences in self.serve.sequences)
        kinds = [(self.per_row(n.size), new.size, before.size) for n, new, before in each]
        if self.sums is not None:
            count, new, before = map(symbolic.symbol, (COUNT_OF_ONE, NEW_OF_ONE, CONTEXT_OF_ONE))
            kinds = [(count, new, before)]
        found: list[tuple[Size, Size, Size]] = []
        for count, new, before in kinds:
            start, length = share.as_one(new)
            keys = length + (before_new(before + start, seen) if cached else start)
            found.append((count, length, keys))
        return tuple(found)

    def of_sources(self, one: Size) -> tuple[tuple[Size, Size, Size], ...]:
        """`kinds_of_row` where each sequence attends to a source of so many positions."""
        if self.sums is not None:
            return ((symbolic.symbol(COUNT_OF_ONE), symbolic.symbol(NEW_OF_ONE), one),)
        return tuple((self.per_row(s.count.size), s.new.size, one) for s in self.serve.sequences)

    def positions(self, window: Size | None) -> OfOne:
        """The positions that the new positions of a sequence attend to: under a window of W the last W - 1 and the new ones themselves."""
        return lambda new, context: new + reach(context, window, -1)

    @property
    def spread_dims(self) -> dict[str, Size]:
        """What devices have of positions that they share, as many times as there are devices; and the parts of keys."""
        found: dict[str, Size] = {}
        for name, spread in self.spreads.items():
            for end, place in (("", None), (MAX, ZERO)):
                own = self.in_a_row(
                    lambda new, before, s=spread, p=place: s.of_first(before + new, p)
                )
                found[f"{name}{PART}{end}"] = spread.ways * own
            found[stg.parts_over(spread.axes)] = spread.ways
        return found

    def stored_in_all(self, window: Size | None, name: str = "") -> Size:
        """The positions that memory is set aside for on all devices. What sequences share is there once on each device, in whole blocks of the prefix.

        Under a window, of the prefix what is still seen.
        """
        found = self.total(self.stored(window, name))
        block = self.block(name)
        shared: dict[Span, list[Size]] = {}
        for each in self.serve.sequences:
            if each.shared is None:
                continue
            seen = each.shared.size
            if window is not None:
                gone = each.context.size + each.new.size - window
                seen = symbolic.call("max", 0, seen - symbolic.call("max", 0, gone))
            whole = block * symbolic.call("floordiv", seen, block)
            found = found - each.count.size * whole
            shared.setdefault(each.span, []).append(whole)
        for sizes in shared.values():
            found = found + self.rows.size * (
                symbolic.call("max", *sizes) if len(sizes) > 1 else sizes[0]
            )
        return found

    def block(self, name: str) -> Size:
        """The positions that a sequence is allotted at a time; where devices share them, as many on each (vLLM's virtual blocks)."""
        return self.serve.block * self.sharers(name)

    def sharers(self, name: str) -> Size:
        """The devices that share a sequence's positions."""
        return self.spreads[name].ways if name in self.spreads else ONE

    def stored(self, window: Size | None, name: str = "") -> OfOne:
        """The positions that memory is set aside for, for one sequence that shares nothing, in whole blocks."""
        block = self.block(name)
        return lambda new, context: block * symbolic.ceildiv(reach(context + new, window, 0), block)

    def total(self, of_one: OfOne) -> Size:
        """The sum over all sequences."""
        return symbolic.total(
            s.count.size * of_one(s.new.size, s.context.size) for s in self.serve.sequences
        )


def idle_sharing(
    batch: Batch | None, table: SizeTable, own: Collection[Span]
) -> Iterator[Diagnostic]:
    """A warning for each of a plan's own entries whose sequences store as much on each device without what they share: no whole block, or one sequence."""
    if batch is None or batch.sums is not None:
        return
    entries: dict[Span, list[Sequences]] = {}
    for each in batch.serve.sequences:
        if each.shared_at is not None and each.span in own:
            entries.setdefault(each.shared_at, []).append(each)
    with conditions.unrecorded():
        caches = [
            (window, int(batch.block(name).evaluate(table.known)))
            for name, window in batch.roles.positions.items()
        ]
        for span, kinds in entries.items():
            wholes = [[whole_blocks(each, *cache) for each in kinds] for cache in caches]
            counts = [as_read(each.count) for each in kinds]
            rows = as_read(batch.rows)
            if any(sum(map(mul, counts, each)) > rows * max(each) for each in wholes):
                continue
            help_ = "it needs several sequences of the entry on a device"
            if not any(map(any, wholes)):
                least = min((block for _, block in caches), default=1)
                help_ = f"whole blocks are shared: of {least} positions here"
            yield Diagnostic("W0304", "`sharing` changes nothing here", span, help=help_)


def whole_blocks(each: Sequences, window: Quantity | None, block: int) -> int:
    """The positions that sequences share, as `Batch.stored_in_all` has them."""
    assert each.shared is not None
    seen = as_read(each.shared)
    if window is not None:
        seen -= max(0, as_read(each.context) + as_read(each.new) - as_read(window))
    return max(0, seen) // block * block


def reach(positions: Size, window: Size | None, more: int) -> Size:
    return positions if window is None else symbolic.call("min", positions, window + more)


def before_new(positions: Size, seen: stg.Reach) -> Size:
    """How many of the positions before the new ones the first new position sees."""
    if seen.chunk is not None:
        return symbolic.call("mod", positions, seen.chunk)
    return reach(positions, seen.window, -1)


def pairs(new: Size, context: Size, causal: bool, seen: stg.Reach) -> Size:
    """Pairs of s queries and the c + s keys up to their own; without a mask, of each with all, or with W around it under a window of W.

    A query at position p, counted from 1, sees p keys, W under a window of W, or those of its chunk
    up to itself: the sum of min(p, W), for instance, for p from c + 1 to c + s.
    """
    keys = context + new
    if seen.both_ways:
        assert seen.window is not None
        width = symbolic.call("min", seen.window, 2 * keys - 1)
        return new * (width - symbolic.call("floordiv", width * width, 4) / keys)
    if not causal:
        most = seen.window or seen.chunk
        return new * (keys if most is None else symbolic.call("min", keys, most))
    return below(context + new, seen) - below(context, seen)


def below(position: Size, seen: stg.Reach) -> Size:
    """How many keys the queries up to a position see: a triangle, then a band, or a triangle for each chunk."""
    if seen.chunk is not None:
        whole = symbolic.call("floordiv", position, seen.chunk)
        rest = position - whole * seen.chunk
        return (whole * seen.chunk * (seen.chunk + 1) + rest * (rest + 1)) * HALF
    if seen.window is None:
        return position * (position + 1) * HALF
    edge = symbolic.call("min", position, seen.window)
    return edge * (edge + 1) * HALF + (position - edge) * seen.window


def batch_of(
    serve: Serve,
    roles: Roles,
    merged: Merged,
    table: SizeTable,
    findings: Diagnostics,
    iterations: Iterations | None = None,
    spreads: Mapping[str, Spread] | None = None,
) -> Batch | None:
    """The batch of an iteration, or of a series. Sequences that do not divide over the devices that have rows of their own are dealt out; fewer
    than devices are E0414."""
    named = {n for each in serve.sequences for n in names_of(each)}
    serve = in_sizes_of_the_text(serve, roles, table)
    first = serve.sequences[0]
    axes = [
        part
        for rule in merged.rules
        if any(str(target.path) == roles.batch for target in rule.targets)
        for name in rule.axes
        for part in table.products.get(name.text, (name.text,))
    ]
    axes = list(dict.fromkeys(a for a in axes if table.values.get(a)))
    ways = prod(table.values[a] or 1 for a in axes)
    sharing = next((each for each in serve.sequences if each.shared is not None), None)
    in_one = serve.microbatches == 1
    num_kinds = len(serve.sequences)
    is_packed = num_kinds > 1 or sharing is not None
    divide = [
        conditions.whole(
            each.count.size / symbolic.product(map(symbolic.symbol, axes)), table.known
        )
        for each in serve.sequences
    ]
    sums = None
    if iterations is not None:
        for axis in axes:
            conditions.read(symbolic.symbol(axis), table.values[axis] or 1)
        joined = iterations.joined
        dealt = joined or iterations.dealt(ways)
        is_joined = joined is not None
        sums = BatchSums(dealt, tuple(axes), {}, iterations.numbers, are_joined=is_joined)
    elif not all(divide) or not in_one:
        numbers = (each.numbers for each in serve.sequences)
        kinds = [
            (count, new, context, new if each.is_verified else 1)
            for each, (count, new, context) in zip(
                serve.sequences, (tuple(map(as_read, each)) for each in numbers), strict=True
            )
        ]
        number = sum(count for count, *_ in kinds)
        if number < ways:
            message = f"{number} sequences, and {ways} devices that have some of their own"
            notes = [
                f"`{roles.batch}` is split over {', '.join(f'{a} = {table.values[a]}' for a in axes)}"
            ]
            help_ = "serve as many sequences as there are such devices, or more"
            span = first.span
            findings.say("E0414", message, span, notes=notes, help=help_)
            return None
        for axis in axes:
            conditions.read(symbolic.symbol(axis), table.values[axis] or 1)
        sums = BatchSums(DealtSequences.of([deal(kinds, ways)]), tuple(axes))
    if sums is not None and not in_one and not split_sums(sums, serve, iterations, findings):
        return None
    if sums is not None and sharing is not None and iterations is None:
        message = "sequences that share what they begin with are not as many on each device"
        help_ = "serve as many of each entry as divide over the devices that have sequences of their own"
        if all(divide):
            message = "sequences that share what they begin with are served in one microbatch"
            help_ = "leave out `microbatches`, or `sharing`"
        findings.say("E0414", message, sharing.shared_at or sharing.span, help=help_)
        return None
    is_packed = iterations is None or not iterations.in_rows if sums is not None else is_packed
    rows = first.count
    if is_packed:
        size = symbolic.product(map(symbolic.symbol, axes))
        rows = Quantity(size, size.evaluate(conditions.unread(table.known)))
    elif sums is not None:
        known = conditions.unread(table.known)
        size = sums.rows * symbolic.product(map(symbolic.symbol, axes))
        sums.derived[roles.batch] = size
        rows = known_size(sums.first_of(size, known))
    batch = Batch(serve, roles, rows, is_packed, sums=sums, spreads=spreads or {})
    return replace(batch, sizes=served_sizes(batch, roles, merged, table, named, findings))


def split_sums(
    sums: BatchSums, serve: Serve, iterations: Iterations | None, findings: Diagnostics
) -> bool:
    """Have a device compute its sequences in microbatches: in a series in fewer, where it has not as many tokens or sequences. E0308 elsewhere."""
    most = sums.sequences.most_microbatches(serve.split)
    numbers = np.minimum(most, serve.microbatches)
    if iterations is None and numbers[0] < serve.microbatches:
        message = f"{serve.microbatches} microbatches of {most[0]} {serve.split}"
        help_ = "serve more of them on each device, or in fewer microbatches"
        findings.say("E0308", message, serve.given["microbatches"], help=help_)
        return False
    if iterations is not None and iterations.in_rows and numbers[0] > 1:
        message = "sequences that are rows of their own are in microbatches of as many rows"
        help_ = "leave out `microbatches`, and say `microbatch 4` beside `serve`"
        findings.say("E0308", message, serve.given["microbatches"], help=help_)
        return False
    if (numbers != numbers[0]).any():
        raise OtherPrograms(numbers == numbers[0])
    sums.microbatches, sums.split = int(numbers[0]), serve.split
    return True


def names_of(sequences: Sequences) -> set[str]:
    """The dims that the numbers of some sequences name."""
    shared = () if sequences.shared is None else (sequences.shared,)
    numbers = (*sequences.numbers, *shared)
    return {*sequences.named, *(name for each in numbers for name in each.size.names)}


def in_sizes_of_the_text(serve: Serve, roles: Roles, table: SizeTable) -> Serve:
    """The same sequences, with what the text says of dims that they give other sizes: in `decode B at 1500, prefill 2 x 512`, `B` is a number
    of sequences, and then the number of rows.

    `decode B at 1500` alone, and `prefill 4 x S`, leave these dims what they are, if no positions are shared: then devices have one row, too.
    """
    alone = len(serve.sequences) == 1 and serve.sequences[0].shared is None
    own = {roles.batch, roles.new, *roles.positions}

    def written(number: Quantity, but: str = "") -> Quantity:
        size = number.size
        if alone and size == symbolic.symbol(but):
            return number
        while found := {n: table.dims[n].size for n in size.names & own if n in table.dims}:
            for name in found.keys() & table.origins.keys():
                conditions.read(symbolic.symbol(name), table.dims[name].value)
            size = size.substitute(found)
        return Quantity(size, number.value)

    return replace(
        serve,
        sequences=tuple(
            replace(
                each,
                count=written(each.count, roles.batch),
                new=written(each.new, roles.new),
                context=written(each.context),
                shared=None if each.shared is None else written(each.shared),
            )
            for each in serve.sequences
        ),
    )


def served_sizes(
    batch: Batch,
    roles: Roles,
    merged: Merged,
    table: SizeTable,
    named: Collection[str],
    findings: Diagnostics,
) -> dict[str, ServedSize]:
    """The dims that `serve` gives their sizes; those that its sequences have `named` may be given another from outside."""
    stored: dict[str, str] = {}
    of_one: dict[str, OfOne] = {roles.new: lambda new, _: new, stg.SEQUENCES: lambda *_: ONE}
    for name, window in roles.positions.items():
        size = window.size if window is not None else None
        of_one[name] = batch.positions(size)
        of_one[stg.stored(name)] = batch.stored(size, name)
        stored[stg.stored(name)] = name
    known = conditions.unread(table.known)
    if batch.is_packed or not batch.all_begin:
        for name, others in roles.in_front.items():
            of_one[name] = positions_of_text(others)
            check_prompts(batch, others, table, findings)
    found: dict[str, Size] = {roles.batch: batch.rows.size}
    for name, each in of_one.items():
        if name in stored and batch.sums is None:
            window = roles.positions[stored[name]]
            size = window.size if window is not None else None
            found[name] = batch.per_row(batch.stored_in_all(size, stored[name]))
        elif batch.sums is None:
            found[name] = batch.per_row(batch.total(each))
        else:
            found[name] = named_sum(batch, name, each, known)
    if batch.positions_with_logits == stg.SAMPLED:
        if batch.sums is None:
            sampled = (
                s.count.size * (s.new.size if s.is_verified else ONE) for s in batch.serve.sequences
            )
            found[stg.SAMPLED] = batch.per_row(symbolic.total(sampled))
        else:
            sampled = symbolic.symbol(SAMPLED_OF_ONE)
            found[stg.SAMPLED] = named_sum(batch, stg.SAMPLED, lambda *_: sampled, known)
    # `serve { decode B at 1500 }` says the size of `B` by itself.
    changed = {name: size for name, size in found.items() if size != symbolic.symbol(name)}
    span = batch.serve.span
    assert span is not None
    for name in sorted(changed.keys() - named):
        said = merged.sizes.get(name)
        if name in table.origins:
            message = f"`serve` says how large `{name}` is"
            help_ = f"leave it out, or say it by `{name}`: `serve {{ decode {name} at 1500 }}`"
            findings.say("E0702", message, origin=table.origins[name], help=help_)
        elif said is not None:
            message = f"`serve` says how large `{name}` is"
            where = [(span, "here")]
            findings.say("E0401", message, said.span, secondary=where, help="leave it out")
    differing = {**batch.sums.named, **batch.sums.derived} if batch.sums is not None else {}
    return {
        name: ServedSize(
            size,
            int(size.evaluate(known)),
            span,
            text=table.dims.get(name),
            differs=name in differing,
        )
        for name, size in changed.items()
    }


def begins(context: Size) -> Size:
    """1 of a sequence that begins, 0 of one that goes on."""
    return ONE - symbolic.call("min", ONE, context)


def positions_of_text(in_front: Sequence[str]) -> OfOne:
    """The new positions that are text: those behind what stands in front of a sequence."""
    images = symbolic.total(map(symbolic.symbol, in_front))
    return lambda new, context: new - begins(context) * images


def check_prompts(
    batch: Batch, in_front: Sequence[str], table: SizeTable, findings: Diagnostics
) -> None:
    """E0424 for a sequence that ends, or goes on, in the middle of what stands in front of its text."""
    images = 0
    for name in in_front:
        size = table.values[name] or 0
        conditions.read(symbolic.symbol(name), size)
        images += size
    names = " + ".join(in_front)
    for new, context in batch.numbers_of_sequences:
        whole = new + context
        if (context == 0 and new <= images) or 0 < context < images:
            message = f"a sequence has {new} new positions after {context}, and {images} in front of its text"
            if context == 0:
                message = f"a sequence begins with {whole} positions, and {images} are in front of its text"
            help_ = f"serve more than `{names} = {images}` positions of sequences that begin"
            findings.say("E0424", message, batch.serve.span, help=help_)
            return


def named_sum(batch: Batch, name: str, of_one: OfOne, known: Mapping[str, int]) -> Size:
    """A dim that is a sum over sequences; of rows, what each has. Its number on the first device in the first iteration."""
    assert batch.sums is not None
    if batch.is_packed:
        batch.sums.size(of_one, name)
        return symbolic.constant(batch.sums.first(name, known))
    batch.sums.derived[name] = batch.sums.size(of_one) / batch.sums.rows
    return symbolic.constant(batch.sums.first_of(batch.sums.derived[name], known))


def batch_of_one(roles: Roles, span: Span) -> Batch:
    """One sequence of one position: under it a model has all of its caches, whatever its plan."""
    one = known_size(1)
    serve = Serve(sequences=(Sequences(one, one, known_size(0), span),), span=span)
    return Batch(serve, roles, one, False, is_imagined=True)
