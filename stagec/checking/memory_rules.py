"""Rules for the tensors that nodes read and write: the attributes `inputs` and `outputs`.

ASTRA-sim tracks local memory with them (`LocalMemUsageTracker`): string lists
`[name, bytes, name, bytes, ...]`; a name is written once per rank and never read before.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from stagec.checking.load import FileFindings
from stagec.checking.node_table import NodeTable
from stagec.checking.schema import ABSENT, COLL, NO_VALUE, SEND, STRING_LIST
from stagec.checking.structure import Graph
from stagec.checking.wire import LENGTH, walk

Array = np.ndarray

_DECIMAL = re.compile(rb"[0-9]{1,20}")
_STARTS_DECIMAL = re.compile(rb"[0-9]+")


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

    first: Array
    start: Array
    end: Array


def check_memory(table: NodeTable, graph: Graph, found: FileFindings) -> None:
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
        "`inputs` or `outputs` is no list of names and bytes",
        np.flatnonzero(malformed),
    )
    if not malformed.any():
        _follow_tensors(table, graph, found, lists[0], lists[1])


def _read_lists(table: NodeTable, kind: Array, start: Array, end: Array) -> tuple[_Strings, Array]:
    rows = np.flatnonzero(kind == STRING_LIST)
    owners: list[Array] = []
    begins: list[Array] = []
    stops: list[Array] = []

    def handle(
        number: int, wire_type: int, owner: Array, value: Array, begin: Array, stop: Array
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
    table: NodeTable, graph: Graph, found: FileFindings, inputs: _Strings, outputs: _Strings
) -> None:
    data = table.buffer.data
    bad_bytes, not_decimal, twice, early, elements = (_Faults() for _ in range(5))
    writer: dict[bytes, int] = {}
    read_first: dict[bytes, int] = {}

    def tensors(strings: _Strings, row: int) -> list[tuple[bytes, int]]:
        out: list[tuple[bytes, int]] = []
        for k in range(int(strings.first[row]), int(strings.first[row + 1]), 2):
            name = bytes(data[strings.start[k] : strings.end[k]])
            text = bytes(
                data[strings.start[k + 1] : min(strings.end[k + 1], strings.start[k + 1] + 40)]
            )
            digits = _STARTS_DECIMAL.match(text)
            if digits is None or len(digits[0]) > 20:
                bad_bytes.add(row, f"`{_text(name)}` has the bytes `{_text(text)}`")
                continue
            if not _DECIMAL.fullmatch(text):
                not_decimal.add(row, f"`{_text(name)}` has the bytes `{_text(text)}`")
            out.append((name, int(digits[0])))
        return out

    ratios: set[int] = set()
    sizes: set[int] = set()
    systematic = True
    order = graph.issue if graph.issue is not None else np.arange(graph.num_nodes)
    for row in map(int, graph.row[order]):
        reads = tensors(inputs, row)
        for name, num_bytes in reads:
            if num_bytes and name not in writer:
                read_first.setdefault(name, row)
        for name, num_bytes in tensors(outputs, row):
            if not num_bytes:
                continue
            if name in writer:
                other = int(table.id[writer[name]])
                twice.add(row, f"`{_text(name)}` is written by node {other} before")
                continue
            writer[name] = row
            if name in read_first:
                other = int(table.id[read_first[name]])
                early.add(read_first[name], f"`{_text(name)}` is written by node {table.id[row]}")
                del other
        if table.type[row] in (COLL, SEND) and len(reads) == 1 and systematic:
            size = int(table.attributes["comm_size"].value[row])
            ratio = reads[0][1] // size if size and reads[0][1] % size == 0 else 0
            systematic = ratio in (2, 4, 8) and ratios <= {ratio}
            ratios.add(ratio)
            sizes.add(size)
            elements.add(row, f"its input has {ratio} times as many bytes")
    bad_bytes.report(table, found, "E0670", "the bytes of a tensor are no number")
    not_decimal.report(table, found, "W0670", "the bytes of a tensor are not in decimal")
    twice.report(table, found, "E0671", "a tensor is written twice")
    early.report(table, found, "E0672", "a tensor is read before it is written")
    if systematic and len(sizes) > 1:
        elements.report(table, found, "W0635", "`comm_size` looks like a count of elements")


def _text(name: bytes) -> str:
    return name[:80].decode("utf-8", "replace")
