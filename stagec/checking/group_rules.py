"""Rules for collectives: they name groups that exist, and their members agree on all of them."""

from collections import Counter
from dataclasses import dataclass, field

from stagec.checking.comm_groups import check_group_ids, check_idle_groups
from stagec.checking.findings import Place
from stagec.checking.program import WORLD
from stagec.checking.schema import COLLECTIVES
from stagec.checking.trace_set import CheckedSet

MAX_COMPARED = 64
"""Pairs of differing sequences that are compared in full; more are only counted."""


def check_group_use(checked: CheckedSet) -> None:
    """Every collective names a group that its rank can use."""
    hits: dict[tuple[str, str, bytes, int], list[int]] = {}
    members = {name: set(checked.members(name)) for name in checked.used_groups}
    named = any(name != WORLD for name in checked.used_groups)
    for rank in checked.ranks:
        summary = checked.summaries[rank]
        for slot, name in enumerate(summary.groups if summary.is_comparable else ()):
            fault = _fault(checked, rank, name, members[name], named)
            if fault is not None:
                hits.setdefault((*fault, summary.program, slot), []).append(rank)
    for (code, message, _, slot), ranks in sorted(hits.items(), key=lambda hit: hit[1][0]):
        _report_use(checked, code, message, slot, ranks)
    if checked.astra_sim:
        check_group_ids(checked.groups, checked.used_groups, checked.findings)
        all_known = all(summary.is_comparable for summary in checked.summaries.values())
        if all_known and not checked.findings.has(f"E064{number}" for number in range(1, 8)):
            check_idle_groups(checked.groups, checked.used_groups, checked.findings)


def _report_use(checked: CheckedSet, code: str, message: str, slot: int, ranks: list[int]) -> None:
    """Report the collectives of a group slot, the same on all `ranks`."""
    rank = ranks[0]
    if checked.findings.is_full(code, message):
        checked.findings.add(code, message, Place(rank=rank), ranks=ranks)
        return
    program = checked.reader.analysis(rank).program
    at = [] if program is None else program.collectives_of(slot).tolist()
    name = checked.summaries[rank].groups[slot][:80]
    detail = f"it is group `{name}`" if name else "it names no group"
    place = checked.reader.place(rank, at[0] if at else None, detail)
    checked.findings.add(code, message, place, ranks=ranks, count=max(1, len(at)))


def _fault(
    checked: CheckedSet, rank: int, name: str, members: set[int], named: bool
) -> tuple[str, str] | None:
    if name == WORLD:
        if named and checked.astra_sim:
            return "E0646", "a collective names no group, and others do"
        return None
    if checked.astra_sim and not (name.isascii() and name.isdigit()):
        return "E0641", "`pg_name` is not a positive integer"
    if not checked.groups.usable:
        return None
    if name not in checked.groups.members:
        return "E0642", "a collective names a group that is not in the file of groups"
    if rank not in members:
        return "E0643", "a rank issues a collective of a group it is not in"
    if len(members) == 1:
        return "E0644", "a collective runs on a group of one rank"
    return None


@dataclass
class Disagreement:
    """Ranks whose collectives of a group differ, in one way, from those of `reference`."""

    group: str
    reference: int
    ranks: list[int] = field(default_factory=list)


def check_collectives(checked: CheckedSet) -> list[Disagreement]:
    """The members of each group issue the same collectives.

    Returns where they seem to issue them in different orders. That is judged by the order in which
    each rank would run alone; whether it is a fault, a replay tells.
    """
    found: dict[tuple[bytes, bytes], Disagreement] = {}
    for group in sorted(checked.used_groups):
        sequence: dict[int, bytes] = {}
        for rank in checked.members(group):
            summary = checked.summaries.get(rank)
            if summary is not None and summary.is_comparable:
                has = group in summary.groups
                sequence[rank] = summary.sequences[summary.groups.index(group)] if has else b""
        counts = Counter(sequence.values())
        if len(counts) < 2:
            continue
        usual = max(counts, key=lambda digest: (counts[digest], bool(digest)))
        reference = next(rank for rank, digest in sequence.items() if digest == usual)
        for rank, digest in sequence.items():
            if digest != usual:
                entry = found.setdefault((usual, digest), Disagreement(group, reference))
                entry.ranks.append(rank)
    compared = list(found.values())[:MAX_COMPARED]
    return [disagreement for disagreement in compared if _compare(checked, disagreement)]


def report_order(checked: CheckedSet, disagreement: Disagreement, code: str, message: str) -> None:
    """Report collectives in different orders."""
    _compare(checked, disagreement, (code, message))


def _compare(
    checked: CheckedSet, disagreement: Disagreement, order: tuple[str, str] | None = None
) -> bool:
    """Report what differs. If it is the order alone, that is reported as `order`; returns whether
    it still has to be."""
    group, reference, rank = disagreement.group, disagreement.reference, disagreement.ranks[0]
    expected, actual = (_sequence(checked, r, group) for r in (reference, rank))
    same = min(len(expected), len(actual))
    step = next((k for k in range(same) if expected[k][1:] != actual[k][1:]), same)
    where = f"collective {step + 1} of group `{group}`" if group else f"collective {step + 1}"
    there = _describe(checked, reference, expected, step)
    here = _describe(checked, rank, actual, step)
    if sorted(e[1:] for e in expected) == sorted(a[1:] for a in actual):
        if order is None:
            return True
        code, message = order
    elif len(expected) != len(actual):
        code, message = "E0648", "members of a group issue different numbers of collectives"
        where = f"{len(actual)} here and {len(expected)} on rank {reference}; {where}"
    elif expected[step][1] != actual[step][1]:
        code, message = "E0650", "members of a group issue different kinds of collectives"
    else:
        code, message = "E0651", "members of a group disagree on the size of a collective"
    place = checked.reader.place(
        rank,
        actual[step][0] if step < len(actual) else None,
        f"{where} is {here}; on rank {reference} it is {there}",
    )
    checked.findings.add(code, message, place, ranks=disagreement.ranks)
    return False


def _sequence(checked: CheckedSet, rank: int, group: str) -> list[tuple[int, int, int]]:
    """Position, kind and bytes of each collective of a rank on a group."""
    analysis = checked.reader.analysis(rank)
    program, slots = analysis.program, analysis.slots
    if program is None or slots is None or group not in slots.groups:
        return []
    at = program.collectives_of(slots.groups.index(group))
    return list(
        zip(at.tolist(), program.comm_type[at].tolist(), program.size[at].tolist(), strict=True)
    )


def _describe(
    checked: CheckedSet, rank: int, sequence: list[tuple[int, int, int]], step: int
) -> str:
    if step >= len(sequence):
        return "none"
    position, kind, size = sequence[step]
    name = COLLECTIVES[kind] if kind < len(COLLECTIVES) else f"kind {kind}"
    return f"{name} of {size} bytes (node {checked.reader.place(rank, position, '').node})"
