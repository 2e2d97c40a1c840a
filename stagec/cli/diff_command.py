"""`stagec diff A B`: what differs between two models or plans, or between two sets of traces."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stagec.cli.diff_side import DiffSide
from stagec.cli.inputs import STANDARD_INPUT
from stagec.cli.usage import (
    CommandParser,
    add_format_flag,
    add_load_pass,
    add_repeated,
    add_switch,
    add_trust_flags,
    said_by,
    usage_error,
)
from stagec.shipped_models import with_plan

DIFFERENT = 3
"""The exit status: 1 and 2 say, for all commands, that something went wrong."""

EPILOG = """\
A and B are models, each MODEL.stg or MODEL.stg:PLAN, IR (a file, or `-` for standard input), or directories of traces of any tool.

The exit status is 0 if they are the same, 3 if they differ, 1 if that cannot be said.

examples:
  stagec diff model.stg:dp8_tp8 model.stg:fsdp64            two plans of a model
  stagec diff model.stg model.stg --set-b tp=4              one plan, two sizes
  stagec diff old.stg new.stg --set S=8192                  two models, both with S = 8192
  stagec diff model.stg:pools model.stg:pools --set-b decode.tp=4
                                                            two sizes of one pool
  stagec diff traces/ /from/another/tool/                   two sets of traces
  stagec-opt x.mlir -p my-pass | stagec diff x.mlir -       what a pass changes
"""


def run(arguments: Sequence[str]) -> int:
    """Exit status 0 for no difference, 3 for one."""
    options = make_parser().read(arguments)
    a, b = (side(text) for text in (options.a, options.b))
    refuse_mixture(a, b)
    if a.text == b.text == STANDARD_INPUT:
        raise usage_error("- -", "standard input is one of the two", "E0711", "name a file")
    if a.is_traces:
        from stagec.cli.diff_traces import diff_traces

        differs = diff_traces(a.path, b.path, options)
    else:
        from stagec.cli.diff_jobs import diff_jobs

        of_side = ({"--set-a": options.set_a}, {"--set-b": options.set_b})
        sizes = [said_by({"--set": options.set, **own}) for own in of_side]
        differs = diff_jobs((a, b), sizes, options)
    return DIFFERENT if differs else 0


def make_parser() -> CommandParser:
    parser = CommandParser(
        "stagec diff",
        "Say what differs between two models or plans, or between two sets of traces.",
        EPILOG,
    )
    parser.add_argument("a", metavar="A", help="a model, `MODEL.stg:PLAN`, or a folder of traces")
    parser.add_argument("b", metavar="B", help="what it is compared with, of the same kind")
    for flag, whose in (("--set", "both models"), ("--set-a", "A"), ("--set-b", "B")):
        add_repeated(
            parser,
            flag,
            "NAME=SIZE",
            f"the size of a dim or a mesh axis of {whose}; may be repeated",
        )
    add_load_pass(parser)
    add_trust_flags(parser)
    add_format_flag(parser)
    add_switch(parser, "--all", help="show all rows, those that differ or not")
    add_switch(parser, "-q", "--quiet", help="print nothing")
    return parser


def side(text: str) -> DiffSide:
    """What an argument names. E0701 for nothing, E0707 for what cannot be compared."""
    if os.path.isdir(text):
        return DiffSide(text, text, is_traces=True)
    if text == STANDARD_INPUT:
        return DiffSide(text, text, is_traces=False)
    path, plan = with_plan(text)
    if path.endswith((".et", ".et.gz")):
        help_ = f"name the directory that it is in: `{os.path.dirname(path) or '.'}`"
        raise usage_error(text, "a single trace cannot be compared", help=help_)
    if not os.path.exists(path) and not path.endswith(".stg"):
        help_ = "a model is MODEL.stg or MODEL.stg:PLAN, and traces are named by their directory"
        raise usage_error(text, f"there is no model or directory `{path}`", "E0701", help_)
    return DiffSide(text, path, is_traces=False, plan=plan)


def refuse_mixture(a: DiffSide, b: DiffSide) -> None:
    """E0711 for traces beside a model."""
    if a.is_traces == b.is_traces:
        return
    model, traces = (b, a) if a.is_traces else (a, b)
    plan = f" --plan {model.plan}" if model.plan else ""
    raise usage_error(
        f"{a.text} {b.text}",
        f"`{traces.text}` is a directory of traces, and `{model.text}` a model",
        "E0711",
        f"write the traces of the model first: `stagec {model.path}{plan} -o DIR`",
    )
