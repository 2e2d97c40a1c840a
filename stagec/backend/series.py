"""A series of iterations as a program of a few: of each kind one, behind each kind that it follows.

On each rank an iteration begins when all of the one before has ended: what waits for nothing in it waits for what nothing in the other waits
for. So a rank runs iterations in order, and ranks need not keep step. If one iteration cannot deadlock whenever its ranks begin, no series can.
Transfers of an iteration have tags of their own.

A kind is a program: most series have one, so that the first iteration and one behind it say everything. Nobody here waits for what is sent to
another pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from stagec.arrays import distinct
from stagec.backend.bodies import Bodies
from stagec.backend.program import (
    Dep,
    Node,
    PooledTraces,
    PoolSeries,
    RankClass,
    Series,
    SeriesTraces,
    TraceProgram,
    TraceSegment,
    TraceSet,
)
from stagec.dialects.sched.actions import Sum, Transfer


def chained_set(traces: TraceSet | SeriesTraces) -> TraceSet:
    """The same job as one of few iterations, if it is a series."""
    if isinstance(traces, TraceSet):
        series = traces.classes[0].program.series
        if series is None:
            return traces
        traces = SeriesTraces((traces,), np.zeros(series.count, np.int64))
    return chained_parts(traces, max(map(tags_of_iteration, traces.parts)))


def chained_pools(traces: PoolSeries) -> PooledTraces:
    """Likewise: iterations of all pools have as many tags, so that those of a handover are the same on both sides."""
    parts = [part for _, each in traces.pools for part in each.parts]
    tags = max(map(tags_of_iteration, parts))
    return PooledTraces(tuple((name, chained_parts(each, tags)) for name, each in traces.pools))


def chained_parts(traces: SeriesTraces, tags: int) -> TraceSet:
    classes = tuple(
        RankClass(name, where, ChainedPrograms(traces, programs, tags).program())
        for name, where, programs in common_classes(traces.parts)
    )
    return replace(traces.parts[0], classes=classes)


def tags_of_iteration(traces: TraceSet) -> int:
    """Tags that its transfers need."""
    series = traces.classes[0].program.series
    if series is not None and series.bodies is not None:
        return series.bodies.tags
    return 1 + max(int(c.program.tag.max(initial=0)) for c in traces.classes)


def tags_in_first(program: TraceProgram) -> np.ndarray:
    """The tag of each instance, as if its iteration were the first."""
    if program.series is None or program.series.bodies is None:
        return program.tag
    bodies = program.series.bodies
    return program.tag - bodies.of_instances() * bodies.tags


def common_classes(
    parts: Sequence[TraceSet],
) -> Iterator[tuple[str, dict[str, tuple[int, ...]], list[TraceProgram]]]:
    """Ranks that are of one class in every part: a name, where they are, their program in each part."""
    axes = parts[0].mesh.axes
    for chosen in product(*(part.classes for part in parts)):
        where: dict[str, tuple[int, ...]] = {}
        for axis in axes:
            own = [set(each.where[axis]) for each in chosen if axis in each.where]
            if own:
                where[axis] = tuple(sorted(set.intersection(*own)))
        if all(where.values()):
            name = "+".join(dict.fromkeys(each.name for each in chosen))
            yield name, where, [each.program for each in chosen]


class ChainedPrograms:
    """The iterations of one class, by their programs. Of each pair that stands one behind the other somewhere, both: the second waits for the first."""

    def __init__(self, series: SeriesTraces, programs: Sequence[TraceProgram], tags: int) -> None:
        self.series, self.programs, self.which, self.tags = series, programs, series.which, tags
        self.ends = [ends_of(program) for program in programs]
        self.segments = [
            with_handovers(segment, series.channels)
            for program in programs
            for segment in program.segments
        ]
        self.first_segment = np.cumsum([0, *(len(p.segments) for p in programs)])
        self.made: dict[tuple[int, tuple[int, ...], int], int] = {}
        self.nodes = self.number = 0
        """The counts of the iterations that there are already."""
        self.columns: dict[str, list[np.ndarray]] = {}

    def program(self) -> TraceProgram:
        pairs = np.unique(np.stack([self.which[:-1], self.which[1:]], axis=1), axis=0).tolist()
        pairs = pairs or [[int(self.which[0])] * 2]
        for one, other in pairs:
            before = self.nodes
            self.add(one, None, 0)
            self.add(other, self.ends[one][1], before)
        places = {tuple(pair): 2 * number + 1 for number, pair in enumerate(pairs)}
        first = next(2 * n for n, (one, _) in enumerate(pairs) if one == self.which[0])
        behind_others = zip(self.which[:-1].tolist(), self.which[1:].tolist(), strict=True)
        order = np.array([first, *(places[pair] for pair in behind_others)], np.int64)
        lengths = [len(each) for each in self.columns["segment"]]
        bodies = Bodies(np.cumsum(lengths), order, self.tags, self.series.handed)
        slots = padded(self.columns.pop("slots"))
        if all(each.ahead is None for each in self.programs):
            del self.columns["ahead"]
        return TraceProgram(
            segments=tuple(self.segments),
            slots=slots,
            series=Series(len(self.which), self.numbers(), bodies),
            **{name: np.concatenate(found) for name, found in self.columns.items()},
        )

    def add(self, part: int, last: Sequence[int] | None, before: int) -> None:
        """One more iteration; what waits for nothing in it waits for what is `last` in the one that has so many nodes `before` it."""
        program = self.programs[part]
        base = int(self.first_segment[part])
        segment, slots = program.segment + base, program.slots
        slots = np.where(slots >= 0, slots + self.nodes, -1)
        if last is not None:
            width = slots.shape[1]
            slots = padded([slots], width + len(last))
            for instance, nodes in self.ends[part][0].items():
                key = int(segment[instance]), nodes, len(last)
                if key not in self.made:
                    self.made[key] = len(self.segments)
                    self.segments.append(behind(self.segments[key[0]], nodes, width, len(last)))
                segment[instance] = self.made[key]
                slots[instance, width:] = np.array(last) + before
        ahead = program.ahead
        own = {
            "segment": segment,
            "slots": slots,
            "tag": program.tag + self.number * self.tags,
            "ahead": np.zeros(len(segment), np.int64) if ahead is None else ahead,
            **{name: getattr(program, name) for name in ("layer", "microbatch", "stage")},
        }
        for name, array in own.items():
            self.columns.setdefault(name, []).append(array)
        self.nodes += int(program.first_node[-1])
        self.number += 1

    def numbers(self) -> Mapping[Sum, np.ndarray]:
        """What the sizes of nodes are in each iteration: those of each part in its own."""
        found: dict[Sum, np.ndarray] = {}
        for part, program in enumerate(self.programs):
            if program.series is None:
                continue
            here = self.which == part
            for size, own in program.series.numbers.items():
                numbers = found.get(size, np.zeros(len(self.which), np.int64))
                if own.dtype == object:
                    numbers = numbers.astype(object)
                numbers[here] = own
                found[size] = numbers
        return found


def padded(rows: Sequence[np.ndarray], width: int = 0) -> np.ndarray:
    """All rows of slots, as wide as the widest."""
    width = max(width, *(each.shape[1] for each in rows))
    more = [((0, 0), (0, width - each.shape[1])) for each in rows]
    return np.concatenate(
        [np.pad(each, m, constant_values=-1) for each, m in zip(rows, more, strict=True)]
    )


def ends_of(program: TraceProgram) -> tuple[dict[int, tuple[int, ...]], list[int]]:
    """Nodes that wait for none, by instance; and the positions of those that none waits for."""
    first = program.first_node
    awaited = np.zeros(int(first[-1]), bool)
    roots: dict[int, tuple[int, ...]] = {}
    for number in distinct(program.segment).tolist():
        here = np.flatnonzero(program.segment == number)
        own = program.slots[here]
        free = np.ones((len(here), len(program.segments[number].nodes)), bool)
        for at, node in enumerate(program.segments[number].nodes):
            if leaves(node):
                awaited[first[here] + at] = True
            for dep in (*node.data_deps, *node.ctrl_deps):
                if dep.slot < 0:
                    free[:, at] = False
                    awaited[first[here] + dep.node] = True
                else:
                    positions = own[:, dep.slot]
                    free[:, at] &= positions < 0
                    awaited[positions[positions >= 0]] = True
        for row in np.flatnonzero(free.any(axis=1)).tolist():
            roots[int(here[row])] = tuple(np.flatnonzero(free[row]).tolist())
    return roots, np.flatnonzero(~awaited).tolist()


def with_handovers(segment: TraceSegment, channels: int) -> TraceSegment:
    """The segment whose messages to other pools say which handover they are part of, by their channels."""
    if not channels or not any(is_between_pools(node) for node in segment.nodes):
        return segment
    changed = list(segment.nodes)
    for at, node in enumerate(segment.nodes):
        if isinstance(node.action, Transfer) and node.action.peer is not None:
            handed, channel = divmod(node.action.channel, channels)
            peer = replace(node.action.peer, handed=handed)
            changed[at] = replace(node, action=replace(node.action, channel=channel, peer=peer))
    return replace(segment, nodes=tuple(changed))


def is_between_pools(node: Node) -> bool:
    return isinstance(node.action, Transfer) and node.action.peer is not None


def leaves(node: Node) -> bool:
    """Whether it sends something to another pool, which goes on beside the iterations that follow."""
    action = node.action
    return isinstance(action, Transfer) and action.peer is not None and action.kind == "send"


def behind(segment: TraceSegment, nodes: tuple[int, ...], width: int, number: int) -> TraceSegment:
    """The segment with nodes that wait for what the last slots name."""
    waits = tuple(Dep(width + k, 0) for k in range(number))
    changed = list(segment.nodes)
    for at in nodes:
        changed[at] = replace(changed[at], ctrl_deps=(*changed[at].ctrl_deps, *waits))
    return replace(segment, nodes=tuple(changed), num_slots=width + number)
