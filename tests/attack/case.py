"""What all kinds of cases share: how one is made, run and made smaller, and how long it may take."""

from __future__ import annotations

import contextlib
import io
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_SECONDS = 5
"""Of CPU, for any case."""


class Failure(Exception):
    """What must not be."""


class TooSlowError(Failure):
    """A case that does not end in time."""


@dataclass(frozen=True)
class Kind:
    """One kind of attack."""

    name: str
    make: Callable[[random.Random], Any]
    run: Callable[[Any], None]
    """Raises what it finds wrong: a `Failure`, or whatever stagec raised."""
    smaller: Callable[[Any], Iterator[Any]] = lambda case: iter(())
    """Cases that are a little less than one, the smallest first."""
    show: Callable[[Any], str] = str
    seconds: float = MOST_SECONDS


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """CPU time that may be used within."""

    def stop(*_: object) -> None:
        raise TooSlowError(f"more than {seconds:g} s of CPU")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(kind: Kind, case: Any) -> Exception | None:
    """What is wrong with a case."""
    quiet = io.StringIO()
    try:
        with (
            limited(kind.seconds),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
        ):
            kind.run(case)
    except Exception as error:
        return error
    return None


def shrink(kind: Kind, case: Any, error: Exception, tries: int = 200) -> tuple[Any, Exception]:
    """A smaller case that fails in the same way."""
    found = True
    while found and tries > 0:
        found = False
        for other in kind.smaller(case):
            tries -= 1
            again = attempt(kind, other)
            if again is not None and type(again) is type(error):
                case, error, found = other, again, True
                break
            if tries <= 0:
                break
    return case, error


def fewer_lines(text: str) -> Iterator[str]:
    """The text without some of its lines: first many at a time."""
    lines = text.splitlines()
    step = len(lines) // 2
    while step:
        for start in range(0, len(lines), step):
            yield "\n".join(lines[:start] + lines[start + step :]) + "\n"
        step //= 2
