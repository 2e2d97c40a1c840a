"""`python -m tests.fidelity.operators DIR`: times of operators by the device files that ship, beside measured ones.

DIR has a folder for each device (`h100_sxm`, ...), or is one, with the CSV files that `stagec calibrate` reads. Judged are shapes that the files were not
calibrated on; of those that they were, this says no more than how smooth a table is. Medians over all tables of a kind are held to the bars; `second` rows,
of another framework, are the floor: how far two pieces of software are apart on one device.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from stagec.calibrate.folder import FILES, read_folder
from stagec.calibrate.measured import Measured
from stagec.calibrate.report import Errors, errors
from stagec.devices import named
from stagec.devices.file import ALIASES, names
from stagec.devices.model import DeviceModel, Key
from stagec.diagnostics import CompileError

LARGE_FLOPS = 1e11
"""A product of more is large."""
BARS = {
    "large products": 0.08,
    "products": 0.12,
    "attention": 0.10,
    "collectives": 0.15,
    "all": 0.12,
}
"""Median absolute errors at most."""
GROUPS = {
    "product": "products",
    "attention": "attention",
    "decode_attention": "attention",
    "latent_attention": "attention",
    "decode_latent_attention": "attention",
    "collective": "collectives",
    "experts": "experts",
    "exchange": "exchange of tokens",
    "quantize": "quantization",
}


def folders(folder: Path) -> Iterator[tuple[str, Path]]:
    """Devices, and where their measurements are."""
    for each in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        name = ALIASES.get(each.name, each.name)
        if name in names() and any((each / file).is_file() for file in FILES):
            yield name, each


def large(measured: Measured) -> np.ndarray:
    s = measured.sizes
    return 2 * s["m"] * s["n"] * s["k"] > LARGE_FLOPS


def judged(
    device: DeviceModel, tables: Mapping[Key, Measured]
) -> Iterator[tuple[str, Key, Errors, Errors]]:
    """Of each table: its group, its errors, and those of the other framework."""
    for key, measured in tables.items():
        group = GROUPS.get(key[0])
        if group is None:
            continue
        primary = measured.chosen(measured.role != "second")
        second = measured.chosen(measured.role == "second")
        yield group, key, errors(device, primary), errors(device, second)
        if group == "products":
            chosen = primary.chosen(large(primary))
            others = second.chosen(large(second))
            yield "large products", key, errors(device, chosen), errors(device, others)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.operators", description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"`{options.folder}` is no folder")
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    try:
        for name, folder in folders(options.folder):
            device = named(name)
            print(
                f"{device.title}\n{'table':<48}{'rows':>6}{'median':>8}{'p90':>7}{'bias':>8}{'floor':>7}"
            )
            for group, key, own, other in judged(device, read_folder(folder, Counter())):
                if not own.rows:
                    continue
                floor = f"{other.median:.0%}" if other.rows else ""
                shown = " ".join(key) if group != "large products" else f"{' '.join(key)}, large"
                print(
                    f"{shown:<48}{own.rows:>6}{own.median:>8.1%}{own.p90:>7.0%}{own.bias:>+8.1%}{floor:>7}"
                )
                found[group].append(own.values)
                if group != "large products":
                    found["all"].append(own.values)
    except CompileError as error:
        print(error.render())
        return 1
    if not found:
        parser.error(f"`{options.folder}` has measurements of no device that ships")
    missed = [group for group, values in sorted(found.items()) if verdict(group, values)]
    return 1 if missed else 0


def verdict(group: str, values: list[np.ndarray]) -> bool:
    """Print a group's figures; whether it misses its bar."""
    whole = Errors(np.concatenate(values))
    bar = BARS.get(group)
    misses = bar is not None and not whole.median <= bar
    held = "" if bar is None else f"  bar {bar:.0%}: {'MISSED' if misses else 'held'}"
    print(
        f"{group:<24}{whole.rows:>7} rows, median {whole.median:.1%}, p90 {whole.p90:.0%}, bias {whole.bias:+.1%}{held}"
    )
    return misses


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
