"""Stamp traces: a class' template with the numbers of each rank in its holes.

A stamp has one buffer, changed in place: from one rank to the next only the columns that differ are
written.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stagec.backend.class_table import unpack
from stagec.backend.crc import TemplateCrc
from stagec.backend.encoded import ClassTraces
from stagec.backend.gzip_template import CONTENT_CRC, gzip_template
from stagec.backend.unroll import Template, unroll
from stagec.backend.wire import fill

Compression = Literal["none", "gzip"]


@dataclass(frozen=True)
class Stamp:
    """The template of a class, ready to make its ranks' traces."""

    traces: ClassTraces
    template: Template
    content_crc: TemplateCrc | None
    """Of the plain trace, where the template is compressed."""
    crc: TemplateCrc

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
        if self.content_crc is not None:
            crcs = np.broadcast_to(self.content_crc.of(rows), ranks.shape)
            rows.append(crcs.astype("<u4")[:, None].view(np.uint8))
        return rows

    def crcs(self, rows: Sequence[np.ndarray], count: int) -> np.ndarray:
        """CRC-32 of each of `count` ranks' files."""
        return np.broadcast_to(self.crc.of(rows), (count,))

    def stamp(self, rows: Sequence[np.ndarray], count: int) -> Iterator[memoryview]:
        """Each rank's file. The bytes are valid until the next is asked for."""
        buffer = self.template.data.copy()
        view = buffer.data
        places = [c.positions for c in self.template.columns]
        texts = [[bytes(b) for b in row] for row in rows]
        last: list[bytes | None] = [None] * len(places)
        for i in range(count):
            for column, positions in enumerate(places):
                value = texts[column][i]
                if value != last[column]:
                    last[column] = value
                    for offset, byte in enumerate(value):
                        buffer[positions + offset] = byte
            yield view


class _Recent:
    """The stamps made last. Batches of ranks of one class come one after another, and threads share stamps:
    the first makes it, the others wait for it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lock = threading.Lock()
        self.futures: dict[tuple[ClassTraces, Compression], Future[Stamp]] = {}

    def get(self, traces: ClassTraces, compress: Compression) -> Stamp:
        key = traces, compress
        with self.lock:
            future = self.futures.pop(key, None)
            mine = future is None
            future = future or Future()
            self.futures[key] = future  # last now
            while len(self.futures) > self.most:
                del self.futures[next(iter(self.futures))]
        if mine:
            try:
                future.set_result(_make_stamp(traces, compress))
            except BaseException as error:
                with self.lock:
                    self.futures.pop(key, None)
                future.set_exception(error)
        return future.result()

    def clear(self) -> None:
        with self.lock:
            self.futures.clear()


recent_stamps = _Recent(3)


def make_stamp(traces: ClassTraces, compress: Compression = "none") -> Stamp:
    """The stamp of a class."""
    return recent_stamps.get(traces, compress)


def _make_stamp(traces: ClassTraces, compress: Compression) -> Stamp:
    plain = unroll(unpack(traces.encoded.payload), traces.header, traces.tag_span)
    if compress == "none":
        return Stamp(traces, plain, None, TemplateCrc(plain))
    packed = gzip_template(plain)
    return Stamp(traces, packed, TemplateCrc(plain), TemplateCrc(packed))
