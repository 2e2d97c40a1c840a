"""Stamp traces: a class' template with the numbers of each rank in its holes.

A stamp has one buffer, changed in place: from one rank to the next only the columns that differ are
written.
"""

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from stagec.backend.class_table import ClassTable, digest_of, unpack, unsized_arrays
from stagec.backend.crc import TemplateCrc
from stagec.backend.encoded import ClassTraces
from stagec.backend.gzip_template import CONTENT_CRC, gzip_template
from stagec.backend.unroll import TraceTemplate, UnsizedTemplate, unroll, unroll_unsized
from stagec.backend.wire import fill

Compression = Literal["none", "gzip"]

K = TypeVar("K")
V = TypeVar("V")


class Sheets:
    """Copies of a template, to be written in: one for each thread that makes traces of it."""

    def __init__(self, unsized: UnsizedTemplate) -> None:
        self.template, self.holes = unsized.template, unsized.holes
        self.crc = TemplateCrc(self.template)
        self.lock = threading.Lock()
        self.spare: list[tuple[np.ndarray, np.ndarray]] = []
        """Those that nobody uses, and the sizes that are filled in."""

    @contextmanager
    def sheet(self, sizes: np.ndarray) -> Iterator[np.ndarray]:
        """One with the numbers of a class, and 0 in the holes of ranks, where whoever has it leaves 0."""
        with self.lock:
            same = (at for at, (known, _) in enumerate(self.spare) if known is sizes)
            known, data = self.spare.pop(next(same, -1)) if self.spare else (None, None)
        if data is None:
            data = self.template.data.copy()
        if known is not sizes:
            for each in self.holes:
                each.fill(data, sizes)
        yield data
        if self.holes:
            with self.lock:
                self.spare.append((sizes, data))


@dataclass(frozen=True)
class Stamp:
    """The template of a class, ready to make its ranks' traces."""

    traces: ClassTraces
    sheets: Sheets
    sizes: np.ndarray
    """The numbers of the class, for a series."""
    crc: int
    """The CRC-32 of the template, with these numbers."""
    content: tuple[TemplateCrc, int] | None = None
    """Where the template is compressed, the same of the plain one."""

    @property
    def template(self) -> TraceTemplate:
        return self.sheets.template

    @property
    def num_bytes(self) -> int:
        return len(self.template.data)

    def rows(self, ranks: np.ndarray) -> list[np.ndarray]:
        """For each column of the template, the bytes that each rank has there."""
        rows = [
            fill(column.form, self.traces.formulas.values(column.variable, ranks), column.width)
            for column in self.template.columns
            if column.variable != CONTENT_CRC
        ]
        if self.content is not None:
            plain, crc = self.content
            crcs = np.broadcast_to(plain.of(crc, rows), ranks.shape)
            rows.append(crcs.astype("<u4")[:, None].view(np.uint8))
        return rows

    def crcs(self, rows: Sequence[np.ndarray], count: int) -> np.ndarray:
        """CRC-32 of each of `count` ranks' files."""
        return np.broadcast_to(self.sheets.crc.of(self.crc, rows), (count,))

    def stamp(self, rows: Sequence[np.ndarray], count: int) -> Iterator[memoryview]:
        """Each rank's file. The bytes are valid until the next is asked for."""
        places = [c.positions for c in self.template.columns]
        texts = [[bytes(b) for b in row] for row in rows]
        last: list[bytes | None] = [None] * len(places)
        with self.sheets.sheet(self.sizes) as sheet:
            for i in range(count):
                for column, positions in enumerate(places):
                    value = texts[column][i]
                    if value != last[column]:
                        last[column] = value
                        for offset, byte in enumerate(value):
                            sheet[positions + offset] = byte
                yield sheet.data
            for column in self.template.columns:
                for offset in range(column.width):
                    sheet[column.positions + offset] = 0


class _Recent(Generic[K, V]):
    """What was made last. Batches of ranks of one class come one after another, and threads share what they need:
    the first makes it, the others wait for it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lock = threading.Lock()
        self.futures: dict[K, Future[V]] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self.lock:
            future = self.futures.pop(key, None)
            mine = future is None
            future = future or Future()
            self.futures[key] = future  # last now
            while len(self.futures) > self.most:
                del self.futures[next(iter(self.futures))]
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self.lock:
                    self.futures.pop(key, None)
                future.set_exception(error)
        return future.result()

    def clear(self) -> None:
        with self.lock:
            self.futures.clear()


recent_stamps: _Recent[tuple[ClassTraces, Compression], Stamp] = _Recent(3)
_recent_sheets: _Recent[bytes, Sheets] = _Recent(2)


def make_stamp(traces: ClassTraces, compress: Compression = "none") -> Stamp:
    """The stamp of a class."""
    return recent_stamps.get((traces, compress), lambda: _make_stamp(traces, compress))


def _make_stamp(traces: ClassTraces, compress: Compression) -> Stamp:
    table = unpack(traces.encoded.payload)
    sheets = _sheets(table, traces)
    with sheets.sheet(table.sizes) as sheet:
        crc = zlib.crc32(sheet.data)
        if compress == "none":
            return Stamp(traces, sheets, table.sizes, crc)
        packed = gzip_template(replace(sheets.template, data=sheet))
    content = sheets.crc, crc
    sheets = Sheets(UnsizedTemplate(packed))
    return Stamp(traces, sheets, table.sizes, zlib.crc32(packed.data.data), content)


def _sheets(table: ClassTable, traces: ClassTraces) -> Sheets:
    """The sheets that nodes are stamped on. Those of a series serve all classes that differ in the numbers of nodes alone."""
    if table.bodies is None:
        return Sheets(UnsizedTemplate(unroll(table, traces.header, traces.tag_span)))
    # All classes of a job have one header.
    key = digest_of(unsized_arrays(table), traces.tag_span, table.num_iterations)
    return _recent_sheets.get(
        key, lambda: Sheets(unroll_unsized(table, traces.header, traces.tag_span))
    )
