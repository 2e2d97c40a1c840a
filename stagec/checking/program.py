"""What one trace does, without the numbers that differ between ranks that do the same.

A *slot* stands for what differs: the groups of a rank, and its peers, are numbered in the order in
which its nodes first mention them. Ranks with equal programs then differ in two short tables, from
slots to groups and to peers; most sets of thousands of ranks have a handful of programs.
"""

import hashlib
import itertools
from dataclasses import dataclass

import numpy as np

from stagec.checking.node_rules import is_cpu_op
from stagec.checking.node_table import NodeTable, TraceLimitError
from stagec.checking.schema import COMP, MEM_LOAD, MEM_STORE, STRING
from stagec.checking.structure import DependencyGraph

KIND_COMP, KIND_CPU, KIND_COLL, KIND_SEND, KIND_RECV, KIND_MEM, KIND_OTHER = range(7)
_KIND_OF_TYPE = np.array([6, 6, 5, 5, 0, 3, 4, 2], dtype=np.uint8)

MAX_SLOTS = 50_000
"""Groups of one trace, and its peers."""

WORLD = ""
"""The group of a collective that names none, or "0"."""

# A nominal device, to have some order of events when ranks are replayed: 1 PFLOP/s, 3 TB/s of
# memory, links of 100 GB/s with a microsecond of latency. Only the order matters.
_OPS_PER_NS, _BYTES_PER_NS, _LINK_BYTES_PER_NS, _LATENCY_NS = 1e6, 3e3, 100.0, 1e3


@dataclass
class RankProgram:
    """Nodes by position (ascending id). Equal arrays, equal program."""

    kind: np.ndarray
    begin: np.ndarray
    dep: np.ndarray
    slot: np.ndarray
    """Number of the group or peer slot, -1 for neither."""
    message: np.ndarray
    """For sends and receives: the number of its (tag, size) in the slot's channel."""
    comm_type: np.ndarray
    size: np.ndarray
    """Bytes of a communication, else 0."""
    issue: np.ndarray | None

    @property
    def num_nodes(self) -> int:
        return self.kind.size

    @property
    def num_bytes(self) -> int:
        arrays = (self.kind, self.begin, self.dep, self.slot, self.message)
        issue = 0 if self.issue is None else self.issue.nbytes
        return sum(a.nbytes for a in arrays) + self.comm_type.nbytes + self.size.nbytes + issue

    def digest(self) -> bytes:
        return _digest(
            self.kind, self.begin, self.dep, self.slot, self.message, self.comm_type, self.size
        )

    def in_issue_order(self, positions: np.ndarray) -> np.ndarray:
        """The positions, ascending, in the order in which a rank issues them."""
        if self.issue is None:
            return positions
        place = np.empty(self.num_nodes, dtype=np.int64)
        place[self.issue] = np.arange(self.num_nodes)
        return positions[np.argsort(place[positions])]

    def collectives_of(self, slot: int) -> np.ndarray:
        """Positions of a group's collectives, in issue order."""
        return self.in_issue_order(np.flatnonzero((self.slot == slot) & (self.kind == KIND_COLL)))


@dataclass(frozen=True)
class Channel:
    """What is sent one way between two ranks: each (tag, size), ascending, and how often."""

    tag: np.ndarray
    size: np.ndarray
    count: np.ndarray

    def digest(self) -> bytes:
        return _digest(self.tag, self.size, self.count)


@dataclass
class CommunicationSlots:
    """The tables of one rank, and its communication by slot."""

    groups: tuple[str, ...]
    sequences: tuple[bytes, ...]
    """Digest of each group's collectives, kind and size, in issue order."""
    peers: np.ndarray
    sends: np.ndarray
    """Whether a peer slot is of sends (else of receives)."""
    channels: tuple[Channel, ...]


def build_program(
    table: NodeTable, graph: DependencyGraph
) -> tuple[RankProgram, CommunicationSlots]:
    """The program of a table. Numbers that are missing or wrong count as 0.

    Raises `TraceLimitError`.
    """
    row = graph.row
    node_type = table.type[row]
    known = (node_type >= 0) & (node_type < _KIND_OF_TYPE.size)
    kind = np.where(known, _KIND_OF_TYPE[np.where(known, node_type, 0)], KIND_OTHER)
    cpu = is_cpu_op(table, row) & (kind != KIND_OTHER)
    kind[cpu & np.isin(node_type, (COMP, MEM_LOAD, MEM_STORE))] = KIND_CPU
    program = RankProgram(
        kind=kind.astype(np.uint8),
        begin=graph.begin,
        dep=graph.dep,
        slot=np.full(row.size, -1, dtype=np.int32),
        message=np.full(row.size, -1, dtype=np.int32),
        comm_type=np.zeros(row.size, dtype=np.uint8),
        size=np.zeros(row.size, dtype=np.uint64),
        issue=graph.issue,
    )
    return program, fill_slots(table, graph, program)


def fill_slots(
    table: NodeTable, graph: DependencyGraph, program: RankProgram
) -> CommunicationSlots:
    """Read what is communicated into `program`, and return the tables."""
    groups = _fill_groups(table, graph.row, program)
    sequences = _sequences(program, len(groups))
    peers, sends, channels = _fill_peers(table, graph.row, program)
    return CommunicationSlots(groups, sequences, peers, sends, channels)


def _sequences(program: RankProgram, num_groups: int) -> tuple[bytes, ...]:
    at = program.in_issue_order(np.flatnonzero(program.kind == KIND_COLL))
    at = at[np.argsort(program.slot[at], kind="stable")]
    bounds = np.searchsorted(program.slot[at], np.arange(num_groups + 1)).tolist()
    return tuple(
        _digest(program.comm_type[at[a:b]], program.size[at[a:b]])
        for a, b in itertools.pairwise(bounds)
    )


def number(table: NodeTable, name: str, rows: np.ndarray) -> np.ndarray:
    """An attribute as int64; 0 where it is no number."""
    column = table.attributes[name]
    value = np.minimum(column.value[rows], np.uint64((1 << 63) - 1)).astype(np.int64)
    return np.where(column.is_integer(rows) & ~column.is_negative(rows), value, 0)


def _fill_groups(table: NodeTable, row: np.ndarray, program: RankProgram) -> tuple[str, ...]:
    at = np.flatnonzero(program.kind == KIND_COLL)
    if not at.size:
        return ()
    program.comm_type[at] = np.minimum(number(table, "comm_type", row[at]), 255)
    program.size[at] = number(table, "comm_size", row[at]).astype(np.uint64)
    code, names = _group_codes(table, row[at])
    slot, first = _number_by_appearance(code)
    if first.size > MAX_SLOTS:
        raise TraceLimitError(f"it uses over {MAX_SLOTS} groups")
    program.slot[at] = slot
    return tuple(names[int(code[k])] for k in first)


def _group_codes(table: NodeTable, rows: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """A number for the group of each row, and the names of those numbers.

    Ids that are equal as integers are one group, as they are for `std::stoi`.
    """
    column = table.attributes["pg_name"]
    length = np.where(column.kind[rows] == STRING, column.end[rows] - column.start[rows], 0)
    code = np.zeros(rows.size, dtype=np.int64)
    digits = length <= 9
    for k in range(min(9, int(length.max(initial=0)))):
        has = np.flatnonzero(digits & (length > k))
        digit = table.buffer[column.start[rows[has]].astype(np.int64) + k].astype(np.int64) - 48
        digits[has[(digit < 0) | (digit > 9)]] = False
        code[has] = code[has] * 10 + digit
    # A number is the id that it spells.
    whole = column.is_integer(rows) & ~column.is_negative(rows)
    code[whole] = number(table, "pg_name", rows[whole])
    names = {int(c): str(c) if c else WORLD for c in np.unique(code[digits])}
    texts: dict[str, int] = {}
    for k in np.flatnonzero(~digits).tolist():
        start = int(column.start[rows[k]])
        text = table.buffer[start : start + min(int(length[k]), 200)].tobytes()
        name = text.decode("utf-8", "replace")
        code[k] = texts.setdefault(name, -1 - len(texts))
    names |= {c: name for name, c in texts.items()}
    return code, names


def _number_by_appearance(code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number equal codes 0, 1, ... in order of first appearance; where each first appears."""
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse], np.sort(first)


def _fill_peers(
    table: NodeTable, row: np.ndarray, program: RankProgram
) -> tuple[np.ndarray, np.ndarray, tuple[Channel, ...]]:
    at = np.flatnonzero((program.kind == KIND_SEND) | (program.kind == KIND_RECV))
    if not at.size:
        none = np.zeros(0, dtype=np.int64)
        return none, none.astype(bool), ()
    rows = row[at]
    sends = program.kind[at] == KIND_SEND
    peer = np.where(sends, number(table, "comm_dst", rows), number(table, "comm_src", rows))
    tag, size = number(table, "comm_tag", rows), number(table, "comm_size", rows)
    slot, first = _number_by_appearance(np.minimum(peer, 1 << 60) * 2 + sends)
    if first.size > MAX_SLOTS:
        raise TraceLimitError(f"it has over {MAX_SLOTS} peers")
    order = np.lexsort((size, tag, slot))
    fields = np.stack([slot[order], tag[order], size[order]])
    new = np.ones(at.size, dtype=bool)
    new[1:] = (fields[:, 1:] != fields[:, :-1]).any(axis=0)
    entry = np.cumsum(new) - 1
    starts = np.flatnonzero(new)
    entry_slot = fields[0, starts]
    count = np.diff(np.append(starts, at.size))
    first_entry = np.searchsorted(entry_slot, np.arange(first.size + 1))
    message = np.empty(at.size, dtype=np.int64)
    message[order] = entry - first_entry[slot[order]]
    program.slot[at] = slot
    program.message[at] = message
    program.size[at] = size.astype(np.uint64)
    tags, sizes = fields[1, starts], fields[2, starts]
    channels = tuple(
        Channel(tags[a:b], sizes[a:b], count[a:b])
        for a, b in itertools.pairwise(first_entry.tolist())
    )
    return peer[first], sends[first], channels


def nominal_durations(table: NodeTable, graph: DependencyGraph, program: RankProgram) -> np.ndarray:
    """How long each node takes on the nominal device, in nanoseconds; receives take what they take."""
    row = graph.row
    work = np.maximum(
        number(table, "num_ops", row) / _OPS_PER_NS,
        number(table, "tensor_size", row) / _BYTES_PER_NS,
    )
    recorded = table.duration[row].astype(np.float64) * 1e3
    nanoseconds = np.where((work > 0) & (program.kind != KIND_CPU), work, recorded)
    moved = np.where(program.kind == KIND_MEM, number(table, "tensor_size", row), program.size)
    waiting = np.isin(program.kind, (KIND_COLL, KIND_SEND, KIND_MEM))
    nanoseconds = np.where(waiting, _LATENCY_NS + moved / _LINK_BYTES_PER_NS, nanoseconds)
    nanoseconds[program.kind == KIND_RECV] = 0
    return np.maximum(nanoseconds, 1.0).astype(np.float32)


def digest_of(array: np.ndarray) -> bytes:
    return _digest(array)


def _digest(*arrays: np.ndarray) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(array.nbytes.to_bytes(8, "little"))
        state.update(np.ascontiguousarray(array).data)
    return state.digest()
