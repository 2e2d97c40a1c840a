"""What a check found, as text for people and as JSON for machines."""

import json
from dataclasses import dataclass, field

from stagec.checking.findings import Finding, SharedPlace, ranges
from stagec.diagnostics import printable

JSON_VERSION = 1
_SHOWN_PLACES = 4
_NAME_WIDTH = 100


@dataclass(frozen=True)
class SetSummary:
    """The set that was checked. Equal for equal sets: nothing of the machine or the clock."""

    num_files: int = 0
    num_distinct: int = 0
    """Files that differ in content, of those that could be read."""
    num_programs: int = 0
    """Programs that differ, groups and peers aside."""
    num_nodes: int = 0
    """The number of nodes of all ranks together."""
    num_groups: int = 0
    """Groups that collectives use."""
    deadlock: str = ""
    """What is known about deadlock."""


@dataclass
class Report:
    """The findings of a set, errors first."""

    directory: str
    target: str
    findings: list[Finding] = field(default_factory=list)
    summary: SetSummary = field(default_factory=SetSummary)

    @property
    def has_errors(self) -> bool:
        return any(finding.is_error for finding in self.findings)

    @property
    def num_errors(self) -> int:
        return sum(finding.is_error for finding in self.findings)

    def text(self) -> str:
        """The findings as diagnostics, and one line about the set."""
        parts = [_render(finding) for finding in self.findings]
        return "\n".join([*parts, self._last_line()])

    def _last_line(self) -> str:
        s = self.summary
        ranks = f"{s.num_files:,} ranks" if s.num_files != 1 else "1 rank"
        programs = f"{s.num_programs:,} programs" if s.num_programs != 1 else "1 program"
        line = f"{ranks}, {s.num_nodes:,} nodes, {programs}"
        if s.deadlock:
            line += f"; deadlock: {s.deadlock}"
        errors, warnings = self.num_errors, len(self.findings) - self.num_errors
        verdict = f"{_plural(errors, 'error')}, {_plural(warnings, 'warning')}"
        return f"{line}\n{verdict if self.findings else 'nothing found'}\n"

    def json(self) -> str:
        """One object; its fields keep their meaning, new ones may be added."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def as_dict(self) -> dict[str, object]:
        s = self.summary
        return {
            "version": JSON_VERSION,
            "directory": self.directory,
            "target": self.target,
            "num_errors": self.num_errors,
            "num_warnings": len(self.findings) - self.num_errors,
            "findings": [_as_dict(finding) for finding in self.findings],
            "summary": {
                "files": s.num_files,
                "distinct_files": s.num_distinct,
                "programs": s.num_programs,
                "nodes": s.num_nodes,
                "groups": s.num_groups,
                "deadlock": s.deadlock,
            },
        }


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _render(finding: Finding) -> str:
    kind = "error" if finding.is_error else "warning"
    lines = [f"{kind}[{finding.code}]: {finding.message}"]
    for shared in finding.places[:_SHOWN_PLACES]:
        lines += _render_place(shared)
    rest = finding.count - sum(max(1, len(s.ranks)) for s in finding.places[:_SHOWN_PLACES])
    if rest > 0:
        where = f", on ranks {ranges(finding.ranks)}" if len(finding.ranks) > 1 else ""
        lines.append(f"  = note: {rest:,} more{where}")
    lines.append(f"  = help: {finding.help}")
    return "\n".join(lines) + "\n"


def _render_place(shared: SharedPlace) -> list[str]:
    place = shared.first
    where = printable(place.file) or "the whole set"
    if place.node is not None:
        where += f", node {place.node}"
        name = place.name if len(place.name) <= _NAME_WIDTH else place.name[:_NAME_WIDTH] + "..."
        where += f" `{printable(name)}`" if name else ""
    lines = [f" --> {where}"]
    lines += [f"  = note: {printable(line)}" for line in place.detail.split("\n") if line]
    if len(shared.ranks) > 1:
        lines.append(f"  = note: on {len(shared.ranks):,} ranks: {ranges(shared.ranks)}")
    return lines


def _as_dict(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code,
        "severity": "error" if finding.is_error else "warning",
        "message": finding.message,
        "help": finding.help,
        "count": finding.count,
        "ranks": ranges(finding.ranks, most=len(finding.ranks) + 1),
        "places": [
            {
                "file": shared.first.file,
                "rank": shared.first.rank,
                "node": shared.first.node,
                "name": shared.first.name,
                "detail": shared.first.detail,
                "ranks": ranges(shared.ranks, most=len(shared.ranks) + 1),
            }
            for shared in finding.places
        ],
        "not_listed": finding.unshown,
    }
