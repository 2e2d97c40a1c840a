"""Protobuf's wire format with holes: bytes whose length is known before their content is.

A hole is a run of bytes filled in later, for each instance of a segment or for each rank. It has a
fixed width: a varint padded with continuation bits (every protobuf reader accepts those), or
decimal digits inside a string. Encoding: protobuf.dev/programming-guides/encoding.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np

VARINT, LENGTH = 0, 2  # wire types


class Form(IntEnum):
    """How a number stands in a hole."""

    VARINT = 0
    DIGITS = 1


class NumberSource(IntEnum):
    """Where the number of a hole comes from."""

    NODE = 0  # id of this instance's node `argument`
    SLOT = 1  # id of the node that the instance's slot `argument` names
    LAYER = 2
    MICROBATCH = 3
    STAGE = 4
    TAG = 5  # of a transfer over channel `argument`
    RANK = 6  # the rank variable `argument`
    SIZE = 7  # of a series: column `argument`, in the instance's iteration
    ITERATION = 8  # of a series: its number
    HANDED = 9  # of a transfer between pools in a series: by `handed_argument`


MOST_HANDED = 1 << 12
"""Handovers of one iteration."""


def handed_argument(channel: int, number: int) -> int:
    """The argument of a transfer over a channel that is part of this handover of its iteration."""
    assert number < MOST_HANDED
    return channel * MOST_HANDED + number


class Hole(NamedTuple):
    """`width` bytes at `offset` that hold a number in `form`."""

    offset: int
    width: int
    form: Form
    source: NumberSource
    argument: int = 0


@dataclass(slots=True)
class Piece:
    """Bytes under construction, and the holes in them."""

    data: bytearray = field(default_factory=bytearray)
    holes: list[Hole] = field(default_factory=list)

    def add(self, part: "bytes | Piece") -> "Piece":
        if isinstance(part, Piece):
            start = len(self.data)
            self.data += part.data
            if part.holes:
                self.holes += [
                    Hole(start + at, width, form, source, argument)
                    for at, width, form, source, argument in part.holes
                ]
        else:
            self.data += part
        return self

    def add_hole(self, width: int, form: Form, source: NumberSource, argument: int = 0) -> "Piece":
        self.holes.append(Hole(len(self.data), width, form, source, argument))
        self.data += bytes(width)
        return self


def varint(value: int) -> bytes:
    """The shortest encoding of a number from 0."""
    assert value >= 0, value
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_width(largest: int) -> int:
    """Bytes that hold every number from 0 to `largest`."""
    return len(varint(largest))


@cache
def key(number: int, wire_type: int) -> bytes:
    """What announces field `number`."""
    return varint(number << 3 | wire_type)


def integer(number: int, value: int) -> bytes:
    """An integer or boolean field."""
    return key(number, VARINT) + varint(value)


def text(number: int, value: str) -> bytes:
    """A string field."""
    return delimited(number, value.encode())


def delimited(number: int, body: bytes) -> bytes:
    """A string, message or packed field."""
    return key(number, LENGTH) + varint(len(body)) + body


def delimited_piece(number: int, body: Piece) -> Piece:
    """The same for a body with holes."""
    return Piece(bytearray(key(number, LENGTH) + varint(len(body.data)))).add(body)


def fill(form: Form, values: np.ndarray, width: int) -> np.ndarray:
    """The bytes of `values` in holes of `width`: one more axis, of uint8."""
    if form == Form.VARINT:
        shifts = np.arange(width, dtype=np.int64) * 7
        out = (values[..., None] >> shifts & 0x7F).astype(np.uint8)
        out[..., :-1] |= 0x80
        return out
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (values[..., None] // powers % 10 + ord("0")).astype(np.uint8)
