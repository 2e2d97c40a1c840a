"""Which command a line means: `stagec COMMAND ...`, else `stagec MODEL.stg ...`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "batch": "make iterations of requests, by continuous batching",
    "calibrate": "make a device file from measured operators",
    "check": "prove that a set of traces can run, or say why not",
    "devices": "list the devices that ship, or show one: its numbers, tables and sources",
    "diff": "say what differs between two models, plans or sets of traces",
    "examples": "list the models that ship, with their plans",
    "expand": "write traces out of a bundle",
    "explain": "say where a number comes from",
    "fmt": "write models and plans the one way",
    "import": "write a configuration as a model, or a launcher's flags as a plan",
    "lsp": "answer an editor, as a language server",
    "ops": "list the functions of the language, and the ops of the dialects",
    "passes": "list the passes",
    "report": "set plans side by side",
    "search": "find the best plan of a model on so many devices",
}
"""Each is a module of this package with `run(arguments) -> exit status`. Any other first word is a
model."""


def run_command(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return import_module(f"stagec.cli.{name}_command").run(arguments[1:])
    if name and not name.startswith("-") and "." not in name and not os.path.exists(name):
        path = shipped(name)
        if path:
            return import_module("stagec.cli.compile_command").run([path, *arguments[1:]])
        _refuse_misspelt(name)
    return import_module("stagec.cli.compile_command").run(arguments)


def shipped(name: str) -> str:
    """The file of a model that ships, by its name: `llama3_8b`; nothing if there is none."""
    from stagec.trust import examples

    path = os.path.join(examples(), f"{name}.stg")
    return path if examples() and os.path.isfile(path) else ""


def model_named(text: str) -> str:
    """`llama3_8b:tp8` is a model that ships, unless there is something of that name here; other texts are what they are."""
    name, mark, plan = text.partition(":")
    if "." in name or os.sep in name or os.path.exists(text):
        return text
    path = shipped(name)
    return f"{path}{mark}{plan}" if path else text


def _refuse_misspelt(name: str) -> None:
    """`stagec chek DIR` is about no model named `chek`."""
    from stagec.cli.usage import usage_error
    from stagec.diagnostics import closest

    close = closest(name, COMMANDS)
    if close:
        raise usage_error("", f"there is no command `{name}`", help=f"did you mean `{close}`?")
