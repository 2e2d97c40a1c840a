"""Write a step as a trace that ui.perfetto.dev and chrome://tracing show, with a process for each rank class and a track for each stream.

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
"""If a trace has more nodes, those of a layer that follow each other on a stream become one event, since viewers do not take more."""


def perfetto_trace(traces: TraceSet, timeline: Timeline, about: Mapping[str, object]) -> bytes:
    """The whole file. `about` is shown as the trace's metadata."""
    return perfetto_traces([("", traces, timeline)], about)


def perfetto_traces(
    parts: Sequence[tuple[str, TraceSet, Timeline]], about: Mapping[str, object]
) -> bytes:
    """The file for several parts of a job, such as pools, on one time axis. The name of a part stands before the names of its classes."""
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
    """Times in µs as whole nanoseconds."""
    return np.rint(times_us * 1000).astype(np.int64)


def title(rank_class: RankClass, mesh: Mesh) -> str:
    """The name of a class and how many ranks it has."""
    count = mesh.num_ranks
    for axis, places in rank_class.where.items():
        count = count // mesh.size(axis) * len(places)
    return f"{rank_class.name} ({count:,} {'rank' if count == 1 else 'ranks'})"


def streams_of(rank_class: RankClass) -> list[str]:
    """The names of the streams of a class: the one that computes first, then the others in alphabetical order."""
    found = {node.stream for segment in rank_class.program.segments for node in segment.nodes}
    return sorted(found, key=lambda stream: (stream != COMPUTE_STREAM, stream))


def names(number: int, process: str, streams: Sequence[str]) -> Iterator[str]:
    """The events that name a process and its threads, and set their order. `number` is that of the process."""
    yield metadata("process_name", number, 0, name=process)
    yield metadata("process_sort_index", number, 0, sort_index=number)
    for thread, stream in enumerate(streams):
        yield metadata("thread_name", number, thread, name=stream)
        yield metadata("thread_sort_index", number, thread, sort_index=thread)


def metadata(what: str, process: int, thread: int, **values: object) -> str:
    """One metadata event."""
    event = {"name": what, "ph": "M", "pid": process, "tid": thread, "args": values}
    return json.dumps(event, ensure_ascii=False)


@dataclass(frozen=True)
class TrackSlice:
    """An event that every instance of a segment has on a track. It lasts from the start of the node `first` to the end of the node `last`."""

    first: int
    last: int
    stream: str
    head: str
    """The text of the event without its times, its track and its instance."""


def class_events(
    number: int, rank_class: RankClass, starts: Ints, ends: Ints, joined: bool
) -> Iterator[str]:
    """One event for each node of a class, in issue order; with `joined`, one for each stream of each instance of a segment. Times are in nanoseconds."""
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
    """Move events that begin, because times were rounded to nanoseconds, before the one ahead of them on their track has ended."""
    for track in range(num_tracks):
        here = np.flatnonzero(table[2] == track)
        start, end = table[3, here], table[4, here]
        before = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
        assert (start >= before - 2).all(), "nodes of one stream overlap"
        table[3, here] = np.maximum(start, before)
        table[4, here] = np.maximum(end, table[3, here])
    return table


def node_bars(segment: TraceSegment) -> Iterator[TrackSlice]:
    """An event for each node of a segment."""
    for i, node in enumerate(segment.nodes):
        name = f"{node.op} {node.scope}".rstrip()
        yield TrackSlice(i, i, node.stream, head(name, node.phase, costs(node)))


def joined_bars(segment: TraceSegment) -> Iterator[TrackSlice]:
    """An event for each stream of a segment."""
    by_stream: dict[str, list[int]] = {}
    for i, node in enumerate(segment.nodes):
        by_stream.setdefault(node.stream, []).append(i)
    for stream, at in by_stream.items():
        phase = segment.nodes[at[0]].phase
        yield TrackSlice(at[0], at[-1], stream, head(segment.name, phase, {"nodes": len(at)}))


def head(name: str, phase: str, costs: Mapping[str, object]) -> str:
    """The text of an event up to its times; `costs` are shown as its arguments."""
    event = {"ph": "X", "name": name, "cat": phase, "args": costs}
    return json.dumps(event, ensure_ascii=False)[1:-2]


def costs(node: Node) -> dict[str, object]:
    """The numbers from which a node's time follows, as a viewer shows them: FLOPs and bytes."""
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
