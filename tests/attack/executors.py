"""Executors: there are none of that name, their workers die, their schedulers are not there; each is a diagnostic, and the next run goes through."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import types
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from dataclasses import dataclass
from typing import Any
from unittest import mock

from stagec.backend.errors import TraceError
from stagec.backend.writer import WriteOptions, write_traces
from tests.attack.case import Failure, Kind
from tests.attack.processes import contents, encoded, whole

WRONG = (
    "nobody",
    "threads:0",
    "threads:-1",
    "threads:x",
    "processes:0",
    "processes:1e3",
    "dask://127.0.0.1:1",
    "dask:nowhere",
    "dask:tcp://127.0.0.1:1",
    "mpi:none",
    "os.path:join",
    "no.module:here",
    "builtins:object",
    ".:x",
    "a..b:x",
    "",
    ":",
    "serial:\0",
    "serial:2",
)
"""Names of executors that cannot be had."""


class FailingExecutor(Executor):
    """Does each task at once but for one, the `number`-th, which ends as `how` says."""

    def __init__(self, number: int, how: Callable[[], Any]) -> None:
        self.left, self.how = number, how

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.left -= 1
        future: Future[Any] = Future()
        try:
            future.set_result(self.how() if self.left == -1 else fn(*arguments, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


def killed() -> None:
    """What a pool says whose process was killed."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(os._exit, 9).result()


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


class KilledWorker(Exception):
    """As Dask calls it."""


KilledWorker.__module__ = "distributed.scheduler"

FAILURES: dict[str, Callable[[], Any]] = {
    "a process is killed": killed,
    "a worker is lost": raising(KilledWorker("task", "worker", 4, ())),
    "the pool is broken": raising(BrokenExecutor("no workers")),
    "the work is taken back": raising(CancelledError()),
}


@dataclass(frozen=True)
class World:
    """What mpi4py finds itself in."""

    size: int = 1
    rank: int = 0
    vendor: str = "MPICH"
    mpiexec: bool = False


@dataclass(frozen=True)
class Case:
    name: str = ""
    """Of an executor that cannot be had."""
    number: int = 0
    failure: str = ""
    world: World | None = None


def make(draw: random.Random) -> Case:
    match draw.randrange(3):
        case 0:
            return Case(draw.choice(WRONG))
        case 1:
            size = draw.choice((1, 3))
            return Case("mpi:2", world=World(size, draw.randrange(size)))
        case _:
            return Case(number=draw.randrange(2), failure=draw.choice(list(FAILURES)))


def mpi_modules(world: World) -> dict[str, types.ModuleType]:
    """mpi4py as processes see it that `mpirun` started without `-m mpi4py.futures`, or nothing of MPI's."""
    package, futures, mpi = (
        types.ModuleType(name) for name in ("mpi4py", "mpi4py.futures", "mpi4py.MPI")
    )
    futures.__dict__.update(_core=types.SimpleNamespace(SharedPool=None), MPIPoolExecutor=raising)
    communicator = types.SimpleNamespace(Get_size=lambda: world.size, Get_rank=lambda: world.rank)
    mpi.__dict__.update(COMM_WORLD=communicator, get_vendor=lambda: (world.vendor, (5, 0, 2)))
    return {"mpi4py": package, "mpi4py.futures": futures, "mpi4py.MPI": mpi}


def run(case: Case) -> None:
    whole()
    encoded()
    executor = FailingExecutor(case.number, FAILURES[case.failure]) if case.failure else case.name
    with tempfile.TemporaryDirectory() as directory:
        out = f"{directory}/set"
        made = types.ModuleType("attack.made")
        made.__dict__["executor"] = lambda: executor
        modules = {"attack.made": made}
        if case.world is not None:
            modules |= mpi_modules(case.world)
        spec = executor if isinstance(executor, str) else "attack.made:executor"
        environment = {} if case.world is None else {"PATH": ""}
        with mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ, environment):
            try:
                write_traces(encoded(), out, WriteOptions(executor=spec))
            except TraceError as error:
                if "E0608" not in str(error):
                    raise Failure(f"`{spec}`: {error}") from None
            except SystemExit:
                if case.world is None or not case.world.rank:
                    raise Failure(f"`{spec}` ends without a word") from None
            else:
                if isinstance(executor, FailingExecutor) and executor.left >= 0:
                    return  # There were fewer tasks.
                raise Failure(f"`{spec}` wrote a set, {case}")
        if os.path.exists(out):
            raise Failure("a part of a set under its name")
        write_traces(encoded(), out, WriteOptions(executor="serial"))
        if {*contents(out)} != {*whole()} or os.listdir(directory) != ["set"]:
            raise Failure(f"after another run there are {os.listdir(directory)}")


EXECUTORS = Kind("executors", make, run)
