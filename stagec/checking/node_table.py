"""Chakra nodes as columns: one numpy array per field, one row per node."""

from dataclasses import dataclass

import numpy as np

from stagec.checking.schema import (
    ATTRIBUTES,
    IS_INTEGER,
    IS_SIGNED,
    IS_ZIGZAG,
    NO_VALUE,
    SFIXED32,
    STRING,
    WIRE_TYPE,
)
from stagec.checking.wire import LENGTH, VARINT, no_utf8, packed_varints, spans_equal, walk


@dataclass
class Column:
    """One attribute of all nodes.

    `kind` is the field number of its value, 0 for a node without it. Numbers are in `value`, in
    two's complement when `IS_SIGNED`. The value's bytes are `start` to `end` of the buffer.
    """

    kind: np.ndarray
    value: np.ndarray
    start: np.ndarray
    end: np.ndarray
    repeated: np.ndarray
    """Nodes that have the attribute more than once. The first counts, as in ASTRA-sim's feeder."""

    def is_integer(self, rows: np.ndarray) -> np.ndarray:
        return IS_INTEGER[self.kind[rows]]

    def is_negative(self, rows: np.ndarray) -> np.ndarray:
        return IS_SIGNED[self.kind[rows]] & (self.value[rows] >> np.uint64(63)).astype(bool)


@dataclass
class NodeTable:
    """Nodes in file order. Positions are those of bytes in `buffer`, the whole file."""

    buffer: np.ndarray
    start: np.ndarray
    end: np.ndarray
    id: np.ndarray
    type: np.ndarray
    duration: np.ndarray
    name_start: np.ndarray
    name_end: np.ndarray
    dep_owner: np.ndarray
    """One row per dependency, data and control alike: the row of the node that has it ..."""
    dep: np.ndarray
    """... and the id it names."""
    attributes: dict[str, Column]
    malformed: np.ndarray
    overlong: np.ndarray
    """Nodes with more fields than are read."""

    @property
    def num_nodes(self) -> int:
        return self.id.size

    def name(self, row: int) -> str:
        first, last = int(self.name_start[row]), int(self.name_end[row])
        return self.buffer[first : min(last, first + 400)].tobytes().decode("utf-8", "replace")


MAX_MESSAGE_BYTES = 4 << 20
MAX_DEPENDENCIES = 8_000_000
"""The most dependencies of one trace. These limits bound the memory that any input can ask for."""
_BATCH_BYTES = 4 << 20


class TraceLimitError(Exception):
    """A trace that goes beyond a limit; the text says which."""


def decode_nodes(buffer: np.ndarray, start: np.ndarray, end: np.ndarray) -> NodeTable:
    """Decode the `Node` messages `buffer[start:end]`, given in file order. Raises `TraceLimitError`."""
    longest = int((end - start).max(initial=0))
    if longest > MAX_MESSAGE_BYTES:
        raise TraceLimitError(f"a message has {longest} bytes, over {MAX_MESSAGE_BYTES}")
    parts: list[NodeTable] = []
    num_deps = 0
    first = 0
    while first < start.size or not parts:
        last = int(np.searchsorted(end, start[first : first + 1] + _BATCH_BYTES).max(initial=0))
        last = max(last, first + 1)
        parts.append(_decode_batch(buffer, start[first:last], end[first:last]))
        num_deps += parts[-1].dep.size
        if num_deps > MAX_DEPENDENCIES:
            raise TraceLimitError(f"it has over {MAX_DEPENDENCIES} dependencies")
        first = last
    return parts[0] if len(parts) == 1 else _join_tables(parts)


def _decode_batch(buffer: np.ndarray, start: np.ndarray, end: np.ndarray) -> NodeTable:
    rows = start.size
    node_id = np.zeros(rows, dtype=np.uint64)
    node_type = np.zeros(rows, dtype=np.int32)
    duration = np.zeros(rows, dtype=np.uint64)
    name_start, name_end = start.copy(), start.copy()
    packed: list[tuple[np.ndarray, ...]] = []
    single: list[tuple[np.ndarray, ...]] = []
    attributes: list[tuple[np.ndarray, ...]] = []

    def handle(
        number: int,
        wire_type: int,
        owner: np.ndarray,
        value: np.ndarray,
        begin: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        if wire_type == VARINT:
            if number == 1:
                node_id[owner] = value
            elif number == 3:
                node_type[owner] = np.minimum(value, 1 << 20)
            elif number in (4, 5):
                single.append((owner, value))
            elif number == 7:
                duration[owner] = value
        elif wire_type == LENGTH:
            if number == 2:
                name_start[owner], name_end[owner] = begin, stop
            elif number in (4, 5):
                packed.append((owner, begin, stop))
            elif number == 10:
                attributes.append((owner, begin, stop))

    malformed, overlong = walk(buffer, start, end, handle)
    owner, begin, stop = _join(packed, 3)
    field, dep, broken = packed_varints(buffer, begin, stop)
    malformed = np.concatenate([malformed, owner[broken], no_utf8(buffer, name_start, name_end)])
    dep_owner = owner[field]
    if single:
        owner, value = _join(single, 2)
        dep_owner, dep = np.concatenate([dep_owner, owner]), np.concatenate([dep, value])
    columns, bad_attributes = _decode_attributes(buffer, rows, *_join(attributes, 3))
    return NodeTable(
        buffer=buffer,
        start=start,
        end=end,
        id=node_id,
        type=node_type,
        duration=duration,
        name_start=name_start,
        name_end=name_end,
        dep_owner=dep_owner,
        dep=dep.astype(np.uint64),
        attributes=columns,
        malformed=np.unique(np.concatenate([malformed, bad_attributes])),
        overlong=overlong,
    )


def _join(pieces: list[tuple[np.ndarray, ...]], width: int) -> tuple[np.ndarray, ...]:
    if not pieces:
        return (np.zeros(0, dtype=np.int64),) * width
    if len(pieces) == 1:
        return pieces[0]
    return tuple(np.concatenate([piece[k] for piece in pieces]) for k in range(width))


def _decode_attributes(
    buffer: np.ndarray, rows: int, owner: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[dict[str, Column], np.ndarray]:
    """The attribute messages `buffer[start:end]` of the nodes `owner`, as columns.

    Also returns the nodes that have a malformed one.
    """
    name_start, name_end = start.copy(), start.copy()
    kind = np.full(owner.size, NO_VALUE, dtype=np.uint8)
    values = np.zeros(owner.size, dtype=np.uint64)
    value_start, value_end = start.copy(), start.copy()

    def handle(
        number: int,
        wire_type: int,
        message: np.ndarray,
        value: np.ndarray,
        begin: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        if number == 1 and wire_type == LENGTH:
            name_start[message], name_end[message] = begin, stop
        elif WIRE_TYPE.get(number) == wire_type:
            kind[message] = number
            values[message] = value
            value_start[message], value_end[message] = begin, stop

    malformed, overlong = walk(buffer, start, end, handle)
    text = np.flatnonzero(kind == STRING)
    garbled = text[no_utf8(buffer, value_start[text], value_end[text])]
    malformed = np.concatenate([malformed, garbled])
    sign_extend(kind, values)
    length = name_end - name_start
    columns: dict[str, Column] = {}
    of_length = {size: np.flatnonzero(length == size) for size in {len(a) for a in ATTRIBUTES}}
    for name in ATTRIBUTES:
        candidates = of_length[len(name)]
        found = candidates[spans_equal(buffer, name_start[candidates], name.encode())]
        columns[name] = _column(
            rows, owner[found], kind[found], values[found], value_start[found], value_end[found]
        )
    return columns, owner[np.concatenate([malformed, overlong])]


def _column(
    rows: int,
    owner: np.ndarray,
    kind: np.ndarray,
    value: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Column:
    column = Column(
        kind=np.zeros(rows, dtype=np.uint8),
        value=np.zeros(rows, dtype=np.uint64),
        start=np.zeros(rows, dtype=np.uint32),
        end=np.zeros(rows, dtype=np.uint32),
        repeated=np.zeros(0, dtype=np.int64),
    )
    # Of several with one name the first counts, so it is written last.
    owner = owner[::-1]
    column.kind[owner] = kind[::-1]
    column.value[owner] = value[::-1]
    column.start[owner] = start[::-1]
    column.end[owner] = end[::-1]
    if owner.size > np.count_nonzero(column.kind):
        column.repeated = np.flatnonzero(np.bincount(owner, minlength=rows) > 1)
    return column


def sign_extend(kind: np.ndarray, value: np.ndarray) -> None:
    """Turn zigzag and 32-bit signed values into 64-bit two's complement, in place."""
    zigzag = np.flatnonzero(IS_ZIGZAG[kind])
    if zigzag.size:
        raw = value[zigzag]
        value[zigzag] = (raw >> np.uint64(1)) ^ (np.uint64(0) - (raw & np.uint64(1)))
    narrow = np.flatnonzero(kind == SFIXED32)
    if narrow.size:
        wide = value[narrow].astype(np.uint32).view(np.int32).astype(np.int64)
        value[narrow] = wide.view(np.uint64)


def _join_tables(parts: list[NodeTable]) -> NodeTable:
    """One table of all rows, in order."""
    offset = np.cumsum([0] + [part.num_nodes for part in parts])

    def rows(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def shifted(name: str) -> np.ndarray:
        return np.concatenate([getattr(p, name) + o for p, o in zip(parts, offset, strict=False)])

    columns: dict[str, Column] = {}
    for name in ATTRIBUTES:
        pieces = [part.attributes[name] for part in parts]
        columns[name] = Column(
            kind=np.concatenate([p.kind for p in pieces]),
            value=np.concatenate([p.value for p in pieces]),
            start=np.concatenate([p.start for p in pieces]),
            end=np.concatenate([p.end for p in pieces]),
            repeated=np.concatenate([p.repeated + o for p, o in zip(pieces, offset, strict=False)]),
        )
    return NodeTable(
        buffer=parts[0].buffer,
        attributes=columns,
        **{name: rows(name) for name in _ROW_FIELDS},
        **{name: shifted(name) for name in ("dep_owner", "malformed", "overlong")},
    )


_ROW_FIELDS = ("start", "end", "id", "type", "duration", "name_start", "name_end", "dep")
