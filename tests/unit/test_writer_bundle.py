"""A bundle is a job in one file: any rank of it is the file of the full set."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from stagec.backend.bundle import Bundle, from_bytes, read_bundle, to_bytes, write_bundle
from stagec.backend.encode import encode_unproved as encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.errors import TraceError
from stagec.backend.writer import WriteOptions, iterate_traces, write_traces
from tests.unit.backend_samples import jobs, pipelined_job


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@given(jobs(), st.sampled_from(["full", "none"]))
@settings(max_examples=40, deadline=None)
def test_any_job_survives_a_bundle(job, names) -> None:
    traces = encode_traces(job, TraceOptions(names))
    data = to_bytes(Bundle(traces, {"inputs": ["é"]}))
    again = from_bytes(data)
    assert again == Bundle(traces, {"inputs": ["é"]})
    assert to_bytes(again) == data
    assert list(iterate_traces(again.traces)) == list(iterate_traces(traces))


def test_expanded_set_is_the_full_set(tmp_path) -> None:
    traces = encode_traces(pipelined_job(dp=4, cp=2))
    about = {"inputs": {"m.stg": "12"}}
    write_traces(traces, str(tmp_path / "direct"), about=about)
    size = write_bundle(tmp_path / "job.bundle", Bundle(traces, about))
    assert size == (tmp_path / "job.bundle").stat().st_size
    bundle = read_bundle(tmp_path / "job.bundle")
    write_traces(bundle.traces, str(tmp_path / "expanded"), about=bundle.about)
    assert contents(tmp_path / "direct") == contents(tmp_path / "expanded")
    write_traces(bundle.traces, str(tmp_path / "some"), WriteOptions(ranks="5,30"))
    for rank in (5, 30):
        name = f"sample.{rank}.et"
        assert (tmp_path / "some" / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()


def test_bundle_does_not_grow_with_ranks() -> None:
    few = to_bytes(Bundle(encode_traces(pipelined_job(dp=2))))
    many = to_bytes(Bundle(encode_traces(pipelined_job(dp=65536, tp=8))))
    assert len(many) < 1.1 * len(few)


def test_rank_of_a_million(tmp_path) -> None:
    """A class of 2**19 ranks is not gone through for one of them."""
    traces = encode_traces(pipelined_job(dp=2**16, pp=2, tp=8))
    assert traces.mesh.num_ranks == 2**20
    ((rank, data),) = iterate_traces(traces, "1048575")
    assert rank == 1048575
    report = write_traces(traces, str(tmp_path / "one"), WriteOptions(ranks="1048575"))
    assert (tmp_path / "one" / "sample.1048575.et").read_bytes() == data
    groups = json.loads((tmp_path / "one" / "comm_group.json").read_text())
    assert len(groups) == report.num_groups == 3
    assert all(1048575 in members for members in groups.values())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bundles_are_refused(data) -> None:
    whole = bytearray(to_bytes(Bundle(encode_traces(pipelined_job()), {"a": 1})))
    match data.draw(st.sampled_from(["cut", "flip", "grow"])):
        case "cut":
            del whole[data.draw(st.integers(0, len(whole) - 1)) :]
        case "flip":
            at = data.draw(st.integers(0, len(whole) - 1))
            whole[at] ^= data.draw(st.integers(1, 255))
        case "grow":
            whole += b"x"
    with pytest.raises(TraceError) as error:
        from_bytes(bytes(whole), "job.bundle")
    assert error.value.code == "E0606"
    assert "`job.bundle`" in error.value.message
    assert error.value.help


@given(st.binary(max_size=300))
def test_anything_else_is_no_bundle(data: bytes) -> None:
    for start in (b"", b"stagec bundle 1\n"):
        with pytest.raises(TraceError):
            from_bytes(start + data)


def test_bundle_files(tmp_path) -> None:
    bundle = Bundle(encode_traces(pipelined_job()))
    with pytest.raises(TraceError, match="is a directory"):
        write_bundle(tmp_path, bundle)
    with pytest.raises(TraceError, match="there is no"):
        read_bundle(tmp_path / "none")
    path = tmp_path / "job"
    path.write_bytes(b"earlier")
    write_bundle(path, bundle)
    assert [p.name for p in tmp_path.iterdir()] == ["job"]
    assert read_bundle(path) == bundle
