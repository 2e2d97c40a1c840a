"""How many copies of tokens travel where a part of the experts gets one copy of a token, however many of its experts are chosen.

Parts are nodes, or devices: equally many experts each, in order. Routing is taken to be even: each choice of experts that routing
allows is as likely as any other. Without groups, a part of s of X experts is missed by C(X-s, A) of the C(X, A) choices. With `groups`
and a `limit` of M, a choice has experts of M groups, no more and no fewer: so a token goes to exactly M nodes if each is a
group, as DeepSeek-V3 accounts for it (arXiv:2412.19437, section 3.2.2: at most 4 nodes; arXiv:2505.09343, section 4.3: M copies).

Where experts are not equally busy, each has a token with its own probability, independently but for what routing demands: of A
experts, of M groups (conditional Poisson sampling: Hajek 1964, "Asymptotic theory of rejective sampling", section 2). With equal
probabilities that is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb, floor

import numpy as np
from xdsl.ir import SSAValue

from stagec.dialects import dist, stg


@dataclass(frozen=True)
class Routing:
    """How experts are chosen: `chosen` of `experts`, of `limit` of so many equal `groups`."""

    experts: int
    chosen: int
    groups: int = 1
    limit: int = 1

    @property
    def used(self) -> int:
        """Groups whose experts a token has."""
        return min(self.limit, self.chosen)

    def left(self, part: int, parts: int) -> tuple[int, ...]:
        """Experts of each group that are not in a part."""
        group, own = self.experts // self.groups, self.experts // parts
        first, last = part * own, (part + 1) * own
        return tuple(
            group - max(0, min((g + 1) * group, last) - max(g * group, first))
            for g in range(self.groups)
        )


@lru_cache(maxsize=1 << 8)
def parts_reached(routing: Routing, parts: int) -> Fraction:
    """Parts of the experts that a token goes to, on average."""
    group = routing.experts // routing.groups
    everything = num_choices((group,) * routing.groups, routing.used, routing.chosen)
    assert everything, routing
    alike = Counter(tuple(sorted(routing.left(part, parts))) for part in range(parts))
    missing = sum(
        number * num_choices(left, routing.used, routing.chosen) for left, number in alike.items()
    )
    return parts - Fraction(missing, everything)


def num_copies(routing: Routing, parts: int, tokens: int) -> int:
    """Copies of so many tokens for the parts that they go to, to the nearest whole number."""
    return floor(parts_reached(routing, parts) * tokens + Fraction(1, 2))


def num_choices(groups: tuple[int, ...], used: int, chosen: int) -> int:
    """Ways to choose so many experts from exactly `used` of groups of these sizes."""
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for size in groups:
        for (before, taken), number in list(ways.items()):
            if before < used:
                for more in range(1, min(size, chosen - taken) + 1):
                    ways[before + 1, taken + more] += number * comb(size, more)
    return ways[used, chosen]


def numbers_of(op: stg.DispatchOp | stg.CombineOp) -> SSAValue:
    """The numbers of the experts of these tokens, as they were chosen: before they were gathered, or made a row of all experts."""
    value = op.experts
    while isinstance(maker := value.owner, dist.Movement | stg.SpreadChoiceOp):
        value = maker.operand if isinstance(maker, dist.Movement) else maker.experts
    return value


def chooser(op: stg.DispatchOp | stg.CombineOp) -> stg.TopkOp | None:
    """What chose the experts of these tokens; nothing if the numbers come from elsewhere."""
    owner = numbers_of(op).owner
    return owner if isinstance(owner, stg.TopkOp) else None


def routing_of(op: stg.DispatchOp | stg.CombineOp, values: Mapping[str, int]) -> Routing:
    """How the experts of these tokens were chosen."""
    experts = values[stg.tensor_type(op.routed).names[0]]
    many = values[stg.tensor_type(numbers_of(op)).names[-1]]
    topk = chooser(op)
    if topk is None or topk.groups is None or topk.limit is None:
        return Routing(experts, many)
    return Routing(experts, many, topk.groups.data.integer(values), topk.limit.data.integer(values))


# Experts that are not equally busy


def likely_parts(routing: Routing, parts: int, shares: Sequence[float]) -> list[float]:
    """The probability that a token goes to each part. `shares`: that it goes to each expert.

    Sums and products of elements alone, in one order: the same on every machine.
    """
    degree = routing.chosen + 1
    own = routing.experts // parts
    ways = np.zeros((parts + 1, routing.used + 1, degree))
    ways[:, 0, 0] = 1
    owner = np.arange(routing.experts) // own
    size = routing.experts // routing.groups
    for first in range(0, routing.experts, size):
        # Of each group, in how many ways so many of its experts are chosen that are not in a part; last, of all.
        taken = np.zeros((parts + 1, degree))
        taken[:, 0] = 1
        none = np.ones(parts + 1)
        for expert in range(first, first + size):
            share, outside = shares[expert], np.arange(parts + 1) != owner[expert]
            chosen = np.zeros_like(taken)
            chosen[:, 1:] = taken[:, :-1] * (share * outside)[:, None]
            taken = taken * (1 - share) + chosen
            none = none * (1 - share)
        # A group is used if one of its experts is.
        taken[:, 0] = 0
        more = ways * none[:, None, None]
        for number in range(1, degree):
            more[:, 1:, number:] += ways[:, :-1, : degree - number] * taken[:, number, None, None]
        ways = more
    missed = ways[:, routing.used, routing.chosen]
    if not missed[-1]:
        # Busy experts of more groups than a token may use: no routing with this limit has such a load.
        return likely_parts(Routing(routing.experts, routing.chosen), parts, shares)
    return [float(1 - each / missed[-1]) for each in missed[:-1]]
