"""A class' template, compressed once: the stretches between rank variables are deflated, the
variables lie in stored blocks. A compressed trace is then stamped like a plain one.

DEFLATE (RFC 1951): a sync flush ends the output at a byte border with an empty stored block. Giving
that block a length puts our bytes there. The compressor is fed a filler in their place, so that
distances count them, and what it makes of the filler is thrown away: the filler is a byte that
occurs nowhere else, so no later stretch refers to it. The file around it is gzip (RFC 1952), without
name or time.
"""

import zlib
from collections.abc import Iterator

import numpy as np

from stagec.backend.unroll import HoleColumn, TraceTemplate
from stagec.backend.wire import Form

CONTENT_CRC = -1
"""Stands for a rank variable in the column of the trailer's CRC."""

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_EMPTY_BLOCK = b"\x00\x00\xff\xff"
_JOIN_BYTES = 16
"""Variables no further apart share a stored block: between them, deflating saves nothing."""
_MAX_STORED_BYTES = 0xFFFF
_LEVEL = 6


def gzip_template(plain: TraceTemplate) -> TraceTemplate:
    """The same traces as gzip files; one more column is for the CRC of the plain trace."""
    filler = _unused_byte(plain)
    content = plain.data.tobytes()
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    out = bytearray(_HEADER)
    starts: list[int] = []  # in the plain trace, of each stored block
    moved: list[int] = []  # where it begins in the compressed one
    at = 0
    for start, end in _stored_runs(plain):
        out += deflate.compress(content[at:start]) + deflate.flush(zlib.Z_SYNC_FLUSH)
        assert out.endswith(_EMPTY_BLOCK)
        length = (end - start).to_bytes(2, "little")
        out[-len(_EMPTY_BLOCK) :] = length + bytes(byte ^ 0xFF for byte in length)
        starts.append(start)
        moved.append(len(out))
        out += content[start:end]
        deflate.compress(_window(end - start, filler))
        deflate.flush(zlib.Z_SYNC_FLUSH if filler is not None else zlib.Z_FULL_FLUSH)
        at = end
    out += deflate.compress(content[at:]) + deflate.flush(zlib.Z_FINISH)
    crc_position = len(out)
    out += bytes(4) + (len(content) & 0xFFFFFFFF).to_bytes(4, "little")
    first, to = np.array(starts, dtype=np.int64), np.array(moved, dtype=np.int64)
    columns = [
        HoleColumn(c.variable, c.form, c.width, _move(c.positions, first, to))
        for c in plain.columns
    ]
    crc = HoleColumn(CONTENT_CRC, Form.VARINT, 4, np.array([crc_position], dtype=np.int64))
    return TraceTemplate(np.frombuffer(bytes(out), dtype=np.uint8), (*columns, crc))


def _unused_byte(plain: TraceTemplate) -> int | None:
    """A byte that occurs nowhere in the template outside its holes."""
    counts = np.bincount(plain.data, minlength=256)
    counts[0] -= sum(c.width * len(c.positions) for c in plain.columns)
    unused = np.flatnonzero(counts == 0)
    return int(unused[-1]) if len(unused) else None


def _stored_runs(plain: TraceTemplate) -> Iterator[tuple[int, int]]:
    """Stretches that contain all rank variables, in order, ends exclusive."""
    if not plain.columns:
        return
    starts = np.concatenate([c.positions for c in plain.columns])
    ends = np.concatenate([c.positions + c.width for c in plain.columns])
    order = np.argsort(starts)
    start, end = -1, -1
    for s, e in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if start >= 0 and s - end <= _JOIN_BYTES and e - start <= _MAX_STORED_BYTES:
            end = e
            continue
        if start >= 0:
            yield start, end
        start, end = s, e
    yield start, end


def _window(length: int, filler: int | None) -> bytes:
    """What the compressor is told stands in a stored block. Nothing may refer to it, so all of it is
    filler; where there is none, the compressor forgets everything instead."""
    return bytes([filler or 0]) * length


def _move(positions: np.ndarray, starts: np.ndarray, moved: np.ndarray) -> np.ndarray:
    run = np.searchsorted(starts, positions, side="right") - 1
    return moved[run] + positions - starts[run]
