"""A process that is killed loses no result but its own."""

from __future__ import annotations

import multiprocessing.connection
import os
import resource
import signal
import threading
import time
from concurrent.futures import BrokenExecutor
from typing import Any

import pytest

from stagec.backend.executors import open_executor
from stagec.backend.running_tasks import abandon, run_tasks
from stagec.backend.worker_processes import WorkerProcess

KILLED = 3
"""The task at which a process is killed, as the system does for want of memory."""


def halved(task: int) -> int:
    if task == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    return task // 2


def limit(task: int) -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


@pytest.mark.seldom
def test_the_others_are_done_again() -> None:
    tasks = list(range(0, 2 * KILLED)) * 2
    with open_executor("processes:2") as executor:
        found = sorted(run_tasks(executor, halved, tasks, lambda task: -task))
        assert found == sorted(-KILLED if task == KILLED else task // 2 for task in tasks)
        assert list(run_tasks(executor, halved, [4])) == [2]
        with pytest.raises(BrokenExecutor):
            list(run_tasks(executor, halved, tasks))
        executor.restart()  # pyright: ignore
        (most,) = run_tasks(executor, limit, [0])
    assert 0 < most < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.seldom
def test_workers_of_dask_are_killed() -> None:
    """Dask does a task again with other workers; one that it gives up is the only one without a result."""
    distributed = pytest.importorskip("distributed")
    tasks = list(range(2 * KILLED))
    failures = distributed.dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with failures, open_executor("dask") as executor:
        found = sorted(run_tasks(executor, halved, tasks, lambda task: -task))
    assert found == sorted(-KILLED if task == KILLED else task // 2 for task in tasks)


def test_what_nobody_asks_for_ends() -> None:
    """After Ctrl-C no process goes on with what it was at, and others do what is asked then."""
    with open_executor("processes:1") as executor:
        assert list(run_tasks(executor, halved, [4])) == [2]
        (worker,) = (p for p in multiprocessing.active_children() if isinstance(p, WorkerProcess))
        waiting = executor.submit(time.sleep, 600)
        abandon(executor)
        worker.join(60)
        assert worker.exitcode == -signal.SIGTERM
        assert list(run_tasks(executor, halved, [8])) == [4]
        assert waiting.done()


@pytest.mark.seldom
def test_no_thread_fails_where_waiting_tasks_were_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they are when Ctrl-C leaves `run_tasks`, before the processes end; also if the thread of the pool is late."""
    failed: list[object] = []
    wait = multiprocessing.connection.wait

    def late(*arguments: Any) -> list[Any]:
        found = wait(*arguments)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(multiprocessing.connection, "wait", late)
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = {*threading.enumerate()}
    with open_executor("processes:2") as executor:
        running = [executor.submit(time.sleep, 0.2 if n < 4 else 600) for n in range(12)]
        threads = {*threading.enumerate()} - before
        while not running[8].running():  # two are at work, and three handed over
            time.sleep(0.01)
        for future in running:
            future.cancel()
        abandon(executor)
        for thread in threads:
            thread.join(60)
    assert not failed
    assert all(future.done() for future in running)


def test_nothing_is_killed() -> None:
    with open_executor("serial") as executor:
        assert sorted(run_tasks(executor, halved, range(3), lambda task: -1)) == [0, 0, 1]
