"""A trace file as a table of nodes, and what is wrong with its bytes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stagec.checking.node_table import NodeTable, TraceLimitError, decode_nodes
from stagec.checking.trace_file import TraceFileError, read_bytes
from stagec.checking.wire import LENGTH, VARINT, split_frames, walk

MAX_NODES = 2_000_000
"""The most nodes of one trace."""
MAX_EXAMPLES = 4
"""Nodes shown of one fault in one file."""
KNOWN_VERSIONS = ("", "0.0.4", "v0.0.4")


@dataclass(frozen=True, slots=True)
class LocalFinding:
    """A fault that `count` nodes of one file have: some of them as (id, name, detail)."""

    code: str
    message: str
    count: int
    examples: tuple[tuple[int | None, str, str], ...]


class FileFindings:
    """Collects the findings of one file."""

    def __init__(self) -> None:
        self.found: list[LocalFinding] = []

    def add(self, code: str, message: str, detail: str = "") -> None:
        """Add a finding about the whole file."""
        self.found.append(LocalFinding(code, message, 1, ((None, "", detail),)))

    def add_rows(
        self,
        table: NodeTable,
        code: str,
        message: str,
        rows: np.ndarray,
        detail: Callable[[int], str] | None = None,
    ) -> None:
        """Add a finding that some rows have, if any. `detail` says what is at a row."""
        if not rows.size:
            return
        examples = tuple(
            (int(table.id[row]), table.name(row), detail(row) if detail else "")
            for row in map(int, rows[:MAX_EXAMPLES])
        )
        self.found.append(LocalFinding(code, message, int(rows.size), examples))


@dataclass
class LoadedTrace:
    """`table` is missing when nothing could be read."""

    table: NodeTable | None
    compressed: bool
    num_bytes: int
    found: FileFindings


def load_trace(path: str) -> LoadedTrace:
    """Read and decode one file, whatever is in it."""
    found = FileFindings()
    try:
        buffer, compressed = read_bytes(path)
    except TraceFileError as error:
        found.add(error.code, "the file cannot be read", str(error))
        return LoadedTrace(None, path.endswith(".gz"), 0, found)
    table = decode_trace(buffer, found)
    return LoadedTrace(table, compressed, buffer.size, found)


def decode_trace(buffer: np.ndarray, found: FileFindings) -> NodeTable | None:
    """The nodes of a file whose bytes are `buffer`, if it can be read; what cannot goes to `found`."""
    if not buffer.size:
        found.add("E0695", "the file is empty")
        return None
    start, end, stop = split_frames(buffer.data, MAX_NODES + 2)
    if start.size > MAX_NODES + 1:
        found.add("E0698", "the trace is too large", f"it has over {MAX_NODES} nodes")
        return None
    if stop < buffer.size:
        found.add(
            "E0692",
            "the trace ends inside a message",
            f"the message at byte {stop}, after {start.size} that are whole, is longer than the "
            f"{buffer.size - stop} bytes that are left",
        )
    if not start.size:
        return None
    first = 1 if _is_header(buffer, start[:1], end[:1], found) else 0
    if start.size == first:
        found.add("E0695", "the trace has no nodes")
        return None
    try:
        table = decode_nodes(buffer, start[first:], end[first:])
    except TraceLimitError as error:
        found.add("E0698", "the trace is too large", str(error))
        return None

    def where(row: int) -> str:
        return (
            f"the message at byte {table.start[row]}, of {table.end[row] - table.start[row]} bytes"
        )

    found.add_rows(table, "E0693", "a message is no Chakra node", table.malformed, where)
    found.add_rows(table, "E0698", "a node has too many fields", table.overlong, where)
    # What the other rules would say of half-read nodes is noise.
    return None if table.malformed.size or table.overlong.size else table


def _is_header(buffer: np.ndarray, start: np.ndarray, end: np.ndarray, found: FileFindings) -> bool:
    """Whether the first message is a `GlobalMetadata`, which has fields 1 (a string) and 2 only."""
    is_node = False
    version = ""

    def handle(
        number: int,
        wire_type: int,
        owner: np.ndarray,
        value: np.ndarray,
        begin: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        nonlocal is_node, version
        if number > 2 or (number == 1 and wire_type == VARINT):
            is_node = True
        elif number == 1 and wire_type == LENGTH:
            text = buffer[int(begin[0]) : min(int(stop[0]), int(begin[0]) + 80)]
            version = text.tobytes().decode("utf-8", "replace")

    malformed, _ = walk(buffer, start, end, handle)
    if is_node:
        found.add("E0694", "the file does not start with a header", "its first message is a node")
        return False
    if malformed.size:
        found.add("E0693", "the first message is no Chakra header")
    elif version not in KNOWN_VERSIONS:
        found.add("W0691", "the header names another schema", f"it is written for `{version}`")
    return True
