"""`stagec import SOURCE`: a model's configuration as a model, a launcher's flags as a plan."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stagec.backend.files import write_whole
from stagec.cli.usage import (
    CommandParser,
    a_file,
    add_flag,
    add_switch,
    add_trust_flags,
    some_text,
    usage_error,
    whole_number,
)
from stagec.diagnostics import CompileError, did_you_mean, file_meant, refused
from stagec.frontend import Source, parse_file, syntax
from stagec.frontend.files import uncapitalised
from stagec.frontend.moving import path_from
from stagec.importing import import_configuration
from stagec.importing.families import FAMILIES
from stagec.importing.launch import import_plan
from stagec.importing.launch.flags import MEGATRON
from stagec.importing.launch.read import KINDS, kind_of
from stagec.importing.launch.roles import names_in
from stagec.importing.launch.shell import MOST_SCRIPT_BYTES
from stagec.importing.model import CONFIGURATION, no_json, read_configuration
from stagec.importing.shipped import configurations, shipped
from stagec.reading import MOST_BYTES, read_whole_text

EPILOG = """\
examples:
  stagec import config.json -o model.stg           a configuration of Hugging Face, or a folder with one
  stagec import Qwen/Qwen3-0.6B -o model.stg       one that ships, by its name on the hub; `stagec examples` lists them
  stagec import train.sh -o plan.stg               flags of Megatron-LM; the script is read, never run
  stagec import "--tensor-model-parallel-size 8 --bf16" --gpus 64
  stagec import llama3_405b.toml --gpus 512        settings of torchtitan
  stagec import ds_config.json --gpus 16           settings of DeepSpeed
  stagec import plan.sh --model model.stg -o run.stg
"""


def run(arguments: Sequence[str]) -> int:
    options = make_parser().read(separated(arguments))
    path = Path(options.source)
    if options.source.lstrip().startswith("--"):
        return write_plan(options.source, "command line", "megatron", options)
    if not os.path.exists(path) and (found := shipped(options.source)):
        full, data = found
        return write_model(data, full, options)
    text = source_text(path)
    try:
        kind = options.kind or kind_of(path, text)
    except ValueError as error:
        raise no_json(options.source, error) from None
    if kind:
        return write_plan(text, options.source, kind, options)
    if path.suffix != ".json" and not os.path.isdir(path):
        message = f"`{options.source}` is nothing that can be imported"
        raise refuse(
            options.source,
            "E0803",
            message,
            f"if it is a launcher's, say `--kind {'|'.join(KINDS)}`",
        )
    return write_model(read_configuration(path), shown_name(path), options, text)


def separated(arguments: Sequence[str]) -> list[str]:
    """A line of flags is one word, though it starts with `--`; so is a flag of Megatron-LM alone."""
    words = list(arguments)
    for i, word in enumerate(words):
        is_flag = word.startswith("--") and word[2:].partition("=")[0] in MEGATRON
        if is_flag or (word.lstrip().startswith("--") and " " in word.strip()):
            return [*words[:i], *words[i + 1 :], "--", word]
    return words


def make_parser() -> CommandParser:
    parser = CommandParser(
        "stagec import",
        "Translate a configuration into a model, or a launcher's flags into a plan.",
        EPILOG,
    )
    parser.add_argument("source", metavar="SOURCE", help="a file, a folder, a name, or flags")
    add_flag(parser, "-o", "FILE.stg", "the file to write", a_file, dest="out")
    add_flag(parser, "--gpus", "N", "how many GPUs a plan is for", whole_number)
    add_flag(parser, "--model", "FILE.stg", "the model that a plan imports", some_text)
    parser.add_argument("--kind", choices=KINDS, help="whose flags or settings these are")
    known = "\n".join(sorted(FAMILIES))
    help_ = "list the architectures that are known, by `model_type`"
    parser.add_argument("--architectures", action="version", version=known, help=help_)
    add_switch(parser, "-q", "--quiet", help="print errors and nothing else")
    add_trust_flags(parser, runs_code=False)
    return parser


def source_text(path: Path) -> str:
    if os.path.isdir(path):
        read_configuration(path)
        path = path / CONFIGURATION
    try:
        most = MOST_BYTES if path.suffix == ".json" else MOST_SCRIPT_BYTES
        return read_whole_text(path, most)
    except (OSError, ValueError) as error:
        reason = uncapitalised(getattr(error, "strerror", None) or str(error))
        names = [name for full in configurations() for name in (full, full.partition("/")[2])]
        help_ = (
            did_you_mean(str(path), names) if not path.suffix or not os.path.exists(path) else ""
        )
        help_ = help_ or file_meant(str(path))
        raise refuse(str(path), "E0701", f"cannot read `{path}`: {reason}", help_) from None


def write_model(
    data: Mapping[str, Any], name: str, options: argparse.Namespace, text: str = ""
) -> int:
    for flag, value in (("--gpus", options.gpus), ("--model", options.model)):
        if value is not None:
            message = f"`{flag}` is about plans, and this is a model"
            raise usage_error(flag, message, "E0711", "leave it out")
    is_folder = text and os.path.isdir(options.source)
    file = str(Path(options.source) / CONFIGURATION) if is_folder else options.source
    imported = import_configuration(data, file, name, text)
    return deliver(imported.text, f"`{imported.model.name}`", options)


def write_plan(text: str, file: str, kind: str, options: argparse.Namespace) -> int:
    dims = model = names = None
    if options.model is not None:
        source = parse_file(options.model)
        dims = dims_of(source)
        names = names_in(source, dims)
        folder = os.path.dirname(options.out or "") or "."
        model = path_from(folder, options.model)
    beside = Path(file).parent if Path(file).is_file() else None
    imported = import_plan(text, file, kind, options.gpus, model or "", dims, beside, names)
    status = deliver(imported.text, f"a plan for {imported.run.ranks:,} GPUs", options)
    if imported.idle and not options.quiet:
        sys.stderr.write(f"note: without effect on a plan: {', '.join(imported.idle)}\n")
    return status


def dims_of(model: Source) -> dict[str, int | None]:
    """The dims of a model, and of what it imports; the sizes of those that are numbers."""
    dims = [i for f in model.files.values() for i in f.items if isinstance(i, syntax.Dim)]
    return {
        i.name.text: int(i.size.text) if isinstance(i.size, syntax.Number) else None for i in dims
    }


def deliver(text: str, what: str, options: argparse.Namespace) -> int:
    """Write the text to the file that is named, or to standard output."""
    if options.out is None:
        sys.stdout.write(text)
        return 0
    write_whole(options.out, text.encode())
    if not options.quiet:
        sys.stdout.write(f"{options.out}: {what}\n")
    return 0


def shown_name(path: Path) -> str:
    """What a configuration is called: its folder, where the file itself is `config.json`."""
    stem = path.name if path.is_dir() else path.stem
    if stem == "config":
        stem = path.resolve().parent.name
    return stem.replace("--", "/")


def refuse(origin: str, code: str, message: str, help: str = "") -> CompileError:
    return refused(code, message, origin=origin, help=help)
