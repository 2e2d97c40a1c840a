"""A set of files appears whole, is the same each time, and is that of the manifest."""

import gzip
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from stagec.backend.encode import encode_unproved as encode_traces
from stagec.backend.encoded import EncodedTraces, TraceOptions
from stagec.backend.errors import TraceError
from stagec.backend.et_file import TraceReader, read_trace
from stagec.backend.program import Mesh, Node, RankClass, TraceSegment, TraceSet
from stagec.backend.writer import Progress, WriteOptions, iterate_traces, write_traces
from stagec.dialects.sched.actions import Collective, Compute
from tests.unit.backend_samples import ProgramBuilder, jobs, pipelined_job, slow_nodes
from tests.unit.seldom import some


@pytest.fixture(scope="module")
def traces() -> EncodedTraces:
    return encode_traces(pipelined_job(dp=2, pp=2, cp=1, tp=2))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def data_parallel_job(dp: int, tp: int = 1) -> EncodedTraces:
    """All ranks of a `dp` group are equal: they name its id and nothing else."""
    mesh = Mesh(("dp", "tp"), (dp, tp))
    reduce = Collective("all_reduce", ("dp",), 64, 64, "fp32")
    nodes = (
        Node("contract", "fwd", "m", Compute(7, 7), "compute"),
        Node("all_reduce", "grad_reduce", "m", reduce, "comm.dp"),
    )
    builder = ProgramBuilder(TraceSegment("step", nodes, 0))
    builder.run(0)
    return encode_traces(TraceSet("dp", mesh, (RankClass("all", {}, builder.build()),)))


def test_set_is_complete_and_matches_its_manifest(tmp_path, traces) -> None:
    out = tmp_path / "traces"
    report = write_traces(traces, str(out), about={"inputs": {"model.stg": "12ab"}})
    files = contents(out)
    assert set(files) == {f"sample.{r}.et" for r in range(8)} | {
        "comm_group.json",
        "manifest.json",
    }
    manifest = json.loads(files["manifest.json"])
    assert manifest["about"] == {"inputs": {"model.stg": "12ab"}}
    assert manifest["mesh"] == {"dp": 2, "pp": 2, "cp": 1, "tp": 2}
    assert [c["ranks"] for c in manifest["classes"]] == ["0-1,4-5", "2-3,6-7"]
    assert set(manifest["files"]) == set(files) - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry == {"bytes": len(files[name]), "crc32": f"{zlib.crc32(files[name]):08x}"}
    assert report.num_ranks == 8
    assert report.bytes_written == sum(len(d) for n, d in files.items() if n.endswith(".et"))
    assert report.notes == ()
    assert os.listdir(tmp_path) == ["traces"]


@pytest.mark.seldom
@given(jobs())
@settings(max_examples=25, deadline=None)
def test_any_set_decodes_with_its_comm_group_file(tmp_path_factory, job) -> None:
    out = tmp_path_factory.mktemp("any") / "traces"
    write_traces(encode_traces(job), str(out), WriteOptions(executor="serial"))
    groups = json.loads((out / "comm_group.json").read_text())
    ids = {tuple(members): int(number) for number, members in groups.items()}
    used = set()
    for rank in range(job.mesh.num_ranks):
        _, nodes = read_trace(out / f"any.{rank}.et")
        assert nodes == list(slow_nodes(job, rank, ids))
        names = {a.string_val for node in nodes for a in node.attr if a.name == "pg_name"}
        assert len({int(name) % 500 for name in names}) == len(names)
        used |= names
    assert used == set(groups)
    assert all(len(members) > 1 for members in groups.values())
    assert all(number == str(int(number)) and int(number) > 0 for number in groups)


@pytest.mark.seldom
def test_same_bytes_under_any_hash_seed(tmp_path) -> None:
    code = (
        "import sys\n"
        "from stagec.backend.encode import encode_unproved\n"
        "from stagec.backend.writer import write_traces\n"
        "from tests.unit.backend_samples import pipelined_job\n"
        "write_traces(encode_unproved(pipelined_job(cp=2)), sys.argv[1])\n"
    )
    for seed in ("0", "77"):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        )
    assert contents(tmp_path / "0") == contents(tmp_path / "77")


@pytest.mark.parametrize("executor", some(["serial", "threads:3", "processes:2"], 3))
def test_executors_write_the_same_bytes(tmp_path, traces, executor) -> None:
    write_traces(traces, str(tmp_path / "a"))
    write_traces(traces, str(tmp_path / "b"), WriteOptions(executor=executor))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_some_ranks_are_those_of_the_full_set(tmp_path, traces) -> None:
    write_traces(traces, str(tmp_path / "all"))
    report = write_traces(traces, str(tmp_path / "some"), WriteOptions(ranks="6,1-2"))
    full, some = contents(tmp_path / "all"), contents(tmp_path / "some")
    names = {f"sample.{r}.et" for r in (1, 2, 6)}
    assert set(some) == names | {"comm_group.json", "manifest.json"}
    assert all(some[name] == full[name] for name in names)
    assert report.notes == ("ASTRA-sim needs all 8 ranks; these are 3",)
    groups = json.loads(some["comm_group.json"])
    assert groups.items() <= json.loads(full["comm_group.json"]).items()
    assert all({1, 2, 6} & set(members) for members in groups.values())


def test_iterating_gives_the_files_bytes(tmp_path, traces) -> None:
    write_traces(traces, str(tmp_path / "a"))
    found = dict(iterate_traces(traces))
    assert sorted(found) == list(range(8))
    for rank, data in found.items():
        assert (tmp_path / "a" / f"sample.{rank}.et").read_bytes() == data
    assert [rank for rank, _ in iterate_traces(traces, "3,0")] == [0, 3]


def test_gzip_files(tmp_path, traces) -> None:
    write_traces(traces, str(tmp_path / "a"))
    report = write_traces(traces, str(tmp_path / "z"), WriteOptions(compress="gzip"))
    plain, packed = contents(tmp_path / "a"), contents(tmp_path / "z")
    assert "gzip" in report.notes[0]
    for rank in range(8):
        name = f"sample.{rank}.et"
        assert gzip.decompress(packed[name]) == plain[name]
        assert len(packed[name]) < len(plain[name]) / 3
        assert read_trace(tmp_path / "z" / name) == read_trace(tmp_path / "a" / name)


def test_readable_form(tmp_path, traces) -> None:
    write_traces(traces, str(tmp_path / "a"), WriteOptions(format="json"))
    trace = json.loads((tmp_path / "a" / "sample.0.json").read_text())
    assert trace["version"] == "0.0.4"
    assert len(trace["nodes"]) == len(list(reader(traces, 0)))
    gather = trace["nodes"][1]
    assert gather == {
        "id": 2,
        "name": "fwd/Block.Attention/all_gather[bf16]/L000/m00",
        "type": "COMM_COLL_NODE",
        "data_deps": [1],
        "is_cpu_op": False,
        "comm_type": "ALL_GATHER",
        "comm_size": 1 << 19,
        "pg_name": gather["pg_name"],
    }
    with pytest.raises(TraceError, match="not compressed"):
        write_traces(traces, str(tmp_path / "b"), WriteOptions(format="json", compress="gzip"))


def reader(traces: EncodedTraces, rank: int) -> TraceReader:
    return TraceReader.of_bytes(dict(iterate_traces(traces, str(rank)))[rank])


def test_provenance_is_in_the_nodes(tmp_path) -> None:
    traces = encode_traces(pipelined_job(), TraceOptions(provenance=True))
    node = next(iter(reader(traces, 0)))
    shown = {a.name: a.string_val for a in node.attr if a.WhichOneof("value") == "string_val"}
    assert shown == {
        "location": "sample.stg:10:3",
        "made_by": "lower",
        "stream": "compute",
        "schedule_slot": "F/s00/L000/m00",
    }


def test_equal_ranks_share_a_file(tmp_path) -> None:
    traces = data_parallel_job(dp=6, tp=2)
    report = write_traces(traces, str(tmp_path / "a"))
    inodes = {r: (tmp_path / "a" / f"dp.{r}.et").stat().st_ino for r in range(12)}
    assert len(set(inodes.values())) == 2
    assert inodes[0] == inodes[10] != inodes[1] == inodes[11]
    assert report.num_linked == 10
    report = write_traces(traces, str(tmp_path / "b"), WriteOptions(links="never"))
    assert report.num_linked == 0
    assert len({p.stat().st_ino for p in (tmp_path / "b").glob("*.et")}) == 12
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.seldom
@given(jobs())
@settings(max_examples=30, deadline=None)
def test_linked_ranks_are_equal_and_others_are_not(tmp_path_factory, job) -> None:
    """`equal_ranks` is exact within a class."""
    traces = encode_traces(job)
    out = tmp_path_factory.mktemp("links") / "traces"
    write_traces(traces, str(out), WriteOptions(executor="serial"))
    for _, ranks in traces.by_class(np.arange(job.mesh.num_ranks)):
        paths = [out / f"any.{r}.et" for r in ranks]
        assert len({p.stat().st_ino for p in paths}) == len({p.read_bytes() for p in paths})


def test_where_links_fail_files_are_copies(tmp_path, monkeypatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    report = write_traces(data_parallel_job(dp=4), str(tmp_path / "a"))
    assert report.num_linked == 0
    assert len(list((tmp_path / "a").glob("*.et"))) == 4


def test_progress_counts_ranks_and_bytes(tmp_path, traces) -> None:
    seen: list[Progress] = []
    report = write_traces(traces, str(tmp_path / "a"), progress=seen.append)
    assert [p.ranks_done for p in seen] == sorted({p.ranks_done for p in seen})
    assert seen[-1].ranks_done == seen[-1].ranks_total == 8
    assert seen[-1].bytes_written == report.bytes_written
    assert Progress(2, 8, 100, 4.0).bytes_per_s == 25


def test_files_are_writable(tmp_path, traces) -> None:
    """ASTRA-sim opens them for reading and writing."""
    write_traces(traces, str(tmp_path / "a"))
    assert all(os.access(p, os.W_OK) for p in (tmp_path / "a").iterdir())


def test_what_simulators_stumble_over_is_noted(tmp_path) -> None:
    report = write_traces(encode_traces(pipelined_job(1, 1, 1, 1)), str(tmp_path / "empty-cluster"))
    assert report.notes == (
        "ASTRA-sim ignores a comm_group.json whose path contains `empty`",
        "ASTRA-sim does not run a single rank",
    )
