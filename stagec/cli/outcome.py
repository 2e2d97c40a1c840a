"""How a command ends: what went wrong, as text, and an exit status."""

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence

from stagec.cli.streams import StreamError, guard_streams

BUG = """\
stagec: this is a bug in stagec, not a mistake of yours: {error}
  = note: {where}
  = help: please report it, with the model and this command line; `--debug` shows the traceback
"""


class Terminated(BaseException):
    """Somebody ends the process (SIGTERM). Nothing goes on, as a search does after Ctrl-C."""


def guarded(command: Callable[[], int], *, debug: bool = False) -> int:
    """The exit status of a command. No exception leaves it."""
    with signals_heard() as heard:
        try:
            guard_streams()
            if not has_folder():
                sys.stderr.write(
                    "stagec: the directory that the command runs in is not there any more\n"
                )
                return 1
            status = command()
            sys.stdout.flush()
        except (KeyboardInterrupt, Terminated):
            return ended(heard)
        except Exception as error:
            if heard:
                # Python makes another error of an interrupt that falls into an import or the making of a class.
                return ended(heard)
            with contextlib.suppress(StreamError):
                sys.stdout.flush()
            if debug:
                traceback.print_exc()
            return report(error)
    return status


def has_folder() -> bool:
    """Whether there is a working directory: without one, Python imports nothing."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def signals_heard() -> Iterator[list[int]]:
    """The signals that arrive and end the command: Ctrl-C and SIGTERM, where they are not somebody else's to answer."""
    heard: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    def terminate(number: int, frame: object) -> None:
        heard.append(number)
        if "multiprocessing" in sys.modules:
            from multiprocessing import active_children

            for child in active_children():
                child.terminate()
        raise Terminated

    usual = {signal.SIGINT: (signal.default_int_handler, interrupt)}
    usual |= {signal.SIGTERM: (signal.SIG_DFL, terminate)}
    ours = [number for number, (before, _) in usual.items() if signal.getsignal(number) is before]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, usual[number][1])
    try:
        yield heard
    finally:
        for number in ours:
            signal.signal(number, usual[number][0])


def ended(heard: Sequence[int]) -> int:
    """Say that a signal ended the command: 130 after Ctrl-C, 143 after SIGTERM, as shells have it."""
    last = heard[-1] if heard else signal.SIGINT
    said = "terminated" if last == signal.SIGTERM else "interrupted"
    sys.stderr.write(f"\nstagec: {said}\n")
    return 128 + last


def report(error: Exception) -> int:
    """Say what went wrong, and whose fault it is."""
    from stagec.backend.errors import TraceError
    from stagec.diagnostics import CompileError, Diagnostic, printable, render

    if isinstance(error, StreamError):
        sys.stderr.write(f"stagec: cannot write to standard output: {str(error).lower()}\n")
        return 1
    if isinstance(error, CompileError):
        sys.stderr.write(error.render())
        return 1
    if isinstance(error, TraceError):
        sys.stderr.write(f"{printable(str(error), keep=chr(10))}\n")
        return 1
    if isinstance(error, MemoryError):
        message = "stagec needs more memory than this process may have"
        help_ = "ask for less at a time: fewer microbatches or ranks, a summary without `-o` or `--report`; or raise the limit (`ulimit -v`)"
        sys.stderr.write(render([Diagnostic("E0717", message, help=help_)]))
        return 1
    from dataclasses import replace

    from stagec.plug_in_errors import first_cause, mistake_of_plug_in, said_by

    found = mistake_of_plug_in(error)
    if found is not None:
        sys.stderr.write(render([replace(found, help="`--debug` shows the traceback")]))
        return 1
    text, where = said_by(first_cause(error))
    sys.stderr.write(BUG.format(error=text, where=where))
    return 2
