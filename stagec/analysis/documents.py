"""Documents that are packed into sequences: attention sees none but its own.

Documents follow each other, and are cut where a sequence ends, as Megatron-LM's `GPTDataset` packs them. As many sequences as are full tell what one of
them has on average: a trace is that of a mean sequence. Pairs of a query and a key are areas, as everywhere (`stagec/analysis/contexts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagec import symbolic
from stagec.analysis.contexts import AttentionOps, Contexts, is_of_itself
from stagec.analysis.coordinates import joint_index
from stagec.dialects import stg
from stagec.symbolic import Size, conditions

Part = tuple[int, int]
"""Where a document begins in a sequence, and its length there."""


@dataclass(frozen=True)
class PackedDocuments:
    """`documents S [1000, 3000, 96]` of a plan, in sequences of so many tokens as `S` has."""

    dim: str
    sequences: tuple[tuple[Part, ...], ...]

    @staticmethod
    def packed(dim: str, lengths: Sequence[int], size: int) -> PackedDocuments:
        """Of `lengths` one after the other; what is left behind the last full sequence counts for nothing."""
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

    def pairs(self, op: AttentionOps, values: Mapping[str, int], first: int, end: int) -> Fraction:
        """Pairs of the queries from `first` up to `end` with the keys of their documents, in a mean sequence."""
        counted = op.causal is not None and op.count.data == "causal"
        limits = (op.window.data if op.window else None, op.chunk.data if op.chunk else None)
        window, chunk = (n if n is None else n.evaluate(values) for n in limits)
        total = Fraction(0)
        for parts in self.sequences:
            for start, length in pieces(parts, None if chunk is None else int(chunk)):
                own = [min(max(at - start, 0), length) for at in (first, end)]
                if counted:
                    below, most = (area(at, window) for at in own)
                    total += most - below
                else:
                    seen = length if window is None else min(length, window)
                    total += (own[1] - own[0]) * seen
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
        if contexts.by_documents(axes) or ways == 1:
            return symbolic.constant(self.pairs(op, values, 0, size) / ways)
        of_rank: list[Fraction] = []
        for rank in range(ways):
            chunks = [(rank, ways)]
            if contexts.balanced(axes):
                chunks = [(rank, 2 * ways), (2 * ways - 1 - rank, 2 * ways)]
            bounds = [(n * size // parts, (n + 1) * size // parts) for n, parts in chunks]
            of_rank.append(sum((self.pairs(op, values, *each) for each in bounds), Fraction(0)))
        return looked_up(of_rank, joint_index(axes))

    def block(self, op: AttentionOps, values: Mapping[str, int]) -> Size:
        """Pairs of a rank's part of each document with another rank's part of it: `balance = documents` cuts all into as many."""
        queries, keys = (stg.tensor_type(x).dims[-3] for x in (op.q, op.k))
        conditions.read(symbolic.symbol(self.dim), values[self.dim])
        squares = sum(length * length for parts in self.sequences for _, length in parts)
        mean = symbolic.constant(Fraction(squares, len(self.sequences)))
        return mean / symbolic.product(map(symbolic.symbol, (*queries.split, *keys.split)))


def pieces(parts: Sequence[Part], chunk: int | None) -> Iterator[Part]:
    """Documents, or the chunks of each."""
    for start, length in parts:
        step = chunk or length
        for at in range(0, length, step):
            yield start + at, min(step, length - at)


def area(position: int, window: Fraction | int | None) -> Fraction:
    """Pairs that a causal mask leaves of a document's queries before a position."""
    reach = Fraction(position if window is None else min(position, window))
    return position * reach - reach * reach / 2


def looked_up(entries: Sequence[Fraction], index: Size) -> Size:
    """The entry of an index, as a size: one number where all are equal."""
    if len(set(entries)) == 1:
        return symbolic.constant(entries[0])
    terms: list[Size] = []
    for number, entry in enumerate(entries):
        away = symbolic.call("max", index - number, symbolic.constant(number) - index)
        terms.append(symbolic.constant(entry) * symbolic.call("max", 0, 1 - away))
    return symbolic.total(terms)
