"""The order of each stream as control dependencies, and what keeps a communication from being issued early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.backend.lowering.rows import AFTER_BACKWARD, WHEN_READY
from stagec.backend.program import Collective, Compute, Dep, HostCopy, Node, Segment, Transfer
from stagec.dialects.sched import COMPUTE_STREAM

Ints = np.ndarray


@dataclass(frozen=True)
class IssuedRows:
    """What streams need to know of the rows, in issue order."""

    segment: Ints
    first: Ints
    """The position of each row's first node."""
    lag: Ints
    moves: Ints
    is_free: Ints
    """Whether a row reads nothing that a node makes."""
    is_received: Ints
    """Whether a row reads what another rank sends."""


def chain_streams(
    segments: Sequence[Segment],
    rows: IssuedRows,
    width: int,
    known: dict[object, Segment],
) -> tuple[list[Segment], Ints]:
    """Let each node follow the one before it on its stream.

    Within a segment that is a node of its own; the first of a segment follows the last node that
    the stream had in an earlier row, which is one more slot per stream. The last slot is what a row
    waits for so as not to be issued before its time (`held_back`). Ranks of a job share most of their segments: those chained
    before are in `known`.
    """
    streams = sorted({n.stream for s in segments for n in s.nodes})
    extra = np.full((len(rows.segment), len(streams) + 1), -1, np.int64)
    for k, stream in enumerate(streams):
        extra[:, k] = ends_before(
            segments, rows, lambda node, stream=stream: stands_in(node, stream)
        )
    extra[:, -1] = held_back(segments, rows)
    waiting = np.unique(rows.segment[extra[:, -1] >= 0])
    chained: list[Segment] = []
    for number, segment in enumerate(segments):
        key = (segment, tuple(streams), width, number in waiting)
        if key not in known:
            known[key] = chain_segment(segment, streams, width, number in waiting)
        chained.append(known[key])
    return chained, extra


def held_back(segments: Sequence[Segment], rows: IssuedRows) -> Ints:
    """The computation that must end before a row is issued; -1 for none.

    - A gather of parameters reads nothing: one in the forward pass begins when the gather `lag` before
      it is due, any other where it stands.
    - A reduction of a gradient that waits for the end of the backward pass waits for that.
    - One that is issued as soon as it is ready stands behind the row that completes the gradient. Where rows
      communicate too, it waits for all of that row. Else ranks that are a little faster than others, and have
      one slot for all communication, would issue the two the other way round, and wait for each other. What
      stands behind the reduction waits for the row as well, for the same reason.

    - So does what communicates a value just received: that may be there while the rank still computes
      what it is to send.
    - A load from the host begins where it stands: earlier it would only fill memory.

    The same can happen to a gather that is due before tensor-parallel collectives and stands behind them, but
    only if ranks of one class do not keep step; waiting for those would leave nothing to overlap it with.
    """
    held = np.full(len(rows.segment), -1, np.int64)
    compute = ends_before(segments, rows, lambda n: isinstance(n.action, Compute))
    is_gather = np.array([len(s.nodes) == 1 and s.nodes[0].op == "all_gather" for s in segments])
    placed = is_gather[rows.segment] & rows.is_free & (rows.lag < 0)
    gathers = np.flatnonzero(placed | (rows.lag >= 0))
    number = np.arange(len(gathers)) - np.maximum(0, rows.lag[gathers])
    held[gathers] = compute[gathers[np.maximum(0, number)]]
    loads = np.array([loads_alone(s) for s in segments])[rows.segment]
    held[loads] = compute[loads]
    late = rows.moves == AFTER_BACKWARD
    held[late] = compute[late]
    if any(communicates(s) for s in segments):
        ready = rows.moves == WHEN_READY
        held[ready] = compute[ready]
        after = np.flatnonzero(ready[:-1] & ~ready[1:]) + 1
        held[after] = np.maximum(held[after], compute[after])
        held[rows.is_received] = np.maximum(held[rows.is_received], compute[rows.is_received])
    return held


def receives(segment: Segment) -> bool:
    """Whether a segment is a transfer that arrives."""
    return any(isinstance(n.action, Transfer) and n.action.kind == "recv" for n in segment.nodes)


def loads_alone(segment: Segment) -> bool:
    """Whether a segment is a load from the host."""
    return all(isinstance(n.action, HostCopy) and n.action.kind == "load" for n in segment.nodes)


def communicates(segment: Segment) -> bool:
    """Whether computation and communication are mixed in a segment."""
    others = [n for n in segment.nodes if isinstance(n.action, Collective | Transfer)]
    return 0 < len(others) < len(segment.nodes)


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

    Ranks of several stages come to a tied weight's reduction with different things behind them. Where one
    slot serves all communication they would wait for each other, each with what the other needs still to
    come: so it stands in the queues of all communication.
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
