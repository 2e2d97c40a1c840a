"""`stagec lsp`: the language server that editors start."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from stagec.cli.usage import (
    CommandParser,
    add_load_pass,
    add_switch,
    add_trust_flags,
    usage_error,
)
from stagec.plugins import loaded

EPILOG = """\
Editors start it themselves, and talk to it over standard input and output: docs/editors.md says how for VS Code, Neovim and Emacs.
It needs `pip install '.[lsp]'`.
"""


def run(arguments: Sequence[str]) -> int:
    """E0712 without pygls."""
    parser = CommandParser(
        "stagec lsp", "Answer an editor, in the Language Server Protocol.", EPILOG
    )
    add_switch(parser, "--stdio", help="what it does anyway; editors say so")
    add_load_pass(parser)
    add_trust_flags(parser)
    options = parser.read(arguments)
    plug_ins = loaded(tuple(options.load_pass))
    try:
        from stagec.editing.server import make_server
    except ImportError as error:
        message = "the language server is made with pygls, which is not installed"
        raise usage_error("lsp", message, "E0712", "`pip install '.[lsp]'` in a clone") from error
    # It closes what it writes to, which the command flushes at its end.
    make_server(plug_ins).start_io(stdout=os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
    return 0
