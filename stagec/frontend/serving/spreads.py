"""What devices have of positions that they share: of those of caches, and of new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stagec import symbolic
from stagec.analysis.coordinates import joint_index
from stagec.analysis.placement import PlacementRule, split_dims
from stagec.diagnostics import Diagnostics, quoted
from stagec.dialects import stg
from stagec.dialects.uneven_parts import INTERLEAVED
from stagec.frontend.serving.attended import HALF
from stagec.frontend.serving.roles import Roles
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import Plan, Rule
from stagec.symbolic import ONE, Size, conditions


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
