"""Reading and writing a device file.

    title = "NVIDIA H100 SXM5 80 GB"
    base = "a100"                   # what is not said here is as there

    [peaks]                         # dense FLOP/s by dtype
    bf16 = 989.4e12

    [device]                        # what a plan's `device { ... }` may also say
    capacity = 85899345920
    memory_bytes_per_s = 3.35e12

    [reached]                       # shares of datasheet bandwidths at large sizes
    memory = 0.92

    [[tables]]                      # measured times over the rule's, as log2, in hundredths
    key = ["product", "bf16"]
    axes = [["m", 0, 1, 16], ["n", 5, 1, 12], ["k", 5, 1, 12]]
    values = '''...'''

TOML (tomllib) is what people write and compare; tables are text of whole numbers, which a thousand values fit a few lines of.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from stagec.devices.model import (
    DTYPE_UNITS,
    UNITS,
    Citation,
    DeviceModel,
    GridAxis,
    Key,
    Reached,
    TimeTable,
)
from stagec.devices.rules import KINDS
from stagec.diagnostics import CompileError, did_you_mean, quoted, refused, suggestion
from stagec.reading import read_whole_text

SUFFIX = ".toml"
HUNDREDTHS = 100
"""Table values are log2 times this."""
ALIASES = {f"{name}_sxm": name for name in ("a100", "h100", "h200", "b200", "h800")}
"""Other names that people use for a device."""
NUMBERS = (
    "capacity",
    "memory_bytes_per_s",
    "link_bytes_per_s",
    "link_latency_us",
    "network_bytes_per_s",
    "network_latency_us",
    "host_bytes_per_s",
    "host_memory_bytes_per_s",
    "nvme_bytes_per_s",
    "node",
)
LEAST, MOST = 1e-9, 1e24
"""The bounds of numbers in a device file. With others, times would not be numbers."""
MOST_COUNT = 2**22
"""The most devices in a node, and the most units on a device."""
MOST_POWER = 64
"""Of two: sizes and shares in tables."""
MOST_OF = {"device.capacity": 2**60}
SCALARS = {
    "sustained_spread": float,
    "units": int,
    "collective_units": int,
    "exchange_units": int,
    "loss_bytes_per_s": float,
    "launch_us": float,
    "turn_us": float,
    "host_launch_us": float,
    "host_kernel_us": float,
    "host_product_us": float,
    "backward_attention_rate": float,
    "scalars_per_s": float,
    "scan_flops_per_s": float,
    "backward_scan_rate": float,
    "backward_fp8_rate": float,
    "transposes_fp8": bool,
    "scales_blocks": bool,
    "reduces_in_switch": bool,
    "price_per_hour": float,
}
LIMITS = ("sustained", "sustained_attention", "sustained_backward_attention")
"""What a device keeps up, all of one machine: a file that says any of them says all."""
SECTIONS = (
    *("title", "base", "peaks", "device", "reached", "tables", "sources", "notes"),
    *LIMITS,
    *SCALARS,
)


@cache
def names() -> tuple[str, ...]:
    """The devices that ship."""
    folder = files("stagec.devices")
    found = (each.name for each in folder.iterdir() if each.name.endswith(SUFFIX))
    return tuple(sorted(name.removesuffix(SUFFIX) for name in found))


@cache
def named(name: str) -> DeviceModel:
    """A device that ships. A KeyError if there is none of that name."""
    name = ALIASES.get(name, name)
    if name not in names():
        raise KeyError(name)
    text = files("stagec.devices").joinpath(name + SUFFIX).read_text(encoding="utf-8")
    return parse(text, name, name + SUFFIX)


def is_path(text: str) -> bool:
    """Whether it is a file that is meant, and no device that ships."""
    return text.endswith(SUFFIX) or "/" in text


def load(text: str, built_upon: tuple[str, ...] = ()) -> DeviceModel:
    """A device by its name, or from a file. E0417 says what is wrong with it. `built_upon`: the files whose base it is."""
    if not is_path(text):
        try:
            return named(text)
        except KeyError:
            raise bad(f"there is no device `{text}`", help=no_device(text)) from None
    path = Path(text)
    if os.path.realpath(path) in built_upon:
        raise bad(f"the device file `{path.name}` is the `base` of itself")
    try:
        changed = path.stat().st_mtime_ns
        return read_file(path, changed, built_upon)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise bad(f"the device file `{path.name}` cannot be read: {why}") from None


@lru_cache(maxsize=64)
def read_file(path: Path, changed: int, built_upon: tuple[str, ...]) -> DeviceModel:
    """A file, once for each time that it is changed."""
    built_upon = (*built_upon, os.path.realpath(path))
    return parse(read_whole_text(path), path.stem, path.name, path.parent, built_upon)


def no_device(name: str) -> str:
    """What else a user may have meant."""
    return did_you_mean(name, names()) or f"there are {quoted(names())}, and files: `mine.toml`"


def bad(message: str, help: str = "") -> CompileError:
    return refused("E0417", message, None, help=help)


def parse(
    text: str,
    name: str,
    where: str,
    folder: Path | None = None,
    built_upon: tuple[str, ...] = (),
) -> DeviceModel:
    """The device that a text describes."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise bad(f"`{where}` is no TOML: {error}") from None
    for section in data:
        if section not in SECTIONS:
            help_ = did_you_mean(section, SECTIONS) or f"there are {quoted(sorted(SECTIONS))}"
            raise bad(f"`{where}` has `{section}`, which no device file has", help_)
    base = None
    if "base" in data:
        name_or_path = word(data["base"], "base", where)
        beside = folder is not None and is_path(name_or_path)
        path = str(Path(folder or ".", name_or_path)) if beside else name_or_path
        base = load(path, built_upon)
    return read(data, name, where, base)


def read(data: Mapping[str, Any], name: str, where: str, base: DeviceModel | None) -> DeviceModel:
    peaks = rates_of(data, "peaks", where, UNITS)
    limits = {each: rates_of(data, each, where, (*UNITS, *DTYPE_UNITS)) for each in LIMITS}
    for limit, dtype, rate in ((k, d, r) for k, rates in limits.items() for d, r in rates.items()):
        peak = {**(base.peaks if base else {}), **peaks}.get(DTYPE_UNITS.get(dtype, dtype), rate)
        if rate > peak:
            raise bad(
                f"`{limit}.{dtype}` of `{where}` is {rate:g}, more than the peak of {peak:g}",
                "leave it out, and products keep up their peak",
            )
    if base is not None and not any(each in data for each in LIMITS):
        limits = {each: getattr(base, each) for each in LIMITS}
    own = numbers_of(data.get("device", {}), "device", where)
    for key in own:
        if key not in NUMBERS:
            help_ = suggestion(key, NUMBERS)
            raise bad(f"`{where}` sets `device.{key}`, which is not a number of a device", help_)
    for key in ("capacity", "node"):
        if key in own:
            own[key] = whole(own[key], f"device.{key}", where)
    reached = numbers_of(data.get("reached", {}), "reached", where)
    for key, share in reached.items():
        if key not in Reached.__dataclass_fields__ or share > 1:
            raise bad(
                f"`{where}` sets `reached.{key} = {share:g}`, which is not a share of a bandwidth"
            )
    sources = tuple(
        source_of(each, where) for each in items(data.get("sources", []), "sources", where)
    )
    offset = len(base.sources) if base else 0
    tables = dict(base.tables) if base else {}
    for entry in items(data.get("tables", []), "tables", where):
        table = table_of(entry, where, offset)
        tables[table.key] = table
    fields: dict[str, Any] = {key: getattr(base, key) for key in SCALARS if base is not None}
    for key, kind in SCALARS.items():
        if key in data:
            fields[key] = scalar(data[key], key, kind, where)
    if not peaks and not (base and base.peaks):
        raise bad(f"`{where}` says no peak", "write `[peaks]` and `bf16 = 989.4e12`, in FLOP/s")
    if "memory_bytes_per_s" not in {**(base.numbers if base else {}), **own}:
        raise bad(f"`{where}` says no `memory_bytes_per_s`", "write it under `[device]`")
    notes = data.get("notes", {})
    if not isinstance(notes, dict):
        raise bad(f"`notes` of `{where}` is not a section")
    return DeviceModel(
        name=name,
        title=word(data.get("title", name), "title", where),
        peaks={**(base.peaks if base else {}), **peaks},
        numbers={**(base.numbers if base else {}), **own},
        reached=Reached(**{**(vars(base.reached) if base else {}), **reached}),
        tables=tables,
        sources=(*(base.sources if base else ()), *sources),
        notes={**(base.notes if base else {}), **{k: str(v) for k, v in notes.items()}},
        **limits,
        **fields,
    )


def word(value: object, what: str, where: str) -> str:
    if not isinstance(value, str):
        raise bad(f"`{what}` of `{where}` is not text")
    return value


def items(value: object, what: str, where: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise bad(f"`{what}` of `{where}` is not a list of sections", f"write `[[{what}]]`")
    return value


def numbers_of(value: object, what: str, where: str) -> dict[str, float]:
    """A section of positive numbers."""
    if not isinstance(value, dict):
        raise bad(f"`{what}` of `{where}` is not a section", f"write `[{what}]`")
    return {str(key): number(each, f"{what}.{key}", where) for key, each in value.items()}


def rates_of(
    data: Mapping[str, Any], what: str, where: str, dtypes: Sequence[str]
) -> dict[str, float]:
    """FLOP/s by dtype. E0417 for one that no product has."""
    rates = numbers_of(data.get(what, {}), what, where)
    for dtype in rates:
        if dtype not in dtypes:
            help_ = suggestion(dtype, dtypes)
            raise bad(f"`{where}` sets `{what}.{dtype}`, which is no dtype of products", help_)
    return rates


def number(value: object, what: str, where: str) -> float:
    """E0417 unless it is a finite number above 0, or 0 for a latency."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(f"`{what}` of `{where}` is not a number")
    least_is_0 = what.endswith("_us")
    if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_0):
        raise bad(f"`{what}` of `{where}` is {value:g}, which is not a speed or size")
    if not (LEAST <= value <= MOST or value == 0):
        raise bad(f"`{what}` of `{where}` is {value:g}, which no device has")
    return value


def whole(value: float, what: str, where: str) -> int:
    """E0417 unless it is a whole number that a device can have."""
    if value != int(value):
        raise bad(f"`{what}` of `{where}` is {value:g}, not a whole number")
    if value > MOST_OF.get(what, MOST_COUNT):
        raise bad(f"`{what}` of `{where}` is {value:g}, which no device has")
    return int(value)


def scalar(value: object, key: str, kind: type, where: str) -> Any:
    if kind is bool:
        if not isinstance(value, bool):
            raise bad(f"`{key}` of `{where}` is `true` or `false`")
        return value
    found = number(value, key, where)
    return whole(found, key, where) if kind is int else float(found)


def source_of(entry: Mapping[str, Any], where: str) -> Citation:
    known = {key: word(entry.get(key, ""), f"sources.{key}", where) for key in ("what", "licence")}
    return Citation(version=str(entry.get("version", "")), **known)


def table_of(entry: Mapping[str, Any], where: str, offset: int) -> TimeTable:
    key = entry.get("key")
    if not isinstance(key, list) or not key or not all(isinstance(k, str) for k in key):
        raise bad(f"a table of `{where}` has no `key`", '`key = ["product", "bf16"]`')
    what = f"the table `{' '.join(key)}` of `{where}`"
    kind = KINDS.get(key[0])
    if kind is None:
        help_ = did_you_mean(key[0], KINDS) or f"there are {quoted(KINDS)}"
        raise bad(f"{what} is of no kind of operator that there is", help_)
    rows = entry.get("axes")
    if not isinstance(rows, list):
        raise bad(f"{what} has no list of `axes`")
    axes = tuple(axis_of(row, what) for row in rows)
    if sorted(axis.name for axis in axes) != sorted(kind.steps):
        raise bad(f"{what} has other axes than {quoted(kind.steps, last='and')}")
    values, source = entry.get("values", ""), entry.get("source", 0)
    try:
        flat = np.array(values.split() if isinstance(values, str) else values, np.float64)
        grid = flat.reshape([axis.count for axis in axes]) / HUNDREDTHS
    except (ValueError, TypeError):
        raise bad(f"{what} has not as many values as its axes have points") from None
    if not (np.abs(grid) <= MOST_POWER).all():
        raise bad(f"{what} has a value that is no logarithm of a share of a time, in hundredths")
    if isinstance(source, bool) or not isinstance(source, int) or source < 0:
        raise bad(f"`source` of {what} is not the number of one of its sources")
    return TimeTable(tuple(key), axes, grid, offset + source)


def axis_of(row: object, what: str) -> GridAxis:
    """`["m", 0, 1, 16]`: powers of two from the first on, in even steps."""
    if isinstance(row, list) and len(row) == 4 and isinstance(row[0], str):
        name, first, step, count = row
        numbers = all(type(each) in (int, float) for each in (first, step)) and type(count) is int
        if numbers and abs(first) <= MOST_POWER and 0 < step <= MOST_POWER and count >= 1:
            return GridAxis(name, float(first), float(step), count)
    raise bad(f"{what} has an axis that is not `[name, first, step, count]`")


# Writing


def table_text(key: Key, axes: Sequence[GridAxis], values: np.ndarray, source: int = 0) -> str:
    """One `[[tables]]` of a file."""
    grid = np.rint(values * HUNDREDTHS).astype(int)
    rows = grid.reshape(-1, grid.shape[-1])
    body = "\n".join(" ".join(map(str, row.tolist())) for row in rows)
    shown = ", ".join(f'["{a.name}", {a.first:g}, {a.step:g}, {a.count}]' for a in axes)
    quoted_key = ", ".join(f'"{part}"' for part in key)
    head = f"[[tables]]\nkey = [{quoted_key}]\naxes = [{shown}]\n"
    return f"{head}source = {source}\nvalues = '''\n{body}\n'''\n"
