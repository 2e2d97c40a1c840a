"""Workers of Dask as an executor (`dask`, `dask:tcp://host:8786`)."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from stagec.backend.errors import TraceError
from stagec.backend.running_tasks import DesertedError, Workers, extra
from stagec.backend.worker_processes import interrupts_later

_CONNECT_S = 5
"""A scheduler that does not answer within so many seconds is not there."""

_DESERTED_S = 30
"""Where there is no worker for so many seconds, none comes back: one that was killed is begun anew, on a busy machine not at once."""


P = ParamSpec("P")
R = TypeVar("R")


def dask_workers(argument: str) -> Workers:
    """Those of a scheduler, or of this machine. E0608 where none answers."""
    if argument and not re.fullmatch(r"(\w+://)?[^/\s]+:\d+", argument, re.ASCII):
        raise TraceError(
            "E0608",
            f"`{argument}` is not an address of a Dask scheduler",
            help="for example `dask:tcp://host:8786`, or `dask` for workers of this machine",
        )
    distributed = extra("distributed", "dask")
    # It logs each lost connection with a traceback; what is lost is one diagnostic of ours.
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if argument:
            asyncio.run(_ask(distributed, argument))
        with interrupts_later(), distributed.dask.config.set(_QUIET_WORKERS):
            client = distributed.Client(argument or None, set_as_default=False, timeout=_CONNECT_S)
    except Exception as error:  # Whatever reading the answer of another server comes to.
        raise TraceError(
            "E0608",
            f"no Dask scheduler answers at `{argument}`" if argument else "Dask does not start",
            note=f"{type(error).__name__}: {error}".removesuffix(": "),
            help="start `dask scheduler` there, or choose another executor"
            if argument
            else "choose another executor",
        ) from None
    return DaskWorkers(client)


_QUIET_WORKERS = {"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"}
"""So Dask hands it to workers of this machine."""


class DaskWorkers(Workers):
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
