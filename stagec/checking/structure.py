"""The dependency graph of one rank: ids are unique, dependencies exist, and nothing is cyclic.

Nodes are addressed by *position*: their number in ascending order of ids.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from stagec.checking.node_decoding import FileFindings
from stagec.checking.node_table import NodeTable


@dataclass
class DependencyGraph:
    """Dependencies by position: node p depends on `dep[begin[p]:begin[p + 1]]`.

    `row` is the row of each position in the table. `issue` lists positions in the order in which
    they become issuable one at a time, lowest first; it is missing when that is 0, 1, 2, ...
    """

    row: np.ndarray
    begin: np.ndarray
    dep: np.ndarray
    issue: np.ndarray | None

    @property
    def num_nodes(self) -> int:
        return self.row.size


def build_graph(table: NodeTable, found: FileFindings) -> DependencyGraph | None:
    """The graph, or none where it has no meaning: ids are repeated, or a cycle stops it."""
    size = table.num_nodes
    ids = table.id
    ascending = bool((ids[1:] > ids[:-1]).all())
    row = np.arange(size) if ascending else np.argsort(ids, kind="stable")
    ids = ids if ascending else ids[row]
    if not ascending:
        again = np.flatnonzero(ids[1:] == ids[:-1]) + 1
        found.add_rows(table, "E0620", "two nodes of a file have the same id", row[again])
        if again.size:
            return None
    place = np.minimum(np.searchsorted(ids, table.dep), size - 1)
    exists = ids[place] == table.dep
    missing = np.flatnonzero(~exists)
    if missing.size:
        first = {int(table.dep_owner[k]): int(table.dep[k]) for k in missing[::-1]}
        found.add_rows(
            table,
            "E0621",
            "a node depends on one that is not in the file",
            np.unique(table.dep_owner[missing]),
            lambda r: f"it depends on node {first[r]}",
        )
    owner, dep = table.dep_owner[exists], place[exists]
    if not ascending:
        position = np.empty(size, dtype=np.int64)
        position[row] = np.arange(size)
        owner = position[owner]
    if owner.size and not (owner[1:] >= owner[:-1]).all():
        order = np.argsort(owner, kind="stable")
        owner, dep = owner[order], dep[order]
    begin = np.zeros(size + 1, dtype=np.int32)
    begin[1:] = np.cumsum(np.bincount(owner, minlength=size))
    graph = DependencyGraph(row, begin, dep.astype(np.int32), None)
    if not (dep < owner).all():
        graph.issue = issue_order(graph)
        if graph.issue.size < size:
            _report_cycle(table, graph, found)
            return None
    return graph


def children(begin: np.ndarray, dep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The transposed graph: node p is a dependency of `child[start[p]:start[p + 1]]`."""
    size = begin.size - 1
    start = np.zeros(size + 1, dtype=np.int32)
    start[1:] = np.cumsum(np.bincount(dep, minlength=size))
    owner = np.repeat(np.arange(size, dtype=np.int32), np.diff(begin))
    return start, owner[np.argsort(dep, kind="stable")]


def issue_order(graph: DependencyGraph) -> np.ndarray:
    """Positions in the order in which a machine that runs one node at a time runs them, the lowest
    ready one first. Nodes on or behind a cycle are left out.
    """
    start, child = (a.data for a in children(graph.begin, graph.dep))
    waiting = np.diff(graph.begin)
    ready = np.flatnonzero(waiting == 0).tolist()
    left = waiting.astype(np.int32).data
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for k in range(start[node], start[node + 1]):
            after = child[k]
            left[after] -= 1
            if not left[after]:
                heapq.heappush(ready, after)
    return np.array(order, dtype=np.int32)


def _report_cycle(table: NodeTable, graph: DependencyGraph, found: FileFindings) -> None:
    assert graph.issue is not None
    stuck = np.ones(graph.num_nodes, dtype=bool)
    stuck[graph.issue] = False
    # Every stuck node depends on a stuck one: going back, one comes round.
    seen: dict[int, int] = {}
    node = int(np.flatnonzero(stuck)[0])
    while node not in seen:
        seen[node] = len(seen)
        deps = graph.dep[graph.begin[node] : graph.begin[node + 1]]
        node = int(deps[stuck[deps]][0])
    cycle = [at for at, step in seen.items() if step >= seen[node]]
    cycle = cycle[cycle.index(min(cycle)) :] + cycle[: cycle.index(min(cycle))]
    ids = [int(table.id[graph.row[at]]) for at in cycle]
    shown = " -> ".join(map(str, ids[:6] + (["..."] if len(ids) > 6 else []) + ids[:1]))
    text = f"each depends on the next: {shown}; {int(stuck.sum())} nodes never run"
    found.add_rows(
        table,
        "E0622",
        "the dependencies of a rank form a cycle",
        graph.row[cycle[:1]],
        lambda _: text,
    )
