"""Traces stamped from templates contain what the slow encoder says, for any job and rank."""

import gzip
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagec.backend.class_table import pack, unpack
from stagec.backend.encode import encode_traces
from stagec.backend.encoded import EncodedTraces, TraceOptions
from stagec.backend.et_file import TraceReader
from stagec.backend.groups import comm_groups
from stagec.backend.program import TraceSet
from stagec.backend.stamping import make_stamp
from tests.unit.backend_samples import jobs, pipelined_job, slow_nodes


def stamped(encoded: EncodedTraces, compress: str = "none") -> dict[int, tuple[bytes, int]]:
    """Every rank's file and the CRC that is claimed of it."""
    everyone = np.arange(encoded.mesh.num_ranks)
    found = {}
    for number, ranks in encoded.by_class(everyone):
        stamp = make_stamp(encoded.class_traces(number), compress)
        rows = stamp.rows(ranks)
        crcs = stamp.crcs(rows, len(ranks))
        for rank, data, crc in zip(ranks, stamp.stamp(rows, len(ranks)), crcs, strict=True):
            assert len(data) == stamp.num_bytes
            found[int(rank)] = bytes(data), int(crc)
    return found


def group_ids(encoded: EncodedTraces) -> dict[tuple[int, ...], int]:
    everyone = np.arange(encoded.mesh.num_ranks)
    users = encoded.group_users(everyone)
    return {
        tuple(members): number
        for number, members in comm_groups(encoded.formulas.groups, encoded.mesh, users)
    }


def check_job(job: TraceSet, options: TraceOptions) -> None:
    encoded = encode_traces(job, options)
    ids = group_ids(encoded)
    files = stamped(encoded)
    assert sorted(files) == list(range(job.mesh.num_ranks))
    for rank, (data, crc) in files.items():
        assert zlib.crc32(data) == crc
        trace = TraceReader.of_bytes(data)
        assert trace.metadata.version == "0.0.4"
        wanted = slow_nodes(job, rank, ids, options.names, options.provenance)
        assert list(trace) == list(wanted)


@given(jobs(), st.sampled_from(["full", "short", "none"]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_job_decodes_to_the_slow_encoding(job, names, provenance) -> None:
    check_job(job, TraceOptions(names, provenance))


@pytest.mark.parametrize("names", ["full", "short", "none"])
def test_pipelined_job_decodes_to_the_slow_encoding(names) -> None:
    check_job(pipelined_job(dp=2, pp=4, cp=2, tp=2, layers=8), TraceOptions(names))


@given(jobs())
@settings(max_examples=100, deadline=None)
def test_gzip_unpacks_to_the_plain_bytes(job) -> None:
    encoded = encode_traces(job)
    plain = stamped(encoded)
    for rank, (data, crc) in stamped(encoded, "gzip").items():
        assert gzip.decompress(data) == plain[rank][0]
        assert zlib.crc32(data) == crc


def test_long_trace() -> None:
    """Ids of three bytes; positions far apart in the CRC's polynomial; several deflate windows."""
    encoded = encode_traces(pipelined_job(dp=1, layers=64, microbatches=50))
    assert encoded.classes[0].num_nodes > 2**14
    plain, packed = stamped(encoded), stamped(encoded, "gzip")
    for rank, (data, crc) in plain.items():
        assert zlib.crc32(data) == crc
        assert gzip.decompress(packed[rank][0]) == data
        assert zlib.crc32(packed[rank][0]) == packed[rank][1]
        assert len(packed[rank][0]) < len(data) / 4
        ids = [node.id for node in TraceReader.of_bytes(data)]
        assert ids == list(range(1, len(ids) + 1))


def test_ids_of_transfers_meet() -> None:
    """Every send has its receive: same tag, size and ends, once."""
    encoded = encode_traces(pipelined_job(dp=2, pp=4, tp=2))
    sends, receives = [], []
    for rank, (data, _) in stamped(encoded).items():
        for node in TraceReader.of_bytes(data):
            values = {a.name: a for a in node.attr}
            if "comm_tag" not in values:
                continue
            end = (
                *(values[name].int32_val for name in ("comm_src", "comm_dst", "comm_tag")),
                values["comm_size"].int64_val,
            )
            if node.type == 5:
                assert end[0] == rank
                sends.append(end)
            else:
                assert end[1] == rank
                receives.append(end)
    assert sends
    assert sorted(sends) == sorted(receives)
    assert len(set(sends)) == len(sends)


def test_full_names() -> None:
    encoded = encode_traces(pipelined_job())
    names = {node.name for node in TraceReader.of_bytes(stamped(encoded)[0][0])}
    assert "bwd/Block.Attention/contract/L001/m02" in names
    assert "fwd/Block.Attention/all_gather[bf16]/L000/m00" in names
    assert "p2p/send[bf16]/m01" in names
    assert "grad_reduce/embed/all_reduce[fp32]" in names


def test_short_names_fit_in_120_bytes_a_node() -> None:
    encoded = encode_traces(pipelined_job(dp=1024, layers=32), TraceOptions("short"))
    for c in encoded.classes:
        assert c.num_bytes / c.num_nodes <= 120


def test_encoded_size_does_not_depend_on_ranks() -> None:
    few = encode_traces(pipelined_job(dp=2))
    many = encode_traces(pipelined_job(dp=4096))
    assert sum(len(c.payload) for c in many.classes) < 1.1 * sum(
        len(c.payload) for c in few.classes
    )


def test_table_survives_packing() -> None:
    encoded = encode_traces(pipelined_job())
    for c in encoded.classes:
        assert pack(unpack(c.payload)) == c.payload
    with pytest.raises(ValueError, match="incorrect header"):
        unpack(b"no payload")


def test_classes_must_be_a_partition() -> None:
    job = pipelined_job()
    gap = TraceSet(job.model, job.mesh, job.classes[:1])
    with pytest.raises(AssertionError, match="classes hold 4 ranks of 8"):
        encode_traces(gap)
