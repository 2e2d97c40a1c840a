"""Hold what a trace says against what was measured."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.fidelity.left_out import comparable_memory, corrected
from tests.fidelity.loads import experts_of_a_rank
from tests.fidelity.oracle import Case
from tests.fidelity.peaks import TOLERANCE
from tests.fidelity.record import Communication, Memory, RankRecord

PHASE_ORDER = ("fwd", "bwd", "recompute", "p2p", "optim", "clip")
MOST_DIFFERENCES = 12
"""Lines that are shown of two lists that differ."""


@dataclass(frozen=True)
class Finding:
    """One quantity of one rank."""

    subject: str
    measured: str
    traced: str
    agrees: bool
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a case: findings of each rank, or why there are none."""

    case: Case
    findings: dict[int, list[Finding]]
    not_yet: str = ""
    error: str = ""

    @property
    def agrees(self) -> bool:
        return not self.error and all(f.agrees for fs in self.findings.values() for f in fs)


def compare_rank(case: Case, rank: int, traced: RankRecord) -> list[Finding]:
    measured = corrected(case, rank)
    experts = experts_of_a_rank(case)
    findings = compare_flops(measured, traced, experts or 1, by_op=experts is not None)
    findings += compare_communications(measured, traced)
    if measured.memory is not None and traced.memory is not None:
        expected = comparable_memory(case, rank, measured.memory, traced.memory)
        findings += compare_memory(expected, traced.memory)
    return findings


def compare_flops(
    measured: RankRecord, traced: RankRecord, experts: int = 1, *, by_op: bool = True
) -> list[Finding]:
    """Sums by phase and kind, and with `by_op` that they are made of the same ops. A traced one may be one for each of the experts of a rank."""
    findings: list[Finding] = []
    sums, traced_sums = measured.flops(), traced.flops()
    ops, traced_ops = measured.ops(), traced.ops()
    keys = sorted(sums.keys() | traced_sums.keys(), key=lambda k: (PHASE_ORDER.index(k[0]), k[1]))
    for key in keys:
        phase, kind = key
        mine, theirs = sums[key], traced_sums[key]
        details: list[str] = []
        sizes, traced_sizes = ops.get(key, Counter()), traced_ops.get(key, Counter())
        sizes = with_experts_at_once(sizes, traced_sizes, experts)
        for size in sorted(sizes.keys() | traced_sizes.keys()) if by_op else ():
            count, traced_count = sizes.get(size, 0), traced_sizes.get(size, 0)
            if count != traced_count:
                details.append(f"ops of {size} FLOPs: {count} measured, {traced_count} traced")
        agrees = mine == theirs and not details
        findings.append(
            Finding(f"FLOPs {phase} {kind}", str(mine), str(theirs), agrees, tuple(details))
        )
    return findings


def with_experts_at_once(
    measured: Counter[int], traced: Counter[int], experts: int
) -> Counter[int]:
    """The measured ops, where one of each expert stands for a traced one that is of all experts."""
    found = Counter(measured)
    for size, count in (traced - measured).items():
        each, rest = divmod(size, experts)
        if not rest and experts > 1 and (measured - traced)[each] >= experts * count:
            found[each] -= experts * count
            found[size] += count
    return found


def compare_communications(measured: RankRecord, traced: RankRecord) -> list[Finding]:
    findings: list[Finding] = []
    phases = {*measured.phases(), *traced.phases()}
    for phase in sorted(phases, key=PHASE_ORDER.index):
        theirs, ours = measured.in_phase(phase), traced.in_phase(phase)
        what = "transfers" if phase == "p2p" else f"collectives {phase}"
        details = () if theirs == ours else tuple(differences(theirs, ours))
        findings.append(Finding(what, summary(theirs), summary(ours), theirs == ours, details))
    if len(phases) > 1 and all(finding.agrees for finding in findings):
        findings.append(compare_order(measured.communications, traced.communications))
    return findings


def compare_order(theirs: Sequence[Communication], ours: Sequence[Communication]) -> Finding:
    """The order of the whole step, where that of each phase is the same."""
    same = theirs == ours
    details = () if same else tuple(differences(theirs, ours))
    return Finding("order over the step", f"{len(theirs)}", f"{len(ours)}", same, details)


def summary(communications: Sequence[Communication]) -> str:
    """`5 all_reduce, 1 all_gather`."""
    counts: dict[str, int] = {}
    for communication in communications:
        counts[communication.kind] = counts.get(communication.kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def differences(theirs: Sequence[Communication], ours: Sequence[Communication]) -> list[str]:
    """Where two lists part: `-` was measured, `+` traced, with the place in the measured list."""
    if sorted(map(str, theirs)) == sorted(map(str, ours)):
        axes = {c.axis for c in (*theirs, *ours)}
        same = all(
            [c for c in theirs if c.axis == a] == [c for c in ours if c.axis == a] for a in axes
        )
        lines = [f"the same, in another order{' between axes' if same else ''}"]
    else:
        lines = []
    matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        lines += [f"{i:4} - {theirs[i]}" for i in range(i1, i2)]
        lines += [f"{i1:4} + {ours[j]}  {ours[j].scope}".rstrip() for j in range(j1, j2)]
    if len(lines) > MOST_DIFFERENCES:
        more = len(lines) - MOST_DIFFERENCES
        lines = [*lines[:MOST_DIFFERENCES], f"     and {more} more"]
    return lines


def compare_memory(measured: Memory, traced: Memory) -> list[Finding]:
    pairs: Mapping[str, tuple[int, int]] = {
        "parameters": (measured.parameters, traced.parameters),
        "gradients": (measured.gradients, traced.gradients),
        "optimizer state": (measured.optimizer, traced.optimizer),
    }
    if measured.saved is not None and traced.saved is not None:
        pairs = {**pairs, "saved activations": (measured.saved, traced.saved)}
    if measured.cache is not None and traced.cache is not None:
        pairs = {**pairs, "caches": (measured.cache, traced.cache)}
    findings = [
        Finding(f"bytes of {what}", str(theirs), str(ours), theirs == ours)
        for what, (theirs, ours) in pairs.items()
    ]
    if measured.live_peak is not None and traced.live_peak is not None:
        findings.append(compare_peak(measured.live_peak, traced.live_peak))
    return findings


def compare_peak(measured: int, planned: int) -> Finding:
    part = planned / measured - 1
    return Finding("live peak", str(measured), f"{planned} ({part:+.2%})", abs(part) <= TOLERANCE)
