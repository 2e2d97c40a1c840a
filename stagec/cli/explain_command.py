"""`stagec explain MODEL.stg [WHAT]`: where a number comes from."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from stagec.cli.usage import CommandParser, one_of, overrides, some_text, usage_error
from stagec.cli.usage import whole_number as whole

EPILOG = """\
what can be asked for (without any, an overview):
  flops, flops.matrix, flops.bwd, flops.contract, flops.MODULE
  bytes, bytes.read, bytes.written, and as above
  comm, comm.AXIS, comm.AXIS.KIND, and .count, .result_bytes or .sent_bytes of each
  params, params.NAME
  memory.peak, memory.peak.KIND, memory.static, memory.parameters, .master, .optimizer, .gradients,
    .activations (of a microbatch), .in_flight (of all that are)
  host, host.load, host.store; bubble
  node N, or N: a node of a trace by its id

examples:
  stagec explain examples/gpt.stg flops.matrix
  stagec explain examples/gpt.stg comm.tp.all_gather --format latex
  stagec explain examples/gpt.stg flops --d tp
"""


def run(arguments: Sequence[str]) -> int:
    options = read_flags(arguments)
    from stagec.cli.explanation import explain

    return explain(options)


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "stagec explain",
        "Say where a number comes from: its closed form, its value, its parts, its sources.",
        EPILOG,
    )
    parser.add_argument("names", nargs="*", metavar="MODEL.stg [WHAT]")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--plan", metavar="NAME", help="a plan of the file (the first by default)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a dim or a mesh axis; may be repeated",
    )
    parser.add_argument(
        "--class",
        dest="rank_class",
        metavar="NAME",
        type=some_text("--class"),
        help="of one rank of this class, or `total` for all ranks (all classes by default)",
    )
    parser.add_argument(
        "--format",
        metavar="text|latex|python",
        type=one_of("--format", "text", "latex", "python"),
        default="text",
        help="how the closed form is written (text by default)",
    )
    parser.add_argument(
        "--parts",
        metavar="N",
        type=whole("--parts"),
        default=12,
        help="how many parts to list (12 by default)",
    )
    parser.add_argument(
        "--d", metavar="NAME", type=some_text("--d"), help="the derivative by a dim or an axis"
    )
    options = parser.read(arguments, mixed=True)
    options.model, options.what, options.node = names(options.names)
    if not options.what and (options.d or options.format != "text"):
        flag = "--d" if options.d else "--format"
        message = f"`{flag}` is about one quantity, and none is named"
        raise usage_error(flag, message, "E0711", "`stagec explain MODEL.stg flops`")
    options.sizes = overrides(options.set)
    return options


def names(words: Sequence[str]) -> tuple[str, str, int | None]:
    """The model, what is asked for, and the number of the node if it is one: `node 123`, or `123` alone."""
    if not words:
        help_ = "`stagec explain MODEL.stg flops`"
        raise usage_error("", "no model is given", help=help_)
    model, *what = words
    if what[:1] == ["node"] and len(what) == 1:
        help_ = "`stagec explain MODEL.stg node 1`"
        raise usage_error("explain node", "`node` wants the number of one", help=help_)
    if len(what) > 1 and what[0] == "node":
        what = what[1:]
        if not NUMBER.fullmatch(what[0]):
            message = f"`{what[0]}` is no number of a node"
            raise usage_error(f"explain node {what[0]}", message, "E0710", "nodes count from 1")
    if len(what) > 1:
        help_ = "`stagec explain --help` explains the command line"
        raise usage_error("", f"`{what[1]}` is one name too many", help=help_)
    if what and NUMBER.fullmatch(what[0]):
        return model, f"node {what[0]}", int(what[0])
    return model, what[0] if what else "", None


NUMBER = re.compile(r"[0-9]{1,15}")
