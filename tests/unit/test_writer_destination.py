"""A set appears whole or not at all, whatever goes wrong; other people's files are left alone."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stagec.backend.encode import encode_unproved as encode_traces
from stagec.backend.encoded import EncodedTraces, TraceOptions
from stagec.backend.errors import TraceError
from stagec.backend.files import LocalFiles, write_whole
from stagec.backend.writer import Progress, WriteOptions, write_traces
from tests.unit.backend_samples import pipelined_job
from tests.unit.seldom import some

SERIAL = WriteOptions(executor="serial")


@pytest.fixture(scope="module")
def traces() -> EncodedTraces:
    return encode_traces(pipelined_job(dp=2, pp=2, cp=1, tp=2))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def caught(traces: EncodedTraces, out: Path, executor: str = "serial", **options) -> TraceError:
    with pytest.raises(TraceError) as error:
        write_traces(traces, str(out), WriteOptions(executor=executor, **options))
    return error.value


class Interrupter:
    """Raises KeyboardInterrupt at the n-th file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        write, left = LocalFiles.write, [after]

        def stop(files: LocalFiles, name: str, data: bytes) -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            write(files, name, data)

        monkeypatch.setattr(LocalFiles, "write", stop)


def interrupt(monkeypatch, traces: EncodedTraces, out: Path, after: int, **options) -> None:
    with monkeypatch.context() as patch:
        Interrupter(patch, after)
        with pytest.raises(KeyboardInterrupt):
            write_traces(traces, str(out), WriteOptions(executor="serial", **options))


@pytest.mark.parametrize("after", range(10))
def test_interrupted_run_shows_nothing(tmp_path, traces, monkeypatch, after) -> None:
    """Ten files: the groups, eight ranks, the manifest."""
    interrupt(monkeypatch, traces, tmp_path / "traces", after)
    assert os.listdir(tmp_path) == [".traces.stagec-unfinished"]
    write_traces(traces, str(tmp_path / "traces"), SERIAL)
    assert os.listdir(tmp_path) == ["traces"]


BESIDE = {"network.yml": b"npus: 8", "run.sh": b"#!/bin/sh"}


def test_what_lies_beside_is_of_the_set(tmp_path, traces) -> None:
    """It is replaced, and goes with the set; all at once, or with `force` beside files of others."""
    out, other = tmp_path / "traces", encode_traces(pipelined_job(), TraceOptions("short"))
    forced = WriteOptions(executor="serial", force=True)
    write_traces(traces, str(out), SERIAL, beside=BESIDE)
    write_traces(other, str(out), SERIAL, beside=BESIDE | {"network.yml": b"npus: 4"})
    assert (out / "network.yml").read_bytes() == b"npus: 4"
    (out / "log").mkdir()
    with pytest.raises(TraceError, match="not a trace set"):
        write_traces(traces, str(out), SERIAL, beside=BESIDE)
    write_traces(traces, str(out), forced, beside=BESIDE)
    assert {name: (out / name).read_bytes() for name in BESIDE} == BESIDE
    write_traces(traces, str(out), forced)
    assert (out / "log").is_dir() and not {*BESIDE} & {*os.listdir(out)}
    assert os.listdir(tmp_path) == ["traces"]


def test_what_is_changed_beside_is_not_of_the_set(tmp_path, traces) -> None:
    out = tmp_path / "traces"
    write_traces(traces, str(out), SERIAL, beside=BESIDE)
    (out / "run.sh").write_text("#!/bin/bash")
    before = contents(out)
    for force in (False, True):
        options = WriteOptions(executor="serial", force=force)
        with pytest.raises(TraceError) as raised:
            write_traces(traces, str(out), options, beside=BESIDE)
        assert "run.sh" in str(raised.value)
        assert contents(out) == before
    (out / "run.sh").unlink()
    write_traces(traces, str(out), SERIAL, beside=BESIDE)
    assert contents(out) | BESIDE == contents(out)


@pytest.mark.parametrize("after", range(12))
def test_interrupted_run_with_files_beside(tmp_path, traces, monkeypatch, after) -> None:
    out = tmp_path / "traces"
    with monkeypatch.context() as patch:
        Interrupter(patch, after)
        with pytest.raises(KeyboardInterrupt):
            write_traces(traces, str(out), SERIAL, beside=BESIDE)
    assert os.listdir(tmp_path) == [".traces.stagec-unfinished"]
    resumed = WriteOptions(executor="serial", resume=True)
    if after:
        with pytest.raises(TraceError, match="another trace set"):
            write_traces(traces, str(out), resumed)
    if after % 2:
        write_traces(traces, str(out), resumed, beside=BESIDE)
    write_traces(traces, str(out), resumed if after % 2 else SERIAL)
    assert os.listdir(tmp_path) == ["traces"]
    assert not {*BESIDE} & {*os.listdir(out)}


@pytest.mark.parametrize("after", range(10))
def test_interrupted_run_leaves_the_earlier_set(tmp_path, traces, monkeypatch, after) -> None:
    out = tmp_path / "traces"
    write_traces(encode_traces(pipelined_job(), TraceOptions("short")), str(out))
    before = contents(out)
    interrupt(monkeypatch, traces, out, after)
    assert contents(out) == before


@pytest.mark.parametrize("after", range(10))
def test_resumed_set_is_complete_and_keeps_what_was_there(
    tmp_path, traces, monkeypatch, after
) -> None:
    write_traces(traces, str(tmp_path / "whole"))
    out = tmp_path / "traces"
    interrupt(monkeypatch, traces, out, after)
    report = write_traces(traces, str(out), WriteOptions(resume=True))
    assert contents(out) == contents(tmp_path / "whole")
    assert report.num_kept == max(0, after - 1) - (after == 10)
    assert sorted(os.listdir(tmp_path)) == ["traces", "whole"]


def test_resume_rewrites_damaged_files(tmp_path, traces, monkeypatch) -> None:
    write_traces(traces, str(tmp_path / "whole"))
    out = tmp_path / "traces"
    interrupt(monkeypatch, traces, out, 9)
    unfinished = tmp_path / ".traces.stagec-unfinished"
    data = bytearray((unfinished / "sample.0.et").read_bytes())
    data[100] ^= 1
    (unfinished / "sample.0.et").write_bytes(data)
    (unfinished / "sample.1.et").write_bytes(data[:50])
    report = write_traces(traces, str(out), WriteOptions(resume=True))
    assert report.num_kept == 6
    assert contents(out) == contents(tmp_path / "whole")


def test_resume_of_a_complete_set_verifies_it(tmp_path, traces) -> None:
    out = tmp_path / "traces"
    write_traces(traces, str(out))
    before = contents(out)
    (out / "sample.3.et").write_bytes(b"damaged")
    report = write_traces(traces, str(out), WriteOptions(resume=True))
    assert (report.num_kept, report.num_ranks) == (7, 8)
    assert contents(out) == before


def test_resume_of_nothing_writes_everything(tmp_path, traces) -> None:
    report = write_traces(traces, str(tmp_path / "traces"), WriteOptions(resume=True))
    assert (report.num_kept, report.num_ranks) == (0, 8)


def test_resume_of_another_job_is_refused(tmp_path, traces, monkeypatch) -> None:
    interrupt(monkeypatch, traces, tmp_path / "traces", 5)
    other = encode_traces(pipelined_job(), TraceOptions("none"))
    error = caught(other, tmp_path / "traces", resume=True)
    assert error.code == "E0605"
    assert caught(traces, tmp_path / "traces", resume=True, ranks="0-3").code == "E0605"


def test_own_set_is_replaced_without_leftovers(tmp_path, traces) -> None:
    out = tmp_path / "traces"
    write_traces(encode_traces(pipelined_job(dp=8)), str(out))
    assert len(contents(out)) == 34
    write_traces(traces, str(out))
    assert len(contents(out)) == 10
    assert os.listdir(tmp_path) == ["traces"]


def test_foreign_files_are_refused(tmp_path, traces) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    for name in ("chapter1.tex", "b", "c", "d"):
        (out / name).write_text("x")
    error = caught(traces, out)
    assert (error.code, error.note) == ("E0601", "`b`, `c`, `chapter1.tex` and 1 more")
    assert sorted(os.listdir(out)) == ["b", "c", "chapter1.tex", "d"]
    assert os.listdir(tmp_path) == ["thesis"]
    (out / "manifest.json").write_text('{"format": "of something else", "files": {}}')
    assert caught(traces, out).note == "`b`, `c`, `chapter1.tex` and 2 more"


def test_a_file_that_joined_an_own_set_is_foreign(tmp_path, traces) -> None:
    out = tmp_path / "traces"
    write_traces(traces, str(out))
    (out / "notes.txt").write_text("x")
    assert caught(traces, out).note == "`notes.txt`"


def test_force_writes_beside_foreign_files(tmp_path, traces) -> None:
    out = tmp_path / "traces"
    write_traces(encode_traces(pipelined_job(dp=8)), str(out))
    (out / "notes.txt").write_text("mine")
    write_traces(traces, str(out), WriteOptions(force=True))
    write_traces(traces, str(tmp_path / "clean"))
    assert contents(out) == contents(tmp_path / "clean") | {"notes.txt": b"mine"}
    assert sorted(os.listdir(tmp_path)) == ["clean", "traces"]


def test_out_is_a_file(tmp_path, traces) -> None:
    (tmp_path / "traces").write_text("")
    assert caught(traces, tmp_path / "traces").message.endswith("is a file")


def test_current_directory_and_links_to_directories(tmp_path, traces, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        write_traces(traces, ".", SERIAL)
        assert len(contents(tmp_path / "here")) == 10
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_traces(traces, str(tmp_path / "link"), SERIAL)
    assert (tmp_path / "link").is_symlink()
    assert len(contents(tmp_path / "real")) == 10


def test_missing_parents_are_made(tmp_path, traces) -> None:
    write_traces(traces, str(tmp_path / "a" / "b" / "traces"), SERIAL)
    assert len(contents(tmp_path / "a" / "b" / "traces")) == 10


def test_swap_interrupted_between_its_renames_is_undone(tmp_path, traces, monkeypatch) -> None:
    out = tmp_path / "traces"
    write_traces(traces, str(out))
    os.rename(out, tmp_path / ".traces.stagec-old")
    interrupt(monkeypatch, traces, out, 0)
    assert sorted(os.listdir(tmp_path)) == [".traces.stagec-unfinished", "traces"]
    assert len(contents(out)) == 10


def test_failure_keeps_what_was_to_be_resumed(tmp_path, traces, monkeypatch) -> None:
    out = tmp_path / "traces"
    interrupt(monkeypatch, traces, out, 6)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        error = caught(traces, out, resume=True)
    assert error.message == f"the disk is full: cannot write `{out}/comm_group.json`"
    assert caught(traces, out, resume=True, executor="no-such").code == "E0608"
    assert write_traces(traces, str(out), WriteOptions(resume=True)).num_kept == 5


def test_two_runs_at_once(tmp_path, traces) -> None:
    """The second is refused, the first is not disturbed."""
    out, errors = tmp_path / "traces", []

    def second(_: Progress) -> None:
        with pytest.raises(TraceError) as error:
            write_traces(traces, str(out), SERIAL)
        errors.append(error.value.code)

    write_traces(traces, str(out), SERIAL, progress=second)
    assert set(errors) == {"E0611"}
    assert len(contents(out)) == 10


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "your disk quota is used up"),
        (errno.EROFS, "read-only file system"),
        (errno.EIO, "input/output error"),
    ],
)
@pytest.mark.parametrize("call", ["write", "open", "close"])
def test_disk_errors_leave_nothing(tmp_path, traces, monkeypatch, number, words, call) -> None:
    real, calls = getattr(os, call), []

    def fail(*args, **kwargs):
        calls.append(args)
        if len(calls) == 7:
            if call == "close":
                real(*args)
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    out = tmp_path / "traces"
    write_traces(traces, str(out))
    before = contents(out)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        error = caught(traces, out)
    assert error.code == "E0603"
    assert words in error.message
    assert contents(out) == before
    assert os.listdir(tmp_path) == ["traces"]


def test_short_writes_are_continued(tmp_path, traces, monkeypatch) -> None:
    write_traces(traces, str(tmp_path / "a"))
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:1000]))
    write_traces(traces, str(tmp_path / "b"), SERIAL)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_full_disk_is_found_before_the_first_byte(tmp_path, traces, monkeypatch) -> None:
    real = os.statvfs(tmp_path)

    class Full:
        f_bavail, f_frsize, f_files, f_favail = 3, 4096, real.f_files, real.f_favail

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    error = caught(traces, tmp_path / "traces")
    assert error.code == "E0602"
    assert "12.29 kB free" in error.message
    assert os.listdir(tmp_path) == []
    Full.f_bavail, Full.f_favail = 10**9, 5
    assert "8 files" in caught(traces, tmp_path / "traces").message
    Full.f_favail = 8
    write_traces(traces, str(tmp_path / "traces"), SERIAL)


def test_directory_without_permission(tmp_path, traces, monkeypatch) -> None:
    """Also as root, who is refused by nothing but the kernel's words."""

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    error = caught(traces, tmp_path / "traces")
    assert error.code == "E0603"
    assert "not yours" in error.message


@pytest.mark.parametrize("end", some([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], 3))
def test_killed_process_shows_nothing_and_is_resumed(tmp_path, end) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # shells start jobs without it
        "from stagec.backend.encode import encode_unproved\n"
        "from stagec.backend.files import LocalFiles, write_whole\n"
        "from stagec.backend.writer import WriteOptions, write_traces\n"
        "from tests.unit.backend_samples import pipelined_job\n"
        "write = LocalFiles.write\n"
        "def slowly(files, name, data):\n"
        "    time.sleep(0.004)\n"
        "    write(files, name, data)\n"
        "LocalFiles.write = slowly\n"
        "write_traces(encode_unproved(pipelined_job(dp=512)), sys.argv[1],"
        " WriteOptions(executor='threads:2'))\n"
    )
    out = tmp_path / "traces"
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stderr=subprocess.DEVNULL)
    unfinished = tmp_path / ".traces.stagec-unfinished"
    deadline = time.monotonic() + 20
    while not (unfinished / "sample.5.et").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(end)
    assert process.wait(20) != 0
    assert os.listdir(tmp_path) == [unfinished.name]
    job = encode_traces(pipelined_job(dp=512))
    report = write_traces(job, str(out), WriteOptions(resume=True))
    assert 0 < report.num_kept < 2048
    write_traces(job, str(tmp_path / "whole"))
    assert contents(out) == contents(tmp_path / "whole")


def test_manifest_has_no_time_or_path(tmp_path, traces) -> None:
    write_traces(traces, str(tmp_path / "a"))
    time.sleep(0.01)
    write_traces(traces, str(tmp_path / "b"))
    text = (tmp_path / "a" / "manifest.json").read_text()
    assert text == (tmp_path / "b" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["digest"]


def test_a_link_in_the_way_is_not_followed(tmp_path, traces) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    for name in (".traces.stagec-unfinished", ".traces.stagec-old"):
        link = tmp_path / name
        link.symlink_to(precious)
        error = caught(traces, tmp_path / "traces")
        assert (error.code, "is in the way" in str(error)) == ("E0601", True)
        assert contents(precious) == {"thesis": b"years"}
        link.unlink()
    write_traces(traces, str(tmp_path / "traces"), SERIAL)


def test_a_directory_in_the_way_is_not_emptied(tmp_path, traces) -> None:
    there = tmp_path / ".traces.stagec-unfinished"
    there.mkdir()
    (there / "thesis").write_text("years")
    assert caught(traces, tmp_path / "traces").code == "E0601"
    assert contents(there) == {"thesis": b"years"}


def test_whole_files(tmp_path: Path) -> None:
    """A link is followed to the file that it names; nothing is left of what fails; a pipe gets the bytes."""
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(str(tmp_path / "link"), b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"after"
    with pytest.raises(TraceError):
        write_whole(str(tmp_path / "nowhere" / "file"), b"x")
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    write_whole(os.devnull, b"x")
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize("name", ["comm_group.json", "sample.3.et", "manifest.json"])
def test_force_overwrites_nothing(tmp_path, traces, name: str) -> None:
    out = tmp_path / "traces"
    out.mkdir()
    (out / name).write_text("{}")
    assert caught(traces, out, force=True).code == "E0601"
    assert contents(out) == {name: b"{}"}
