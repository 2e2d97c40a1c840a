"""Traces stamped from templates contain what the slow encoder says, for any job and rank."""

import gzip
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.backend.class_table import pack, unpack
from stagec.backend.encode import encode_unproved as encode_traces
from stagec.backend.encoded import EncodedTraces, TraceOptions
from stagec.backend.et_file import TraceReader
from stagec.backend.groups import comm_groups
from stagec.backend.program import Dep, Mesh, Node, RankClass, TraceSegment, TraceSet
from stagec.backend.stamping import make_stamp
from stagec.dialects.sched.actions import Collective, Compute, Transfer
from tests.unit.backend_samples import ProgramBuilder, class_of, jobs, pipelined_job, slow_nodes
from tests.unit.seldom import some


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


@pytest.mark.seldom
@given(jobs(), st.sampled_from(["full", "short", "none"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_job_decodes_to_the_slow_encoding(job, names, provenance) -> None:
    check_job(job, TraceOptions(names, provenance))


@pytest.mark.parametrize("names", some(["full", "short", "none"], 2))
def test_pipelined_job_decodes_to_the_slow_encoding(names) -> None:
    check_job(pipelined_job(dp=2, pp=4, cp=2, tp=2, layers=8), TraceOptions(names))


@pytest.mark.seldom
@given(jobs())
@settings(max_examples=40, deadline=None)
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


@given(jobs(), st.data())
@settings(max_examples=25, deadline=None)
def test_class_of_any_rank(job, data) -> None:
    encoded = encode_traces(job)
    ranks = np.array(data.draw(st.lists(st.integers(0, job.mesh.num_ranks - 1))), dtype=np.int64)
    wanted = [class_of(job, rank).name for rank in ranks.tolist()]
    assert [encoded.classes[i].name for i in encoded.class_map.of(ranks)] == wanted


def test_classes_must_be_a_partition() -> None:
    job = pipelined_job()
    with pytest.raises(AssertionError, match="in no class"):
        encode_traces(TraceSet(job.model, job.mesh, job.classes[:1]))
    everyone = RankClass("all", {}, job.classes[0].program)
    with pytest.raises(AssertionError, match="in two classes"):
        encode_traces(TraceSet(job.model, job.mesh, (job.classes[0], everyone)))


def group_job(axes: tuple[str, ...], among: tuple, users: tuple[int, ...]) -> TraceSet:
    """A job on (pp, dp) = (4, 2) in which the stages `users` run a collective."""
    reduce = Collective("all_reduce", axes, 8, 8, "fp32", among)
    segments = (
        TraceSegment("compute", (Node("add", "fwd", "", Compute(1, 1), "compute"),), 0),
        TraceSegment("reduce", (Node("all_reduce", "fwd", "", reduce, "comm"),), 0),
    )
    classes = []
    for stage in range(4):
        builder = ProgramBuilder(*segments)
        builder.run(stage in users)
        classes.append(RankClass(f"stage{stage}", {"pp": (stage,)}, builder.build()))
    return TraceSet("groups", Mesh(("pp", "dp"), (4, 2)), tuple(classes))


def test_members_of_a_group_must_all_use_it() -> None:
    ends = (("pp", (0, 3)),)
    for axes, among, users in (
        (("pp",), (), (0, 1, 2, 3)),
        (("pp",), ends, (0, 3)),
        (("pp", "dp"), ends, (0, 3)),
        (("dp",), (), (2,)),
    ):
        encode_traces(group_job(axes, among, users))
    for axes, among, users, words in (
        (("pp",), (), (0, 1, 2), "not all members"),
        (("pp",), ends, (0,), "not all members"),
        (("pp", "dp"), ends, (3,), "not all members"),
        (("pp",), ends, (0, 1, 3), "that it is not in"),
    ):
        with pytest.raises(AssertionError, match=words):
            encode_traces(group_job(axes, among, users))


def test_programs_that_no_pass_may_make() -> None:
    mesh = Mesh(("dp",), (2,))
    node = Node("add", "fwd", "", Compute(1, 1), "compute", data_deps=(Dep(0, 0),))

    def encode(node: Node, *slots: int) -> None:
        builder = ProgramBuilder(TraceSegment("s", (node,), 1))
        for number in slots:
            builder.run(0, (number,), tag=0)
        encode_traces(TraceSet("bad", mesh, (RankClass("all", {}, builder.build()),)))

    encode(node, -1, 0)
    later = replace(node, data_deps=(Dep(-1, 0),))
    home = replace(node, action=Transfer("send", ("dp",), 2, 1, 0, "bf16"))
    alone = replace(node, action=Collective("all_reduce", (), 1, 1, "bf16"))
    for bad, slots, words in (
        (node, (0,), "names a later node"),
        (node, (), "runs nothing"),
        (later, (-1,), "node 0 depends on node 0"),
        (home, (-1,), "goes to the rank that it comes from"),
        (alone, (-1,), "group of one"),
    ):
        with pytest.raises(AssertionError, match=words):
            encode(bad, *slots)
