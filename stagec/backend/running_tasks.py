"""Running tasks on an executor (`concurrent.futures`), whoever does the work; and what executors of ours have in common."""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import ExitStack
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from stagec.backend.errors import TraceError

_IN_FLIGHT = 128
"""Tasks handed over at once: enough for any pool here, few enough to bound memory."""

_LOOK_S = 2
"""How often it is looked whether anybody still works."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class DesertedError(BrokenExecutor):
    """Nobody is left to do any task."""


class Workers(Executor):
    """Processes of which one may be killed, and the others go on."""

    def check(self) -> None:
        """Raise `DesertedError` if nobody is left to do what was submitted."""

    def restart(self) -> None:
        """Begin anew those that were killed."""

    def abandon(self) -> None:
        """End what is at work, where it is ours to end."""


class SerialExecutor(Executor):
    """Does each task when it is submitted."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def abandon(executor: Executor) -> None:
    """Nobody asks for the results of the tasks that an executor is at any more: where it is ours, they end."""
    if isinstance(executor, Workers):
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
    restarts = executor if isinstance(executor, Workers) else None
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
        if isinstance(executor, Workers):
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


def extra(module: str, extra: str) -> Any:
    """A module of a package that one of our extras brings. E0608 where it is not there."""
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
        help="install an MPI library: `pip install mpich`" if extra == "mpi" else "install it anew",
    )
