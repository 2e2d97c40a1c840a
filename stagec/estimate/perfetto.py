"""A step as a trace that ui.perfetto.dev and chrome://tracing show: a process per rank class, a track per stream.

The form is that of the Trace Event Format (Google, "Trace Event Format", section "Complete Events"): `ph` is `X`, `ts` and `dur` are µs.
Times are whole nanoseconds, so that what follows each other on a track does not overlap by a rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.arrays import Ints
from stagec.backend.program import Mesh, Node, RankClass, TraceSegment, TraceSet
from stagec.dialects.sched import COMPUTE_STREAM
from stagec.dialects.sched.actions import Collective, Compute
from stagec.estimate.timeline import Timeline

MOST_NODES = 150_000
"""In a trace with more, the nodes of a layer that follow each other on a stream are one event: viewers take no more."""


def perfetto_trace(traces: TraceSet, timeline: Timeline, about: Mapping[str, object]) -> bytes:
    """The whole file. `about` is shown as the trace's metadata."""
    return perfetto_traces([("", traces, timeline)], about)


def perfetto_traces(
    parts: Sequence[tuple[str, TraceSet, Timeline]], about: Mapping[str, object]
) -> bytes:
    """Of several parts of a job on one time axis, each with the name that stands before those of its classes."""
    joined = sum(timeline.begins[-1] for _, _, timeline in parts) > MOST_NODES
    events: list[str] = []
    process = 0
    for name, traces, timeline in parts:
        for number, rank_class in enumerate(traces.classes):
            what = f"{name} {title(rank_class, traces.mesh)}".lstrip()
            events += names(process, what, streams_of(rank_class))
            starts, ends = (nanoseconds(times) for times in timeline.of_class(number))
            events += class_events(process, rank_class, starts, ends, joined)
            process += 1
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about}, ensure_ascii=False)
    body = ",\n".join(events)
    return f'{head[:-1]}, "traceEvents": [\n{body}\n]}}\n'.encode()


def nanoseconds(times_us: np.ndarray) -> Ints:
    return np.rint(times_us * 1000).astype(np.int64)


def title(rank_class: RankClass, mesh: Mesh) -> str:
    count = mesh.num_ranks
    for axis, places in rank_class.where.items():
        count = count // mesh.size(axis) * len(places)
    return f"{rank_class.name} ({count:,} {'rank' if count == 1 else 'ranks'})"


def streams_of(rank_class: RankClass) -> list[str]:
    """Computation first."""
    found = {node.stream for segment in rank_class.program.segments for node in segment.nodes}
    return sorted(found, key=lambda stream: (stream != COMPUTE_STREAM, stream))


def names(number: int, process: str, streams: Sequence[str]) -> Iterator[str]:
    """What processes and threads are called, and their order."""
    yield metadata("process_name", number, 0, name=process)
    yield metadata("process_sort_index", number, 0, sort_index=number)
    for thread, stream in enumerate(streams):
        yield metadata("thread_name", number, thread, name=stream)
        yield metadata("thread_sort_index", number, thread, sort_index=thread)


def metadata(what: str, process: int, thread: int, **values: object) -> str:
    event = {"name": what, "ph": "M", "pid": process, "tid": thread, "args": values}
    return json.dumps(event, ensure_ascii=False)


@dataclass(frozen=True)
class TrackSlice:
    """What a segment's instances each have on a track: the nodes from `first` to `last`."""

    first: int
    last: int
    stream: str
    head: str
    """The event but for its times and its instance."""


def class_events(
    number: int, rank_class: RankClass, starts: Ints, ends: Ints, joined: bool
) -> Iterator[str]:
    """One event for each node, in issue order; with `joined`, for each stream of each instance."""
    program = rank_class.program
    threads = {stream: thread for thread, stream in enumerate(streams_of(rank_class))}
    first_node = program.first_node
    bars: list[TrackSlice] = []
    tables: list[Ints] = []
    for index, segment in enumerate(program.segments):
        rows = np.flatnonzero(program.segment == index)
        for bar in joined_bars(segment) if joined else node_bars(segment):
            first, last = first_node[rows] + bar.first, first_node[rows] + bar.last
            same = np.full(len(rows), len(bars))
            track = np.full(len(rows), threads[bar.stream])
            tables.append(np.stack([first, same, track, starts[first], ends[last], rows]))
            bars.append(bar)
    table = np.concatenate(tables, axis=1)
    table = table[:, np.argsort(table[0], kind="stable")]
    _, which, track, start, end, row = keep_apart(table, len(threads))
    place = [json.dumps({"pid": number, "tid": threads[bar.stream]})[1:-1] for bar in bars]
    numbers = (program.layer, program.microbatch, program.stage)
    columns = (which, start, end - start, *(values[row] for values in numbers))
    for bar, begin, length, layer, microbatch, stage in zip(
        *map(np.ndarray.tolist, columns), strict=True
    ):
        instance = "".join(
            f', "{name}": {value}'
            for name, value in (("layer", layer), ("microbatch", microbatch), ("stage", stage))
            if value >= 0
        )
        yield (
            f"{{{bars[bar].head}{instance}}}, {place[bar]}, "
            f'"ts": {begin / 1000:.3f}, "dur": {length / 1000:.3f}}}'
        )


def keep_apart(table: Ints, num_tracks: int) -> Ints:
    """No event begins before the one ahead of it on its track has ended: times were rounded to nanoseconds."""
    for track in range(num_tracks):
        here = np.flatnonzero(table[2] == track)
        start, end = table[3, here], table[4, here]
        before = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
        assert (start >= before - 2).all(), "nodes of one stream overlap"
        table[3, here] = np.maximum(start, before)
        table[4, here] = np.maximum(end, table[3, here])
    return table


def node_bars(segment: TraceSegment) -> Iterator[TrackSlice]:
    for i, node in enumerate(segment.nodes):
        name = f"{node.op} {node.scope}".rstrip()
        yield TrackSlice(i, i, node.stream, head(name, node.phase, costs(node)))


def joined_bars(segment: TraceSegment) -> Iterator[TrackSlice]:
    by_stream: dict[str, list[int]] = {}
    for i, node in enumerate(segment.nodes):
        by_stream.setdefault(node.stream, []).append(i)
    for stream, at in by_stream.items():
        phase = segment.nodes[at[0]].phase
        yield TrackSlice(at[0], at[-1], stream, head(segment.name, phase, {"nodes": len(at)}))


def head(name: str, phase: str, costs: Mapping[str, object]) -> str:
    event = {"ph": "X", "name": name, "cat": phase, "args": costs}
    return json.dumps(event, ensure_ascii=False)[1:-2]


def costs(node: Node) -> dict[str, object]:
    """What a node's time follows from."""
    action = node.action
    if isinstance(action, Compute):
        return {"flops": action.num_ops, "bytes": action.num_bytes}
    if isinstance(action, Collective):
        over = ", ".join(action.axes)
        return {
            "over": over,
            "bytes before": action.operand_bytes,
            "bytes after": action.result_bytes,
        }
    return {"bytes": action.num_bytes}
