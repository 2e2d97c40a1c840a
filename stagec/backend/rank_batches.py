"""Batches of ranks: the unit of work of writing. Some ranks of one class, stamped by one worker."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np

from stagec.backend.encoded import ClassTraces, Encoded, GroupOf
from stagec.backend.files import Data, Files
from stagec.backend.stamping import Compression, make_stamp

Format = Literal["et", "json"]

_BATCH_BYTES = 32 << 20
_BATCH_RANKS = 256
# Small enough that Ctrl-C, which waits for the batches under way, is answered soon.


@dataclass(frozen=True)
class Output:
    """How files are written, the same for all batches of a run."""

    model: str
    files: Files
    format: Format
    compress: Compression
    links: bool
    verify: bool
    """Keep files that are there already and have the right CRC."""

    def name(self, rank: int) -> str:
        return f"{self.model}.{rank}.{self.format}"


@dataclass(frozen=True)
class RankBatch:
    """Ranks of one class. `leaders[i]` and the `counts[i]` next ranks of `followers` have the same
    bytes."""

    traces: ClassTraces
    output: Output
    leaders: np.ndarray
    counts: np.ndarray
    followers: np.ndarray


@dataclass
class BatchResult:
    """What was done: for each rank the file's size and CRC, and how it came to be there."""

    ranks: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    bytes_written: int = 0
    num_linked: int = 0
    num_kept: int = 0

    def add(self, rank: int, size: int, crc: int) -> None:
        self.ranks.append(rank)
        self.sizes.append(size)
        self.crcs.append(crc)


def rank_batches(traces: Encoded, ranks: np.ndarray, output: Output) -> Iterator[RankBatch]:
    """Cut the work on `ranks` up, class by class."""
    for number, members in traces.by_class(ranks):
        class_traces = traces.class_traces(number)
        leaders, counts, followers = equal_ranks(class_traces, members)
        size = traces.classes[number].num_bytes
        step = max(1, min(_BATCH_RANKS, _BATCH_BYTES // size))
        ends = np.concatenate([[0], np.cumsum(counts)])
        for start in range(0, len(leaders), step):
            end = min(start + step, len(leaders))
            yield RankBatch(
                class_traces,
                output,
                leaders[start:end],
                counts[start:end],
                followers[ends[start] : ends[end]],
            )


def equal_ranks(
    traces: ClassTraces, ranks: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which ranks of a class have the same bytes: the first of each, how many others, and those.

    Ranks differ only in groups and peers. All peers differ between any two ranks. A group's id does
    not depend on the coordinates along its own axes, so ranks that differ along axes common to all
    groups they name are equal.
    """
    formulas = traces.formulas
    used = [formulas.variables[v] for v in traces.encoded.variables]
    groups = [formulas.groups.kinds[v.kind] for v in used if isinstance(v, GroupOf)]
    if len(groups) < len(used):
        return ranks, np.zeros(len(ranks), dtype=np.int64), ranks[:0]
    common = set(formulas.mesh.axes).intersection(*(kind.axes for kind in groups))
    key = ranks - formulas.first
    for axis in common:
        stride, size = formulas.mesh.stride(axis), formulas.mesh.size(axis)
        key -= (ranks - formulas.first) // stride % size * stride
    order = np.argsort(key, kind="stable")
    is_first = np.diff(key[order], prepend=-1) != 0
    counts = np.diff(np.append(np.flatnonzero(is_first), len(ranks))) - 1
    return ranks[order[is_first]], counts, ranks[order[~is_first]]


def for_people(data: bytes, name: str) -> bytes:
    """The readable form of a trace."""
    from stagec.backend.readable import readable_trace

    return readable_trace(data, name)


def write_batch(batch: RankBatch) -> BatchResult:
    """Write a batch's files. This is what a worker does."""
    output, files, count = batch.output, batch.output.files, len(batch.leaders)
    stamp = make_stamp(batch.traces, output.compress)
    rows = stamp.rows(batch.leaders)
    followers = iter(batch.followers.tolist())
    result = BatchResult()
    for rank, crc, num_followers, stamped in zip(
        batch.leaders.tolist(),
        stamp.crcs(rows, count).tolist(),
        batch.counts.tolist(),
        stamp.stamp(rows, count),
        strict=True,
    ):
        data: Data = stamped
        if output.format == "json":
            data = for_people(bytes(stamped), output.name(rank))
            crc = zlib.crc32(data)
        source = ""
        for same in (rank, *islice(followers, num_followers)):
            name = output.name(same)
            result.add(same, len(data), crc)
            if output.verify and files.matches(name, len(data), crc):
                result.num_kept += 1
            elif source and files.link(source, name):
                result.num_linked += 1
                continue
            else:
                files.write(name, data)
                result.bytes_written += len(data)
            source = name if output.links else ""
    return result
