"""`stagec explain MODEL.stg [WHAT]`: where a number comes from."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from stagec.cli.device_flags import add_device_flags
from stagec.cli.inputs import is_ir
from stagec.cli.usage import (
    CommandParser,
    add_flag,
    add_load_pass,
    add_repeated,
    add_trust_flags,
    file_like,
    one_of,
    overrides,
    some_text,
    usage_error,
    whole_number as whole,
)
from stagec.diagnostics import quoted
from stagec.plugins import registry
from stagec.shipped_models import model_named

EPILOG = """\
what can be asked for (without any, an overview):
  flops, flops.matrix, flops.bwd, flops.contract, flops.MODULE
  bytes, bytes.read, bytes.written, and as above
  comm, comm.AXIS, comm.AXIS.KIND, and .count, .result_bytes or .sent_bytes of each
  params, params.NAME
  memory.peak, memory.peak.KIND, memory.static, memory.parameters, .master, .optimizer, .gradients,
    .activations (of a microbatch), .in_flight (of all that are)
  host, host.load, host.store; bubble, ranks
  step_time: where a step's time goes on the plan's device, MFU, HFU, tokens per second
  node N, or N: a node of a trace by its id

examples:
  stagec explain examples/gpt.stg flops.matrix
  stagec explain examples/gpt.stg comm.tp.all_gather --format latex
  stagec explain examples/gpt.stg flops --d tp
  stagec explain examples/gpt.stg --solve "memory.peak < 80GiB" --for microbatch
  stagec explain examples/gpt.stg memory.peak,comm --sweep tp=1,2,4,8 dp=32/tp --sort memory.peak
"""


def run(arguments: Sequence[str]) -> int:
    options = read_flags(arguments)
    if options.solve is not None:
        from stagec.cli.solve_page import show_solution

        return show_solution(options)
    if options.sweep is not None:
        from stagec.cli.sweep_page import show_sweep

        return show_sweep(options)
    from stagec.cli.explanation import explain

    return explain(options)


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "stagec explain",
        "Say where a number comes from: its closed form, its value, its parts, its sources.",
        EPILOG,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="MODEL.stg [WHAT]",
        help="a model, and the quantity to explain (listed below)",
    )
    add_trust_flags(parser)
    add_flag(
        parser, "--plan", "NAME", "a plan of the file (the first by default), or FILE.stg:NAME"
    )
    add_repeated(parser, "--set", "NAME=SIZE", "the size of a dim or a mesh axis; may be repeated")
    add_device_flags(parser)
    add_load_pass(parser)
    add_flag(
        parser,
        "--class",
        "NAME",
        "of one rank of this class, or `total` for all ranks (all classes by default)",
        some_text,
        dest="rank_class",
    )
    add_flag(
        parser,
        "--format",
        "text|latex|python",
        "how the closed form is written (text by default); of a sweep: table, csv or json",
        one_of(*FORM_FORMATS, *SWEEP_FORMATS),
    )
    add_flag(parser, "--parts", "N", "how many parts to list (12 by default)", whole)
    add_flag(parser, "--d", "NAME", "the derivative by a dim or an axis", some_text)
    group = parser.add_argument_group("many plans")
    add_flag(
        group,
        "--sweep",
        "NAME=VALUES",
        "a row per plan: `tp=1,2,4,8 pp=1..16 microbatch=1,2,4 dp=512/(tp*pp)`; WHAT may be a list: `flops,comm.tp,memory.peak`, and `step_time`",
        nargs="+",
    )
    add_flag(group, "--sort", "NAME", "the smallest first; `--sort=-NAME`: the largest")
    add_flag(group, "--pareto", "A,B", "only plans that no other is better than in all of these")
    add_flag(group, "--plot", "FILE.html", "write the plans as a chart", file_like("plans.html"))
    add_flag(
        group,
        "--solve",
        "CONDITION",
        "the values that meet it: `memory.peak < 80GiB`, `step_time < 200ms`",
    )
    add_flag(group, "--for", "NAME", "of this size or axis", dest="solve_for")
    options = parser.read(arguments, mixed=True)
    options.model, options.what, options.node = names(options.names)
    options.model = model_named(options.model)
    if options.sweep is None and options.solve is None:
        check_question(options)
    options.sizes = overrides(options.set)
    options.plug_ins = registry(options.load_pass)
    check_formats(options)
    check_model(options)
    options.parts = 12 if options.parts is None else options.parts
    return options


def check_model(options: argparse.Namespace) -> None:
    """E0711 for other sizes of IR, which is of one plan: they are compiled from the text."""
    asked = [flag for flag in ("sweep", "solve") if getattr(options, flag) is not None]
    if asked and is_ir(options.model):
        message = (
            f"`--{asked[0]}` tries other sizes of a model, and `{options.model}` is IR, of one plan"
        )
        raise usage_error(
            f"--{asked[0]}", message, "E0711", "name the model, and the plan: `--plan`"
        )


def check_question(options: argparse.Namespace) -> None:
    """E0711 for flags that say nothing of what is asked."""
    spelled = options.d or options.format in ("latex", "python")
    read = {"d", "format", "rank_class", *(() if spelled else ("parts",))}
    if options.what in ("", "step_time"):
        read = {"device", "link", "network"} if options.what else set()
    elif options.node is not None:
        read = {"rank_class"}
    for name in ("d", "format", "rank_class", "parts", "device", "link", "network"):
        value = getattr(options, name)
        if not value or value == "text" or name in read:
            continue
        flag = "--class" if name == "rank_class" else f"--{name}"
        message, help_ = f"`{flag}` says nothing of `{options.what}`", "leave it out"
        if name in ("device", "link", "network"):
            message, help_ = f"`{flag}` is about times", "ask for `step_time`"
        elif not options.what:
            message = f"`{flag}` is about one quantity, and none is named"
            help_ = "`stagec explain MODEL.stg flops`"
        elif name in read | {"parts"} and spelled:
            message = "`--parts` is about what stands below a closed form, which is all that is printed here"
        raise usage_error(flag, message, "E0711", help_)


FORM_FORMATS = ("text", "latex", "python")
SWEEP_FORMATS = ("table", "csv", "json")


def check_formats(options: argparse.Namespace) -> None:
    """E0711 for flags of a sweep without one, and of a form with one."""
    if (options.solve is None) != (options.solve_for is None):
        flag = "--solve" if options.solve else "--for"
        help_ = 'write `--solve "memory.peak < 80GiB" --for microbatch`'
        message = "`--solve` and `--for` go together"
        raise usage_error(flag, message, "E0711", help_)
    if options.solve is not None:
        if options.what:
            message = f"`{options.what}` is to be explained, and `--solve` says itself what it asks"
            help_ = "leave out one of the two: the condition names the quantity"
            raise usage_error(options.what, message, "E0711", help_)
        for flag in ("sweep", "d", "rank_class", "parts", "format"):
            if getattr(options, flag) is not None:
                name = "--class" if flag == "rank_class" else f"--{flag}"
                message = f"`{name}` does not go with `--solve`"
                raise usage_error(name, message, "E0711", "leave out one of the two")
    if options.sweep is None:
        for flag in ("sort", "pareto", "plot"):
            if getattr(options, flag) is not None:
                message = f"`--{flag}` is about a sweep, and there is none"
                raise usage_error(f"--{flag}", message, "E0711", "add `--sweep tp=1,2,4`")
    else:
        of_one = {"--d": options.d, "--class": options.rank_class, "--parts": options.parts}
        for flag, value in of_one.items():
            if value is not None:
                message = f"`{flag}` is about one plan, and `--sweep` about many"
                raise usage_error(flag, message, "E0711", "leave out one of the two")
    allowed = FORM_FORMATS if options.sweep is None else SWEEP_FORMATS
    if options.format is None:
        options.format = allowed[0]
    if options.format not in allowed:
        what = "a closed form" if options.sweep is None else "a sweep"
        message = f"{what} cannot be written as `{options.format}`"
        help_ = f"it can be {quoted(allowed, 'or')}"
        raise usage_error(f"--format {options.format}", message, "E0711", help_)


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
            message = f"`{what[0]}` is not a number of a node"
            raise usage_error(f"explain node {what[0]}", message, "E0710", "nodes count from 1")
    if len(what) > 1:
        help_ = "`stagec explain --help` explains the command line"
        raise usage_error("", f"`{what[1]}` is one name too many", help=help_)
    if what and NUMBER.fullmatch(what[0]):
        return model, f"node {what[0]}", int(what[0])
    return model, what[0] if what else "", None


NUMBER = re.compile(r"[0-9]{1,15}")
