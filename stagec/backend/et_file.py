"""Chakra trace files: a `GlobalMetadata`, then `Node`s, each preceded by its length as a varint.

Reading streams: one record is in memory at a time, whatever the size of the file. gzip is
recognized by its first two bytes, as Chakra's own readers do, whatever the file is called.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.message import DecodeError, Message

from stagec.backend.errors import TraceError
from stagec.backend.et_def_pb2 import GlobalMetadata, Node

MAX_RECORD_BYTES = 16 << 20
"""No node is larger: a length beyond it means that the file is something else."""

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 18
_MAX_LENGTH_BYTES = 5  # of a 32-bit varint

_M = TypeVar("_M", bound=Message)

WHOLE = "copy it again, or write it anew"
CHAKRA = "name a file of length-delimited protobuf messages, as Chakra's `et_def.proto` has them"


class TraceReader:
    """The nodes of one trace, in file order. Raises E0607 where the bytes are no trace.

    with TraceReader.open("llama.0.et") as trace:
        for node in trace: ...
    """

    metadata: GlobalMetadata

    def __init__(self, stream: io.RawIOBase | io.BytesIO, name: str) -> None:
        self.name = name
        self._stream = stream
        self._records = read_records(_blocks(stream, name), name)
        first = next(self._records, None)
        if first is None:
            raise TraceError("E0607", f"`{name}` is empty", help=WHOLE)
        self.metadata = self._parse(GlobalMetadata, first)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        try:
            stream = io.FileIO(path)
        except OSError as error:
            message = f"cannot read `{path}`: {error.strerror}"
            raise TraceError(
                "E0607", message, help="name a file that is there, and yours"
            ) from None
        try:
            return cls(stream, str(path))
        except BaseException:
            stream.close()
            raise

    @classmethod
    def of_bytes(cls, data: bytes, name: str = "trace") -> Self:
        return cls(io.BytesIO(data), name)

    def __iter__(self) -> Iterator[Node]:
        for record in self._records:
            yield self._parse(Node, record)

    def _parse(self, kind: type[_M], record: bytes) -> _M:
        try:
            return kind.FromString(record)
        except DecodeError:
            name = kind.DESCRIPTOR.name
            raise TraceError(
                "E0607",
                f"`{self.name}` is not a Chakra trace",
                help=CHAKRA,
                note=f"a record of {len(record)} bytes does not parse as a `{name}`",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def read_trace(path: str | Path) -> tuple[GlobalMetadata, list[Node]]:
    """A whole trace at once."""
    with TraceReader.open(path) as trace:
        return trace.metadata, list(trace)


def read_records(blocks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Split a stream into its length-delimited records."""
    buffer, at, before = b"", 0, 0
    while True:
        length, start = _read_length(buffer, at)
        if length > MAX_RECORD_BYTES:
            raise TraceError(
                "E0607",
                f"`{name}` is not a Chakra trace",
                help=CHAKRA,
                note=f"byte {before + at} announces a record of {length} bytes",
            )
        if length >= 0 and start + length <= len(buffer):
            at = start + length
            yield buffer[start:at]
            continue
        more = next(blocks, b"")
        if not more:
            break
        buffer, at, before = buffer[at:] + more, 0, before + at
    if at < len(buffer):
        raise TraceError(
            "E0607",
            f"`{name}` is cut short",
            help=WHOLE,
            note=f"the record at byte {before + at} ends beyond the file",
        )


def _read_length(buffer: bytes, at: int) -> tuple[int, int]:
    """The varint at `at` and where it ends; -1 when the buffer ends first."""
    length = 0
    for shift, byte in enumerate(buffer[at : at + _MAX_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return length, at + shift + 1
    if at + _MAX_LENGTH_BYTES <= len(buffer):
        return 1 << 35, at  # longer than any 32-bit varint: no record either
    return -1, at


def _blocks(stream: io.RawIOBase | io.BytesIO, name: str) -> Iterator[bytes]:
    """The stream's bytes, unzipped where they are gzip, in pieces of bounded size."""
    data = stream.read(_BLOCK_BYTES)
    if data[:2] != _GZIP_MAGIC:
        while data:
            yield data
            data = stream.read(_BLOCK_BYTES)
        return
    stream.seek(0)
    try:
        with gzip.GzipFile(fileobj=stream) as unzipped:
            while data := unzipped.read(_BLOCK_BYTES):
                yield data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"`{name}` is damaged"
        raise TraceError("E0607", message, help=WHOLE, note=f"gzip: {error}") from None
