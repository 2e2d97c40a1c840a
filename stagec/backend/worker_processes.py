"""Processes of this machine as an executor (`processes:8`)."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import ParamSpec, TypeVar

from stagec.backend.running_tasks import Workers

try:
    import resource
except ImportError:  # On Windows there are no limits of this kind.
    resource = None

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C waits; threads and processes that begin meanwhile leave it to this one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # What Python starts beside the first child process would let it through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerProcess(SpawnProcess):
    """A process of a pool of ours."""


class WorkerContext(SpawnContext):
    """How these begin."""

    Process = WorkerProcess


class WorkerProcesses(Workers):
    """Processes that can begin anew where one of them was killed: a pool of Python's then does nothing any more."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._pools = [self._begun()]
        """The last one works. Those before it are kept: a pool of Python's (3.11) that is collected does not take back what waits, and its thread fails where
        that was cancelled and a process ends."""

    @property
    def _pool(self) -> ProcessPoolExecutor:
        return self._pools[-1]

    def _begun(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._number,
            mp_context=WorkerContext(),
            initializer=_begin_worker,
            initargs=(gc.get_threshold(),),
        )

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        with interrupts_later():  # a process begins here, if one is wanting
            return self._pool.submit(fn, *args, **kwargs)

    def restart(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pools.append(self._begun())

    def abandon(self) -> None:
        """Begin anew, and end what is still at work."""
        self.restart()
        for each in multiprocessing.active_children():
            if isinstance(each, WorkerProcess):
                each.terminate()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)


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
