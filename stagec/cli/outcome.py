"""How a command ends: what went wrong, as text, and an exit status."""

import contextlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

from stagec.cli.streams import StreamError, guard_streams

BUG = """\
stagec: this is a bug in stagec, not a mistake of yours: {error}
  = note: {where}
  = help: please report it, with the model and this command line; `--debug` shows the traceback
"""


def guarded(command: Callable[[], int], *, debug: bool = False) -> int:
    """The exit status of a command. No exception leaves it."""
    guard_streams()
    try:
        status = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\nstagec: interrupted\n")
        return 130
    except Exception as error:
        with contextlib.suppress(StreamError):
            sys.stdout.flush()
        if debug:
            traceback.print_exc()
        return report(error)
    return status


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
    from stagec.plug_in_errors import first_cause, mistake_of_plug_in, said_by

    found = mistake_of_plug_in(error)
    if found is not None:
        sys.stderr.write(render([replace(found, help="`--debug` shows the traceback")]))
        return 1
    text, where = said_by(first_cause(error))
    sys.stderr.write(BUG.format(error=text, where=where))
    return 2
