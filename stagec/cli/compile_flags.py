"""The flags of `stagec MODEL.stg`, and which of them go together."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from stagec import __version__
from stagec.cli.device_flags import add_device_flags
from stagec.cli.names import COMMANDS
from stagec.cli.output import WRITING_FLAGS, add_writing_flags, refuse_idle_flags
from stagec.cli.usage import (
    CommandParser,
    a_file,
    add_flag,
    add_load_pass,
    add_repeated,
    add_switch,
    add_trust_flags,
    file_like,
    one_of,
    some_text,
    usage_error,
)
from stagec.shipped_models import model_named

EPILOG = """\
other commands (each has its own --help):
{commands}

examples:
  stagec examples/llama3_8b.stg                               what a step costs
  stagec examples/llama3_70b.stg --plan dp8_tp8 -o traces/    a trace per rank
  stagec examples/llama3_70b.stg --set S=131072 --set tp=4 --ranks 0 -o traces/
  stagec examples/mixtral_8x7b.stg --timeline                 a step against time
  stagec examples/gpt2.stg --stop-after build-backward        the IR after a pass
  stagec gpt2.mlir -o traces/                                 on from there, when it was written to a file
"""


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    options = make_parser().read(arguments)
    if options.model is None:
        raise usage_error("", "no model is given", help="`stagec MODEL.stg`, or `stagec --help`")
    options.model = model_named(options.model)
    if options.out is None:
        refuse_idle_flags(options, WRITING_FLAGS, "`-o DIR`")
        if options.bundle is None:
            refuse_idle_flags(
                options, ("names", "provenance", "track_memory", "durations"), "`-o DIR`"
            )
        if options.simulator is not None:
            message = "`--for` writes files beside traces, and none are written"
            raise usage_error("--for", message, "E0711", "add `-o DIR`")
    elif options.simulator is not None and "://" in options.out:
        message = "`--for` writes files of this machine, and the traces go elsewhere"
        raise usage_error("--for", message, "E0711", "name a directory of this machine")
    if options.stop_after is not None:
        names = ("out", "bundle", "memory", "timeline", "schedule", "report")
        wanting = [("-o" if n == "out" else f"--{n}", getattr(options, n)) for n in names]
        for flag, value in wanting:
            if value is not None and value is not False:
                message = f"`{flag}` wants traces, and `--stop-after` ends before there are any"
                raise usage_error(flag, message, "E0711", "leave out one of the two")
    return options


def make_parser() -> CommandParser:
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    parser = CommandParser(
        "stagec",
        "Compile a model and a plan for spreading it into one Chakra execution trace per rank.",
        EPILOG.format(commands=commands),
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL.stg|IR.mlir",
        help="a model with its plans, or the name of one that ships; IR that `--stop-after` printed is compiled to the end, `-` from standard input",
    )
    parser.add_argument("--version", action="version", version=f"stagec {__version__}")
    add_switch(
        parser, "-q", "--quiet", help="print errors, warnings and what is asked for, no summary"
    )
    add_model_flags(parser)
    add_flag(
        parser,
        "--iterations",
        "FILE.csv",
        "serve a series of iterations, a line for each: what is prefilled, what is decoded",
        some_text,
    )
    add_device_flags(parser)
    add_pass_flags(parser)
    add_trust_flags(parser)
    add_flag(
        parser,
        "--memory",
        "FILE.html",
        "show what memory each rank needs, when and what for; or write it as a page",
        file_like("memory.html", may_be_bare=True),
        nargs="?",
        const="",
    )
    add_flag(
        parser,
        "--timeline",
        "FILE.json",
        "draw a step against time, a row for each pipeline rank; or write it for ui.perfetto.dev",
        file_like("step.json", may_be_bare=True),
        nargs="?",
        const="",
    )
    add_switch(parser, "--schedule", help="list the tasks of each pipeline rank in order")
    add_flag(
        parser,
        "--report",
        "FILE.html",
        "write one page with the step in time, memory, traffic, and where costs come from",
        file_like("report.html"),
    )
    add_writing_flags(parser)
    add_flag(
        parser,
        "--for",
        "astra-sim|infragraph",
        "write beside the traces what ASTRA-sim needs (network, system, memory, and a script that runs it), or the network as MLCommons InfraGraph",
        one_of("astra-sim", "infragraph"),
        dest="simulator",
    )
    more = parser.add_argument_group("what traces contain")
    add_flag(
        more,
        "--names",
        "full|short|typed|none",
        "names of nodes: phase, module, op and layer (the default); the op alone; "
        "the op behind its Chakra type, as Chakra's timeline visualizer wants it; none",
        one_of("full", "short", "typed", "none"),
    )
    add_switch(
        more,
        "--provenance",
        help="give each node its source line, the pass that made it, and its place in the schedule",
        default=None,
    )
    add_switch(
        more,
        "--track-memory",
        help="give each node the tensors that it reads and writes, for trackers of local memory",
        default=None,
    )
    add_switch(
        more,
        "--durations",
        help="give each node what it is estimated to take on the plan's device (`duration_micros`)",
        default=None,
    )
    add_flag(
        more,
        "--bundle",
        "FILE",
        "write one file for `stagec expand`, however many ranks",
        a_file,
    )
    return parser


def add_model_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("the model")
    add_flag(group, "--plan", "NAME", "a plan of the file (the first by default), or FILE.stg:NAME")
    add_repeated(group, "--set", "NAME=SIZE", "the size of a dim or a mesh axis; may be repeated")


def add_pass_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("passes")
    add_flag(
        group,
        "--stop-after",
        "PASS",
        "stop there and print the IR; `lower` is what the passes start from",
    )
    add_switch(group, "--print-ir", help="print the IR after each pass")
    add_load_pass(group)
