"""Who does the work: an executor (`concurrent.futures`) by name.

`threads:4`, `processes:8`, `serial`, `dask:tcp://host:8786`, `mpi`; a name under the entry point group
`stagec.executors`; or `package.module:function`, called without arguments.
"""

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from stagec.backend.errors import TraceError
from stagec.backend.running_tasks import SerialExecutor, extra
from stagec.entry_points import entry_points

GROUP = "stagec.executors"


def _serial(argument: str) -> Executor:
    if argument:
        raise TraceError(
            "E0608", f"`serial` does one task at a time, not `{argument}`", help="write `serial`"
        )
    return SerialExecutor()


def _processes(argument: str) -> Executor:
    from stagec.backend.worker_processes import WorkerProcesses

    return WorkerProcesses(_count(argument, "processes"))


def _dask(argument: str) -> Executor:
    from stagec.backend.dask_workers import dask_workers

    return dask_workers(argument)


def _mpi(argument: str) -> Executor:
    futures = extra("mpi4py.futures", "mpi")
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
            help_ = f"let `{argument}` of `{name}` return a `concurrent.futures.Executor`"
            raise TraceError("E0608", message, help=help_, note=reason) from None
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
            help="let it return one",
            note=f"it made a `{type(made).__name__}`, not a `concurrent.futures.Executor`",
        )
    return made


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count(argument: str, name: str) -> int:
    if not argument:
        return num_cores()
    if not argument.isascii() or not argument.isdigit() or int(argument) < 1:
        raise TraceError(
            "E0608", f"`{argument}` is not a number of {name}", help=f"for example `{name}:4`"
        )
    return int(argument)
