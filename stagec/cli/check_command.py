"""`stagec check DIR`: prove that a set of traces can run, or say why not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stagec.backend.files import read_whole
from stagec.checking.check import TARGETS, check_traces
from stagec.checking.scan import scan_traces
from stagec.checking.trace_file import find_traces
from stagec.cli.progress import counting_progress
from stagec.cli.usage import (
    CommandParser,
    add_flag,
    add_format_flag,
    add_switch,
    one_of,
    usage_error,
    whole_number,
)
from stagec.simulators.logs import read_log, verdict


def run(arguments: Sequence[str]) -> int:
    """Exit status 1 if there are errors."""
    parser = CommandParser(
        "stagec check",
        "Prove that a set of Chakra traces, of any tool, can run, or say why not.",
        "The exit status is 1 if there are errors.",
    )
    parser.add_argument(
        "directory", metavar="DIR", help="the folder of the traces, `PREFIX.<rank>.et`"
    )
    add_flag(parser, "--comm-group", "FILE", "the groups, if not in DIR/comm_group.json")
    add_flag(
        parser,
        "--target",
        "|".join(TARGETS),
        "whose rules must hold besides those of all consumers (astra-sim by default)",
        one_of(*TARGETS),
        default=TARGETS[0],
    )
    add_format_flag(parser)
    add_flag(parser, "--jobs", "N", "processes (all cores by default)", whole_number)
    add_flag(
        parser,
        "--stress",
        "N",
        "replay N more times, with run times drawn at random",
        whole_number,
        default=0,
    )
    add_flag(
        parser,
        "--log",
        "FILE",
        "logs of a run in ASTRA-sim, all files of it: say which ranks finished, and where others wait",
        nargs="+",
    )
    add_switch(parser, "-q", "--quiet", help="print nothing if all is well")
    options = parser.read(arguments)
    if options.log:
        return run_log(options)
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


def run_log(options: argparse.Namespace) -> int:
    """What a run's logs say. Exit status 1 unless every rank has finished and every node has run. E0711 with `--format json`."""
    if options.format != "text":
        raise usage_error("--format json", "`--log` is told as text", "E0711", "leave out one")
    nodes = num_nodes(options.directory, options.jobs)
    log = read_log(line for name in options.log for line in read_whole(name).splitlines())
    lines, complete = verdict(log, nodes)
    if not (complete and options.quiet):
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(not complete)


def num_nodes(directory: str, jobs: int | None) -> dict[int, int]:
    """The number of nodes in the trace of each rank. E0714 if the directory does not have exactly one set of traces."""
    sets, _ = find_traces(directory)
    if len(sets) != 1:
        message = f"`{directory}` has {len(sets)} sets of traces, and the log is of one"
        raise usage_error(directory, message, "E0714", "name the directory of the traces that ran")
    files = [sets[0].files[rank] for rank in sorted(sets[0].files)]
    scan = scan_traces(files, True, jobs, None)
    return {rank: found.num_nodes for rank, found in scan.summaries.items()}
