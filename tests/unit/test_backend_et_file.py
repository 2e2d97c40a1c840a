"""The schema is what et_def.proto says; files are read as they were written, or refused."""

import gzip
import re
from collections.abc import Iterable
from importlib import resources
from io import BytesIO
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.proto import serialize_length_prefixed
from hypothesis import given, strategies as st

from stagec.backend import et_def_pb2 as et, et_file
from stagec.backend.encoded import SCHEMA_VERSION
from stagec.backend.errors import TraceError

PROTO = resources.files("stagec.backend").joinpath("et_def.proto").read_text()


def encode_record(message: Message) -> bytes:
    """A message as it stands in a file, its length first."""
    stream = BytesIO()
    serialize_length_prefixed(message, stream)
    return stream.getvalue()


def write_trace(path: Path, nodes: Iterable[et.Node], compress: str = "none") -> None:
    """Messages as they are, one by one; stagec's own traces are made from templates."""
    messages = (et.GlobalMetadata(version=SCHEMA_VERSION), *nodes)
    data = b"".join(map(encode_record, messages))
    path.write_bytes(gzip.compress(data, mtime=0) if compress == "gzip" else data)


def test_descriptor_matches_proto_file() -> None:
    """Names, numbers and types, read from the text by a few regular expressions."""
    text = re.sub(r"//.*", "", PROTO)
    text = re.sub(r"oneof value \{(.*?)\}", r"\1", text, flags=re.S)
    stated = {
        (message, name, int(number), kind, bool(repeated))
        for message, body in re.findall(r"message (\w+) \{(.*?)\}", text, flags=re.S)
        for repeated, kind, name, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body)
    }
    kinds = {
        value: name.removeprefix("TYPE_").lower()
        for name, value in vars(FieldDescriptor).items()
        if name.startswith("TYPE_")
    }
    built = set()
    for message in et.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            named = field.message_type or field.enum_type
            kind = named.name if named else kinds[field.type]
            built.add((message.name, field.name, field.number, kind, field.is_repeated))
    assert built == stated
    assert len(stated) == 62
    enums = {
        (enum, name, int(number))
        for enum, body in re.findall(r"enum (\w+) \{(.*?)\}", text, flags=re.S)
        for name, number in re.findall(r"(\w+) = (\d+);", body)
    }
    assert enums == {
        (enum.name, value.name, value.number)
        for enum in et.DESCRIPTOR.enum_types_by_name.values()
        for value in enum.values
    }


def test_package_and_oneof() -> None:
    assert et.DESCRIPTOR.package == "ChakraProtoMsg"
    attribute = et.AttributeProto(name="a", int32_val=0)
    assert attribute.WhichOneof("value") == "int32_val"


def some_nodes(count: int) -> list[et.Node]:
    return [
        et.Node(
            id=i + 1,
            name=f"n{i}" * (i % 50),
            type=et.COMP_NODE,
            data_deps=range(1, i + 1) if i < 300 else [i],
            attr=[et.AttributeProto(name="num_ops", int64_val=i << 40)],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_written_file_reads_back(tmp_path, compress) -> None:
    path = tmp_path / "m.0.et"
    nodes = some_nodes(2000)  # several chunks long
    write_trace(path, iter(nodes), compress=compress)
    metadata, read = et_file.read_trace(path)
    assert metadata.version == "0.0.4"
    assert read == nodes
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (compress == "gzip")


@given(st.data())
def test_truncated_file_is_refused(data) -> None:
    whole = encode_record(et.GlobalMetadata(version="0.0.4")) + b"".join(
        map(encode_record, some_nodes(4))
    )
    ends = [0]
    for record in et_file.read_records(iter([whole]), "x"):
        ends.append(ends[-1] + len(record) + 1)
    cut = data.draw(st.sampled_from([n for n in range(len(whole)) if n not in ends]))
    with pytest.raises(TraceError) as caught:
        list(et_file.TraceReader.of_bytes(whole[:cut], "m.0.et"))
    assert caught.value.code == "E0607"
    assert "`m.0.et`" in caught.value.message
    assert caught.value.help


@given(st.binary(max_size=200))
def test_any_bytes_are_a_trace_or_an_error(data: bytes) -> None:
    for start in (b"", b"\x1f\x8b"):
        codes = set()
        try:
            list(et_file.TraceReader.of_bytes(start + data))
        except TraceError as error:
            codes.add(error.code)
            assert error.help
        assert codes <= {"E0607"}


@given(st.lists(st.integers(1, 40)))
def test_chunk_borders_do_not_matter(sizes: list[int]) -> None:
    whole = b"".join(map(encode_record, some_nodes(5)))
    chunks, at = [], 0
    for size in sizes:
        chunks.append(whole[at : at + size])
        at += size
    chunks = [c for c in [*chunks, whole[at:]] if c]
    assert list(et_file.read_records(iter(chunks), "x")) == list(
        et_file.read_records(iter([whole]), "x")
    )


def test_huge_length_is_refused_without_reading_on(tmp_path) -> None:
    for start in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff", b"\x81\x80\x80\x08"):
        path = tmp_path / "bad.et"
        path.write_bytes(start + bytes(100))
        with pytest.raises(TraceError, match="is not a Chakra trace"):
            et_file.read_trace(path)


def test_damaged_gzip_is_refused(tmp_path) -> None:
    path = tmp_path / "m.0.et"
    write_trace(path, some_nodes(100), compress="gzip")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(TraceError, match="is damaged"):
        et_file.read_trace(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(flipped)
    with pytest.raises(TraceError):
        et_file.read_trace(path)


def test_missing_and_empty_file(tmp_path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        et_file.read_trace(tmp_path / "none.et")
    (tmp_path / "m.0.et").write_bytes(b"")
    with pytest.raises(TraceError, match="is empty"):
        et_file.read_trace(tmp_path / "m.0.et")
