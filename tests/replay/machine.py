"""Ranks that run their traces as ASTRA-sim does.

Its rules, from `Workload` and `HardwareResource`: a rank runs one computation at a time, and one communication;
collectives and sends share that slot, receives are unlimited. Among the ready nodes whose slot is free the lowest id is
issued. Sends are eager. The n-th collective that a rank issues on a group meets the n-th of the other members; a receive
takes the first message with its tag, source and size. How long anything takes is the caller's, so that one set of traces
can be run in many ways.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stagec.backend.et_def_pb2 import Node, NodeType
from tests.fidelity.trace import attributes

Duration = Callable[[int, Node], int]
"""Of a node on a rank, at least 1."""

COMPUTE, COMMUNICATE, RECEIVE = range(3)
SLOT_OF = {
    NodeType.COMP_NODE: COMPUTE,
    NodeType.COMM_COLL_NODE: COMMUNICATE,
    NodeType.COMM_SEND_NODE: COMMUNICATE,
    NodeType.COMM_RECV_NODE: RECEIVE,
    # What is neither computed nor received has the slot of communication.
    NodeType.MEM_LOAD_NODE: COMMUNICATE,
    NodeType.MEM_STORE_NODE: COMMUNICATE,
}


@dataclass
class Replayed:
    """When each node ran, and what never did."""

    start: dict[tuple[int, int], int] = field(default_factory=dict)
    """By rank and node id."""
    end: dict[tuple[int, int], int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Nodes that did not end, by rank and name."""


@dataclass
class Rank:
    """One rank: its nodes, and what is ready in each of its slots."""

    number: int
    nodes: dict[int, Node]
    waits: dict[int, int] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ready: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))
    busy: list[bool] = field(default_factory=lambda: [False, False])
    met: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How many collectives of each group it has issued."""

    def __post_init__(self) -> None:
        for number, node in self.nodes.items():
            before = {*node.data_deps, *node.ctrl_deps}
            assert before <= self.nodes.keys(), f"rank {self.number}: no node for {before}"
            self.waits[number] = len(before)
            for other in before:
                self.children[other].append(number)
            if not before:
                self.offer(number)

    def offer(self, number: int) -> None:
        heapq.heappush(self.ready[SLOT_OF[self.nodes[number].type]], number)

    def ended(self, number: int) -> None:
        for child in self.children[number]:
            self.waits[child] -= 1
            if not self.waits[child]:
                self.offer(child)


class Machine:
    """All ranks, and what is between them."""

    def __init__(
        self,
        traces: Mapping[int, Sequence[Node]],
        groups: Mapping[str, Sequence[int]],
        duration: Duration,
    ) -> None:
        self.ranks = {r: Rank(r, {n.id: n for n in nodes}) for r, nodes in traces.items()}
        self.groups = groups
        self.duration = duration
        self.result = Replayed()
        self.events: list[tuple[int, int, int]] = []
        """Ends of nodes: time, rank, node."""
        self.meetings: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        self.messages: dict[tuple[int, ...], deque[int]] = defaultdict(deque)
        self.awaited: dict[tuple[int, ...], deque[int]] = defaultdict(deque)

    def run(self) -> Replayed:
        time = 0
        for rank in self.ranks.values():
            self.issue(rank, time)
        while self.events:
            time, number, ended = heapq.heappop(self.events)
            self.end(self.ranks[number], ended, time)
        for rank in self.ranks.values():
            for number in sorted(rank.nodes):
                if (rank.number, number) not in self.result.end:
                    name = rank.nodes[number].name
                    self.result.missing.append(f"rank {rank.number}: node {number} {name}")
        return self.result

    def issue(self, rank: Rank, time: int) -> None:
        """Start what can start, ascending in each slot."""
        while rank.ready[RECEIVE]:
            self.receive(rank, heapq.heappop(rank.ready[RECEIVE]), time)
        for slot in (COMPUTE, COMMUNICATE):
            if rank.ready[slot] and not rank.busy[slot]:
                rank.busy[slot] = True
                number = heapq.heappop(rank.ready[slot])
                self.result.start[rank.number, number] = time
                node = rank.nodes[number]
                if node.type == NodeType.COMM_COLL_NODE:
                    self.meet(rank, node, time)
                else:
                    self.later(rank.number, node, time)

    def later(self, rank: int, node: Node, time: int) -> None:
        heapq.heappush(self.events, (time + self.duration(rank, node), rank, node.id))

    def meet(self, rank: Rank, node: Node, time: int) -> None:
        """All members of a group end its collective together."""
        given = attributes(node)
        group = str(given["pg_name"])
        members = self.groups[group]
        assert rank.number in members, f"rank {rank.number} is not in group {group}"
        meeting = self.meetings[group, rank.met[group]]
        rank.met[group] += 1
        meeting[rank.number] = node.id
        if len(meeting) < len(members):
            return
        shapes = set()
        for other, number in meeting.items():
            there = attributes(self.ranks[other].nodes[number])
            shapes.add((there["comm_type"], there["comm_size"]))
        assert len(shapes) == 1, f"group {group} disagrees: {shapes}"
        end = time + max(self.duration(r, self.ranks[r].nodes[n]) for r, n in meeting.items())
        for other, number in meeting.items():
            heapq.heappush(self.events, (end, other, number))

    def receive(self, rank: Rank, number: int, time: int) -> None:
        node = rank.nodes[number]
        self.result.start[rank.number, number] = time
        key = message(node)
        assert key[2] == rank.number
        if self.messages[key]:
            self.messages[key].popleft()
            heapq.heappush(self.events, (time + 1, rank.number, number))
        else:
            self.awaited[key].append(number)

    def end(self, rank: Rank, number: int, time: int) -> None:
        node = rank.nodes[number]
        self.result.end[rank.number, number] = time
        slot = SLOT_OF[node.type]
        if slot != RECEIVE:
            rank.busy[slot] = False
        if node.type == NodeType.COMM_SEND_NODE:
            key = message(node)
            assert key[1] == rank.number != key[2]
            if self.awaited[key]:
                arrival = (time + 1, key[2], self.awaited[key].popleft())
                heapq.heappush(self.events, arrival)
            else:
                self.messages[key].append(number)
        rank.ended(number)
        self.issue(rank, time)


def message(node: Node) -> tuple[int, ...]:
    """What a send and its receive have in common: tag, source, destination, size."""
    given = attributes(node)
    return tuple(int(given[k]) for k in ("comm_tag", "comm_src", "comm_dst", "comm_size"))


def replay(
    traces: Mapping[int, Sequence[Node]],
    groups: Mapping[str, Sequence[int]],
    duration: Duration = lambda rank, node: 1,
) -> Replayed:
    """Run all ranks until nothing moves."""
    return Machine(traces, groups, duration).run()
