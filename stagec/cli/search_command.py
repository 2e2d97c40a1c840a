"""`stagec search MODEL.stg --devices 512 --device h100`: the best plan, found and proved."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from stagec.cli.usage import (
    CommandParser,
    a_file,
    add_flag,
    add_format_flag,
    add_load_pass,
    add_repeated,
    add_switch,
    add_trust_flags,
    file_like,
    overrides,
    some_text,
    usage_error,
    whole_number,
)
from stagec.devices.file import is_path, load, with_bases
from stagec.diagnostics import CompileError, render
from stagec.dialects.dist import MOST_RANKS
from stagec.frontend.moving import path_from
from stagec.frontend.typed_device import of_file
from stagec.plans.clause_text import name_text
from stagec.plugins import loaded
from stagec.shipped_models import model_named
from stagec.trust import allow_files

EPILOG = """\
what is chosen from (narrow it with --fix and --forbid, or in a TOML file: `tp = [1, 2]`, `forbid = ["zero=3 pp=2"]`):
{names}

examples:
  stagec search examples/llama3_8b.stg --devices 64 --device h100 --batch 256 -o plans.stg
  stagec search examples/llama3_8b.stg --devices 64,128 --device h100 --minimise cost --fix tp=1,2,4,8
  stagec search examples/llama3_8b.stg --like dp8_tp8 --device h100
  stagec search examples/llama3_70b.stg --devices 8 --device h200 --clause "serve {{ decode B at 1500, block = 16 }}" --within "step_time < 30ms"
"""


NAMED = re.compile(r'\s*(?P<name>"[^"{}]*"|[^"{}]*?)(?P<settings>\s*(\{.*\})?)\s*', re.DOTALL)
"""The name of a device, or its file, with or without quotes, and what settings there are."""


def run(arguments: Sequence[str]) -> int:
    options = read_flags(arguments)
    if options.plug_ins.warnings:
        sys.stderr.write(render(options.plug_ins.warnings))
    if options.like is not None:
        from stagec.cli.search_changes import show_changes

        return show_changes(options)
    from stagec.cli.search_page import show_search

    return show_search(options)


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    from stagec.searching.space import NAMES, SERVING_NAMES

    listed = "\n".join(f"  {name:15} {what}" for name, what in NAMES.items())
    listed += '\nof plans that serve (`--clause "serve { ... }"`):\n'
    listed += "\n".join(
        f"  {name:15} {what}" for name, what in SERVING_NAMES.items() if NAMES.get(name) != what
    )
    parser = CommandParser(
        "stagec search",
        "Find the best plan of a model on so many devices: by closed forms, proved by whole compilations.",
        EPILOG.format(names=listed),
    )
    parser.add_argument("model", metavar="MODEL.stg", help="a model, or the name of one that ships")
    add_flag(parser, "--devices", "N", "how many devices, or several numbers: `256,512`")
    add_flag(
        parser,
        "--device",
        "NAME",
        "what they are, as a plan's `device` says it: `h100`, or `h100 { network_bytes_per_s = 100GB }`",
        some_text,
    )
    add_flag(
        parser,
        "--network",
        "FILE",
        "an InfraGraph of the cluster, which says how many devices a node has and how fast links are",
        some_text,
    )
    add_flag(
        parser,
        "--batch",
        "SEQUENCES",
        "of a step: `1024`, or `4Mtokens` (the model's own by default)",
        some_text,
    )
    add_flag(
        parser,
        "--minimise",
        "WHAT",
        "`step_time` (the default), `cost` (device-seconds of a step), `memory.peak`, `token_cost` (device-seconds of a token: the default "
        "where something is served), or an expression of `step_time`, `ranks`, `memory.peak` and `tokens`",
        some_text,
    )
    add_repeated(
        parser,
        "--within",
        "LIMIT",
        "what a plan may take at most: `step_time < 50ms`, `memory.peak < 70GiB`",
    )
    add_flag(parser, "--space", "FILE.toml", "what to choose from")
    add_repeated(
        parser,
        "--clause",
        "TEXT",
        "of every plan: `precision { weights = bf16, products = fp8 }`; with `serve { decode B at 1500 }` plans serve, and B is chosen",
    )
    add_repeated(parser, "--fix", "NAME=VALUES", "choose from these alone")
    add_repeated(
        parser,
        "--forbid",
        "NAME=VALUE",
        "never this; several with a space between: never these together",
    )
    add_flag(
        parser, "--like", "PLAN", "start from this plan of the file: which single change helps"
    )
    add_flag(
        parser,
        "--margin",
        "PERCENT",
        "of a device's memory, left to its allocator and libraries (6 by default)",
        percentage,
        default=6,
    )
    add_flag(parser, "--top", "N", "plans to propose (10 by default)", whole_number)
    add_flag(parser, "-o", "FILE.stg", "write them as plans", a_file, dest="output")
    add_flag(parser, "--plot", "FILE.html", "write all plans as a chart", file_like("plans.html"))
    add_flag(
        parser, "--cache", "FILE", "keep what is found here: a search that was stopped goes on"
    )
    add_flag(
        parser, "--executor", "NAME", "who works: `processes:8`, `dask:...`", default="processes"
    )
    add_repeated(parser, "--set", "NAME=SIZE", "the size of a dim; may be repeated")
    add_load_pass(parser)
    add_format_flag(parser)
    add_trust_flags(parser)
    add_switch(parser, "-q", "--quiet", help="show no progress")
    options = parser.read(arguments)
    options.sizes = overrides(options.set)
    options.plug_ins = loaded(tuple(options.load_pass))
    options.model = model_named(options.model)
    options.typed_device = options.device
    if options.device is not None:
        options.device = beside(options.device, options.model)
    if options.like is not None:
        for flag in (
            "devices",
            "network",
            "space",
            "fix",
            "forbid",
            "batch",
            "cache",
            "clause",
            "within",
            "top",
            "plot",
            "output",
        ):
            if getattr(options, flag):
                said = "-o" if flag == "output" else f"--{flag}"
                message = f"`{said}` is about a whole space, and `--like` about changes of one plan"
                raise usage_error(said, message, "E0711", "leave out one of the two")
    elif options.devices is None:
        message = "a search wants a number of devices"
        raise usage_error("", message, help="add `--devices 64`, or `--like PLAN`")
    elif options.device is None:
        help_ = "add `--device h100`"
        raise usage_error("", "how long a step takes depends on the device", "E0410", help_)
    options.top = options.top or 10
    options.numbers = device_counts(options.devices) if options.devices else ()
    return options


def beside(device: str, model: str) -> str:
    """A device's file in quotes, which a shell takes away, and from the folder of the model, where plans stand. E0417 for one that does not read.

    Plans of a search name it then, and may.
    """
    match = NAMED.fullmatch(device)
    if match is None or not is_path(name := match["name"].strip('"')):
        return device.strip()
    try:
        load(name)
    except CompileError as error:
        raise of_file(error, device) from None
    allow_files([*with_bases(name)])
    if not os.path.isabs(name):
        name = path_from(Path(model).parent, name)
    return f"{name_text(name)}{match['settings']}"


def percentage(flag: str, text: str) -> int:
    """A flag with a share that leaves something."""
    if not re.fullmatch(r"\d{1,2}", text, flags=re.ASCII):
        message = f"`{flag}` wants a whole number from 0 to 99"
        raise usage_error(f"{flag} {text}", message, "E0710", f"for example `{flag} 10`")
    return int(text)


def device_counts(text: str) -> tuple[int, ...]:
    found = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_RANKS for part in found):
        raise usage_error(
            f"--devices {text}",
            f"`{text}` is not a number of devices",
            "E0710",
            "write `64` or `64,128`",
        )
    return tuple(dict.fromkeys(map(int, found)))
