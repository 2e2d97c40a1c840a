"""Rules for the tensors that nodes read and write: the attributes `inputs` and `outputs`.

ASTRA-sim tracks local memory with them (`LocalMemUsageTracker`): string lists
`[name, bytes, name, bytes, ...]`; a name is written once per rank and never read before.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from stagec.checking.node_decoding import FileFindings
from stagec.checking.node_table import NodeTable
from stagec.checking.schema import ABSENT, COLL, COLLECTIVES, NO_VALUE, SEND, STRING_LIST
from stagec.checking.structure import DependencyGraph
from stagec.checking.wire import LENGTH, walk

_DECIMAL = re.compile(rb"[0-9]{1,20}(?![0-9])")


_Tensors = dict[int, list[tuple[bytes, int]]]
"""Name and bytes of what each row reads, or writes."""


@dataclass
class _Faults:
    """Rows by fault, with what is there."""

    rows: list[int] = field(default_factory=list)
    details: dict[int, str] = field(default_factory=dict)

    def add(self, row: int, detail: str) -> None:
        if row not in self.details:
            self.rows.append(row)
            self.details[row] = detail

    def report(self, table: NodeTable, found: FileFindings, code: str, message: str) -> None:
        found.add_rows(
            table, code, message, np.array(self.rows, dtype=np.int64), self.details.__getitem__
        )


@dataclass(frozen=True, slots=True)
class _Strings:
    """The strings of one list per row: row r has `start[first[r]:first[r + 1]]`."""

    first: np.ndarray
    start: np.ndarray
    end: np.ndarray


def check_memory(table: NodeTable, graph: DependencyGraph, found: FileFindings) -> None:
    """Every rule on tensors, reading nodes in the order in which one rank issues them."""
    columns = [table.attributes[name] for name in ("inputs", "outputs")]
    if not any(column.kind.any() for column in columns):
        return
    malformed = np.zeros(table.num_nodes, dtype=bool)
    lacking = np.zeros(table.num_nodes, dtype=bool)
    lists: list[_Strings] = []
    for column in columns:
        lacking |= column.kind == ABSENT
        malformed |= ~np.isin(column.kind, (ABSENT, NO_VALUE, STRING_LIST))
        strings, broken = _read_lists(table, column.kind, column.start, column.end)
        malformed[broken] = True
        malformed |= np.diff(strings.first) % 2 != 0
        lists.append(strings)
    found.add_rows(
        table,
        "E0673",
        "a node lacks `inputs` or `outputs`, which others have",
        np.flatnonzero(lacking),
    )
    found.add_rows(
        table,
        "E0670",
        "`inputs` or `outputs` is not a list of names and bytes",
        np.flatnonzero(malformed),
    )
    if not malformed.any():
        _follow_tensors(table, graph, found, lists[0], lists[1])


def _read_lists(
    table: NodeTable, kind: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[_Strings, np.ndarray]:
    rows = np.flatnonzero(kind == STRING_LIST)
    owners: list[np.ndarray] = []
    begins: list[np.ndarray] = []
    stops: list[np.ndarray] = []

    def handle(
        number: int,
        wire_type: int,
        owner: np.ndarray,
        value: np.ndarray,
        begin: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        if number == 1 and wire_type == LENGTH:
            owners.append(owner)
            begins.append(begin)
            stops.append(stop)

    malformed, overlong = walk(
        table.buffer, start[rows].astype(np.int64), end[rows].astype(np.int64), handle
    )
    first = np.zeros(table.num_nodes + 1, dtype=np.int64)
    broken = rows[np.concatenate([malformed, overlong])]
    if not owners:
        return _Strings(first, first[:0], first[:0]), broken
    owner = rows[np.concatenate(owners)]
    order = np.argsort(owner, kind="stable")
    first[1:] = np.cumsum(np.bincount(owner, minlength=table.num_nodes))
    return _Strings(first, np.concatenate(begins)[order], np.concatenate(stops)[order]), broken


def _follow_tensors(
    table: NodeTable,
    graph: DependencyGraph,
    found: FileFindings,
    inputs: _Strings,
    outputs: _Strings,
) -> None:
    """Read and write names as one rank does."""
    no_number, not_decimal, twice, early = (_Faults() for _ in range(4))
    writer: dict[bytes, int] = {}
    reader: dict[bytes, int] = {}
    data = table.buffer.data
    reads = _tensors(data, inputs, no_number, not_decimal)
    writes = _tensors(data, outputs, no_number, not_decimal)
    order = graph.row if graph.issue is None else graph.row[graph.issue]
    for row in order.tolist():
        for name, _ in reads.get(row, ()):
            if name not in writer:
                reader.setdefault(name, row)
        for name, _ in writes.get(row, ()):
            if name in writer:
                twice.add(row, f"node {table.id[writer[name]]} wrote `{_text(name)}` before")
            elif name in reader:
                early.add(reader[name], f"node {table.id[row]} writes `{_text(name)}` later")
            writer.setdefault(name, row)
    no_number.report(table, found, "E0670", "the bytes of a tensor are not a number")
    not_decimal.report(table, found, "W0670", "the bytes of a tensor are not in decimal")
    twice.report(table, found, "E0671", "a tensor is written twice")
    early.report(table, found, "E0672", "a tensor is read before it is written")
    _check_units(table, found, reads)
    _check_shards(table, found, reads, writes)


def _check_units(table: NodeTable, found: FileFindings, reads: _Tensors) -> None:
    """Sizes of communication are bytes, as those of the tensors that it reads.

    If every collective and send with one input moves the same fraction of it, a half, a quarter or
    an eighth, that is the width of a dtype that was left out. One alone may have cast its input.
    """
    rows = np.flatnonzero((table.type == COLL) | (table.type == SEND))
    rows = np.array([row for row in rows.tolist() if len(reads.get(row, ())) == 1], dtype=np.int64)
    size = table.attributes["comm_size"].value[rows].astype(np.float64)
    read = np.array([reads[row][0][1] for row in rows.tolist()], dtype=np.float64)
    if np.unique(size).size < 2 or not (size > 0).all():
        return
    ratio = np.unique(read / size)
    if ratio.size == 1 and ratio[0] in (2, 4, 8):
        detail = f"its input has {ratio[0]:.0f} times as many bytes"
        message = "`comm_size` looks like a count of elements"
        found.add_rows(table, "W0635", message, rows, lambda _: detail)


def _check_shards(table: NodeTable, found: FileFindings, reads: _Tensors, writes: _Tensors) -> None:
    """`comm_size` is what a rank puts in: of an ALL_GATHER the shard, of a REDUCE_SCATTER the whole."""
    kind, size = table.attributes["comm_type"].value, table.attributes["comm_size"].value
    for name in ("ALL_GATHER", "REDUCE_SCATTER"):
        chosen = (table.type == COLL) & (kind == COLLECTIVES.index(name))
        wrong = [
            row
            for row in np.flatnonzero(chosen).tolist()
            if len(reads.get(row, ())) == len(writes.get(row, ())) == 1
            and reads[row][0][1] != writes[row][0][1] == int(size[row])
        ]
        found.add_rows(
            table,
            "W0632",
            f"`comm_size` of {'an' if name[0] == 'A' else 'a'} {name} is that of its result",
            np.array(wrong, dtype=np.int64),
            lambda row: f"it is {size[row]}, and the input has {reads[row][0][1]} bytes",
        )


def _tensors(
    data: memoryview, strings: _Strings, no_number: _Faults, not_decimal: _Faults
) -> _Tensors:
    """Name and bytes of the tensors of each row; those of size 0 do not count."""
    out: _Tensors = {}
    owner = np.repeat(np.arange(strings.first.size - 1), np.diff(strings.first)).tolist()
    start, end = strings.start.tolist(), strings.end.tolist()
    for k in range(0, len(owner), 2):
        row = owner[k]
        name = bytes(data[start[k] : end[k]])
        text = bytes(data[start[k + 1] : min(end[k + 1], start[k + 1] + 40)])
        if text.isdigit() and len(text) <= 20:
            size = int(text)
        else:
            # The target reads as far as there are digits.
            digits = _DECIMAL.match(text)
            size = int(digits[0]) if digits else 0
            faults = not_decimal if digits else no_number
            faults.add(row, f"`{_text(name)}` has the bytes `{_text(text)}`")
        if size:
            out.setdefault(row, []).append((name, size))
    return out


def _text(name: bytes) -> str:
    return name[:80].decode("utf-8", "replace")
