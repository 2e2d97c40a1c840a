"""`stagec check DIR`: prove that a set of traces can run, or say why not."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stagec.checking.check import TARGETS, check_traces
from stagec.cli.progress import counting_progress
from stagec.cli.usage import CommandParser, add_format_flag, one_of, whole_number


def run(arguments: Sequence[str]) -> int:
    """Exit status 1 if there are errors."""
    parser = CommandParser(
        "stagec check",
        "Prove that a set of Chakra traces, of any tool, can run, or say why not.",
        "The exit status is 1 if there are errors.",
    )
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument(
        "--comm-group", metavar="FILE", help="the groups, if not in DIR/comm_group.json"
    )
    parser.add_argument(
        "--target",
        metavar="|".join(TARGETS),
        default=TARGETS[0],
        type=one_of("--target", *TARGETS),
        help="whose rules must hold besides those of all consumers (astra-sim by default)",
    )
    add_format_flag(parser)
    parser.add_argument(
        "--jobs", metavar="N", type=whole_number("--jobs"), help="processes (all cores by default)"
    )
    parser.add_argument(
        "--stress",
        metavar="N",
        type=whole_number("--stress"),
        default=0,
        help="replay N more times, with run times drawn at random",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing if all is well")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.read(arguments)
    with counting_progress(options.quiet, "reading", "files") as progress:
        report = check_traces(
            options.directory,
            options.comm_group,
            options.target,
            options.jobs,
            progress,
            options.stress,
        )
    if report.findings or not options.quiet:
        sys.stdout.write(report.json() if options.format == "json" else report.text())
    return int(report.has_errors)
