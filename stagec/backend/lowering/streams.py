"""The queues of streams, and what rows wait for, as control dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.backend.program import Collective, Compute, Dep, Node, Segment
from stagec.dialects.sched import COMPUTE_STREAM

Ints = np.ndarray


@dataclass(frozen=True)
class IssuedRows:
    """What streams need to know of the rows, in issue order."""

    segment: Ints
    first: Ints
    """The position of each row's first node."""
    waits: Ints
    """For each row the one whose computation before it must have ended; -1 for none."""


def chain_streams(
    segments: Sequence[Segment],
    rows: IssuedRows,
    width: int,
    known: dict[object, Segment],
) -> tuple[list[Segment], Ints]:
    """Let each node follow the one before it on its stream.

    Within a segment that is a node of its own; the first of a segment follows the last node that
    the stream had in an earlier row, which is one more slot per stream. The last slot is what a row
    waits for. Ranks of a job share most of their segments: those chained before are in `known`, by id.
    """
    streams = sorted({n.stream for s in segments for n in s.nodes})
    extra = np.full((len(rows.segment), len(streams) + 1), -1, np.int64)
    for k, stream in enumerate(streams):
        extra[:, k] = ends_before(
            segments, rows, lambda node, stream=stream: stands_in(node, stream)
        )
    computed = ends_before(segments, rows, lambda node: isinstance(node.action, Compute))
    extra[:, -1] = np.where(rows.waits >= 0, computed[rows.waits], -1)
    waiting = np.unique(rows.segment[extra[:, -1] >= 0])
    chained: list[Segment] = []
    for number, segment in enumerate(segments):
        key = (id(segment), tuple(streams), width, number in waiting)
        if key not in known:
            known[key] = chain_segment(segment, streams, width, number in waiting)
        chained.append(known[key])
    return chained, extra


def ends_before(
    segments: Sequence[Segment], rows: IssuedRows, belongs: Callable[[Node], bool]
) -> Ints:
    """For each row, the last node of an earlier row that belongs; -1 for none."""
    ends = [max((i for i, n in enumerate(s.nodes) if belongs(n)), default=-1) for s in segments]
    end = np.array(ends or [-1], np.int64)[rows.segment]
    position = np.where(end >= 0, rows.first + end, -1)
    return np.concatenate([[-1], np.maximum.accumulate(position)[:-1]])


def stands_in(node: Node, stream: str) -> bool:
    """Whether a node stands in a queue: its own, and the computation's if that waits for it.

    A collective over the ranks that share a tied weight stands in the queues of all communication.
    """
    if node.stream == stream:
        return True
    if stream == COMPUTE_STREAM:
        return node.serial
    return isinstance(node.action, Collective) and bool(node.action.among)


def chain_segment(segment: Segment, streams: Sequence[str], width: int, waits: bool) -> Segment:
    """Chain the nodes of a segment; the first on each stream waits for the last slot too if `waits`."""
    previous: dict[str, int] = {}
    nodes: list[Node] = []
    for i, node in enumerate(segment.nodes):
        deps: list[Dep] = []
        for k, stream in enumerate(streams):
            if not stands_in(node, stream):
                continue
            before = previous.get(stream)
            deps.append(Dep(width + k, 0) if before is None else Dep(-1, before))
            previous[stream] = i
        if waits and any(dep.slot >= 0 for dep in deps):
            deps.append(Dep(width + len(streams), 0))
        known = {*node.data_deps, *node.ctrl_deps}
        new = tuple(d for d in dict.fromkeys(deps) if d not in known)
        nodes.append(replace(node, ctrl_deps=(*node.ctrl_deps, *new)) if new else node)
    return replace(segment, nodes=tuple(nodes), num_slots=width + len(streams) + 1)
