"""What ASTRA-sim's logs say of a run: which ranks have finished, and which nodes were begun and ended."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

EVENT = re.compile(
    rb"(issue|callback),\s*sys->id=(\d+),\s*tick=(\d+),\s*node->id=(\d+)(?:,\s*node->name=([^,\n]*))?"
)
FINISHED = re.compile(rb"sys\[(\d+)\] finished, (\d+) cycles")
MOST_STUCK = 8


@dataclass
class RunLog:
    """A run, from all files of its log. They rotate: `log.log` alone is the end of it."""

    finished: dict[int, int] = field(default_factory=dict)
    """Ranks that said so, and when, in ns."""
    issued: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """For each rank the nodes that were begun, and what they are called."""
    ended: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def num_executed(self) -> int:
        return sum(map(len, self.ended.values()))

    @property
    def num_cycles(self) -> int:
        """When the last rank finished, in ns."""
        return max(self.finished.values(), default=0)

    def waiting(self, rank: int) -> list[tuple[int, str]]:
        """Nodes of a rank that were begun and have not ended."""
        ended = self.ended.get(rank, set())
        return [
            (node, name) for node, name in self.issued.get(rank, {}).items() if node not in ended
        ]


def read_log(lines: Iterable[bytes]) -> RunLog:
    """The lines of all files, in any order."""
    found = RunLog()
    for line in lines:
        if (match := EVENT.search(line)) is not None:
            rank, node = int(match[2]), int(match[4])
            if match[1] == b"issue":
                found.issued[rank][node] = (match[5] or b"").decode(errors="replace").strip()
            else:
                found.ended[rank].add(node)
        elif (match := FINISHED.search(line)) is not None:
            found.finished[int(match[1])] = int(match[2])
    return found


def verdict(log: RunLog, nodes: Mapping[int, int]) -> tuple[list[str], bool]:
    """What to say of a run, by the number of nodes that each rank's trace has; and whether all of them ran."""
    ranks, total = len(nodes), sum(nodes.values())
    done = sum(rank in log.finished for rank in nodes)
    lines = [
        f"{done:,} of {ranks:,} ranks have finished, {log.num_executed:,} of {total:,} nodes have run"
    ]
    if not log.issued and not log.finished:
        return [
            *lines,
            'the log has no line of a run: is it that of ASTRA-sim, with `"trace-enabled": 1`?',
        ], False
    if not log.issued:
        lines[0] = f"{done:,} of {ranks:,} ranks have finished"
        lines.append(
            'nodes are not in the log: set `"trace-enabled": 1` in system.json, and give all of its files'
        )
        return lines, False
    if log.finished:
        lines.append(f"the last of them after {log.num_cycles:,} ns")
    complete = done == ranks and log.num_executed == total
    stuck = sorted(rank for rank in nodes if rank not in log.finished)
    for rank in stuck[:MOST_STUCK]:
        lines.append(f"rank {rank} has not finished: {where(log, rank, nodes[rank])}")
    if len(stuck) > MOST_STUCK:
        lines.append(f"and {len(stuck) - MOST_STUCK:,} more ranks")
    if done == ranks and not complete:
        few = [rank for rank in nodes if len(log.ended.get(rank, ())) < nodes[rank]]
        lines.append(
            f"nodes of {ranges(few)} are not in the log: a part of it is missing, or they never ran"
        )
    return lines, complete


def where(log: RunLog, rank: int, count: int) -> str:
    """What a rank waits in."""
    waiting = log.waiting(rank)
    ran = f"{len(log.ended.get(rank, ())):,} of {count:,} nodes have run"
    if not waiting:
        return f"{ran}, and none is under way"
    shown = ", ".join(
        f"node {node} `{name}`" if name else f"node {node}" for node, name in waiting[:4]
    )
    more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
    return f"{ran}; it waits in {shown}{more}"


def ranges(ranks: Sequence[int]) -> str:
    if len(ranks) <= 4:
        return "rank " + ", ".join(map(str, ranks))
    return f"{len(ranks):,} ranks"
