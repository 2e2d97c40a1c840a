"""`stagec devices [NAME|FILE]`: the devices that ship, or one of them: numbers, tables, sources, efficiency by size."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from stagec.backend.files import write_whole
from stagec.cli.tables import folded, plain_table, text_of
from stagec.cli.usage import CommandParser, add_flag, file_like, usage_error
from stagec.devices import LIMITS, DeviceModel, load, named, names
from stagec.devices.file import SCALARS
from stagec.devices.rules import KINDS
from stagec.estimate.kernels.measured import MeasuredKernels
from stagec.pictures.charts import Point, points
from stagec.pictures.page import page
from stagec.pictures.scales import amount

SIZES = tuple(2**power for power in range(7, 15))
"""The sizes of square products, for efficiency by size."""
MESSAGES = tuple(4**power << 10 for power in range(0, 11))
"""The sizes of collectives, in bytes."""
BAR = 40


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec devices",
        "List the devices that ship, or show one: its numbers, its measured tables, their sources.",
    )
    parser.add_argument(
        "device",
        nargs="?",
        metavar="NAME|FILE.toml",
        help="the device to show; all of them without it",
    )
    add_flag(
        parser,
        "--plot",
        "FILE.html",
        "write efficiency by size as a page",
        file_like("curves.html"),
    )
    options = parser.read(arguments)
    if options.device is None:
        if options.plot is not None:
            message = "`--plot` is about one device, and none is named"
            help_ = "name it: `stagec devices h100 --plot curves.html`"
            raise usage_error("--plot", message, "E0711", help_)
        sys.stdout.write(listed())
        return 0
    device = load(options.device)
    if options.plot is not None:
        plot(device, options.plot)
    else:
        sys.stdout.write("\n".join(shown(device)) + "\n")
    return 0


def listed() -> str:
    table = plain_table("devices: dense FLOP/s by dtype, memory, and bytes a second")
    for column in (
        "device",
        "bf16",
        "fp8",
        "fp4",
        "memory",
        "memory per s",
        "link per s",
        "network per s",
    ):
        table.add_column(column, justify="left" if column == "device" else "right", no_wrap=True)
    for name in names():
        device = named(name)
        numbers = device.numbers
        table.add_row(
            name,
            *(peak_text(device, dtype) for dtype in ("bf16", "fp8", "fp4")),
            f"{numbers['capacity'] / 2**30:.0f} GiB",
            *(speed(numbers.get(f"{what}_bytes_per_s")) for what in ("memory", "link", "network")),
        )
    said = "`stagec devices NAME` shows one; `device NAME` in a plan or `--device NAME` takes it"
    return "\n".join([text_of(table), *folded(said), ""])


def peak_text(device: DeviceModel, dtype: str) -> str:
    return f"{device.peaks[dtype] / 1e12:g} T" if dtype in device.peaks else "-"


def speed(number: float | None) -> str:
    return "-" if number is None else f"{amount(int(number))}B"


def shown(device: DeviceModel) -> Iterator[str]:
    yield from folded(device.title)
    yield ""
    for dtype, peak in device.peaks.items():
        yield f"  {dtype + ' peak':<28} {peak / 1e12:g} TFLOP/s"
    for limit, what in zip(LIMITS, ("", ", attention", ", its backward"), strict=True):
        for dtype, rate in getattr(device, limit).items():
            yield f"  {f'{dtype} sustained{what}':<28} {rate / 1e12:g} TFLOP/s"
    for name, number in device.numbers.items():
        yield f"  {name:<28} {number_text(name, number)}"
    for name, share in vars(device.reached).items():
        yield f"  {'reached of ' + name:<28} {share:g}"
    for name in SCALARS:
        number = getattr(device, name)
        if number != DeviceModel.__dataclass_fields__[name].default:
            yield f"  {name:<28} {number_text(name, number)}"
    yield ""
    if device.tables:
        yield "measured: what a table covers (log2 of sizes), and its number of points"
    else:
        yield "measured: nothing, so that times are those of a roofline"
    for key, table in sorted(device.tables.items()):
        axes = ", ".join(f"{a.name} 2^{a.first:g}..2^{a.last:g}" for a in table.axes)
        title = f"{KINDS[key[0]].title}: {' '.join(key[1:])}" if key[1:] else KINDS[key[0]].title
        yield from folded(f"{title}:", margin=2)
        yield from folded(f"{axes} ({table.values.size:,} points)", margin=6)
    yield ""
    for title, unit, rows in curves(device):
        yield f"{title}, of {unit}"
        for size, share in rows:
            yield f"  {size:>8} {share:>6.1%} {'#' * round(share * BAR)}"
        yield ""
    if device.sources or device.notes:
        yield "sources"
    for source in device.sources:
        licence = f" ({source.licence})" if source.licence else ""
        yield from folded(f"{source.what}{licence}", "  ", margin=2)
    for name, note in device.notes.items():
        yield from folded(f"{name}: {note}", "  ", margin=2)


def number_text(name: str, number: float) -> str:
    """A number of a device file with its unit."""
    if isinstance(number, bool):
        return "yes" if number else "no"
    if name == "capacity":
        return f"{number / 2**30:g} GiB"
    if name.endswith("_us"):
        return f"{number:g} µs"
    for unit, ending in (("B", "bytes_per_s"), ("FLOP", "flops_per_s"), ("", "_per_s")):
        if name.endswith(ending):
            return f"{amount(int(number))}{unit}/s"
    return f"{number:g}"


def curves(device: DeviceModel) -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
    """Efficiency by size of what is measured: title, of what, and points."""
    measured = MeasuredKernels(device)
    for dtype in ("bf16", "fp8", "nvfp4"):
        peak = device.peak(dtype)
        if ("product", dtype) not in device.tables or not peak:
            continue
        rows: list[tuple[str, float]] = []
        for size in SIZES:
            shape = {name: np.float64(size) for name in ("m", "n", "k")}
            found = measured.by_table(("product", dtype), shape)
            assert found is not None
            rows.append((str(size), 2.0 * size**3 / (found.us * 1e-6) / peak))
        yield f"square products in {dtype}", "the peak", rows
    link = float(device.numbers.get("link_bytes_per_s", 0))
    for kind in ("all_reduce", "all_gather"):
        if ("collective", kind) not in device.tables or not link:
            continue
        passes = 2 if kind == "all_reduce" else 1
        rows = []
        for size in MESSAGES:
            found = measured.by_table(
                ("collective", kind), {"gpus": np.float64(8), "bytes": np.float64(size)}
            )
            assert found is not None
            rows.append((f"{amount(size)}B", passes * size * 7 / 8 / (found.us * 1e-6) / link))
        yield f"{kind} over 8 devices", "the link's bandwidth", rows


def plot(device: DeviceModel, path: str) -> None:
    """The curves as a page of SVG. E0711 if nothing of it is measured, E0603 if it cannot be written."""
    if not any(curves(device)):
        message = "`--plot` draws measured products and collectives, and the device has none"
        raise usage_error(f"--plot {path}", message, "E0711", "leave it out")
    write_whole(path, page(device.title, drawn(device)).encode())
    sys.stdout.write(f"{path}: efficiency by size\n")


def drawn(device: DeviceModel) -> str:
    """A chart for each curve."""
    charts: list[str] = []
    for title, unit, rows in curves(device):
        data = [
            Point(float(number), 100 * share, f"{size}: {share:.1%} of {unit}")
            for number, (size, share) in enumerate(rows)
        ]
        edges = (
            f"size: {rows[0][0]} to {rows[-1][0]}, each point so many times the one before",
            f"% of {unit}",
        )
        charts.append(points(title, edges, data))
    return "\n".join(charts)
