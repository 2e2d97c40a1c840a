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
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from stagec.devices.model import (
    DTYPE_UNITS,
    TAKEN_UNITS,
    UNITS,
    Citation,
    DeviceModel,
    GridAxis,
    Key,
    Reached,
    TimeTable,
)
from stagec.devices.rules import KINDS
from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    Span,
    did_you_mean,
    file_meant,
    quoted,
    refused,
    suggestion,
)
from stagec.reading import read_whole_text
from stagec.text_places import NoToml, TomlText, read_toml

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
UNIT_HELP = "numbers are in single bytes, FLOPs, seconds or µs, as the name says: `3.35e12`"
MOST_OF = {"device.capacity": 2**60}
SCALARS = {
    "sustained_spread": float,
    "units": int,
    "collective_units": int,
    "exchange_units": int,
    "message_units": int,
    "block_bytes_per_s": float,
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
ZEROS = (
    *("sustained_spread", *TAKEN_UNITS),
    *("block_bytes_per_s", "loss_bytes_per_s", "scalars_per_s", "scan_flops_per_s"),
)
"""Numbers that may be 0, which says what a device says without them."""
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
        message = f"the device file `{path.name}` is the `base` of itself"
        raise bad(message, f"name another device: {quoted(names())}")
    try:
        changed = path.stat().st_mtime_ns
        return read_file(path, changed, built_upon)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        message = f"the device file `{path.name}` cannot be read: {why}"
        raise bad(message, file_meant(text, SUFFIX)) from None


@lru_cache(maxsize=64)
def read_file(path: Path, changed: int, built_upon: tuple[str, ...]) -> DeviceModel:
    """A file, once for each time that it is changed."""
    built_upon = (*built_upon, os.path.realpath(path))
    return parse(read_whole_text(path), path.stem, str(path), path.parent, built_upon)


def with_bases(path: str) -> Iterator[str]:
    """The file of a device, and those that it builds on, each before it is read."""
    seen: set[str] = set()
    while is_path(path) and os.path.realpath(path) not in seen:
        yield path
        seen.add(os.path.realpath(path))
        try:
            base = base_of(Path(path), Path(path).stat().st_mtime_ns)
        except OSError:
            return
        path = str(Path(Path(path).parent, base)) if is_path(base) else base


@lru_cache(maxsize=64)
def base_of(path: Path, changed: int) -> str:
    """What a file builds on, once for each time that it is changed; nothing of one that does not say it, or is none of a device."""
    try:
        base = read_toml(read_whole_text(path), str(path)).get("base", "")
    except NoToml:
        return ""
    return base if isinstance(base, str) else ""


def no_device(name: str) -> str:
    """What else a user may have meant."""
    return did_you_mean(name, names()) or f"there are {quoted(names())}, and files: `mine.toml`"


def bad(message: str, help: str = "") -> CompileError:
    """Of a device that is not there. Whoever names it knows where."""
    return refused("E0417", message, None, help=help)


def placed(each: Diagnostic, span: Span | None, label: str) -> Diagnostic:
    """A mistake where the device is named, if it has no place in a file; else that beside it."""
    if each.span is None or span is None:
        return replace(each, span=each.span or span)
    return replace(each, secondary=(*each.secondary, (span, label)))


class DeviceText(TomlText):
    """The text of a device file, which mistakes call by its name."""

    def __str__(self) -> str:
        return os.path.basename(self.file)

    def bad(self, message: str, help: str = "", *, at: Sequence[str | int]) -> CompileError:
        """`at` is the path of the key that is wrong."""
        return refused("E0417", message, self.place(*at), help=help, sources={self.file: self.text})


def parse(
    text: str,
    name: str,
    file: str,
    folder: Path | None = None,
    built_upon: tuple[str, ...] = (),
) -> DeviceModel:
    """The device that a text describes."""
    where = DeviceText(text, file)
    try:
        data = read_toml(text, file)
    except NoToml as error:
        message = f"`{where}` is no TOML: {error.message}"
        help_ = "write a number for each name: `memory_bytes_per_s = 3.35e12`"
        raise refused("E0417", message, error.span, help=help_, sources={file: text}) from None
    for section in data:
        if section not in SECTIONS:
            help_ = did_you_mean(section, SECTIONS) or f"there are {quoted(sorted(SECTIONS))}"
            message = f"`{where}` has `{section}`, which no device file has"
            raise where.bad(message, help_, at=(section,))
    base = None
    if "base" in data:
        name_or_path = word(data["base"], where, "base")
        beside = folder is not None and is_path(name_or_path)
        path = str(Path(folder or ".", name_or_path)) if beside else name_or_path
        try:
            base = load(path, built_upon)
        except CompileError as error:
            at = where.place("base")
            found = (placed(each, at, "its base") for each in error.diagnostics)
            raise CompileError(found, {**error.sources, file: text}) from None
    return read(data, name, where, base)


def read(
    data: Mapping[str, Any], name: str, where: DeviceText, base: DeviceModel | None
) -> DeviceModel:
    peaks = rates_of(data, "peaks", where, UNITS)
    limits = {each: rates_of(data, each, where, (*UNITS, *DTYPE_UNITS)) for each in LIMITS}
    highest = {**(base.peaks if base else {}), **peaks}

    def peak_of(dtype: str, rate: float) -> float:
        return highest.get(DTYPE_UNITS.get(dtype, dtype), rate)

    for limit, dtype, rate in ((k, d, r) for k, rates in limits.items() for d, r in rates.items()):
        if rate > (peak := peak_of(dtype, rate)):
            raise where.bad(
                f"`{limit}.{dtype}` of `{where}` is {rate:g}, more than the peak of {peak:g}",
                "leave it out, and products keep up their peak",
                at=(limit, dtype),
            )
    if base is not None and not any(each in data for each in LIMITS):
        kept: dict[str, Mapping[str, float]] = {each: getattr(base, each) for each in LIMITS}
        limits = {
            each: {dtype: min(rate, peak_of(dtype, rate)) for dtype, rate in rates.items()}
            for each, rates in kept.items()
        }
    own = numbers_of(data.get("device", {}), "device", where)
    for key in own:
        if key not in NUMBERS:
            help_ = suggestion(key, NUMBERS)
            message = f"`{where}` sets `device.{key}`, which is not a number of a device"
            raise where.bad(message, help_, at=("device", key))
    for key in ("capacity", "node"):
        if key in own:
            own[key] = whole(own[key], f"device.{key}", where)
    reached = numbers_of(data.get("reached", {}), "reached", where)
    for key, share in reached.items():
        if key not in Reached.__dataclass_fields__ or share > 1:
            message = (
                f"`{where}` sets `reached.{key} = {share:g}`, which is not a share of a bandwidth"
            )
            known = Reached.__dataclass_fields__
            help_ = "a share is at most 1" if key in known else suggestion(key, [*known])
            raise where.bad(message, help_, at=("reached", key))
    sources = tuple(
        source_of(each, number, where)
        for number, each in enumerate(items(data.get("sources", []), "sources", where))
    )
    offset = len(base.sources) if base else 0
    tables = dict(base.tables) if base else {}
    for number, entry in enumerate(items(data.get("tables", []), "tables", where)):
        table = table_of(entry, number, where, offset)
        tables[table.key] = table
    fields: dict[str, Any] = {key: getattr(base, key) for key in SCALARS if base is not None}
    for key, kind in SCALARS.items():
        if key in data:
            fields[key] = scalar(data[key], key, kind, where)
    if fields.get("sustained_spread", 0) > 1:
        spread = fields["sustained_spread"]
        message = f"`sustained_spread` of `{where}` is {spread:g}, more than what it is a share of"
        help_ = "choose a share from 0 to 1: the standard deviation over the mean"
        raise where.bad(message, help_, at=("sustained_spread",))
    units = fields.get("units")
    for key in TAKEN_UNITS:
        if units is not None and fields.get(key, 0) >= max(units, 1):
            message = f"`{key}` of `{where}` is {fields[key]}, and a device has `units = {units}`"
            at = key if key in data else "units"
            raise where.bad(message, f"say `{key}`, from 0 to {units - 1}", at=(at,))
    if not peaks and not (base and base.peaks):
        help_ = "write `[peaks]` and `bf16 = 989.4e12`, in FLOP/s"
        raise where.bad(f"`{where}` says no peak", help_, at=("peaks",))
    if "memory_bytes_per_s" not in {**(base.numbers if base else {}), **own}:
        message, help_ = f"`{where}` says no `memory_bytes_per_s`", "write it under `[device]`"
        raise where.bad(message, help_, at=("device",))
    notes = data.get("notes", {})
    if not isinstance(notes, dict):
        raise where.bad(f"`notes` of `{where}` is not a section", "write `[notes]`", at=("notes",))
    return DeviceModel(
        name=name,
        title=word(data.get("title", name), where, "title"),
        peaks={**(base.peaks if base else {}), **peaks},
        numbers={**(base.numbers if base else {}), **own},
        reached=Reached(**{**(vars(base.reached) if base else {}), **reached}),
        tables=tables,
        sources=(*(base.sources if base else ()), *sources),
        notes={**(base.notes if base else {}), **{k: str(v) for k, v in notes.items()}},
        **limits,
        **fields,
    )


def word(value: object, where: DeviceText, *at: str | int) -> str:
    if not isinstance(value, str):
        what = ".".join(part for part in at if isinstance(part, str))
        raise where.bad(f"`{what}` of `{where}` is not text", "put it in quotes", at=at)
    return value


def items(value: object, what: str, where: DeviceText) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        message = f"`{what}` of `{where}` is not a list of sections"
        raise where.bad(message, f"write `[[{what}]]`", at=(what,))
    return value


def numbers_of(value: object, what: str, where: DeviceText) -> dict[str, float]:
    """A section of positive numbers."""
    if not isinstance(value, dict):
        message = f"`{what}` of `{where}` is not a section"
        raise where.bad(message, f"write `[{what}]`", at=(what,))
    return {str(key): number(each, f"{what}.{key}", where) for key, each in value.items()}


def rates_of(
    data: Mapping[str, Any], what: str, where: DeviceText, dtypes: Sequence[str]
) -> dict[str, float]:
    """FLOP/s by dtype. E0417 for one that no product has."""
    rates = numbers_of(data.get(what, {}), what, where)
    for dtype in rates:
        if dtype not in dtypes:
            help_ = suggestion(dtype, dtypes)
            message = f"`{where}` sets `{what}.{dtype}`, which is no dtype of products"
            raise where.bad(message, help_, at=(what, dtype))
    return rates


def number(value: object, what: str, where: DeviceText) -> float:
    """E0417 unless it is a finite number above 0, or 0 for a latency and for what may be absent."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"`{what}` of `{where}` is not a number"
        raise where.bad(message, number_meant(value, what), at=what.split("."))
    least_is_0 = what.endswith("_us") or what in ZEROS
    if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_0):
        message = f"`{what}` of `{where}` is {value:g}, which is not a speed or size"
        help_ = "choose 0, or a number above it" if least_is_0 else "choose a number above 0"
        raise where.bad(message, help_, at=what.split("."))
    if not (LEAST <= value <= MOST or value == 0):
        message = f"`{what}` of `{where}` is {value:g}, which no device has"
        raise where.bad(message, UNIT_HELP, at=what.split("."))
    return value


WITH_UNIT = re.compile(
    r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?) ?([kmgtp]i?|[uµμn]|)(s|B|FLOPS?|OPS?|)(/s|ps|)",
    re.IGNORECASE,
)


def number_meant(value: object, what: str) -> str:
    """How a number in quotes is written: in the unit of the name, which follows no number in TOML."""
    found = WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return "write a number in digits"
    digits, prefix, unit, _ = (each.lower() for each in found.groups())
    is_time, in_us = unit == "s", what.endswith("_us")
    if found[3] == "b" or (is_time != in_us and (prefix or unit)):
        return UNIT_HELP
    if is_time:
        factor = {"": Decimal(10**6), "m": Decimal(1000), "n": Decimal("0.001")}.get(prefix, 1)
    elif prefix in ("u", "µ", "μ", "n"):
        return UNIT_HELP
    else:
        base = 1024 if prefix.endswith("i") else 1000
        factor = base ** " kmgtp".index(prefix[:1] or " ")
    number = f"{Decimal(digits) * factor:f}"
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"write `{number}`, without quotes" + " and unit" * bool(prefix or unit)


def whole(value: float, what: str, where: DeviceText) -> int:
    """E0417 unless it is a whole number that a device can have."""
    if value != int(value):
        message = f"`{what}` of `{where}` is {value:g}, not a whole number"
        raise where.bad(message, f"write {round(value) or 1}", at=what.split("."))
    if value > MOST_OF.get(what, MOST_COUNT):
        message = f"`{what}` of `{where}` is {value:g}, which no device has"
        raise where.bad(message, UNIT_HELP, at=what.split("."))
    return int(value)


def scalar(value: object, key: str, kind: type, where: DeviceText) -> Any:
    if kind is bool:
        if not isinstance(value, bool):
            message = f"`{key}` of `{where}` is `true` or `false`"
            raise where.bad(message, f"write `{key} = true`, or leave it out", at=(key,))
        return value
    found = number(value, key, where)
    return whole(found, key, where) if kind is int else float(found)


def source_of(entry: Mapping[str, Any], number: int, where: DeviceText) -> Citation:
    known = {
        key: word(entry.get(key, ""), where, "sources", number, key) for key in ("what", "licence")
    }
    return Citation(version=str(entry.get("version", "")), **known)


def table_of(entry: Mapping[str, Any], number: int, where: DeviceText, offset: int) -> TimeTable:
    def bad(message: str, help: str, name: str) -> CompileError:
        return where.bad(message, help, at=("tables", number, name))

    key = entry.get("key")
    if not isinstance(key, list) or not key or not all(isinstance(k, str) for k in key):
        help_ = 'write `key = ["product", "bf16"]`'
        raise bad(f"a table of `{where}` has no `key`", help_, "key")
    what = f"the table `{' '.join(key)}` of `{where}`"
    kind = KINDS.get(key[0])
    if kind is None:
        help_ = did_you_mean(key[0], KINDS) or f"there are {quoted(KINDS)}"
        raise bad(f"{what} is of no kind of operator that there is", help_, "key")
    rows = entry.get("axes")
    if not isinstance(rows, list):
        raise bad(f"{what} has no list of `axes`", 'write `axes = [["m", 0, 1, 16]]`', "axes")
    axes = tuple(filter(None, map(axis_of, rows)))
    if len(axes) < len(rows):
        message = f"{what} has an axis that is not `[name, first, step, count]`"
        raise bad(message, 'write `["m", 0, 1, 16]`: powers of two, in even steps', "axes")
    if sorted(axis.name for axis in axes) != sorted(kind.steps):
        names = quoted(kind.steps, last="and")
        raise bad(f"{what} has other axes than {names}", f"write those of {names}", "axes")
    values, source = entry.get("values", ""), entry.get("source", 0)
    try:
        flat = np.array(values.split() if isinstance(values, str) else values, np.float64)
        grid = flat.reshape([axis.count for axis in axes]) / HUNDREDTHS
    except (ValueError, TypeError):
        points = math.prod(axis.count for axis in axes)
        message = f"{what} has not as many values as its axes have points"
        raise bad(message, f"write {points:,} numbers", "values") from None
    if not (np.abs(grid) <= MOST_POWER).all():
        message = f"{what} has a value that is no logarithm of a share of a time, in hundredths"
        raise bad(message, "let `stagec calibrate` write the table", "values")
    if isinstance(source, bool) or not isinstance(source, int) or source < 0:
        message = f"`source` of {what} is not the number of one of its sources"
        raise bad(message, "write 0 for the first, or leave it out", "source")
    return TimeTable(tuple(key), axes, grid, offset + source)


def axis_of(row: object) -> GridAxis | None:
    """`["m", 0, 1, 16]`: powers of two from the first on, in even steps. Nothing for what is no axis."""
    if isinstance(row, list) and len(row) == 4 and isinstance(row[0], str):
        name, first, step, count = row
        numbers = all(type(each) in (int, float) for each in (first, step)) and type(count) is int
        if numbers and abs(first) <= MOST_POWER and 0 < step <= MOST_POWER and count >= 1:
            return GridAxis(name, float(first), float(step), count)
    return None


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
