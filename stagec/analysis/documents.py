"""Documents that are packed into sequences: attention sees none but its own.

Documents follow each other, and are cut where a sequence ends, as Megatron-LM's `GPTDataset` packs them. As many sequences as are full tell what one of
them has on average: a trace is that of a mean sequence. Pairs of a query and a key are areas, as everywhere (`stagec/analysis/contexts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagec import symbolic
from stagec.analysis.contexts import AttentionOps, Contexts, is_of_itself
from stagec.analysis.coordinates import joint_index
from stagec.dialects import stg
from stagec.symbolic import Size, conditions

Part = tuple[int, int]
"""Where a document begins in a sequence, and its length there."""
Bound = tuple[Fraction, Fraction]
"""The first position of some queries in a sequence, and that behind the last."""
Bounds = Callable[[Part], list[Bound]]


@dataclass(frozen=True)
class PackedDocuments:
    """`documents S [1000, 3000, 96]` of a plan, in sequences of so many tokens as `S` has."""

    dim: str
    sequences: tuple[tuple[Part, ...], ...]

    @staticmethod
    def packed(dim: str, lengths: Sequence[int], size: int) -> PackedDocuments:
        """The documents of these `lengths`, packed one after the other. What is left behind the last full sequence does not count."""
        full: list[tuple[Part, ...]] = []
        parts: list[Part] = []
        used = 0
        for length in lengths:
            while length:
                part = min(length, size - used)
                parts.append((used, part))
                used, length = used + part, length - part
                if used == size:
                    full.append(tuple(parts))
                    parts, used = [], 0
        return PackedDocuments(dim, tuple(full))

    def are_of(self, op: AttentionOps) -> bool:
        """Whether an op's queries and keys are tokens of these documents."""
        is_theirs = stg.tensor_type(op.q).names[-3] == self.dim
        return op.pairs is None and is_theirs and is_of_itself(op)

    def pairs(self, op: AttentionOps, values: Mapping[str, int], own: Bounds) -> Fraction:
        """Pairs of a rank's own queries of each document with the keys of it, in a mean sequence."""
        counted = op.causal is not None and op.count.data == "causal"
        limits = (op.window.data if op.window else None, op.chunk.data if op.chunk else None)
        window, chunk = (n if n is None else n.evaluate(values) for n in limits)
        total = Fraction(0)
        for parts in self.sequences:
            for part in parts:
                queries = own(part)
                for start, length in pieces(part, None if chunk is None else int(chunk)):
                    for each in queries:
                        first, end = (min(max(at - start, Fraction(0)), length) for at in each)
                        if counted:
                            total += area(end, window) - area(first, window)
                        elif op.reach.both_ways:
                            assert window is not None
                            below, most = (area_around(at, length, window) for at in (first, end))
                            total += most - below
                        else:
                            total += (end - first) * min(length, window or length)
        # Halves of pairs make whole FLOPs.
        return Fraction(round(2 * total / len(self.sequences)), 2)

    def share(self, op: AttentionOps, contexts: Contexts, values: Mapping[str, int]) -> Size:
        """Pairs of a rank's queries with all keys, which it has."""
        queries = stg.tensor_type(op.q).dims[-3]
        size = values[self.dim]
        axes = queries.split
        conditions.read(symbolic.symbol(self.dim), size)
        for axis in axes:
            conditions.read(symbolic.symbol(axis), values[axis])
        ways = 1
        for axis in axes:
            ways *= values[axis]
        by_documents = contexts.by_documents(axes)
        of_rank: list[Fraction] = []
        for rank in range(ways):
            chunks, cuts = [rank], ways
            if ways > 1 and contexts.balanced(axes):
                chunks, cuts = [rank, 2 * ways - 1 - rank], 2 * ways

            def own(part: Part, chunks: list[int] = chunks, cuts: int = cuts) -> list[Bound]:
                start, length = part if by_documents else (0, size)
                at = [(start + Fraction(n * length, cuts)) for n in range(cuts + 1)]
                return [(at[n], at[n + 1]) for n in chunks]

            of_rank.append(self.pairs(op, values, own))
        return looked_up(of_rank, joint_index(axes))

    def block(self, op: AttentionOps, values: Mapping[str, int]) -> Size:
        """Pairs of a rank's part of each document with another rank's part of it: `balance = documents` cuts all into as many."""
        queries, keys = (stg.tensor_type(x).dims[-3] for x in (op.q, op.k))
        conditions.read(symbolic.symbol(self.dim), values[self.dim])
        squares = sum(length * length for parts in self.sequences for _, length in parts)
        mean = symbolic.constant(Fraction(squares, len(self.sequences)))
        return mean / symbolic.product(map(symbolic.symbol, (*queries.split, *keys.split)))


def pieces(part: Part, chunk: int | None) -> Iterator[Part]:
    """A document, or its chunks."""
    start, length = part
    step = chunk or length
    for at in range(0, length, step):
        yield start + at, min(step, length - at)


def area(position: Fraction | int, window: Fraction | int | None) -> Fraction:
    """Pairs that a causal mask leaves of a document's queries before a position."""
    reach = Fraction(position if window is None else min(position, window))
    return position * reach - reach * reach / 2


def area_around(position: Fraction | int, length: int, window: Fraction | int) -> Fraction:
    """Pairs of a document's queries before a position with the keys of a window around each."""
    half = Fraction(window) / 2
    return area(position, half) + area(length, half) - area(length - position, half)


def looked_up(entries: Sequence[Fraction], index: Size) -> Size:
    """The entry of an index, as a size: one number where all are equal."""
    if len(set(entries)) == 1:
        return symbolic.constant(entries[0])
    terms: list[Size] = []
    for number, entry in enumerate(entries):
        away = symbolic.call("max", index - number, symbolic.constant(number) - index)
        terms.append(symbolic.constant(entry) * symbolic.call("max", 0, 1 - away))
    return symbolic.total(terms)
