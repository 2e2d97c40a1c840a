"""One order of each rank's communication, whatever the run times.

A target like ASTRA-sim has one slot for a rank's communication, gives it to the ready node of lowest number, and keeps a
collective in it until the last member is there. Where run times decide which of two collectives is ready first, ranks
may issue them the other way round, and wait for each other for ever. They cannot if, whenever a collective is ready, all
with lower numbers are ready too, or done: what an earlier one waits for, each later one waits for as well, unless a
still earlier one did. The checker proves this of the traces that are written.

Two things make it so:

- A gather of parameters that begins while its host still issues what stands before it has a number where it begins.
- What could be ready before an earlier collective waits for the computation that the earlier one waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from stagec.backend.program import Collective, Dep, Segment, TraceProgram

Ints = np.ndarray


def with_one_order(
    program: TraceProgram, may_move: Ints, known: dict[object, Orders]
) -> TraceProgram:
    """The program with numbers and dependencies that leave its collectives one order.

    `may_move` says which instances are gathers that begin before their place. Programs that differ in nothing but the
    numbers of their nodes share what is `known`.
    """
    key = id(program.slots)
    if key not in known:
        known[key] = find_orders(program, may_move)
    return known[key].applied(program)


@dataclass
class Orders:
    """What `with_one_order` adds to a program."""

    slots: Ints
    """Those of the program; kept, so that no other array gets the same id."""
    ahead: Ints | None
    held: dict[int, dict[int, list[int]]]
    """For an instance, for a node of it: the positions of nodes that it is to wait for as well."""
    _segments: dict[object, Segment] = field(default_factory=dict)

    def applied(self, program: TraceProgram) -> TraceProgram:
        program = replace(program, ahead=self.ahead)
        if not self.held:
            return program
        width, first = program.slots.shape[1], program.first_node.tolist()
        columns = max(len(awaited_before(first[i], nodes)) for i, nodes in self.held.items())
        slots = np.full((len(program.slots), width + columns), -1, np.int64)
        slots[:, :width] = program.slots
        segment = program.segment.copy()
        segments = list(program.segments)
        made: dict[object, int] = {}
        for instance, nodes in self.held.items():
            start = first[instance]
            awaited = awaited_before(start, nodes)
            slots[instance, width : width + len(awaited)] = awaited
            number = int(program.segment[instance])
            slot_of = {position: Dep(width + k, 0) for k, position in enumerate(awaited)}
            waits = tuple(
                (node, tuple(slot_of.get(a, Dep(-1, a - start)) for a in found))
                for node, found in sorted(nodes.items())
            )
            key = number, waits
            if key not in made:
                made[key] = len(segments)
                segments.append(held_back(program.segments[number], waits))
            segment[instance] = made[key]
        return replace(program, segments=tuple(segments), segment=segment, slots=slots)


def awaited_before(start: int, nodes: dict[int, list[int]]) -> list[int]:
    """What nodes of an instance wait for that is in earlier ones."""
    return sorted({p for awaited in nodes.values() for p in awaited if p < start})


def held_back(segment: Segment, waits: tuple[tuple[int, tuple[Dep, ...]], ...]) -> Segment:
    """The segment with nodes that wait for more."""
    nodes = list(segment.nodes)
    for node, deps in waits:
        nodes[node] = replace(nodes[node], ctrl_deps=(*nodes[node].ctrl_deps, *deps))
    most = 1 + max(dep.slot for _, deps in waits for dep in deps)
    return replace(segment, nodes=tuple(nodes), num_slots=max(segment.num_slots, most))


def find_orders(program: TraceProgram, may_move: Ints) -> Orders:
    used = np.unique(program.segment).tolist()
    streams = {
        node.stream
        for number in used
        for node in program.segments[number].nodes
        if isinstance(node.action, Collective)
    }
    if len(streams) < 2:
        # Each follows the one before it.
        return Orders(program.slots, None, {})
    graph = Graph.of(program)
    ahead = moved_ahead(program, graph, may_move)
    first = program.first_node[:-1]
    order = np.arange(len(first)) if ahead is None else np.argsort(first - ahead, kind="stable")
    return Orders(program.slots, ahead, held(program, graph, order))


@dataclass(frozen=True)
class Graph:
    """All nodes by position: what they wait for, and the stream that they follow one another on."""

    begin: Ints
    dep: Ints
    stream: Ints
    """-1 for a collective."""
    num_streams: int

    @staticmethod
    def of(program: TraceProgram) -> Graph:
        first = program.first_node
        total = int(first[-1])
        owners: list[Ints] = []
        deps: list[Ints] = []
        stream = np.full(total, -1, np.int64)
        names: dict[str, int] = {}
        for number in np.unique(program.segment).tolist():
            at = np.flatnonzero(program.segment == number)
            for j, node in enumerate(program.segments[number].nodes):
                place = first[at] + j
                if not isinstance(node.action, Collective):
                    stream[place] = names.setdefault(node.stream, len(names))
                for dep in dict.fromkeys((*node.data_deps, *node.ctrl_deps)):
                    awaited = first[at] + dep.node if dep.slot < 0 else program.slots[at, dep.slot]
                    there = awaited >= 0
                    owners.append(place[there])
                    deps.append(awaited[there])
        owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
        dep = np.concatenate(deps) if deps else np.zeros(0, np.int64)
        by_owner = np.argsort(owner, kind="stable")
        begin = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=total))])
        return Graph(begin, dep[by_owner], stream, len(names))


def moved_ahead(program: TraceProgram, graph: Graph, may_move: Ints) -> Ints | None:
    """How far instances are numbered before their places; nothing where none is.

    A gather comes right after the last thing that it waits for, and after the gather before it.
    """
    first = program.first_node
    key = np.arange(len(program.segment), dtype=np.float64)
    """Where instances are issued: right after another of the same key if they are moved there."""
    previous = -1.0
    moved: list[int] = []
    for instance in np.flatnonzero(may_move).tolist():
        position = int(first[instance])
        awaited = graph.dep[graph.begin[position] : graph.begin[position + 1]]
        latest = previous
        if len(awaited):
            instances = np.searchsorted(first, awaited, side="right") - 1
            latest = max(latest, float(key[instances].max()))
        if np.floor(latest) + 1 < instance:
            key[instance] = np.floor(latest) + 0.5
            moved.append(instance)
        previous = float(key[instance])
    if not moved:
        return None
    lengths = np.diff(first)
    order = np.argsort(key, kind="stable")
    numbered = np.empty(len(key), np.int64)
    numbered[order] = np.cumsum(lengths[order]) - lengths[order]
    return first[:-1] - numbered


def held(program: TraceProgram, graph: Graph, order: Ints) -> dict[int, dict[int, list[int]]]:
    """What collectives are to wait for besides, by instance and node of it.

    Nodes of a stream follow one another, so that it is enough to know the last one of each that a node waits for, directly
    or not. `asked` is what later collectives must wait for; `sure` is done when all so far are issued.
    """
    first, stream = program.first_node.tolist(), graph.stream.tolist()
    begin, dep = graph.begin.tolist(), graph.dep.tolist()
    width = range(graph.num_streams)
    latest = [[-1] * len(stream) for _ in width]
    asked, sure = [-1] * len(width), [-1] * len(width)
    found: dict[int, dict[int, list[int]]] = {}
    for instance in order.tolist():
        for node in range(first[instance], first[instance + 1]):
            before = dep[begin[node] : begin[node + 1]]
            for last in latest:
                most = -1
                for other in before:
                    if last[other] > most:
                        most = last[other]
                last[node] = most
            own = stream[node]
            if own >= 0:
                latest[own][node] = node
                continue
            for k in width:
                if latest[k][node] < asked[k]:
                    at = found.setdefault(instance, {}).setdefault(node - first[instance], [])
                    at.append(asked[k])
                    for last in latest:
                        last[node] = max(last[node], last[asked[k]])
            for other in before:
                k = stream[other]
                if k >= 0 and other > sure[k]:
                    asked[k] = max(asked[k], other)
            for k in width:
                sure[k] = max(sure[k], latest[k][node])
    return found
