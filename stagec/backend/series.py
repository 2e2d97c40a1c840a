"""A series of iterations as a program of two: the first, and one that stands for all that follow.

On each rank an iteration begins when all of the one before has ended: what waits for nothing in it waits for what nothing in the other waits
for. So a rank runs iterations in order, and ranks need not keep step. If one iteration cannot deadlock whenever its ranks begin, no series can.
Transfers of an iteration have tags of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stagec.backend.program import Dep, RankClass, TraceProgram, TraceSegment, TraceSet


def chained_set(traces: TraceSet) -> TraceSet:
    """The same job, each class with two iterations, if it is a series."""
    span = tags_of_iteration([each.program for each in traces.classes])
    classes = tuple(
        each if each.program.series is None else chained_class(each, span)
        for each in traces.classes
    )
    return replace(traces, classes=classes)


def tags_of_iteration(programs: Sequence[TraceProgram]) -> int:
    return 1 + max((int(p.tag.max(initial=0)) for p in programs), default=0)


def chained_class(rank_class: RankClass, tags: int) -> RankClass:
    return replace(rank_class, program=chained(rank_class.program, tags))


def chained(program: TraceProgram, tags: int) -> TraceProgram:
    """Two iterations of a program, the second behind the first. Its tags are `tags` further."""
    assert program.series is not None
    roots, last = ends_of(program)
    count, width = program.slots.shape
    total = int(program.first_node[-1])
    segments = list(program.segments)
    made: dict[tuple[int, tuple[int, ...]], int] = {}
    segment = program.segment.copy()
    slots = np.full((2 * count, width + len(last)), -1, np.int64)
    slots[:count, :width] = program.slots
    slots[count:, :width] = np.where(program.slots >= 0, program.slots + total, -1)
    for instance, nodes in roots.items():
        key = int(program.segment[instance]), nodes
        if key not in made:
            made[key] = len(segments)
            segments.append(behind(program.segments[key[0]], nodes, width, len(last)))
        segment[instance] = made[key]
        slots[count + instance, width:] = last
    twice = {
        name: np.concatenate([getattr(program, name)] * 2)
        for name in ("layer", "microbatch", "stage")
    }
    return replace(
        program,
        segments=tuple(segments),
        segment=np.concatenate([program.segment, segment]),
        slots=slots,
        tag=np.concatenate([program.tag, program.tag + tags]),
        ahead=None if program.ahead is None else np.concatenate([program.ahead] * 2),
        series=replace(program.series, period=count),
        **twice,
    )


def ends_of(program: TraceProgram) -> tuple[dict[int, tuple[int, ...]], list[int]]:
    """Nodes that wait for none, by instance; and the positions of those that none waits for."""
    first = program.first_node
    awaited = np.zeros(int(first[-1]), bool)
    roots: dict[int, tuple[int, ...]] = {}
    for number in np.unique(program.segment).tolist():
        here = np.flatnonzero(program.segment == number)
        own = program.slots[here]
        free = np.ones((len(here), len(program.segments[number].nodes)), bool)
        for at, node in enumerate(program.segments[number].nodes):
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


def behind(segment: TraceSegment, nodes: tuple[int, ...], width: int, number: int) -> TraceSegment:
    """The segment with nodes that wait for what the last slots name."""
    waits = tuple(Dep(width + k, 0) for k in range(number))
    changed = list(segment.nodes)
    for at in nodes:
        changed[at] = replace(changed[at], ctrl_deps=(*changed[at].ctrl_deps, *waits))
    return replace(segment, nodes=tuple(changed), num_slots=width + number)
