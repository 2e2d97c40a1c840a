"""The wire decoder reads what protobuf reads, and survives whatever else it is given."""

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.backend.et_def_pb2 import Node as NodeMessage
from stagec.checking.node_decoding import FileFindings, decode_trace
from stagec.checking.node_table import NodeTable, TraceLimitError, decode_nodes
from stagec.checking.schema import ABSENT, ATTRIBUTES, IS_SIGNED, NO_VALUE, VALUE_KINDS
from stagec.checking.wire import packed_varints, read_varints, split_frames
from tests.corpus.traces import FIELDS, Node, delimited, encode_node, encode_trace, varint


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def table_of(messages: list[bytes]) -> NodeTable:
    data = b"".join(varint(len(message)) + message for message in messages)
    start, end, stop = split_frames(data, 1 << 20)
    assert stop == len(data)
    assert start.size == len(messages)
    return decode_nodes(array(data), start, end)


def value_at(table: NodeTable, name: str, row: int) -> int:
    column = table.attributes[name]
    value = int(column.value[row])
    return value - (1 << 64) if IS_SIGNED[column.kind[row]] and value >> 63 else value


ids = st.integers(0, (1 << 64) - 1)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
attributes = st.lists(
    st.tuples(
        st.sampled_from([*ATTRIBUTES, "other"]),
        st.sampled_from(["int32", "int64", "sint64", "sfixed32", "bool", "uint64", "string"]),
        numbers,
    ),
    max_size=6,
    unique_by=lambda a: a[0],
)
nodes = st.builds(
    Node,
    id=ids,
    name=st.text(max_size=12),
    type=st.integers(0, 8),
    deps=st.lists(ids, max_size=5),
    ctrl=st.lists(ids, max_size=3),
    attributes=attributes.map(
        lambda found: [
            (name, kind, str(n) if kind == "string" else n % 2 if kind == "bool" else n)
            for name, kind, n in found
        ]
    ),
    duration=st.integers(0, 1 << 40),
)


@given(st.lists(nodes, min_size=1, max_size=8))
def test_columns_hold_what_protobuf_reads(found: list[Node]) -> None:
    table = table_of([encode_node(node) for node in found])
    assert not table.malformed.size
    for row, node in enumerate(found):
        message = NodeMessage.FromString(encode_node(node))
        assert int(table.id[row]) == message.id
        assert int(table.type[row]) == message.type
        assert int(table.duration[row]) == message.duration_micros
        assert table.name(row) == message.name
        deps = sorted(table.dep[table.dep_owner == row].tolist())
        assert deps == sorted([*message.data_deps, *message.ctrl_deps])
        there = {attribute.name: attribute for attribute in message.attr}
        for name in ATTRIBUTES:
            kind = table.attributes[name].kind[row]
            if name not in there:
                assert kind == ABSENT
                continue
            which = there[name].WhichOneof("value")
            assert which == VALUE_KINDS[int(kind)] + "_val"
            value = getattr(there[name], which)
            if isinstance(value, str):
                column = table.attributes[name]
                text = table.buffer[column.start[row] : column.end[row]].tobytes()
                assert text.decode() == value
            else:
                assert value_at(table, name, row) == value


@given(st.lists(st.lists(ids, max_size=6), max_size=6))
def test_packed_fields(fields: list[list[int]]) -> None:
    data, bounds = b"", [0]
    for field in fields:
        data += b"".join(map(varint, field))
        bounds.append(len(data))
    owner, value, broken = packed_varints(array(data), np.array(bounds[:-1]), np.array(bounds[1:]))
    assert broken.size == 0
    assert owner.tolist() == [k for k, field in enumerate(fields) for _ in field]
    assert value.tolist() == [number for field in fields for number in field]


def test_padded_varints_are_read() -> None:
    assert read_varints(array(varint(5, 4) + varint(300, 3)), np.array([0, 4]))[0].tolist() == [
        5,
        300,
    ]
    node = Node(1, "a", 5, attributes=[("comm_dst", "int64", 7)])
    table = table_of([encode_node(node, {"comm_dst": 5})])
    assert value_at(table, "comm_dst", 0) == 7


def test_varints_of_more_than_ten_bytes_are_malformed() -> None:
    assert read_varints(array(b"\xff" * 12), np.array([0]))[1].tolist() == [-1]
    assert table_of([varint(1 << 3) + b"\xff" * 11]).malformed.tolist() == [0]


def test_dependencies_need_not_be_packed() -> None:
    body = varint(1 << 3) + varint(9) + b"".join(varint(5 << 3) + varint(d) for d in (3, 4))
    table = table_of([body + delimited(4, varint(300)), varint(1 << 3) + varint(8)])
    assert table.dep[table.dep_owner == 0].tolist() == [300, 3, 4]
    assert table.dep_owner.tolist() == [0, 0, 0]


def test_the_last_of_repeated_fields_counts_and_the_first_of_attributes() -> None:
    size = delimited(10, delimited(1, b"comm_size") + varint(9 << 3) + varint(4))
    other = delimited(10, delimited(1, b"comm_size") + varint(9 << 3) + varint(8))
    table = table_of([varint(1 << 3) + varint(1) + size + other + varint(1 << 3) + varint(2)])
    assert table.id.tolist() == [2]
    assert value_at(table, "comm_size", 0) == 4
    assert table.attributes["comm_size"].repeated.tolist() == [0]


def test_attributes_without_a_value() -> None:
    table = table_of([delimited(10, delimited(1, b"outputs"))])
    assert table.attributes["outputs"].kind.tolist() == [NO_VALUE]
    assert table.attributes["inputs"].kind.tolist() == [ABSENT]


def test_unknown_fields_are_skipped() -> None:
    unknown = delimited(99, b"x") + varint(77 << 3) + varint(1) + varint(50 << 3 | 1) + b"12345678"
    message = unknown + varint(1 << 3) + varint(6) + varint(51 << 3 | 5) + b"1234"
    table = table_of([message])
    assert table.id.tolist() == [6]
    assert not table.malformed.size


@pytest.mark.parametrize(
    "message",
    [
        varint(1 << 3),  # a tag without its value
        varint(2 << 3 | 2) + varint(9) + b"short",
        varint(0) + varint(1),  # field number 0
        varint(1 << 3 | 3),  # a group
        varint(1 << 3 | 7),
        delimited(10, varint(1 << 3 | 2) + varint(50)),
        delimited(5, b"\x80"),
        delimited(2, b"no \xff text"),
        delimited(10, delimited(1, b"pg_name") + delimited(29, b"\xc3")),
        varint(2 << 3 | 2) + varint((1 << 64) - 1),
    ],
)
def test_malformed_messages_are_told(message: bytes) -> None:
    good = encode_node(Node(1, "good", 4, [0]))
    table = table_of([good, message, good])
    assert table.malformed.tolist() == [1]
    assert table.id[[0, 2]].tolist() == [1, 1]


def test_long_files_are_decoded_in_parts() -> None:
    messages = [encode_node(Node(k, "x" * 3000, 4, [k - 1] if k else [])) for k in range(4000)]
    table = table_of(messages)  # 12 MB: several batches
    assert table.id.tolist() == list(range(4000))
    assert table.dep_owner.tolist() == list(range(1, 4000))
    assert table.dep.tolist() == list(range(3999))
    assert table.name(3999) == "x" * 400


def test_limits_are_told() -> None:
    with pytest.raises(TraceLimitError, match="message"):
        table_of([delimited(2, b"x" * (4 << 20))])
    body = delimited(5, b"\x01" * (3 << 20))
    with pytest.raises(TraceLimitError, match="dependencies"):
        table_of([body] * 3)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_random_bytes_end_in_findings(data: bytes) -> None:
    found = FileFindings()
    table = decode_trace(array(data), found)
    assert table is not None or found.found


@pytest.mark.seldom
def test_damaged_traces_end_in_findings_or_tables() -> None:
    rng = random.Random(5)
    kinds = [kind for kind in FIELDS if kind not in ("strings", "string", "double", "float")]
    found = [
        Node(k, f"n{k}", k % 8, [k - 1], attributes=[("comm_size", rng.choice(kinds), k)])
        for k in range(1, 30)
    ]
    whole = encode_trace(found)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.choice([len(data), rng.randrange(len(data))])
        findings = FileFindings()
        table = decode_trace(array(bytes(data[:cut])), findings)
        assert table is not None or findings.found


def test_frames_end_where_no_whole_message_follows() -> None:
    data = varint(2) + b"ab" + varint(0) + varint(200) + b"c"
    start, end, stop = split_frames(data, 10)
    assert (start.tolist(), end.tolist(), stop) == ([1, 4], [3, 4], 4)
    assert split_frames(b"\xff\xff\xff\xff\xff\xff", 10)[2] == 0
    assert split_frames(varint(0) * 50, 10)[0].size == 10
