"""What words of a command line name: commands, and models that ship."""

from __future__ import annotations

import os

COMMANDS = {
    "batch": "make iterations of requests, by continuous batching",
    "calibrate": "make a device file from measured operators",
    "check": "prove that a set of traces can run, or say why not",
    "devices": "list the devices that ship, or show one: its numbers, tables and sources",
    "diff": "say what differs between two models, plans or sets of traces",
    "examples": "list the models that ship, with their plans",
    "expand": "write traces out of a bundle",
    "explain": "say where a number comes from",
    "fmt": "format models and plans",
    "import": "write a configuration as a model, or a launcher's flags as a plan",
    "lsp": "answer an editor, as a language server",
    "ops": "list the functions of the language, and the ops of the dialects",
    "passes": "list the passes",
    "report": "set plans side by side",
    "search": "find the best plan of a model on so many devices",
}
"""Each is a module of this package with `run(arguments) -> exit status`. Any other first word is a
model."""


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
