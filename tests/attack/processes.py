"""What happens around a run: it is killed, its disk is full, nobody reads what it prints."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import EncodedTraces
from stagec.backend.errors import TraceError
from stagec.backend.files import write_whole
from stagec.backend.writer import WriteOptions, write_traces
from stagec.driver import compile_text
from tests.attack.case import Failure, Kind
from tests.attack.models import MODELS

PLAN = "\nplan p { mesh dp = 4, tp = 4 shard B over dp shard H, K, F, V over tp zero 1 over dp }\n"
STAGEC = [sys.executable, "-m", "stagec"]


@lru_cache
def encoded() -> EncodedTraces:
    return encode_traces(compile_text(MODELS["dense"] + PLAN, "model.stg", "p").trace_set)


def contents(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


@lru_cache
def whole() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        write_traces(encoded(), f"{directory}/set", WriteOptions(executor="serial"))
        return contents(f"{directory}/set")


# Kills


@dataclass(frozen=True)
class Kill:
    after: float
    """Seconds from when the run begins to write; of one that writes a file, the part of the time that it takes."""
    resume: bool
    executor: str
    writes: str = "-o"
    """A set, or a file under this flag."""
    by: int = signal.SIGKILL


SEARCH = "search --devices 2 --device h100 --executor serial --fix tp=1 --cache"
FILES = ("--bundle", "--report", "--memory", SEARCH)


def make_kill(draw: random.Random) -> Kill:
    by = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    if draw.random() < 0.5:
        return Kill(draw.uniform(0.3, 1), False, "", draw.choice(FILES), by)
    executor = draw.choice(("serial", "threads:2", "processes:2"))
    return Kill(draw.uniform(0, 0.05), draw.random() < 0.5, executor, by=by)


def run_kill(case: Kill) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model, out = f"{directory}/model.stg", f"{directory}/set"
        Path(model).write_text(MODELS["dense"] + PLAN)
        if case.writes != "-o":
            kill_file(case, directory)
            return
        command = [*STAGEC, model, "-q", "-o", out, "--executor", case.executor]
        process = started(command)
        begins = time.monotonic() + 60
        while (
            process.poll() is None and len(os.listdir(directory)) < 2 and time.monotonic() < begins
        ):
            time.sleep(0.002)
        end(process, case)
        if os.path.exists(out) and not {*contents(out)} == {*whole()}:
            raise Failure(f"a part of a set under its name: {sorted(contents(out))}")
        again([*command, *(["--resume"] if case.resume else [])])
        names = sorted(os.listdir(directory))
        if names != ["model.stg", "set"] or {*contents(out)} != {*whole()}:
            raise Failure(f"after another run there are {names}, {sorted(contents(out))}")


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def end(process: subprocess.Popen[bytes], case: Kill) -> None:
    time.sleep(case.after)
    if process.poll() is None:
        os.killpg(process.pid, case.by)
    process.wait(60)


def again(command: list[str]) -> str:
    """What another run prints, which nothing stops."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(done.stderr)
    return done.stdout


def writing(writes: str, model: str, out: str) -> list[str]:
    name, *flags = writes.split()
    if name == "search":
        return [*STAGEC, name, model, *flags, out, "-q"]
    return [*STAGEC, model, "-q", name, out]


@lru_cache
def written_file(writes: str) -> tuple[bytes, str, float]:
    """A file that nothing stopped, what was printed, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as directory:
        model, out = f"{directory}/model.stg", f"{directory}/file.html"
        Path(model).write_text(MODELS["dense"] + PLAN)
        begin = time.monotonic()
        said = again(writing(writes, model, out))
        return Path(out).read_bytes(), said, time.monotonic() - begin


def kill_file(case: Kill, directory: str) -> None:
    """A file is there whole or not at all, but that a cache has a line for each answer, and its last one may be cut."""
    wanted, said, seconds = written_file(case.writes)
    out = f"{directory}/file.html"
    command = writing(case.writes, f"{directory}/model.stg", out)
    process = started(command)
    end(process, replace(case, after=case.after * seconds))
    is_cache = case.writes == SEARCH
    if os.path.exists(out) and not is_cache and Path(out).read_bytes() != wanted:
        raise Failure(f"a part of a file under its name, by `{case.writes}`")
    if again(command) != said or (not is_cache and Path(out).read_bytes() != wanted):
        raise Failure(f"another run of `{case.writes}` says something else")
    if sorted(os.listdir(directory)) != ["file.html", "model.stg"]:
        raise Failure(f"after another run there are {sorted(os.listdir(directory))}")


# Disks


@dataclass(frozen=True)
class Disk:
    """The n-th call of some kind fails."""

    call: str
    number: int
    code: int
    before: bool
    """Whether there is an earlier set."""
    single: bool
    """One file, not a set."""


def make_disk(draw: random.Random) -> Disk:
    calls = ("write", "open", "rename", "replace", "unlink", "rmdir", "mkdir", "link")
    codes = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EACCES, errno.EROFS)
    return Disk(
        draw.choice(calls),
        draw.randrange(24),
        draw.choice(codes),
        draw.random() < 0.5,
        draw.random() < 0.2,
    )


@contextmanager
def failing(case: Disk, directory: str) -> Iterator[None]:
    real: Callable[..., object] = getattr(os, case.call)
    left = [case.number]

    def call(*arguments: object, **named: object) -> object:
        ours = isinstance(arguments[0], int) or str(arguments[0]).startswith(directory)
        if ours and not (case.call == "write" and arguments[0] in (1, 2)):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(case.code, os.strerror(case.code))
        return real(*arguments, **named)

    setattr(os, case.call, call)
    try:
        yield
    finally:
        setattr(os, case.call, real)


def run_disk(case: Disk) -> None:
    whole()
    encoded()
    directory = os.path.realpath(tempfile.mkdtemp())
    out = f"{directory}/set"
    try:
        if case.before:
            write_traces(encoded(), out, WriteOptions(executor="serial"))
        if case.single:
            Path(f"{directory}/file").write_bytes(b"before")
        failed = False
        with failing(case, directory):
            try:
                if case.single:
                    write_whole(f"{directory}/file", b"after")
                else:
                    write_traces(encoded(), out, WriteOptions(executor="serial"))
            except TraceError:
                failed = True
        if case.single and Path(f"{directory}/file").read_bytes() not in (b"before", b"after"):
            raise Failure("a part of a file under its name")
        there = contents(out) if os.path.exists(out) else {}
        if not failed and not case.single and {*there} != {*whole()}:
            raise Failure(f"success, and {sorted(there)}")
        if there and any(
            there[name] != data for name, data in whole().items() if name.endswith(".et")
        ):
            raise Failure("a part of a set under its name")
        write_traces(encoded(), out, WriteOptions(executor="serial"))
        left = {*os.listdir(directory)} - {"file"}
        hidden = [name for name in left - {"set"} if "stagec-new" in name]
        if case.call not in ("unlink", "rmdir") and (left != {"set"} or hidden):
            raise Failure(f"after another run there are {sorted(left)}")
    finally:
        shutil.rmtree(directory)


# Streams

REDIRECTS = (
    "",
    ">&-",
    "2>&-",
    ">&- 2>&-",
    ">/dev/full",
    "2>/dev/full",
    "| true",
    "2>&1 | head -1",
    "<&-",
)
COMMANDS = (
    "ops",
    "passes",
    "model.stg",
    "model.stg -o set",
    "--nonsense",
    "missing.stg",
    "explain model.stg flops",
)


@dataclass(frozen=True)
class Streams:
    command: str
    redirect: str


def make_streams(draw: random.Random) -> Streams:
    return Streams(draw.choice(COMMANDS), draw.choice(REDIRECTS))


def run_streams(case: Streams) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(f"{directory}/model.stg").write_text(
            MODELS["matrices"] + "plan p { mesh dp = 2 shard B over dp }\n"
        )
        text = f'"{sys.executable}" -m stagec {case.command} {case.redirect}'
        done = subprocess.run(
            ["/bin/sh", "-c", text],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        wrong = case.command in ("--nonsense", "missing.stg") or case.redirect == ">/dev/full"
        if done.returncode != int(wrong) and "|" not in case.redirect:
            raise Failure(f"exit status {done.returncode}: {done.stderr}")
        if "Traceback" in done.stderr + done.stdout or "bug in stagec" in done.stderr:
            raise Failure(done.stderr)
        if (
            case.command.endswith("-o set")
            and not wrong
            and not os.path.exists(f"{directory}/set/manifest.json")
        ):
            raise Failure("no traces")


KILLS = Kind("kills", make_kill, run_kill)
DISKS = Kind("disks", make_disk, run_disk)
STREAMS = Kind("streams", make_streams, run_streams)
