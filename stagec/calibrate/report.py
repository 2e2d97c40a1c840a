"""How well tables hold: errors on shapes that a fit has not seen, by kind and by range of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stagec.calibrate.measured import Measured
from stagec.devices.model import DeviceModel, Key

RANGES = (("to 20 µs", 0.0, 20.0), ("to 200 µs", 20.0, 200.0), ("more", 200.0, np.inf))


@dataclass(frozen=True)
class Errors:
    """The relative errors of estimates: each estimate over its measurement, less one."""

    values: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return float(np.median(np.abs(self.values))) if self.rows else float("nan")

    @property
    def bias(self) -> float:
        return float(np.median(self.values)) if self.rows else float("nan")

    @property
    def p90(self) -> float:
        return float(np.quantile(np.abs(self.values), 0.9)) if self.rows else float("nan")


def errors(device: DeviceModel, measured: Measured) -> Errors:
    return Errors(measured.estimated_us(device) / measured.us - 1)


def by_range(device: DeviceModel, measured: Measured) -> Iterator[tuple[str, Errors]]:
    for name, low, high in RANGES:
        yield name, errors(device, measured.chosen((measured.us > low) & (measured.us <= high)))


def without_tables(device: DeviceModel) -> DeviceModel:
    return replace(device, tables={})


HEAD = f"{'table':<44}{'shapes':>7}{'rule':>7}{'held out':>10}{'p90':>7}{'bias':>8}{'floor':>7}   by measured time"


def line(key: Key, trial: DeviceModel, held: Measured, second: Measured, plain: DeviceModel) -> str:
    """A table's line. `floor`: what another framework's measurements differ by."""
    found, rule = errors(trial, held), errors(plain, held)
    floor = errors(trial, second)
    ranges = ", ".join(
        f"{name} {each.median:.1%} ({each.rows})"
        for name, each in by_range(trial, held)
        if each.rows
    )
    shown = " ".join(key)
    return (
        f"{shown:<44}{found.rows:>7}{rule.median:>7.0%}{found.median:>10.1%}{found.p90:>7.0%}"
        f"{found.bias:>+8.1%}{'' if not floor.rows else f'{floor.median:.0%}':>7}   {ranges}"
    )
