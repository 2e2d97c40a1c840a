"""Sets written to a store behind fsspec, and by executors of other kinds."""

import json
import sys
import types
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import fsspec
import pytest

from stagec.backend import dask_workers, executors, running_tasks
from stagec.backend.encode import encode_unproved as encode_traces
from stagec.backend.encoded import EncodedTraces, TraceOptions
from stagec.backend.errors import TraceError
from stagec.backend.remote import RemoteFiles
from stagec.backend.writer import WriteOptions, write_traces
from tests.unit.backend_samples import pipelined_job
from tests.unit.seldom import some

URL = "memory://bucket/traces"


@pytest.fixture(scope="module")
def traces() -> EncodedTraces:
    return encode_traces(pipelined_job(dp=2, pp=2, cp=1, tp=2))


@pytest.fixture
def memory():
    """An empty store."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return system


def stored(system) -> dict[str, bytes]:
    return {Path(p).name: system.cat_file(p) for p in system.find("/bucket/traces")}


def local(traces: EncodedTraces, directory: Path) -> dict[str, bytes]:
    write_traces(traces, str(directory))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_store_gets_the_same_bytes(tmp_path, traces, memory) -> None:
    write_traces(traces, URL)
    assert stored(memory) == local(traces, tmp_path / "a")
    write_traces(encode_traces(pipelined_job(), TraceOptions("none")), URL)
    assert len(stored(memory)) == 10
    write_traces(traces, URL, WriteOptions(ranks="0"))
    assert set(stored(memory)) == {"sample.0.et", "comm_group.json", "manifest.json"}


def test_local_urls_are_directories(tmp_path, traces) -> None:
    write_traces(traces, f"file://{tmp_path}/b")
    assert {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()} == local(
        traces, tmp_path / "a"
    )


def test_files_beside_are_of_the_set_until_they_are_changed(traces, memory) -> None:
    write_traces(traces, URL, beside={"network.yml": b"4"})
    write_traces(traces, URL, beside={"network.yml": b"8"})
    assert stored(memory)["network.yml"] == b"8"
    write_traces(traces, URL)
    assert "network.yml" not in stored(memory)
    write_traces(traces, URL, beside={"network.yml": b"8"})
    memory.pipe_file("/bucket/traces/network.yml", b"9")
    with pytest.raises(TraceError, match="not a trace set"):
        write_traces(traces, URL, beside={"network.yml": b"8"})
    assert stored(memory)["network.yml"] == b"9"


def test_foreign_objects_are_refused(traces, memory) -> None:
    memory.pipe_file("/bucket/traces/thesis.tex", b"x")
    with pytest.raises(TraceError) as error:
        write_traces(traces, URL)
    assert (error.value.code, error.value.note) == ("E0601", "`thesis.tex`")
    assert set(stored(memory)) == {"thesis.tex"}
    write_traces(traces, URL, WriteOptions(force=True))
    assert len(stored(memory)) == 11


def failing_write(monkeypatch, after: int, error: BaseException) -> None:
    write, left = RemoteFiles.write, [after]

    def stop(files: RemoteFiles, name: str, data: bytes) -> None:
        if left[0] == 0:
            raise error
        left[0] -= 1
        write(files, name, data)

    monkeypatch.setattr(RemoteFiles, "write", stop)


@pytest.mark.parametrize("after", some(range(1, 11), 2))
def test_interrupted_store_has_no_manifest_and_is_resumed(
    tmp_path, traces, memory, monkeypatch, after
) -> None:
    """Eleven objects: the marker, the groups, eight ranks, the manifest."""
    write_traces(encode_traces(pipelined_job(), TraceOptions("none")), URL)
    with monkeypatch.context() as patch:
        failing_write(patch, after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write_traces(traces, URL, WriteOptions(executor="serial"))
    assert "manifest.json" not in stored(memory)
    report = write_traces(traces, URL, WriteOptions(resume=True))
    assert report.num_kept == max(0, after - 2)
    assert stored(memory) == local(traces, tmp_path / "a")


def test_resume_of_another_set_is_refused(traces, memory, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        failing_write(patch, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write_traces(traces, URL, WriteOptions(executor="serial"))
    with pytest.raises(TraceError) as error:
        write_traces(traces, URL, WriteOptions(resume=True, ranks="0"))
    assert error.value.code == "E0605"
    write_traces(traces, URL, WriteOptions(ranks="0"))
    assert len(stored(memory)) == 3


def test_failing_store_is_left_clean(traces, memory, monkeypatch) -> None:
    calls = []
    pipe = type(memory).pipe_file

    def fail(system, path, value, **kwargs) -> None:
        calls.append(path)
        if len(calls) == 6:
            raise RuntimeError("AccessDenied: no such bucket")
        pipe(system, path, value, **kwargs)

    monkeypatch.setattr(type(memory), "pipe_file", fail)
    with pytest.raises(TraceError) as error:
        write_traces(traces, URL, WriteOptions(executor="serial"))
    assert error.value.code == "E0603"
    assert "AccessDenied" in error.value.note
    assert stored(memory) == {}


def test_unknown_store(traces) -> None:
    with pytest.raises(TraceError) as error:
        write_traces(traces, "nowhere://bucket/traces")
    assert error.value.code == "E0609"


def test_missing_extra_is_named(traces, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(TraceError) as error:
        write_traces(traces, URL)
    assert (error.value.code, error.value.help) == (
        "E0609",
        "`pip install '.[remote]'` in stagec's clone",
    )
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(TraceError) as error:
        write_traces(traces, "unused", WriteOptions(executor="dask"))
    assert (error.value.code, error.value.help) == (
        "E0608",
        "`pip install '.[dask]'` in stagec's clone",
    )


@pytest.mark.seldom
def test_dask_cluster_writes_the_same_bytes(tmp_path, traces) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        options = WriteOptions(executor=f"dask:{cluster.scheduler_address}")
        write_traces(traces, str(tmp_path / "b"), options)
    assert {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()} == local(
        traces, tmp_path / "a"
    )


class _Client:
    """Of a scheduler whose workers do not come back."""

    def __init__(self, status: str, workers: int) -> None:
        self.status, self.workers, self.closed = status, workers, False

    def get_executor(self, pure: bool) -> Executor:
        return _Idle()

    def nthreads(self) -> dict[str, int]:
        return {f"worker{i}": 1 for i in range(self.workers)}

    def close(self, timeout: float) -> None:
        self.closed = True


class _Idle(Executor):
    def submit(self, fn, /, *args, **kwargs) -> Future:
        return Future()

    def shutdown(self, wait: bool = True) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Dask's takes no `cancel_futures`."""


class _Cancelling(_Idle):
    def submit(self, fn, /, *args, **kwargs) -> Future:
        future = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


@pytest.mark.parametrize(("status", "words"), [("running", "no worker"), ("closed", "scheduler")])
def test_work_that_nobody_does_ends(tmp_path, traces, monkeypatch, status, words) -> None:
    client = _Client(status, 0)
    monkeypatch.setattr(running_tasks, "_LOOK_S", 0.01)
    monkeypatch.setattr(dask_workers, "_DESERTED_S", 0.05)
    monkeypatch.setitem(executors._BUILT_IN, "dask", lambda _: dask_workers.DaskWorkers(client))
    with pytest.raises(TraceError) as error:
        write_traces(traces, str(tmp_path / "b"), WriteOptions(executor="dask"))
    assert error.value.code == "E0608"
    assert words in error.value.note
    assert client.closed
    assert not any(tmp_path.iterdir())


def test_work_that_is_taken_back_is_an_error(tmp_path, traces, monkeypatch) -> None:
    monkeypatch.setitem(executors._BUILT_IN, "dask", lambda _: _Cancelling())
    monkeypatch.setattr(_Cancelling, "shutdown", Executor.shutdown)
    with pytest.raises(TraceError) as error:
        write_traces(traces, str(tmp_path / "b"), WriteOptions(executor="dask"))
    assert error.value.code == "E0608"
    assert not any(tmp_path.iterdir())


@pytest.mark.seldom
def test_addresses_where_no_scheduler_is(tmp_path, traces, monkeypatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.3)
    for address, words in (("//host:1", "is not an address"), ("tcp://127.0.0.1:1", "no Dask")):
        with pytest.raises(TraceError) as error:
            write_traces(traces, str(tmp_path / "b"), WriteOptions(executor=f"dask:{address}"))
        assert (error.value.code, words in error.value.message) == ("E0608", True)


def test_executor_object_is_used_and_left_running(tmp_path, traces) -> None:
    with ThreadPoolExecutor(2) as pool:
        write_traces(traces, str(tmp_path / "b"), WriteOptions(executor=pool))
        assert pool.submit(len, "abc").result() == 3


def test_executor_by_entry_point_and_by_path(tmp_path, traces, monkeypatch) -> None:
    module = types.ModuleType("my_pools.here")
    module.make = ThreadPoolExecutor
    module.named = lambda argument: ThreadPoolExecutor(int(argument))
    module.wrong = lambda: "pool"
    monkeypatch.setitem(sys.modules, "my_pools", types.ModuleType("my_pools"))
    monkeypatch.setitem(sys.modules, "my_pools.here", module)
    point = EntryPoint("mine", "my_pools.here:named", executors.GROUP)
    monkeypatch.setattr(executors, "entry_points", lambda group: [point])
    for number, spec in enumerate(["my_pools.here:make", "mine:3"]):
        write_traces(traces, str(tmp_path / str(number)), WriteOptions(executor=spec))
    for spec, words in (
        ("my_pools.here:wrong", "is not an executor"),
        ("my_pools.here:none", "there is no executor"),
        ("other", "there is no executor"),
        ("threads:0", "is not a number of threads"),
        ("processes:x", "is not a number of processes"),
    ):
        with pytest.raises(TraceError) as error:
            write_traces(traces, str(tmp_path / "x"), WriteOptions(executor=spec))
        assert error.value.code == "E0608"
        assert words in error.value.message
    with pytest.raises(TraceError) as error:
        write_traces(traces, str(tmp_path / "x"), WriteOptions(executor="other"))
    assert "`mine`" in error.value.note
    assert not (tmp_path / "x").exists()


@pytest.mark.seldom
def test_error_in_a_worker_process_arrives_whole() -> None:
    with executors.open_executor("processes:1") as pool, pytest.raises(TraceError) as error:
        pool.submit(_fail).result()
    caught = error.value
    assert (caught.code, caught.message, caught.note, caught.help) == ("E0603", "m", "n", "h")


def _fail() -> None:
    raise TraceError("E0603", "m", "h", "n")


def test_manifest_of_a_store_is_json(traces, memory) -> None:
    write_traces(traces, URL)
    assert json.loads(stored(memory)["manifest.json"])["num_ranks"] == 8
