"""When nodes end if nothing is limited but what they wait for: traces of all ranks, node by node."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from stagec.backend.et_def_pb2 import Node, NodeType
from tests.fidelity.trace import attributes
from tests.replay.machine import message

Cost = Callable[[Node, int], float]
"""Of a node, and how many ranks take part."""

At = tuple[int, int]
"""Rank and node id."""


def node_ends(
    traces: Mapping[int, Sequence[Node]], groups: Mapping[str, Sequence[int]], cost: Cost
) -> dict[At, float]:
    """The end of each node. Receives end with their sends, collectives with all of their members."""
    nodes = {(rank, node.id): node for rank, found in traces.items() for node in found}
    waits: dict[At, set[At]] = {
        (rank, number): {(rank, d) for d in (*node.data_deps, *node.ctrl_deps)}
        for (rank, number), node in nodes.items()
    }
    meetings: dict[tuple[str, int], list[At]] = defaultdict(list)
    met: dict[tuple[int, str], int] = defaultdict(int)
    sends: dict[tuple[int, ...], deque[At]] = defaultdict(deque)
    sizes: dict[At, int] = {}
    for at in sorted(nodes):
        node = nodes[at]
        if node.type == NodeType.COMM_COLL_NODE:
            group = str(attributes(node)["pg_name"])
            meetings[group, met[at[0], group]].append(at)
            met[at[0], group] += 1
            sizes[at] = len(groups[group])
        elif node.type == NodeType.COMM_SEND_NODE:
            sends[message(node)].append(at)
    for at in sorted(nodes):
        if nodes[at].type == NodeType.COMM_RECV_NODE:
            waits[at].add(sends[message(nodes[at])].popleft())
    costs = {at: cost(node, sizes.get(at, 2)) for at, node in nodes.items()}
    for members in meetings.values():
        everything = set().union(*(waits[at] for at in members))
        slowest = max(costs[at] for at in members)
        for at in members:
            waits[at], costs[at] = everything, slowest
    return ends_of(nodes, waits, costs)


def ends_of(
    nodes: Mapping[At, Node], waits: Mapping[At, set[At]], costs: Mapping[At, float]
) -> dict[At, float]:
    left = {at: len(before) for at, before in waits.items()}
    readers: dict[At, list[At]] = defaultdict(list)
    for at, before in waits.items():
        for other in before:
            readers[other].append(at)
    ready = [at for at, count in left.items() if not count]
    ends: dict[At, float] = {}
    for at in ready:
        ends[at] = max((ends[other] for other in waits[at]), default=0.0) + costs[at]
        for reader in readers[at]:
            left[reader] -= 1
            if not left[reader]:
                ready.append(reader)
    assert len(ends) == len(nodes)
    return ends
