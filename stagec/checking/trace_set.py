"""A whole set while it is checked: its files, their summaries, its groups, and what was found."""

from dataclasses import dataclass
from functools import cached_property

from stagec.checking.analysis import FileSummary
from stagec.checking.comm_groups import Groups
from stagec.checking.findings import Findings
from stagec.checking.program import WORLD
from stagec.checking.rank_analyses import RankAnalyses
from stagec.checking.scan import TraceScan


@dataclass
class CheckedSet:
    """What the rules that concern several ranks work on."""

    scan: TraceScan
    groups: Groups
    findings: Findings
    reader: RankAnalyses
    astra_sim: bool

    @property
    def summaries(self) -> dict[int, FileSummary]:
        return self.scan.summaries

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.scan.summaries))

    @cached_property
    def used_groups(self) -> set[str]:
        return {name for summary in self.summaries.values() for name in summary.groups}

    def members(self, group: str) -> tuple[int, ...]:
        """The ranks of a group; none if it is not known."""
        return self.ranks if group == WORLD else self.groups.members.get(group, ())
