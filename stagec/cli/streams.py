"""Standard output and error as a command needs them: their reader may go, or never have been there, and the work goes on.

A closed stream swallows what is written. A pipe whose reader has gone (`stagec ops | head`) does from then on: a command
that also writes traces writes them. A stream that refuses (a full disk) is a `StreamError`, once; what is written to
standard error and cannot be is lost.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StreamError(Exception):
    """Standard output does not take what is written; the text says why."""


class OutputStream(io.RawIOBase):
    """A descriptor that is written to until nobody listens."""

    def __init__(self, descriptor: int, says_why: bool) -> None:
        self._descriptor = descriptor
        self._says_why = says_why
        self._gone = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self._gone:
            return size
        try:
            return os.write(self._descriptor, data)
        except BrokenPipeError:
            self._gone = True
        except OSError as error:
            self._gone = True
            if self._says_why:
                raise StreamError(error.strerror or str(error)) from None
        return size


def guard_streams() -> None:
    """Put such streams in the place of those that Python opened. Others, of a test or a notebook, stay."""
    for name, original, descriptor in (
        ("stdout", sys.__stdout__, 1),
        ("stderr", sys.__stderr__, 2),
    ):
        current = getattr(sys, name)
        if current is None:
            # It was closed before this began; its number may belong to a file by now.
            raw = OutputStream(os.open(os.devnull, os.O_WRONLY), says_why=False)
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8"))
        elif current is original and isinstance(current, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                current.flush()
            raw = OutputStream(descriptor, says_why=name == "stdout")
            text = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=current.encoding,
                errors="replace",  # a terminal may not know all letters
                line_buffering=current.line_buffering,
            )
            setattr(sys, name, text)
        elif isinstance(current, io.TextIOWrapper):
            current.reconfigure(errors="replace")
