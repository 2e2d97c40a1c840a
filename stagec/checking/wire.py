"""The protobuf wire format, decoded for many messages at once.

`walk` moves through thousands of messages in lockstep: step k reads field k of every message that
has one, so the work per field is a handful of numpy calls, whatever the number of messages. No
message is ever built as an object. Only field numbers and wire types are relied upon, as in
"Encoding" of the protocol buffers documentation.
"""

from collections.abc import Callable

import numpy as np

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 16_384
"""Fields of one message. A step costs as much for one long message as for a thousand."""

Handler = Callable[[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
"""Called with a field's number, its wire type, the messages that have it, its values (none for
lengths), and the positions where its bytes begin and end."""


def read_varints(buffer: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The varint at each position, and the position after it.

    An encoding of more than ten bytes has position -1 after it. Positions must lie in the buffer.
    """
    byte = buffer[position]
    after = position + 1
    value = (byte & 0x7F).astype(np.uint64)
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while more.size:
        if shift > 63:
            after[more] = -1
            break
        byte = buffer[np.minimum(after[more], buffer.size - 1)]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return value, after


def read_fixed(buffer: np.ndarray, position: np.ndarray, width: int) -> np.ndarray:
    """The little-endian word of `width` bytes at each position, as uint64."""
    value = np.zeros(position.size, dtype=np.uint64)
    for k in range(width):
        byte = buffer[np.minimum(position + k, buffer.size - 1)]
        value |= byte.astype(np.uint64) << np.uint64(8 * k)
    return value


def walk(
    buffer: np.ndarray, start: np.ndarray, end: np.ndarray, handle: Handler
) -> tuple[np.ndarray, np.ndarray]:
    """Give `handle` each field of the messages `buffer[start:end]`, in order within each message.

    Returns the messages that are malformed, and those with more than `MAX_FIELDS` fields; both were
    walked up to their fault.
    """
    position = start.copy()
    active = np.flatnonzero(position < end)
    malformed: list[np.ndarray] = []
    steps = 0
    while active.size and steps < MAX_FIELDS:
        steps += 1
        tag, at = read_varints(buffer, position[active])
        limit = end[active]
        after = np.full(active.size, -1, dtype=np.int64)
        # Every field has at least one byte after its tag.
        rest = np.flatnonzero((at >= 0) & (at < limit))
        while rest.size:
            first = tag[rest[0]]
            same = tag[rest] == first
            if same.all():
                chosen, rest = rest, rest[:0]
            else:
                chosen, rest = rest[same], rest[~same]
            number, wire_type = int(first) >> 3, int(first) & 7
            if not 0 < number < 1 << 29:
                continue
            value, begin, stop = _read_value(buffer, wire_type, at[chosen])
            fits = (stop >= 0) & (stop <= limit[chosen])
            if not fits.all():
                chosen, value, begin, stop = chosen[fits], value[fits], begin[fits], stop[fits]
            after[chosen] = stop
            if chosen.size:
                handle(number, wire_type, active[chosen], value, begin, stop)
        bad = after < 0
        if bad.any():
            malformed.append(active[bad])
            good = ~bad
            active, after, limit = active[good], after[good], limit[good]
        position[active] = after
        unfinished = after < limit
        if not unfinished.all():
            active = active[unfinished]
    return (np.concatenate(malformed) if malformed else active[:0]), active


def _read_value(
    buffer: np.ndarray, wire_type: int, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values at `at`, and where their bytes begin and end; the end is -1 if it has none."""
    if wire_type == VARINT:
        value, stop = read_varints(buffer, at)
        return value, at, stop
    if wire_type == LENGTH:
        length, begin = read_varints(buffer, at)
        fits = (begin >= 0) & (length <= buffer.size)
        stop = np.where(fits, begin + np.where(fits, length, 0).astype(np.int64), -1)
        return length, begin, stop
    if wire_type in (FIXED64, FIXED32):
        width = 8 if wire_type == FIXED64 else 4
        return read_fixed(buffer, at, width), at, at + width
    nothing = np.full(at.size, -1, dtype=np.int64)
    return nothing, nothing, nothing


def packed_varints(
    buffer: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All varints of the packed fields `buffer[start:end]`.

    Returns for each varint the field it is in and its value, and the fields that are malformed.
    """
    length = end - start
    total = int(length.sum())
    none = np.zeros(0, dtype=np.int64)
    if total == 0:
        return none, none.astype(np.uint64), none
    before = np.cumsum(length) - length
    field = np.repeat(np.arange(start.size), length)
    data = buffer[np.arange(total) + np.repeat(start - before, length)]
    last = data < 0x80
    # A field that does not end a varint would run into the next one: leave it out.
    full = np.flatnonzero(length > 0)
    cut = full[~last[before[full] + length[full] - 1]]
    stop = np.flatnonzero(last)
    begin = np.zeros_like(stop)
    begin[1:] = stop[:-1] + 1
    size = stop - begin + 1
    value = np.zeros(stop.size, dtype=np.uint64)
    for k in range(min(10, int(size.max(initial=0)))):
        has = np.flatnonzero(size > k)
        byte = data[begin[has] + k]
        value[has] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    owner = field[stop]
    broken = np.union1d(cut, owner[size > 10])
    if broken.size:
        keep = ~np.isin(owner, broken) & (field[begin] == owner)
        owner, value = owner[keep], value[keep]
    return owner, value, broken


def no_utf8(buffer: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which of the spans are not UTF-8, as every string of a message must be."""
    full = np.flatnonzero(end > start)
    full = full[np.argsort(start[full], kind="stable")]
    if not full.size:
        return full
    bounds = np.stack([start[full], end[full]], axis=1).ravel()
    # Every second stretch is a span, the others lie between. The end of the buffer is no bound.
    bits = np.bitwise_or.reduceat(buffer, bounds[bounds < buffer.size])[::2]
    beyond_ascii = full[bits >= 0x80].tolist()
    return np.array([k for k in beyond_ascii if not _is_utf8(buffer[start[k] : end[k]])], int)


def _is_utf8(data: np.ndarray) -> bool:
    try:
        data.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def spans_equal(buffer: np.ndarray, start: np.ndarray, text: bytes) -> np.ndarray:
    """Whether the bytes at each position spell `text`. Spans must be as long as `text` or longer."""
    equal = buffer[start] == text[0]
    for k in range(1, len(text)):
        equal &= buffer[start + k] == text[k]
    return equal


def split_frames(
    buffer: bytes | bytearray | memoryview, most: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each length-delimited message starts and ends, at most `most` of them.

    Also returns the position after the last: less than the size of the buffer if there are more, or
    if what follows is no whole message.
    """
    size = len(buffer)
    starts: list[int] = []
    ends: list[int] = []
    position = 0
    while position < size and len(starts) < most:
        length = buffer[position]
        start = position + 1
        if length >= 0x80:
            length &= 0x7F
            shift = 7
            while start < size and shift < 35:
                byte = buffer[start]
                start += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            else:
                break
        end = start + length
        if end > size:
            break
        starts.append(start)
        ends.append(end)
        position = end
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), position
