"""`stagec import SOURCE`: a model's configuration as the text of a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from stagec.backend.files import write_whole
from stagec.cli.usage import CommandParser, some_text
from stagec.importing import import_configuration
from stagec.importing.model import read_configuration

EPILOG = """\
examples:
  stagec import config.json -o model.stg       a configuration of Hugging Face, or a folder with one
"""


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec import",
        "Write the model that a configuration describes as text of ours, with plans to start with.",
        EPILOG,
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument(
        "-o", dest="out", metavar="FILE.stg", type=some_text("-o"), help="the file to write"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors and nothing else")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.read(arguments)
    path = Path(options.source)
    imported = import_configuration(read_configuration(path), options.source, shown_name(path))
    if options.out is None:
        sys.stdout.write(imported.text)
        return 0
    write_whole(options.out, imported.text.encode())
    if not options.quiet:
        sys.stdout.write(f"{options.out}: `{imported.model.name}`\n")
    return 0


def shown_name(path: Path) -> str:
    """What a configuration is called: its folder, where the file itself is `config.json`."""
    stem = path.name if path.is_dir() else path.stem
    if stem == "config":
        stem = path.resolve().parent.name
    return stem.replace("--", "/")
