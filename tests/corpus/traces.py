"""Small trace sets as plain data, and their bytes. It shares no code with the checker."""

import json
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(8)
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = range(8)

FIELDS = {
    "double": 3,
    "float": 5,
    "int32": 7,
    "int64": 9,
    "uint32": 11,
    "uint64": 13,
    "sint64": 17,
    "fixed32": 19,
    "fixed64": 21,
    "sfixed32": 23,
    "bool": 27,
    "string": 29,
    "strings": 30,
}

Value = int | float | str | list[str]
Attribute = tuple[str, str, Value]
"""A name, a kind out of `FIELDS`, and a value."""


@dataclass
class Node:
    id: int
    name: str
    type: int
    deps: list[int] = field(default_factory=list)
    ctrl: list[int] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=list)
    duration: int = 0

    def get(self, name: str) -> Value | None:
        return next((value for n, _, value in self.attributes if n == name), None)

    def set(self, name: str, value: Value, kind: str | None = None) -> None:
        """Replace an attribute, or add it."""
        for at, (n, old, _) in enumerate(self.attributes):
            if n == name:
                self.attributes[at] = (name, kind or old, value)
                return
        self.attributes.append((name, kind or "int64", value))

    def drop(self, name: str) -> None:
        self.attributes = [a for a in self.attributes if a[0] != name]


@dataclass
class Traces:
    """A set: nodes by rank, groups, and how its files are written."""

    nodes: dict[int, list[Node]]
    groups: dict[str, list[int]] = field(default_factory=dict)
    prefix: str = "model"
    headless: set[int] = field(default_factory=set)
    version: str = "0.0.4"
    cut: dict[int, int] = field(default_factory=dict)
    """Bytes that are left of a rank's file."""

    def file(self, rank: int) -> str:
        return f"{self.prefix}.{rank}.et"

    def find(self, rank: int, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes[rank] if node.name == name)

    def remove(self, rank: int, name: str) -> None:
        """Take a node out; what depended on it depends on what it depended on."""
        gone = self.find(rank, name)
        self.nodes[rank].remove(gone)
        for node in self.nodes[rank]:
            if gone.id in node.deps:
                node.deps.remove(gone.id)
                node.deps += [d for d in gone.deps if d not in node.deps]
            if gone.id in node.ctrl:
                node.ctrl.remove(gone.id)

    def write(self, directory: Path) -> None:
        for rank, nodes in self.nodes.items():
            data = encode_trace(nodes, self.version, rank not in self.headless)
            (directory / self.file(rank)).write_bytes(data[: self.cut.get(rank)])
        if self.groups:
            (directory / "comm_group.json").write_text(json.dumps(self.groups))


BYTES = [bytes([value]) for value in range(0x80)]
"""Varints of one byte, which most are."""


def varint(value: int, width: int = 0) -> bytes:
    """A varint, padded to `width` bytes."""
    if 0 <= value < 0x80 and width < 2:
        return BYTES[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F or len(out) + 1 < width:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def encode_attribute(attribute: Attribute, width: int = 0) -> bytes:
    name, kind, value = attribute
    return _attribute(name, kind, tuple(value) if isinstance(value, list) else value, width)


@lru_cache(1 << 14)
def _attribute(
    name: str, kind: str, value: int | float | str | tuple[str, ...], width: int
) -> bytes:
    """The sets of an attack have the same few attributes again and again."""
    number = FIELDS[kind]
    out = delimited(1, name.encode())
    if isinstance(value, tuple):
        return out + delimited(number, b"".join(delimited(1, text.encode()) for text in value))
    if isinstance(value, str):
        return out + delimited(number, value.encode())
    if kind == "double":
        return out + varint(number << 3 | 1) + struct.pack("<d", value)
    if kind == "float":
        return out + varint(number << 3 | 5) + struct.pack("<f", value)
    value = int(value)
    if kind in ("fixed32", "sfixed32"):
        return out + varint(number << 3 | 5) + struct.pack("<I", value & 0xFFFFFFFF)
    if kind == "fixed64":
        return out + varint(number << 3 | 1) + struct.pack("<Q", value & (1 << 64) - 1)
    if kind == "sint64":
        value = value << 1 ^ value >> 63
    return out + varint(number << 3) + varint(value, width)


def encode_node(node: Node, widths: dict[str, int] | None = None) -> bytes:
    """A `Node` message. `widths` pads the varints of some attributes."""
    widths = widths or {}
    out = varint(1 << 3) + varint(node.id) + delimited(2, node.name.encode())
    out += varint(3 << 3) + varint(node.type)
    for number, ids in ((4, node.ctrl), (5, node.deps)):
        if ids:
            out += delimited(number, b"".join(map(varint, ids)))
    if node.duration:
        out += varint(7 << 3) + varint(node.duration)
    for attribute in node.attributes:
        out += delimited(10, encode_attribute(attribute, widths.get(attribute[0], 0)))
    return out


def encode_trace(nodes: list[Node], version: str = "0.0.4", header: bool = True) -> bytes:
    messages = [encode_node(node) for node in nodes]
    if header:
        messages.insert(0, delimited(1, version.encode()) if version else b"")
    return b"".join(varint(len(message)) + message for message in messages)
