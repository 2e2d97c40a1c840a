"""Loads of experts that a router has learned: a measured run is taken for one of equal loads only where all follows from what its ranks have beyond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fidelity.archive import RECORDED, read_cases
from tests.fidelity.compare import with_experts_at_once
from tests.fidelity.loads import is_of_tokens, with_equal_loads
from tests.fidelity.oracle import Case
from tests.fidelity.record import RankRecord

Slip = Callable[[RankRecord], RankRecord]


@pytest.fixture(scope="module")
def learned() -> Case:
    return next(iter(read_cases(RECORDED, ["learned_fsdp_experts"])))


def test_of_equal_loads_all_ranks_have_the_same(learned: Case) -> None:
    found = [with_equal_loads(learned, rank, learned.ranks) for rank in learned.ranks]
    assert len({tuple(sorted(each.flops().items())) for each in found}) == 1
    exchanges = [
        [(c.bytes_in, c.bytes_out) for c in each.communications if is_of_tokens(c)]
        for each in found
    ]
    assert all(each == exchanges[0] and all(a == b for a, b in each) for each in exchanges)
    assert any(record != learned.ranks[rank] for rank, record in enumerate(found))


def more_flops(phase: str) -> Slip:
    def slip(record: RankRecord) -> RankRecord:
        place = next(n for n, c in enumerate(record.computes) if c.phase == phase)
        computes = list(record.computes)
        computes[place] = replace(computes[place], flops=computes[place].flops + 2)
        return replace(record, computes=tuple(computes))

    return slip


def moved_token(end: str, phase: str) -> Slip:
    """One token of an exchange less, and one of the next more: sums stay."""

    def slip(record: RankRecord) -> RankRecord:
        found = list(record.communications)
        places = [
            n
            for n, c in enumerate(found)
            if is_of_tokens(c) and c.phase == phase and c.bytes_in != c.bytes_out
        ][:2]
        for place, change in zip(places, (-128, 128), strict=True):
            size = getattr(found[place], end) + change
            found[place] = replace(found[place], **{end: size})
        return replace(record, communications=tuple(found))

    return slip


@pytest.mark.parametrize(
    "slip",
    [
        *map(more_flops, ("fwd", "bwd", "recompute")),
        *(moved_token(end, phase) for end in ("bytes_in", "bytes_out") for phase in ("fwd", "bwd")),
    ],
)
def test_what_does_not_follow_from_loads_stays_as_it_was_measured(
    learned: Case, slip: Slip
) -> None:
    records = dict(learned.ranks)
    records[0] = slip(records[0])
    assert with_equal_loads(learned, 0, records) == records[0]


def test_products_of_all_experts_stand_for_one_of_each() -> None:
    assert with_experts_at_once(Counter({5: 9, 7: 1}), Counter({20: 2, 5: 1, 7: 1}), 4) == {
        5: 1,
        20: 2,
        7: 1,
    }
    few = Counter({5: 7, 7: 1})
    assert with_experts_at_once(few, Counter({20: 2, 7: 1}), 4) == few
