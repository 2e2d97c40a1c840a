"""Control dependencies and numbers of nodes, as a rank's program has them in the IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.arrays import Ints
from stagec.backend.program import Dep, TraceProgram, TraceSegment
from stagec.unrolling import queues
from stagec.unrolling.rank import Arrangement

Waits = tuple[tuple[int, tuple[Dep, ...]], ...]
"""For nodes of a segment, what they wait for besides."""


def with_added(segment: TraceSegment, added: queues.Deps, num_slots: int) -> TraceSegment:
    """The segment with what queues add to its nodes."""
    waits = tuple(
        (node, tuple(Dep(*dep) for dep in deps)) for node, deps in enumerate(added) if deps
    )
    return replace(held_back(segment, waits), num_slots=num_slots)


def held_back(segment: TraceSegment, waits: Waits) -> TraceSegment:
    """The segment with nodes that wait for more."""
    nodes = list(segment.nodes)
    for node, deps in waits:
        nodes[node] = replace(nodes[node], ctrl_deps=(*nodes[node].ctrl_deps, *deps))
    most = max((1 + dep.slot for _, deps in waits for dep in deps), default=0)
    return replace(segment, nodes=tuple(nodes), num_slots=max(segment.num_slots, most))


def said_of(rank: Arrangement, waiting: queues.Queues) -> Control:
    """What `ahead` and `held` of a rank's program say. E0709 if it cannot be so."""
    ahead = queues.numbered_ahead(rank)
    held = queues.held_nodes(rank)
    queues.check_turns(rank, waiting, ahead, held)
    return Control(ahead, held)


@dataclass
class Control:
    """What is added to the program of a rank, and to those that differ from it in numbers alone."""

    ahead: Ints | None
    """How many nodes before its place each row is numbered."""
    held: queues.Held
    _segments: dict[object, TraceSegment] = field(default_factory=dict)

    def applied(self, program: TraceProgram) -> TraceProgram:
        program = replace(program, ahead=self.ahead)
        if not self.held:
            return program
        width, first = program.slots.shape[1], program.first_node.tolist()
        columns = max(len(awaited_before(first[row], nodes)) for row, nodes in self.held.items())
        slots = np.full((len(program.slots), width + columns), -1, np.int64)
        slots[:, :width] = program.slots
        segment = program.segment.copy()
        segments = list(program.segments)
        made: dict[object, int] = {}
        for row, nodes in self.held.items():
            start = first[row]
            awaited = awaited_before(start, nodes)
            slots[row, width : width + len(awaited)] = awaited
            number = int(program.segment[row])
            slot_of = {position: Dep(width + k, 0) for k, position in enumerate(awaited)}
            waits = tuple(
                (node, tuple(slot_of.get(a, Dep(-1, a - start)) for a in found))
                for node, found in nodes.items()
            )
            key = number, waits
            if key not in made:
                made[key] = len(segments)
                segments.append(held_back(program.segments[number], waits))
            segment[row] = made[key]
        return replace(program, segments=tuple(segments), segment=segment, slots=slots)


def awaited_before(start: int, nodes: Mapping[int, Sequence[int]]) -> list[int]:
    """What nodes of a row wait for that is in earlier ones."""
    return sorted({p for awaited in nodes.values() for p in awaited if p < start})
