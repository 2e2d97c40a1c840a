"""The sequences of an iteration, as sums over all of them and as rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from stagec import symbolic
from stagec.analysis.sizes import at_first
from stagec.diagnostics import Span
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
from stagec.dialects.uneven_parts import PART
from stagec.frontend.numbers import as_read
from stagec.frontend.serving.attended import before_new, reach
from stagec.frontend.serving.roles import Roles
from stagec.frontend.serving.spreads import WHOLE, Share, Spread
from stagec.frontend.sizes import ServedSize
from stagec.plans.clauses import Sequences, Serve
from stagec.symbolic import ONE, ZERO, Size
from stagec.symbolic.quantity import Quantity

OfOne = Callable[[Size, Size], Size]
"""What the new positions of a sequence and those before them make."""


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


def begins(context: Size) -> Size:
    """1 of a sequence that begins, 0 of one that goes on."""
    return ONE - symbolic.call("min", ONE, context)


def batch_of_one(roles: Roles, span: Span) -> Batch:
    """One sequence of one position: under it a model has all of its caches, whatever its plan."""
    one = known_size(1)
    serve = Serve(sequences=(Sequences(one, one, known_size(0), span),), span=span)
    return Batch(serve, roles, one, False, is_imagined=True)
