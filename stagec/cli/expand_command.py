"""`stagec expand BUNDLE -o DIR`: traces out of a bundle, equal to those of a full run."""

from __future__ import annotations

from collections.abc import Sequence

from stagec.backend.bundle import read_bundle
from stagec.cli.output import add_writing_flags, write
from stagec.cli.usage import CommandParser, add_switch, usage_error


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec expand",
        "Write the traces of all ranks, or of some, out of a bundle.",
        "A bundle is made with `stagec MODEL.stg --bundle FILE`.",
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="the file that `--bundle` wrote")
    add_switch(parser, "-q", "--quiet", help="print errors and nothing else")
    add_writing_flags(parser)
    options = parser.read(arguments)
    if options.out is None:
        raise usage_error("", "`-o DIR` is missing", help="say where to write the traces")
    bundle = read_bundle(options.bundle)
    write(bundle.traces, options, bundle.about)
    return 0
