"""`stagec MODEL.stg ...` and `stagec COMMAND ...`: which command a line means."""

from collections.abc import Sequence


def run_command(arguments: Sequence[str]) -> int:
    from stagec.cli.compile_command import run_compile

    return run_compile(arguments)
