"""Outcomes as text."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fidelity.compare import Finding, Outcome
from tests.fidelity.left_out import applying, table_rows


def outcome_text(outcome: Outcome) -> str:
    """One case: a line each for what was compared, ranks that say the same together."""
    case = outcome.case
    degrees = " ".join(f"{key}={value}" for key, value in case.parallel.items())
    lines = [f"{case.name}  {verdict(outcome)}  ({degrees or 'one rank'})"]
    if outcome.error:
        lines += ["", *outcome.error.splitlines(), ""]
    for findings, ranks in by_findings(outcome).items():
        lines.append(f"  rank {ranks_text(ranks)}")
        rows = [
            (f.subject, f.measured, f.traced if f.traced != f.measured else "same")
            for f in findings
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        for finding, row in zip(findings, rows, strict=True):
            cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"    {'ok      ' if finding.agrees else 'DIFFERS '}{cells}".rstrip())
            lines += [f"              {detail}" for detail in finding.details]
    if outcome.findings:
        texts = table_rows()
        lines += [f"  left out: {name}: {texts[name]}" for name in applying(case)]
    return "\n".join(lines)


def verdict(outcome: Outcome) -> str:
    if outcome.not_yet:
        return f"NOT YET: {outcome.not_yet}"
    if outcome.error:
        return "DOES NOT COMPILE"
    return "agrees" if outcome.agrees else "DIFFERS"


def by_findings(outcome: Outcome) -> dict[tuple[Finding, ...], list[int]]:
    groups: dict[tuple[Finding, ...], list[int]] = {}
    for rank, findings in sorted(outcome.findings.items()):
        groups.setdefault(tuple(findings), []).append(rank)
    return groups


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def summary_text(outcomes: Sequence[Outcome]) -> str:
    agreeing = [o for o in outcomes if o.agrees and not o.not_yet]
    pending = [o for o in outcomes if o.not_yet]
    wrong = [o for o in outcomes if not o.agrees]
    lines = [f"{len(agreeing)} of {len(outcomes)} cases agree"]
    lines += [f"  {o.case.name}: {verdict(o)}" for o in (*pending, *wrong)]
    return "\n".join(lines)
