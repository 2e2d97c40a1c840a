"""Write a trace set: every rank's trace, `comm_group.json` and `manifest.json`.

    traces = encode_traces(trace_set, TraceOptions(names="short"))
    report = write_traces(traces, "traces/", WriteOptions(ranks="0-63"), about={...})

Ranks are written in batches of one class, on an executor. A worker is given the class in encoded
form (a few kilobytes) and makes the template itself; what it holds is one template and one buffer.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stagec.backend.bundle import digest_of
from stagec.backend.destination import Destination, WrittenSet, open_destination
from stagec.backend.encoded import Encoded
from stagec.backend.errors import TraceError
from stagec.backend.executors import open_executor
from stagec.backend.groups import comm_group_json
from stagec.backend.manifest import COMM_GROUP, FileEntry, manifest_json
from stagec.backend.rank_batches import (
    BatchResult,
    Format,
    Output,
    RankBatch,
    rank_batches,
    write_batch,
)
from stagec.backend.ranks import format_ranks, parse_ranks
from stagec.backend.running_tasks import run_tasks
from stagec.backend.stamping import Compression, make_stamp

_BLOCK_BYTES = 4096
"""What a file's size is rounded up to on common file systems."""


@dataclass(frozen=True)
class WriteOptions:
    """How a set is written. Of these, only `ranks`, `format` and `compress` decide bytes."""

    ranks: str = ""
    """`0,8,1024-1031`; all where empty."""
    format: Format = "et"
    compress: Compression = "none"
    links: Literal["auto", "never"] = "auto"
    """Ranks with equal bytes share one file."""
    force: bool = False
    """Write beside files that are not ours."""
    resume: bool = False
    """Complete what an interrupted run left; keep the files whose hash is right."""
    executor: str | Executor = "threads"
    storage_options: tuple[tuple[str, Any], ...] = ()
    """Arguments of the file system behind a URL."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    ranks_done: int
    ranks_total: int
    bytes_written: int
    elapsed_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_written / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True)
class WriteReport:
    """What a run did. `notes` are for the user: what a consumer may stumble over."""

    out: str
    num_ranks: int
    num_linked: int
    num_kept: int
    bytes_written: int
    num_groups: int
    elapsed_s: float
    notes: tuple[str, ...] = ()


@dataclass
class _Tally:
    """Results of the batches so far."""

    files: dict[int, FileEntry] = field(default_factory=dict)
    num_linked: int = 0
    num_kept: int = 0
    bytes_written: int = 0

    def add(self, result: BatchResult) -> None:
        for rank, size, crc in zip(result.ranks, result.sizes, result.crcs, strict=True):
            self.files[rank] = FileEntry(size, crc)
        self.num_linked += result.num_linked
        self.num_kept += result.num_kept
        self.bytes_written += result.bytes_written


def write_traces(
    traces: Encoded,
    out: str,
    options: WriteOptions | None = None,
    *,
    about: Mapping[str, Any] | None = None,
    beside: Mapping[str, bytes] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> WriteReport:
    """Write the traces to a directory or URL, and files `beside` them, by name.

    `about` goes into the manifest: inputs, versions. Where that cannot be, E06xx, and nothing is left
    behind. Interrupted (KeyboardInterrupt), or failed when resumed, the unfinished set stays out of
    sight, to be resumed.
    """
    options = options or WriteOptions()
    if options.format == "json" and options.compress != "none":
        raise TraceError("E0612", "the readable form is not compressed", help="leave out one")
    start = time.monotonic()
    ranks = select_ranks(traces, options.ranks)
    head = _manifest_head(traces, options, ranks, about or {})
    with open_executor(options.executor) as executor:
        destination = open_destination(
            out,
            WrittenSet(head["digest"], traces.model, tuple(beside or ())),
            force=options.force,
            resume=options.resume,
            options=options.storage_options,
        )
        try:
            groups = _write_groups(traces, ranks, destination)
            tally = _write_ranks(traces, ranks, options, destination, executor, start, progress)
            names = {
                f"{traces.model}.{rank}.{options.format}": tally.files[rank]
                for rank in sorted(tally.files)
            }
            for name, text in (beside or {}).items():
                destination.files.write(name, text)
            lying = {name: FileEntry(len(d), zlib.crc32(d)) for name, d in (beside or {}).items()}
            destination.commit(manifest_json(head, {COMM_GROUP: groups.entry} | names, lying))
        except BaseException as error:
            if isinstance(error, Exception) and not destination.resumed:
                destination.discard()
            else:
                destination.keep()
            raise
    return WriteReport(
        out=out,
        num_ranks=len(ranks),
        num_linked=tally.num_linked,
        num_kept=tally.num_kept,
        bytes_written=tally.bytes_written,
        num_groups=groups.number,
        elapsed_s=time.monotonic() - start,
        notes=tuple(_notes(traces, out, ranks, options)),
    )


def iterate_traces(
    traces: Encoded, ranks: str = "", compress: Compression = "none"
) -> Iterator[tuple[int, bytes]]:
    """Ranks and the bytes of their files, class by class, ascending within each."""
    for number, members in traces.by_class(select_ranks(traces, ranks)):
        stamp = make_stamp(traces.class_traces(number), compress)
        for batch in np.array_split(members, -(-len(members) // 1024)):
            stamped = stamp.stamp(stamp.rows(batch), len(batch))
            for rank, data in zip(batch.tolist(), stamped, strict=True):
                yield rank, bytes(data)


def select_ranks(traces: Encoded, selection: str) -> np.ndarray:
    """The ranks that a selection names; all where it is empty."""
    if selection.strip():
        return parse_ranks(selection, traces.num_ranks)
    return np.arange(traces.num_ranks, dtype=np.int64)


@dataclass(frozen=True)
class _Groups:
    number: int
    entry: FileEntry


def _write_groups(traces: Encoded, ranks: np.ndarray, destination: Destination) -> _Groups:
    """`comm_group.json`: the groups that the traces of `ranks` name, and no others."""
    groups = list(traces.comm_groups(ranks))
    text = comm_group_json(iter(groups))
    destination.files.write(COMM_GROUP, text)
    return _Groups(len(groups), FileEntry(len(text), zlib.crc32(text)))


def _write_ranks(
    traces: Encoded,
    ranks: np.ndarray,
    options: WriteOptions,
    destination: Destination,
    executor: Executor,
    start: float,
    progress: Callable[[Progress], None] | None,
) -> _Tally:
    output = Output(
        model=traces.model,
        files=destination.files,
        format=options.format,
        compress=options.compress,
        links=options.links == "auto",
        verify=destination.resumed,
    )
    batches = list(rank_batches(traces, ranks, output))
    _check_space(batches, options, destination)
    tally = _Tally()
    for result in run_tasks(executor, write_batch, batches):
        tally.add(result)
        if progress is not None:
            elapsed = time.monotonic() - start
            progress(Progress(len(tally.files), len(ranks), tally.bytes_written, elapsed))
    return tally


def _check_space(batches: list[RankBatch], options: WriteOptions, destination: Destination) -> None:
    """Plain sizes are known; of compressed traces the first class tells how far they shrink, and
    readable ones are never smaller."""
    num_bytes = num_files = 0
    for batch in batches:
        count = len(batch.leaders) + (0 if options.links == "auto" else len(batch.followers))
        blocks = -(-batch.traces.encoded.num_bytes // _BLOCK_BYTES)
        num_bytes += count * blocks * _BLOCK_BYTES
        num_files += count
    if options.compress == "gzip" and batches:
        first = batches[0].traces
        shrunk = make_stamp(first, "gzip").num_bytes
        num_bytes = num_bytes * shrunk // first.encoded.num_bytes
    destination.check_space(num_bytes, num_files)


def _manifest_head(
    traces: Encoded, options: WriteOptions, ranks: np.ndarray, about: Mapping[str, Any]
) -> dict[str, Any]:
    chosen = {
        "names": traces.options.names,
        "provenance": traces.options.provenance,
        "format": options.format,
        "compress": options.compress,
        "ranks": format_ranks(ranks),
    }
    return {
        "model": traces.model,
        "about": dict(about),
        "options": chosen,
        **traces.meshes,
        "num_ranks": traces.num_ranks,
        "classes": [
            {
                "name": traces.classes[number].name,
                "ranks": format_ranks(members),
                "nodes": traces.classes[number].num_nodes,
            }
            for number, members in traces.by_class(ranks)
        ],
        "digest": digest_of(traces, chosen),
    }


def _notes(traces: Encoded, out: str, ranks: np.ndarray, options: WriteOptions) -> Iterator[str]:
    if "empty" in f"{out}/{COMM_GROUP}":
        yield "ASTRA-sim ignores a comm_group.json whose path contains `empty`"
    if traces.num_ranks == 1:
        yield "ASTRA-sim does not run a single rank"
    elif len(ranks) < traces.num_ranks:
        yield f"ASTRA-sim needs all {traces.num_ranks} ranks; these are {len(ranks)}"
    if options.compress == "gzip":
        yield "ASTRA-sim does not read gzip; Chakra's own feeder does"
    if options.format == "json":
        yield "the readable form is for people; simulators read `--format et`"
