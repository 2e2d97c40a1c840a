"""Which command a line means: `stagec COMMAND ...`, else `stagec MODEL.stg ...`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from stagec.cli.names import COMMANDS
from stagec.shipped_models import model_named


def run_command(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return import_module(f"stagec.cli.{name}_command").run(arguments[1:])
    is_word = name and not name.startswith("-") and "." not in name
    if is_word and not os.path.exists(model_named(name)):
        _refuse_misspelt(name)
    return import_module("stagec.cli.compile_command").run(arguments)


def _refuse_misspelt(name: str) -> None:
    """`stagec chek DIR` is about no model named `chek`."""
    from stagec.cli.usage import usage_error
    from stagec.diagnostics import closest

    close = closest(name, COMMANDS)
    if close:
        raise usage_error("", f"there is no command `{name}`", help=f"did you mean `{close}`?")
