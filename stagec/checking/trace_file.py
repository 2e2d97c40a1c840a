"""Trace files: which there are, and their bytes, whatever is in them."""

import gzip
import io
import mmap
import os
import re
import stat
import tempfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from stagec.reading import at_once

MAX_FILE_BYTES = 4 << 30
"""The most bytes of one trace, decompressed."""
MAPPED_BYTES = 64 << 20
"""Larger files are mapped, not read into memory."""
LARGEST_RATIO = 500
"""Of decompressed to compressed bytes. Each node has an id of its own, so traces stay far below; what lies above is
made to fill a disk."""

_NAME = re.compile(r"(?P<prefix>.*)\.(?P<rank>[0-9]{1,9})\.et(?P<gz>\.gz)?", re.DOTALL)
_BLOCK = 1 << 20


class TraceFileError(Exception):
    """A file that cannot be read; `code` is that of a finding, the text its detail."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file of a set. `identity` is equal for hard links to one file."""

    path: str
    rank: int
    num_bytes: int
    identity: tuple[int, int]
    writable: bool
    compressed: bool

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


@dataclass
class TraceFiles:
    """The files of one prefix, by rank, and what is wrong with its files: (code, file, detail)."""

    prefix: str
    files: dict[int, TraceFile] = field(default_factory=dict)
    faults: list[tuple[str, str, str]] = field(default_factory=list)


def find_traces(directory: str) -> tuple[list[TraceFiles], list[tuple[str, str, str]]]:
    """The sets in a directory, by prefix, and the faults of files in no set."""
    sets: dict[str, TraceFiles] = {}
    stray: list[tuple[str, str, str]] = []
    clashes: dict[tuple[str, int], list[str]] = defaultdict(list)
    try:
        with os.scandir(directory) as entries:
            names = sorted(os.fsdecode(entry.name) for entry in entries)
    except (OSError, ValueError) as error:
        return [], [("E0690", directory, str(getattr(error, "strerror", None) or error))]
    for name in names:
        if not name.endswith((".et", ".et.gz")):
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            stray.append(("W0690", name, "its name is not PREFIX.<rank>.et"))
            continue
        prefix, rank = match["prefix"], int(match["rank"])
        trace_set = sets.setdefault(prefix, TraceFiles(prefix))
        if match["rank"] != str(rank):
            trace_set.faults.append(("E0697", name, f"the target looks for {prefix}.{rank}.et"))
        clashes[prefix, rank].append(name)
        if rank in trace_set.files:
            continue
        found = _stat(os.path.join(directory, name), rank, bool(match["gz"]))
        if isinstance(found, TraceFile):
            trace_set.files[rank] = found
        else:
            trace_set.faults.append(("E0691", name, found))
    for (prefix, rank), group in clashes.items():
        if len(group) > 1:
            detail = f"rank {rank} has {len(group)} files: {', '.join(group[:4])}"
            sets[prefix].faults.append(("E0697", group[1], detail))
    return [sets[prefix] for prefix in sorted(sets)], stray


def _stat(path: str, rank: int, compressed: bool) -> TraceFile | str:
    try:
        status = os.stat(path)
    except OSError as error:
        return error.strerror or "it cannot be read"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    writable = bool(status.st_mode & 0o222) and os.access(path, os.W_OK)
    return TraceFile(
        path=path,
        rank=rank,
        num_bytes=status.st_size,
        identity=(status.st_dev, status.st_ino),
        writable=writable,
        compressed=compressed,
    )


def read_bytes(path: str) -> tuple[np.ndarray, bool]:
    """The bytes of a trace, decompressed, and whether they were compressed.

    Memory is bounded: large files are mapped, large decompressed ones go through a temporary file.
    Raises `TraceFileError`.
    """
    try:
        with open(path, "rb", buffering=0, opener=at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TraceFileError("E0691", "it is not a regular file")
            begin = file.read(2)
            if begin is None:
                raise TraceFileError("E0691", "it has nothing to be read now")
            if begin == b"\x1f\x8b":
                file.seek(0)
                return _decompress(file), True
            file.seek(0)
            if status.st_size > MAX_FILE_BYTES:
                raise TraceFileError("E0698", f"it has {status.st_size} bytes")
            if status.st_size > MAPPED_BYTES:
                return _map(file.fileno()), False
            data = bytearray(status.st_size)
            got = 0
            view = memoryview(data)
            while got < len(data) and (more := file.readinto(view[got:])):
                got += more
            return np.frombuffer(view[:got], dtype=np.uint8), False
    except OSError as error:
        raise TraceFileError("E0691", error.strerror or str(error)) from None


def _map(descriptor: int) -> np.ndarray:
    # The array holds on to the mapping, which ends with it.
    return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _decompress(file: io.FileIO) -> np.ndarray:
    total = 0
    try:
        with (
            tempfile.SpooledTemporaryFile(max_size=MAPPED_BYTES) as plain,
            gzip.GzipFile(fileobj=file) as unzipped,
        ):
            while block := unzipped.read(_BLOCK):
                total += len(block)
                if total > MAX_FILE_BYTES:
                    raise TraceFileError("E0698", f"it has over {MAX_FILE_BYTES} bytes")
                if total > MAPPED_BYTES and total > LARGEST_RATIO * file.tell():
                    raise TraceFileError("E0698", f"it grows over {LARGEST_RATIO} times when read")
                plain.write(block)
            if total > MAPPED_BYTES:
                plain.flush()
                return _map(plain.fileno())
            plain.seek(0)
            return np.frombuffer(plain.read(), dtype=np.uint8)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceFileError("E0699", str(error)) from None
