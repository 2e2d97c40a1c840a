"""What each node of a rank's program has waited for when it starts, directly or through others: how far along each stream.

Nodes of a stream run one after the other, since each waits for the one before it. So all that a node waits for on a stream is told by one number, the
position of the last such node (a vector clock: Fidge 1988, Mattern 1989). Of what a node waits for directly most is implied by the rest: a backward pass
reads what a forward pass saved, and comes behind it on the same stream anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stagec.arrays import Bools, Ints
from stagec.backend.program import TraceProgram


@dataclass(frozen=True)
class Sorted:
    """Waits by the node that waits."""

    order: Ints
    """`[wait]`: its number among all waits of the program."""
    waiting: Ints
    awaited: Ints
    begins: Ints
    """Where the waits of each node that waits begin."""

    def most(self, numbers: Ints) -> Ints:
        """`[node]`: the largest of `numbers`, `[node]`, of the nodes that it waits for; -1 if it waits for none."""
        found = np.full(len(numbers), -1, numbers.dtype)
        if len(self.begins):
            of_waits = np.maximum.reduceat(numbers[self.awaited], self.begins)
            found[self.waiting[self.begins]] = of_waits
        return found


@dataclass(frozen=True)
class Waits:
    """What the nodes of a program wait for. Nodes have their positions in the program; a wait is a pair of them."""

    program: TraceProgram

    @cached_property
    def stream(self) -> Ints:
        """`[node]`: the number of its stream."""
        numbers: dict[str, int] = {}
        own = [
            np.array([numbers.setdefault(node.stream, len(numbers)) for node in segment.nodes])
            for segment in self.program.segments
        ]
        found = [own[segment] for segment in self.program.segment.tolist()]
        return np.concatenate([np.zeros(0, np.int64), *found])

    @cached_property
    def rows(self) -> list[Ints]:
        """For each segment its instances, in their order."""
        return [
            np.flatnonzero(self.program.segment == index)
            for index in range(len(self.program.segments))
        ]

    @cached_property
    def blocks(self) -> dict[tuple[int, int, int], int]:
        """Where the waits of a node of a segment by one of its dependencies begin among all waits: they have one for each instance of the segment."""
        found: dict[tuple[int, int, int], int] = {}
        begin = 0
        for index, (segment, rows) in enumerate(zip(self.program.segments, self.rows, strict=True)):
            for i, node in enumerate(segment.nodes):
                for k in range(len(node.data_deps) + len(node.ctrl_deps)):
                    found[index, i, k] = begin
                    begin += len(rows)
        return found

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """All waits: the positions of the nodes that wait, and of those that they wait for; -1 for the start of the step."""
        first, slots = self.program.first_node, self.program.slots
        waiting, awaited = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for segment, rows in zip(self.program.segments, self.rows, strict=True):
            for i, node in enumerate(segment.nodes):
                for dep in (*node.data_deps, *node.ctrl_deps):
                    waiting.append(first[rows] + i)
                    awaited.append(
                        slots[rows, dep.slot] if dep.slot >= 0 else first[rows] + dep.node
                    )
        return np.concatenate(waiting), np.concatenate(awaited)

    @cached_property
    def sorted(self) -> Sorted:
        """All waits but those for the start of the step, by the node that waits, then by the one that it waits for."""
        waiting, awaited = self.pairs
        order = np.argsort(waiting * len(self.stream) + awaited, kind="stable")
        order = order[awaited[order] >= 0]
        waiting, awaited = waiting[order], awaited[order]
        return Sorted(order, waiting, awaited, np.flatnonzero(np.diff(waiting, prepend=-1)))

    @cached_property
    def streams(self) -> list[Ints]:
        """The positions of the nodes of each stream."""
        return [np.flatnonzero(self.stream == s) for s in range(self.stream.max(initial=-1) + 1)]

    @cached_property
    def reached(self) -> dict[int, Ints]:
        """By stream, `[node]`: the last position on it that the node waits for, and with it for all before it on that stream; -1 for none.

        A stream on which some node does not wait for the one before it is left out: nothing is known of it.
        """
        if (self.sorted.awaited >= self.sorted.waiting).any():
            return {}
        left: set[int] = set()
        while True:
            found, broken = self.reached_without(left)
            if not broken:
                return found
            left |= broken

    def reached_without(self, left: Collection[int]) -> tuple[dict[int, Ints], set[int]]:
        """The same if nodes of all streams but those in `left` wait for the one before them, and the streams on which one does not."""
        known = [s for s in range(len(self.streams)) if s not in left]
        found = {s: np.full(len(self.stream), -1, np.int32) for s in known}
        direct, is_new = found, True
        while is_new:
            direct = {s: self.sorted.most(self.with_own(s, own)) for s, own in found.items()}
            further = {s: own.copy() for s, own in direct.items()}
            for s, own in further.items():
                # Through the node before it on its stream, a node waits for all that this one waits for.
                through = self.with_own(s, own)
                for nodes in (self.streams[other] for other in known):
                    of_stream = np.maximum.accumulate(through[nodes[:-1]])
                    own[nodes[1:]] = np.maximum(own[nodes[1:]], of_stream)
            is_new = any(not np.array_equal(further[s], found[s]) for s in known)
            found = further
        return found, {
            s for s in known if (direct[s][self.streams[s][1:]] < self.streams[s][:-1]).any()
        }

    def with_own(self, stream: int, reached: Ints) -> Ints:
        """`[node]`: the last position on a stream that a node waits for, or is itself."""
        found = reached.copy()
        found[self.streams[stream]] = self.streams[stream]
        return found

    @cached_property
    def implied(self) -> Bools:
        """`[wait]`: whether a node waits for another one without it, through what else it waits for."""
        waits = self.sorted
        again = np.zeros(len(waits.order), bool)
        again[1:] = (np.diff(waits.waiting) == 0) & (np.diff(waits.awaited) == 0)
        of_stream = self.stream[waits.awaited]
        for stream, reached in self.reached.items():
            own = of_stream == stream
            at, position = waits.waiting[own], waits.awaited[own]
            # What others wait for on the stream, or a later node of the stream itself.
            later = self.with_own(stream, reached)
            later[self.streams[stream]] -= 1
            again[own] |= waits.most(later)[at] >= position
        found = np.ones(len(self.pairs[0]), bool)
        found[waits.order] = again
        return found

    def is_needed(self, segment: int, node: int, dep: int) -> Bools:
        """`[instance]`: whether a node of a segment has to wait by one of its dependencies, and waits through others for no less."""
        begin = self.blocks[segment, node, dep]
        return ~self.implied[begin : begin + len(self.rows[segment])]

    def between(self, nodes: Ints, others: Ints) -> tuple[Ints, Ints]:
        """Which of some `others` may run at the same time as each of these nodes: their numbers, from the first up to the one after the last.

        Others stand on one stream, in ascending order. Of a stream of which nothing is known, all may.
        """
        begin, end = np.zeros(len(nodes), np.int64), np.full(len(nodes), len(others))
        if not len(others) or (along := int(self.stream[others[0]])) not in self.reached:
            return begin, end
        begin = np.searchsorted(others, self.reached[along][nodes], side="right")
        for stream, reached in self.reached.items():
            own = self.stream[nodes] == stream
            end[own] = np.searchsorted(reached[others], nodes[own])
        return begin, end
