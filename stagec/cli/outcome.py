"""How a command ends: what went wrong, as text, and an exit status."""

import os
import sys
import traceback
from collections.abc import Callable

BUG = """\
stagec: this is a bug in stagec, not in your model: {error}
  = note: {where}
  = help: please report it with the model and this command line; `--debug` shows the traceback
"""

PLUG_IN = """\
error[E0713]: the pass `{name}` failed: {error}
  = note: {where}
  = help: `--debug` shows the traceback
"""


def guarded(command: Callable[[], int], *, debug: bool = False) -> int:
    """The exit status of a command. No exception leaves it."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        sys.stderr.write("\nstagec: interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader has gone (`stagec ops | head`). Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        sys.stdout.flush()
        if debug:
            traceback.print_exc()
        return report(error)


def report(error: Exception) -> int:
    """Say what went wrong, and whose fault it is."""
    from xdsl.passes import ModulePass

    from stagec.backend.errors import TraceError
    from stagec.diagnostics import CompileError, printable

    if isinstance(error, CompileError):
        sys.stderr.write(error.render())
        return 1
    if isinstance(error, TraceError):
        sys.stderr.write(f"{error}\n")
        return 1
    frames = list(traceback.walk_tb(error.__traceback__))
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = printable(traceback.format_exception_only(error)[-1].strip())
    where = f"in `{last.name}`, {os.path.basename(last.filename)}:{last.lineno}"
    for frame, _ in frames:
        owner = frame.f_locals.get("self")
        if isinstance(owner, ModulePass) and not is_ours(type(owner).__module__):
            sys.stderr.write(PLUG_IN.format(name=owner.name, error=text, where=where))
            return 1
    sys.stderr.write(BUG.format(error=text, where=where))
    return 2


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("stagec", "xdsl")
