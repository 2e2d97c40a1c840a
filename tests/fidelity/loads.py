"""Experts whose router is learned: how many tokens a rank computes is in the data; how many all ranks do together is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.fidelity.oracle import Case, coordinates
from tests.fidelity.record import Communication, Compute, RankRecord


def has_learned_loads(case: Case) -> bool:
    return case.degree("ep") > 1 and case.model["router"] != "balanced"


def with_mean_loads(case: Case, rank: int, records: Mapping[int, RankRecord]) -> RankRecord:
    """As if each rank of an expert-parallel group had the mean of what they have: FLOPs by phase and kind, and bytes of each exchange."""
    others = group_of(case, rank)
    own = records[rank]
    places = [n for n, c in enumerate(own.communications) if c.kind == "all_to_all"]
    theirs = [
        [c for c in records[each].communications if c.kind == "all_to_all"] for each in others
    ]
    if any(len(exchanges) != len(places) for exchanges in theirs):
        return own
    communications = list(own.communications)
    for number, place in enumerate(places):
        communications[place] = mean_exchange(
            communications[place], [exchanges[number] for exchanges in theirs]
        )
    return replace(
        own,
        communications=tuple(communications),
        computes=mean_computes(own, [records[each] for each in others]),
    )


def mean_exchange(own: Communication, all_of_group: list[Communication]) -> Communication:
    size = len(all_of_group)
    sent, rest = divmod(sum(c.bytes_in for c in all_of_group), size)
    received, more = divmod(sum(c.bytes_out for c in all_of_group), size)
    return own if rest or more else replace(own, bytes_in=sent, bytes_out=received)


def mean_computes(own: RankRecord, all_of_group: list[RankRecord]) -> tuple[Compute, ...]:
    """One for each phase and kind."""
    totals = [record.flops() for record in all_of_group]
    found: list[Compute] = []
    for phase, kind in own.flops():
        flops, rest = divmod(sum(total[phase, kind] for total in totals), len(totals))
        if rest:
            return own.computes
        found.append(Compute(phase, kind, flops))
    return tuple(found)


def group_of(case: Case, rank: int) -> list[int]:
    """The ranks that share out experts with a rank."""
    axis = "ep" if "ep" in case.mesh else "dp"
    at = coordinates(rank, case.mesh)
    return [
        each
        for each in case.ranks
        if all(
            place == at[name]
            for name, place in coordinates(each, case.mesh).items()
            if name != axis
        )
    ]
