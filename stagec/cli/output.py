"""Flags that say how traces are written, and the writing: shared by `stagec MODEL` and `expand`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stagec.cli.outcome import Terminated
from stagec.cli.usage import (
    CommandParser,
    a_directory,
    add_flag,
    add_switch,
    one_of,
    some_text,
    usage_error,
)

if TYPE_CHECKING:
    from stagec.backend.encoded import Encoded
    from stagec.backend.writer import WriteReport

WRITING_FLAGS = ("ranks", "format", "compress", "links", "force", "resume", "executor")
"""What says nothing where nothing is written."""


def add_writing_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("writing traces")
    add_flag(
        group,
        "-o",
        "DIR",
        "write a trace per rank to a directory or a URL",
        a_directory,
        dest="out",
    )
    add_flag(group, "--ranks", "LIST", "only these: 0,8,1024-1031", some_text)
    add_flag(
        group,
        "--format",
        "et|json",
        "Chakra's binary form (the default), or one for people",
        one_of("et", "json"),
    )
    add_flag(group, "--compress", "none|gzip", "for consumers that read it", one_of("none", "gzip"))
    add_flag(
        group,
        "--links",
        "auto|never",
        "let ranks with equal traces share a file (the default), or never",
        one_of("auto", "never"),
    )
    add_switch(group, "--force", help="write beside files of others", default=None)
    add_switch(group, "--resume", help="complete an interrupted run", default=None)
    add_flag(
        group,
        "--executor",
        "NAME",
        "who writes: threads:N (the default), processes:N, serial, dask:ADDRESS, mpi, or an entry point",
        some_text,
    )


def refuse_idle_flags(options: argparse.Namespace, flags: tuple[str, ...], needs: str) -> None:
    """An option that is accepted is obeyed: E0711 for one with nothing to work on."""
    for name in flags:
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            message = f"`{flag}` says how to write traces, and none are written"
            raise usage_error(flag, message, "E0711", f"add {needs}")


def write(
    traces: Encoded,
    options: argparse.Namespace,
    about: Mapping[str, Any],
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write the traces and say so. What only that needs is loaded here: a sixth of the memory of a compilation."""
    from stagec.backend.writer import WriteOptions, write_traces
    from stagec.cli.progress import writing_progress

    given = {name: getattr(options, name) for name in WRITING_FLAGS}
    chosen = WriteOptions(**{name: value for name, value in given.items() if value is not None})
    with writing_progress(options.quiet) as progress:
        try:
            report = write_traces(
                traces, options.out, chosen, about=about, beside=beside, progress=progress
            )
        except (KeyboardInterrupt, Terminated):
            sys.stderr.write("\nnote: what is written is kept; `--resume` completes it")
            raise
    if not options.quiet:
        sys.stdout.write(written(report))
    for note in report.notes:
        sys.stderr.write(f"note: {note}\n")


def written(report: WriteReport) -> str:
    """One line about what is there now."""
    from stagec.pictures.scales import amount

    traces = "1 trace" if report.num_ranks == 1 else f"{report.num_ranks:,} traces"
    groups = "1 group" if report.num_groups == 1 else f"{report.num_groups:,} groups"
    parts = [f"{amount(report.bytes_written)}B written"]
    if report.num_linked:
        parts.append(f"{report.num_linked:,} share a file")
    if report.num_kept:
        parts.append(f"{report.num_kept:,} were there")
    return f"{report.out}: {traces}, {groups} ({', '.join(parts)})\n"
