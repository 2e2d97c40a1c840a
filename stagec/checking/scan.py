"""Summaries of all files of a set: each file read once, several at a time, in bounded memory."""

import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import numpy as np

from stagec.checking.analysis import FileSummary, analyse
from stagec.checking.as_written import crc_of_file
from stagec.checking.known_traces import KnownTraces
from stagec.checking.node_decoding import FileFindings, LoadedTrace, decode_trace
from stagec.checking.program import Channel, RankProgram
from stagec.checking.trace_file import TraceFile, TraceFileError, read_bytes

_BATCH_FILES, _BATCH_BYTES = 64, 32 << 20
_SERIAL_BYTES = 16 << 20
"""Sets smaller than this are read by the calling process."""

Shared = dict[bytes, object]
Scanned = list[tuple[int, FileSummary, int | None]]
"""For each file its number, its summary, and its CRC-32 where that is asked for."""


@dataclass
class TraceScan:
    """The summary of each rank, and what their digests name.

    Programs and durations beyond a budget are not kept: `complete` is then false.
    """

    summaries: dict[int, FileSummary] = field(default_factory=dict)
    crcs: dict[str, int] = field(default_factory=dict)
    """CRC-32 of each file, by its name, if they are asked for."""
    programs: dict[bytes, RankProgram] = field(default_factory=dict)
    durations: dict[bytes, np.ndarray] = field(default_factory=dict)
    channels: dict[bytes, Channel] = field(default_factory=dict)
    num_bytes: int = 0
    budget_bytes: int = 256 << 20
    complete: bool = True

    def add_shared(self, shared: Shared) -> None:
        for digest, thing in shared.items():
            if isinstance(thing, Channel):
                self.channels.setdefault(digest, thing)
            elif self.budget_bytes <= 0:
                self.complete = False
            elif isinstance(thing, RankProgram):
                if digest not in self.programs:
                    self.programs[digest] = thing
                    self.budget_bytes -= thing.num_bytes
            elif isinstance(thing, np.ndarray) and digest not in self.durations:
                self.durations[digest] = thing
                self.budget_bytes -= thing.nbytes


class Scanner:
    """Reads files one by one, and remembers templates."""

    def __init__(self, astra_sim: bool, with_crcs: bool = False) -> None:
        self._astra_sim = astra_sim
        self._with_crcs = with_crcs
        self._templates = KnownTraces()
        self._sent: set[bytes] = set()

    def scan(self, path: str, shared: Shared) -> tuple[FileSummary, int | None]:
        """The summary of a file, and its CRC-32. Objects that it names, and that no earlier one did, go to `shared`."""
        found = FileFindings()
        try:
            buffer, compressed = read_bytes(path)
        except TraceFileError as error:
            found.add(error.code, "the file cannot be read", str(error))
            return FileSummary(0, 0, path.endswith(".gz"), tuple(found.found)), None
        crc = None
        if self._with_crcs:
            crc = crc_of_file(path) if compressed else zlib.crc32(buffer.data)
        try:
            return self._summarize(buffer, compressed, found, shared), crc
        except MemoryError:
            found.add("E0698", "the trace is too large", "it does not fit into memory")
            return FileSummary(0, buffer.size, compressed, tuple(found.found)), crc

    def _summarize(
        self, buffer: np.ndarray, compressed: bool, found: FileFindings, shared: Shared
    ) -> FileSummary:
        known = self._templates.patched(buffer, compressed)
        if known is not None:
            _, analysis = known
        else:
            table = decode_trace(buffer, found)
            loaded = LoadedTrace(table, compressed, buffer.size, found)
            analysis = analyse(loaded, self._astra_sim)
            self._templates.remember(analysis)
        for digest, thing in analysis.shared().items():
            if digest not in self._sent:
                self._sent.add(digest)
                shared[digest] = thing
        return analysis.summary


def scan_traces(
    files: list[TraceFile],
    astra_sim: bool,
    jobs: int | None,
    progress: Callable[[int, int], None] | None,
    with_crcs: bool = False,
) -> TraceScan:
    """Summarize every file. Hard links to one file are read once."""
    scan = TraceScan()
    by_identity: dict[tuple[int, int], list[TraceFile]] = {}
    for file in files:
        by_identity.setdefault(file.identity, []).append(file)
    links = list(by_identity.values())
    unique = [group[0] for group in links]
    total = sum(file.num_bytes for file in unique)
    done = 0
    workers = min(jobs or num_cores(), max(1, len(unique)))
    if jobs is None and total < _SERIAL_BYTES:
        workers = 1
    batches = list(_batches(unique))
    results = (
        _scan_here(batches, astra_sim, with_crcs)
        if workers == 1
        else _scan_parallel(batches, astra_sim, with_crcs, workers)
    )
    for summaries, shared in results:
        scan.add_shared(shared)
        for index, summary, crc in summaries:
            scan.num_bytes += summary.num_bytes
            for file in links[index]:
                scan.summaries[file.rank] = summary
                if crc is not None:
                    scan.crcs[os.path.basename(file.path)] = crc
            done += len(links[index])
        if progress is not None:
            progress(done, len(files))
    return scan


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Batch = list[tuple[int, str]]


def _batches(files: list[TraceFile]) -> Iterator[Batch]:
    batch: Batch = []
    num_bytes = 0
    for index, file in enumerate(files):
        batch.append((index, file.path))
        num_bytes += file.num_bytes
        if len(batch) == _BATCH_FILES or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _scan_here(
    batches: list[Batch], astra_sim: bool, with_crcs: bool
) -> Iterator[tuple[Scanned, Shared]]:
    scanner = Scanner(astra_sim, with_crcs)
    for batch in batches:
        yield _scan_batch(scanner, batch)


def _scan_batch(scanner: Scanner, batch: Batch) -> tuple[Scanned, Shared]:
    shared: Shared = {}
    return [(index, *scanner.scan(path, shared)) for index, path in batch], shared


class _Worker:
    """What a worker process keeps between batches."""

    scanner: Scanner


def _start_worker(astra_sim: bool, with_crcs: bool) -> None:
    _Worker.scanner = Scanner(astra_sim, with_crcs)


def _work(batch: Batch) -> tuple[Scanned, Shared]:
    return _scan_batch(_Worker.scanner, batch)


def _pool(workers: int, astra_sim: bool, with_crcs: bool) -> ProcessPoolExecutor:
    # Forked workers need no importable main module; they only read files.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else None)
    return ProcessPoolExecutor(workers, context, _start_worker, (astra_sim, with_crcs))


def _scan_parallel(
    batches: list[Batch], astra_sim: bool, with_crcs: bool, workers: int
) -> Iterator[tuple[Scanned, Shared]]:
    waiting = list(reversed(batches))
    running: dict[Future[tuple[Scanned, Shared]], Batch] = {}
    lost: list[Batch] = []
    with _pool(workers, astra_sim, with_crcs) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < 2 * workers:
                    batch = waiting.pop()
                    running[pool.submit(_work, batch)] = batch
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield future.result()
                    del running[future]
        except BrokenProcessPool:
            lost = [*running.values(), *waiting]
    for batch in lost:
        for item in batch:
            yield _scan_alone(item, astra_sim, with_crcs)


def _scan_alone(item: tuple[int, str], astra_sim: bool, with_crcs: bool) -> tuple[Scanned, Shared]:
    """Read a file in a process of its own, after one that read it or another had died."""
    with _pool(1, astra_sim, with_crcs) as pool:
        try:
            return pool.submit(_work, [item]).result()
        except BrokenProcessPool:
            found = FileFindings()
            found.add("E0698", "the trace is too large", "the process that read it died")
            return [(item[0], FileSummary(0, 0, False, tuple(found.found)), None)], {}
