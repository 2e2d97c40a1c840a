"""`stagec search MODEL.stg --devices 512 --device h100`: the best plan, found and proved."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence

from stagec.cli.names import model_named
from stagec.cli.usage import (
    CommandParser,
    add_format_flag,
    add_load_pass,
    add_repeated,
    file_like,
    overrides,
    some_text,
    usage_error,
    whole_number,
)
from stagec.plugins import loaded

EPILOG = """\
what is chosen from (narrow it with --fix and --forbid, or in a TOML file: `tp = [1, 2]`, `forbid = ["zero=3 pp=2"]`):
{names}

examples:
  stagec search examples/llama3_8b.stg --devices 64 --device h100 --batch 256 -o plans.stg
  stagec search examples/llama3_8b.stg --devices 64,128 --device h100 --minimise cost --fix tp=1,2,4,8
  stagec search examples/llama3_8b.stg --like dp8_tp8 --device h100
"""


def run(arguments: Sequence[str]) -> int:
    from stagec.cli.search_page import show_search

    return show_search(read_flags(arguments))


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    from stagec.searching.space import NAMES

    listed = "\n".join(f"  {name:15} {what}" for name, what in NAMES.items())
    parser = CommandParser(
        "stagec search",
        "Find the best plan of a model on so many devices: by closed forms, proved by whole compilations.",
        EPILOG.format(names=listed),
    )
    parser.add_argument("model", metavar="MODEL.stg", help="a model, or the name of one that ships")
    parser.add_argument(
        "--devices", metavar="N", help="how many devices, or several numbers: `256,512`"
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=some_text("--device"),
        help="what they are, as a plan's `device` says it: `h100`, or `h100 { network_bytes_per_s = 100GB }`",
    )
    parser.add_argument(
        "--network",
        metavar="FILE",
        type=some_text("--network"),
        help="an InfraGraph of the cluster, which says how many devices a node has and how fast links are",
    )
    parser.add_argument(
        "--batch",
        metavar="SEQUENCES",
        type=some_text("--batch"),
        help="of a step: `1024`, or `4Mtokens` (the model's own by default)",
    )
    parser.add_argument(
        "--minimise",
        metavar="WHAT",
        default="step_time",
        type=some_text("--minimise"),
        help="`step_time` (the default), `cost` (device-seconds of a step), `memory.peak`, or an expression of "
        "`step_time`, `ranks` and `memory.peak`",
    )
    parser.add_argument("--space", metavar="FILE.toml", help="what to choose from")
    add_repeated(parser, "--fix", "NAME=VALUES", "choose from these alone")
    add_repeated(
        parser,
        "--forbid",
        "NAME=VALUE",
        "never this; several with a space between: never these together",
    )
    parser.add_argument(
        "--like", metavar="PLAN", help="start from this plan of the file: which single change helps"
    )
    parser.add_argument(
        "--margin",
        metavar="PERCENT",
        type=percentage("--margin"),
        default=6,
        help="of a device's memory, left to its allocator and libraries (6 by default)",
    )
    parser.add_argument(
        "--top", metavar="N", type=whole_number("--top"), default=10, help="plans to propose"
    )
    parser.add_argument("-o", dest="output", metavar="FILE.stg", help="write them as plans")
    parser.add_argument(
        "--plot",
        metavar="FILE.html",
        type=file_like("--plot", "plans.html"),
        help="write all plans as a chart",
    )
    parser.add_argument(
        "--cache", metavar="FILE", help="keep what is found here: a search that was stopped goes on"
    )
    parser.add_argument(
        "--executor",
        metavar="NAME",
        default="processes",
        help="who works: `processes:8`, `dask:...`",
    )
    add_repeated(parser, "--set", "NAME=SIZE", "the size of a dim; may be repeated")
    add_load_pass(parser)
    add_format_flag(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.read(arguments)
    options.sizes = overrides(options.set)
    options.plug_ins = loaded(tuple(options.load_pass))
    options.model = model_named(options.model)
    if options.device is not None:
        # A file stands in quotes in a plan, which a shell takes away.
        options.device = re.sub(r'^([^\s"{]+\.toml)(?=\s|\{|$)', r'"\1"', options.device.strip())
    if options.like is not None:
        for flag in ("devices", "network", "space", "fix", "forbid", "batch", "cache"):
            if getattr(options, flag):
                message = (
                    f"`--{flag}` is about a whole space, and `--like` about changes of one plan"
                )
                raise usage_error(f"--{flag}", message, "E0711", "leave out one of the two")
    elif options.devices is None:
        message = "a search wants a number of devices"
        raise usage_error("", message, help="add `--devices 64`, or `--like PLAN`")
    elif options.device is None:
        help_ = "add `--device h100`"
        raise usage_error("", "how long a step takes depends on the device", "E0410", help_)
    options.numbers = device_counts(options.devices) if options.devices else ()
    return options


def percentage(flag: str) -> Callable[[str], int]:
    """A flag with a share that leaves something."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,2}", text, flags=re.ASCII):
            message = f"`{flag}` wants a whole number from 0 to 99"
            raise usage_error(f"{flag} {text}", message, "E0710")
        return int(text)

    return read


def device_counts(text: str) -> tuple[int, ...]:
    found = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 2**22 for part in found):
        raise usage_error(
            f"--devices {text}",
            f"`{text}` is not a number of devices",
            "E0710",
            "write `64` or `64,128`",
        )
    return tuple(dict.fromkeys(map(int, found)))
