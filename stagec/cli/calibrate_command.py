"""`stagec calibrate DEVICE SOURCE... -o FILE.toml`: a device file from measured operators.

DEVICE is where numbers of datasheets come from: a device that ships, or a file. A SOURCE is a folder of CSV files (`folder.py` says their
columns), one such CSV file, the folder of an installed or unpacked `aiconfigurator_core` (Apache-2.0), or a trace of a real run: Kineto's JSON
(`torch.profiler`) or Chakra's `.et`. The report shows errors on shapes that a trial fit has not seen; the file is fitted to all.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from stagec.backend.files import write_whole
from stagec.calibrate.aiconfigurator import is_package, read_package
from stagec.calibrate.folder import COLUMNS, FILES, added, read_file, read_folder, unreadable
from stagec.calibrate.measured import LeftOut, Measured, gathered
from stagec.calibrate.report import HEAD, line, without_tables
from stagec.calibrate.traces import read_trace
from stagec.cli.usage import CommandParser, a_file, add_flag, add_repeated, add_switch, usage_error
from stagec.devices.file import is_path, load, table_text
from stagec.devices.model import DeviceModel, Key, TimeTable
from stagec.diagnostics import did_you_mean, file_meant, quoted, refused
from stagec.frontend.moving import path_from
from stagec.reading import read_whole_text

Fit = Callable[[DeviceModel, Measured], TimeTable]

LAYER_OPS = "layer_ops.csv"
LEAST_ROWS = 5
"""Fewer say too little for a table."""
MARK = "# What follows is written by stagec.calibrate.\n"


TABLES = "\n".join(
    f"    {name}  {needed} [{optional}]" for name, (needed, optional) in COLUMNS.items()
)
EPILOG = f"""\
sources:
  a folder with some of these files, or one of them, with a head that names columns (those in brackets may be missing; times are in milliseconds):
{TABLES}
  the folder of an installed or unpacked `aiconfigurator_core`
  a trace of a real run: Kineto's JSON (`torch.profiler`, with `record_shapes`), or Chakra's `.et` with durations

examples:
  stagec calibrate h100 measured/ -o ours.toml
  stagec calibrate h100 step.pt.trace.json.gz -o ours.toml
"""


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec calibrate", "Make a device file from measured operators.", EPILOG
    )
    parser.add_argument(
        "device", help="a device that ships, or a file: where datasheet numbers are from"
    )
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument(
        "-o", "--out", type=partial(a_file, "-o"), metavar="FILE.toml", help="the file to write"
    )
    add_switch(
        parser,
        "--update",
        help="replace the tables of DEVICE, which is a file: in itself, or for `-o` in a copy",
    )
    add_repeated(
        parser,
        "--only",
        "KIND[:DTYPE]",
        "only these tables (product:fp8_block); with --update others stay as they are",
    )
    add_flag(parser, "--system", "NAME", "of aiconfigurator: h100_sxm, ...")
    add_flag(parser, "--say", "TEXT", "where the tables are from", default="")
    add_flag(parser, "--licence", "NAME", "and under which licence", default="")
    calibrate(parser.read(arguments, mixed=True))
    return 0


def calibrate(options: argparse.Namespace) -> None:
    fit = fitting()
    device = load(options.device)
    if options.update and not is_path(options.device):
        message = f"`--update` replaces tables of a file, and `{options.device}` ships"
        raise unreadable(message, "--update", "make a file of it: `-o FILE.toml`")
    if options.system is not None and not any(map(is_package, options.sources)):
        message = "`--system` is of aiconfigurator, and no source is its folder"
        flag = f"--system {options.system}"
        raise usage_error(flag, message, "E0711", "leave it out, or name that folder")
    measured: dict[Key, Measured] = {}
    left_out: Counter[LeftOut] = Counter()
    for source in options.sources:
        for key, rows in read_source(source, device, options.system, left_out).items():
            measured[key] = joined(measured[key], rows) if key in measured else rows
    found = [*measured]
    measured = {key: rows for key, rows in measured.items() if is_wanted(key, options.only)}
    if not measured:
        what = quoted(options.only, "or") if options.only else "a table"
        notes = [told(left_out)] if left_out else []
        message, help_ = f"nothing that was measured is {what}", suggested(options.only, found)
        raise refused("E0418", message, notes=notes, help=help_)
    if left_out:
        sys.stderr.write(f"note: {told(left_out)}\n")
    sys.stdout.write(f"{device.title}\n{HEAD}\n")
    tables = [
        table
        for key, rows in measured.items()
        if (table := calibrated(device, key, rows, fit)) is not None
    ]
    if not tables:
        message = f"no table has {LEAST_ROWS} rows, and fewer say too little"
        raise refused("E0418", message, help="measure further shapes")
    if options.update or options.out is not None:
        save(options, device, tables)


def told(left_out: Counter[LeftOut]) -> str:
    """What no table is made of: the most first, each with how many there are."""
    each = (f"{what} ({number:,})" for what, number in left_out.most_common())
    return f"left out: {', '.join(each)}"


def is_wanted(key: Key, only: Sequence[str]) -> bool:
    """Whether a table is one of those that were asked for: all, without a word."""
    return not only or any(tuple(each.split(":")) == key[: each.count(":") + 1] for each in only)


def read_source(
    source: Path, device: DeviceModel, system: str | None, left_out: Counter[LeftOut]
) -> Mapping[Key, Measured]:
    """What a source measured, by table; what of it is in none is counted."""
    if is_package(source):
        return read_package(source, system or f"{device.name}_sxm", left_out)
    if source.is_dir():
        return read_folder(source, left_out)
    if source.name in FILES:
        return gathered(read_file(source, *FILES[source.name]), left_out)
    if source.name == LAYER_OPS:
        return gathered(read_file(source, added(device.name)), left_out)
    if source.suffix in (".json", ".gz", ".et"):
        node = device.numbers.get("node")
        return read_trace(source, None if node is None else int(node), left_out)
    if not source.exists():
        raise unreadable(f"there is no `{source}`", source, file_meant(str(source)))
    known = "`stagec calibrate --help` lists what can be read"
    message = f"`{source}` is no folder, no table by its name, and no trace"
    raise unreadable(message, source, known)


def suggested(only: Sequence[str], keys: Sequence[Key]) -> str:
    """A help for tables that were asked for and not measured: those that were."""
    kinds = sorted({":".join(key[:2]) for key in keys})
    return (did_you_mean(only[0], kinds) if only else "") or (
        f"there are {quoted(kinds)}" if kinds else "each row needs a time above 0"
    )


def joined(first: Measured, second: Measured) -> Measured:
    sizes = {
        name: np.concatenate([column, second.sizes[name]]) for name, column in first.sizes.items()
    }
    us = np.concatenate([first.us, second.us])
    return Measured(first.key, sizes, us, np.concatenate([first.role, second.role]))


def fitting() -> Fit:
    """What makes tables of measurements. E0418 without scipy."""
    try:
        from stagec.calibrate.fit import fit
    except ImportError as error:
        message = "tables are fitted with scipy, which is not installed"
        raise refused("E0418", message, help="`pip install '.[calibrate]'` in a clone") from error
    return fit


def calibrated(device: DeviceModel, key: Key, rows: Measured, fit: Fit) -> TimeTable | None:
    """The table of all primary rows; printed is what one of four fifths of their shapes does on the others."""
    primary = rows.chosen(rows.role == "primary")
    if not len(primary.us):
        primary = rows
    second = rows.chosen(rows.role == "second")
    if len(primary.us) < LEAST_ROWS:
        sys.stdout.write(f"{' '.join(key):<44}{len(primary.us):>7} too few for a table\n")
        return None
    held = primary.held_out()
    plain = without_tables(device)
    if held.any() and not held.all():
        trial = replace(plain, tables={key: fit(device, primary.chosen(~held))})
        sys.stdout.write(line(key, trial, primary.chosen(held), second, plain) + "\n")
        sys.stdout.flush()
    else:
        sys.stdout.write(f"{' '.join(key):<44}{0:>7} held out, as there are too few shapes\n")
    return fit(device, primary)


def save(options: argparse.Namespace, device: DeviceModel, tables: Sequence[TimeTable]) -> None:
    path = Path(options.out or options.device)
    source = f"[[sources]]\nwhat = {toml(options.say or 'measured operators')}\n"
    if options.licence:
        source += f"licence = {toml(options.licence)}\n"
    if options.update:
        head, _, old = read_whole_text(Path(options.device)).partition(MARK)
        if options.only:
            head += MARK + without(old, {table.key for table in tables})
        number = head.count("[[sources]]")
    else:
        title = toml(f"{device.title}, calibrated")
        head = f"base = {toml(beside(path, options.device))}\ntitle = {title}\n\n"
        number = 0
    body = "\n".join(table_text(t.key, t.axes, t.values, number) for t in tables)
    mark = "" if MARK in head else MARK
    write_whole(str(path), f"{head}{mark}\n{source}\n{body}".encode())
    sys.stdout.write(f"{path}: {len(tables)} tables\n")


def beside(path: Path, device: str) -> str:
    """What a file at `path` calls the device that it builds on: a name, or a file as seen from its own folder."""
    return path_from(path.parent, device) if is_path(device) else device


def toml(text: str) -> str:
    """A string of TOML, whose basic strings are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def without(text: str, keys: set[Key]) -> str:
    """What `stagec calibrate` wrote before, without tables of these keys. Sources stay: others are numbered behind them."""
    parts = re.split(r"^(?=\[\[(?:sources|tables)\]\]$)", text, flags=re.MULTILINE)
    kept = [part for part in parts if table_key(part) not in keys]
    return "".join(kept).rstrip() + "\n"


def table_key(part: str) -> Key:
    """The key of an entry of `[[tables]]`; empty for anything else."""
    head, _, rest = part.partition("\n")
    if head != "[[tables]]":
        return ()
    return tuple(tomllib.loads(rest.partition("\n")[0])["key"])
