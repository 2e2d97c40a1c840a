"""The command line: `stagec MODEL.stg -o DIR`, `stagec COMMAND ...`, and `stagec-opt`.

The only package that prints. Everything is imported when it is needed: `stagec --version` loads
nothing but this file.
"""

import gc
import sys
from collections.abc import Callable, Sequence

from stagec import __version__

SELDOM = 200_000, 20, 100
"""When garbage is looked for. Most of what a command makes is IR, which stays: looking through it often takes a tenth of the time."""


def main(argv: Sequence[str] | None = None) -> int:
    """`stagec`. Exit status: 0, 1 for a user's mistake, 2 for one of ours, 130 when interrupted (Ctrl-C), 143 when terminated (SIGTERM)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["--version"]:
        print(f"stagec {__version__}")
        return 0

    def run() -> int:
        from stagec.cli.commands import run_command

        return run_command(arguments)

    return _guarded(run, arguments)


def opt_main(argv: Sequence[str] | None = None) -> int:
    """`stagec-opt`: passes on IR text and on models. The same exit statuses."""
    arguments = sys.argv[1:] if argv is None else list(argv)

    def run() -> int:
        from stagec.cli.opt import run_opt

        return run_opt(arguments)

    return _guarded(run, arguments)


def _guarded(run: Callable[[], int], arguments: Sequence[str]) -> int:
    gc.set_threshold(*SELDOM)
    try:
        from stagec.cli.outcome import guarded
    except KeyboardInterrupt:
        sys.stderr.write("\nstagec: interrupted\n")
        return 130
    return guarded(run, debug="--debug" in arguments)
