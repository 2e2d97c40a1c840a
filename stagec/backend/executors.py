"""Who does the work: an executor (`concurrent.futures`) by name, and running tasks on it.

`threads:4`, `processes:8`, `serial`, `dask:tcp://host:8786`, `mpi`; a name under the entry point group
`stagec.executors`; or `package.module:function`, called without arguments.
"""

import asyncio
import gc
import importlib
import logging
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, ParamSpec, TypeVar

from stagec.backend.errors import TraceError
from stagec.entry_points import entry_points

try:
    import resource
except ImportError:  # On Windows there are no limits of this kind.
    resource = None

GROUP = "stagec.executors"
_IN_FLIGHT = 128
"""Tasks handed over at once: enough for any pool here, few enough to bound memory."""

_CONNECT_S = 5
"""A scheduler that does not answer within so many seconds is not there."""

_DESERTED_S = 30
"""Where there is no worker for so many seconds, none comes back: one that was killed is begun anew, on a busy machine not at once."""

_LOOK_S = 2
"""How often it is looked whether anybody still works."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class DesertedError(BrokenExecutor):
    """Nobody is left to do any task."""


class SerialExecutor(Executor):
    """Does each task when it is submitted."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _serial(argument: str) -> Executor:
    if argument:
        raise TraceError(
            "E0608", f"`serial` does one task at a time, not `{argument}`", help="write `serial`"
        )
    return SerialExecutor()


class WorkerProcess(SpawnProcess):
    """A process of a pool of ours."""


class WorkerContext(SpawnContext):
    """How these begin."""

    Process = WorkerProcess


class WorkerProcesses(Executor):
    """Processes that can begin anew where one of them was killed: a pool of Python's then does nothing any more."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._pool = self._begun()

    def _begun(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._number,
            mp_context=WorkerContext(),
            initializer=_begin_worker,
            initargs=(gc.get_threshold(),),
        )

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        return self._pool.submit(fn, *args, **kwargs)

    def restart(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._begun()

    def abandon(self) -> None:
        """Begin anew, and end what is still at work."""
        self.restart()
        for each in multiprocessing.active_children():
            if isinstance(each, WorkerProcess):
                each.terminate()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)


def _processes(argument: str) -> Executor:
    return WorkerProcesses(_count(argument, "processes"))


_MOST_OF_MEMORY = 0.8
"""The share of the machine's memory that one process may take. One that wants more fails by itself (`MemoryError`), before the system kills any other."""


def _begin_worker(thresholds: tuple[int, int, int]) -> None:
    """The parent process answers Ctrl-C for all. Garbage is looked for as seldom as there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(*thresholds)
    if resource is not None and hasattr(os, "sysconf"):
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        most = int(there * _MOST_OF_MEMORY)
        limits = [each for each in (soft, hard, most) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def _dask(argument: str) -> Executor:
    if argument and not re.fullmatch(r"(\w+://)?[^/\s]+:\d+", argument, re.ASCII):
        raise TraceError(
            "E0608",
            f"`{argument}` is not an address of a Dask scheduler",
            help="for example `dask:tcp://host:8786`, or `dask` for workers of this machine",
        )
    distributed = _extra("distributed", "dask")
    # It logs each lost connection with a traceback; what is lost is one diagnostic of ours.
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if argument:
            asyncio.run(_ask(distributed, argument))
        with _interrupts_later(), distributed.dask.config.set(_QUIET_WORKERS):
            client = distributed.Client(argument or None, set_as_default=False, timeout=_CONNECT_S)
    except Exception as error:  # Whatever reading the answer of another server comes to.
        raise TraceError(
            "E0608",
            f"no Dask scheduler answers at `{argument}`" if argument else "Dask does not start",
            note=f"{type(error).__name__}: {error}".removesuffix(": "),
            help="start `dask scheduler` there, or choose another executor" if argument else "",
        ) from None
    return _DaskExecutor(client)


_QUIET_WORKERS = {"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"}
"""So Dask hands it to workers of this machine."""


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits; threads and processes that begin meanwhile leave it to this one."""
    # What Python starts beside the first child process would let it through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _DaskExecutor(Executor):
    """A Dask client as an executor that notices when nobody is left to do its work: Dask would wait for new workers."""

    def __init__(self, client: Any) -> None:
        # What is asked again is done again.
        self._client, self._executor = client, client.get_executor(pure=False)
        self._deserted_since = 0.0

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        return self._executor.submit(fn, *args, **kwargs)

    def check(self) -> None:
        """Raise `DesertedError` if there were no workers for a while, or there is no scheduler."""
        if self._client.status != "running":
            raise DesertedError("the scheduler is gone")
        if self._client.nthreads():
            self._deserted_since = 0.0
        elif not self._deserted_since:
            self._deserted_since = time.monotonic()
        elif time.monotonic() - self._deserted_since > _DESERTED_S:
            raise DesertedError(f"there was no worker for {_DESERTED_S} s")

    def restart(self) -> None:
        """Dask itself begins workers anew that were killed."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close(timeout=_CONNECT_S)


async def _ask(distributed: Any, address: str) -> None:
    """Exchange greetings with a scheduler. A `Client` that cannot tries again, and again when it is cleared away."""
    talk = await distributed.comm.connect(address, timeout=_CONNECT_S)
    try:
        await talk.write({"op": "identity", "reply": True})
        answer = await asyncio.wait_for(talk.read(), _CONNECT_S)
    finally:
        talk.abort()
    if not isinstance(answer, dict) or answer.get("type") != "Scheduler":
        raise ValueError("what answers there is no scheduler")


def _mpi(argument: str) -> Executor:
    futures = _extra("mpi4py.futures", "mpi")
    mpi = importlib.import_module("mpi4py.MPI")
    pool = getattr(futures._core, "SharedPool", None)
    if mpi.COMM_WORLD.Get_size() > 1 and pool is None:
        if mpi.COMM_WORLD.Get_rank():
            raise SystemExit(1)  # Process 0 says why.
        raise TraceError(
            "E0608",
            "each process of `mpirun` would write the whole set",
            help=f"let mpi4py hand out the work: {_UNDER_MPI}",
        )
    if pool is None and _needs_mpiexec(mpi) and shutil.which("mpiexec") is None:
        raise TraceError(
            "E0608",
            "MPI has no `mpiexec` to start processes with",
            note=f"{mpi.get_vendor()[0]} looks for it in the PATH",
            help=f"add its directory to the PATH, or start the processes: {_UNDER_MPI}",
        )
    return futures.MPIPoolExecutor(_count(argument, "mpi") if argument else None)


_UNDER_MPI = "`mpirun -n 8 python -m mpi4py.futures -m stagec ...`"

_LAUNCHERS = (
    "PMI_FD",
    "PMI_PORT",
    "PMI_RANK",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "OMPI_COMM_WORLD_SIZE",
)
"""Variables that a process has which something of MPI's started: what starts further ones is there already."""


def _needs_mpiexec(mpi: Any) -> bool:
    """Whether MPI runs `mpiexec` for the first process more: it aborts this one, or waits for ever, if there is none.

    Open MPI has a launcher of its own beside its library.
    """
    return mpi.get_vendor()[0] != "Open MPI" and not any(name in os.environ for name in _LAUNCHERS)


_BUILT_IN: dict[str, Callable[[str], Executor]] = {
    "serial": _serial,
    "threads": lambda argument: ThreadPoolExecutor(_count(argument, "threads")),
    "processes": _processes,
    "dask": _dask,
    "mpi": _mpi,
}


@contextmanager
def open_executor(spec: str | Executor) -> Iterator[Executor]:
    """The executor that `spec` names, shut down in the end; an executor given is left running."""
    if isinstance(spec, Executor):
        yield spec
        return
    executor = _make(spec)
    try:
        yield executor
    except BrokenExecutor as error:
        executor.shutdown(wait=False, cancel_futures=True)
        raise TraceError(
            "E0608",
            f"`{spec}` lost its workers",
            note=str(error),
            help="it may have been killed for want of memory: choose fewer workers, or `threads`",
        ) from None
    except BaseException:
        executor.shutdown(wait=True, cancel_futures=True)
        raise
    executor.shutdown(wait=True)


def _make(spec: str) -> Executor:
    name, _, argument = spec.partition(":")
    if name in _BUILT_IN:
        return _BUILT_IN[name](argument)
    brought = {point.name: point for point in entry_points(GROUP)}
    if name in brought:
        return _checked(brought[name].load()(argument), spec)
    if "." in name and argument:
        try:
            made = getattr(importlib.import_module(name), argument)()
        except TraceError:
            raise
        except Exception as error:  # Whatever the module or the function of a user's raises.
            missing = isinstance(error, ImportError | AttributeError)
            reason = str(error) if missing else f"{type(error).__name__}: {error}"
            message = f"there is no executor `{spec}`" if missing else f"`{spec}` failed"
            raise TraceError("E0608", message, note=reason) from None
        return _checked(made, spec)
    known = sorted({*_BUILT_IN, *brought})
    raise TraceError(
        "E0608",
        f"there is no executor `{spec}`",
        note=f"there are {', '.join(f'`{k}`' for k in known)}",
        help="or write `package.module:function`, where the function returns an executor",
    )


def _checked(made: Any, spec: str) -> Executor:
    if not isinstance(made, Executor):
        raise TraceError(
            "E0608",
            f"`{spec}` is not an executor",
            note=f"it made a `{type(made).__name__}`, not a `concurrent.futures.Executor`",
        )
    return made


def _count(argument: str, name: str) -> int:
    if not argument:
        return num_cores()
    if not argument.isascii() or not argument.isdigit() or int(argument) < 1:
        raise TraceError(
            "E0608", f"`{argument}` is not a number of {name}", help=f"for example `{name}:4`"
        )
    return int(argument)


def _extra(module: str, extra: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise TraceError(
                "E0608",
                f"this executor needs the package {package}",
                help=f"`pip install '.[{extra}]'` in stagec's clone",
            ) from None
        reason = str(error)
    except Exception as error:  # mpi4py is there, and no MPI library: a `RuntimeError`.
        reason = str(error) or type(error).__name__
    raise TraceError(
        "E0608",
        f"the package {package} is there, and cannot be loaded",
        note=reason.strip().splitlines()[0],
        help="install an MPI library: `pip install mpich`" if extra == "mpi" else "",
    )


def abandon(executor: Executor) -> None:
    """Nobody asks for the results of the tasks that an executor is at any more: where it is ours, they end."""
    if isinstance(executor, WorkerProcesses):
        executor.abandon()


def run_tasks(
    executor: Executor,
    work: Callable[[T], R],
    tasks: Iterable[T],
    lost: Callable[[T], R] | None = None,
) -> Iterator[R]:
    """The results in whatever order they come. An error stops what has not begun.

    Where a process is killed, for want of memory most likely, nobody knows which task it was at. With `lost`, all that ran are done again one at a time, and
    `lost` gives what stands for the result of a task whose process is killed then too. Dask does a task again by itself, and says which it gave up.
    """
    waiting = iter(tasks)
    restarts = executor if isinstance(executor, WorkerProcesses | _DaskExecutor) else None
    restarts = restarts if lost is not None else None
    while True:
        broken: list[T] = []
        yield from _beside(executor, work, waiting, broken if restarts is not None else None)
        if restarts is None or lost is None or not broken:
            return
        restarts.restart()
        for task in broken:
            try:
                future = restarts.submit(work, task)
                _some_done(executor, [future])
                yield _result(future)
            except DesertedError:
                raise
            except BrokenExecutor:
                restarts.restart()
                yield lost(task)


def _beside(
    executor: Executor, work: Callable[[T], R], waiting: Iterator[T], broken: list[T] | None
) -> Iterator[R]:
    """The results of tasks that run beside each other, until none is `waiting`, or a process is killed: what ran then goes to `broken`, if that is given."""
    running: dict[Future[R], T] = {}
    in_flight = 1 if isinstance(executor, SerialExecutor) else _IN_FLIGHT
    with ExitStack() as cleanup:
        cleanup.callback(lambda: [future.cancel() for future in running])
        while not broken:
            for task in islice(waiting, in_flight - len(running)):
                try:
                    running[executor.submit(work, task)] = task
                except BrokenExecutor:
                    if broken is None:
                        raise
                    broken.append(task)
                    break
            if not running:
                return
            for future in _some_done(executor, running):
                task = running.pop(future)
                try:
                    yield _result(future)
                except BrokenExecutor:
                    if broken is None:
                        raise
                    broken.append(task)
        for future, task in [*running.items()]:
            _some_done(executor, [future])
            try:
                yield _result(future)
            except BrokenExecutor:
                broken.append(task)
            del running[future]


def _some_done(executor: Executor, running: Collection["Future[R]"]) -> Collection["Future[R]"]:
    """Wait until some of these futures are done. `DesertedError` where none will be."""
    while True:
        done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        if done:
            return done
        if isinstance(executor, _DaskExecutor):
            executor.check()


def _result(future: "Future[R]") -> R:
    """What a task returned or raised. `BrokenExecutor` where it is not the task that failed."""
    try:
        return future.result()
    except CancelledError as error:
        raise BrokenExecutor(str(error) or "the work was taken back") from None
    except Exception as error:
        # A library of executors has exceptions of its own for workers that die: `distributed.scheduler.KilledWorker`.
        if type(error).__module__.partition(".")[0] in ("distributed", "mpi4py"):
            raise BrokenExecutor(str(error)) from None
        raise
