"""Measured operators: rows of one kind, in sizes of `stagec.devices.rules`, whatever they were read from."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stagec.devices.model import DeviceModel, Key
from stagec.devices.rules import KINDS

Row = tuple[Key, tuple[float, ...], float, str]
"""What chooses its table, its sizes, µs, and its role."""


LeftOut = str
"""In place of a row that no table is made of: what it is, in the plural."""
NO_TIME = "rows whose time is 0"


@dataclass(frozen=True)
class Measured:
    """Rows of one table."""

    key: Key
    sizes: Mapping[str, np.ndarray]
    us: np.ndarray
    role: np.ndarray
    """`primary`, which tables are fitted to, or another framework: `second`."""

    def chosen(self, which: np.ndarray) -> Measured:
        sizes = {name: column[which] for name, column in self.sizes.items()}
        return Measured(self.key, sizes, self.us[which], self.role[which])

    def rule_us(self, device: DeviceModel) -> np.ndarray:
        kind = KINDS[self.key[0]]
        return np.broadcast_to(kind.rule(device, dtype_of(self.key), self.sizes), self.us.shape)

    def estimated_us(self, device: DeviceModel) -> np.ndarray:
        """By the device's table, or by the rule where it has none."""
        found = self.rule_us(device)
        table = device.tables.get(self.key)
        axes = KINDS[self.key[0]].axes(self.sizes)
        return found if table is None else found * table.factor(axes)

    def held_out(self, share: float = 0.2) -> np.ndarray:
        """Shapes that a trial fit does not see: the same each time, all rows of a shape together."""
        columns = np.stack(list(self.sizes.values()), axis=1)
        marks = [zlib.crc32(row.tobytes()) % 1000 for row in columns]
        return np.array(marks) < 1000 * share


def dtype_of(key: Key) -> str:
    """The second part of a key: what a rule asks for besides sizes."""
    return key[1] if len(key) > 1 else ""


def gathered(rows: Iterable[Row | LeftOut], left_out: Counter[LeftOut]) -> dict[Key, Measured]:
    """Rows by table. What is `left_out` is counted."""
    by_key: dict[Key, list[tuple[tuple[float, ...], float, str]]] = defaultdict(list)
    for row in rows:
        if isinstance(row, LeftOut) or row[2] <= 0:
            left_out[row if isinstance(row, LeftOut) else NO_TIME] += 1
            continue
        key, sizes, us, role = row
        by_key[key].append((sizes, us, role))
    found: dict[Key, Measured] = {}
    for key, entries in sorted(by_key.items()):
        columns = np.array([sizes for sizes, _, _ in entries], float).T
        sizes = dict(zip(KINDS[key[0]].sizes, columns, strict=True))
        us = np.array([each for _, each, _ in entries])
        found[key] = Measured(key, sizes, us, np.array([role for *_, role in entries]))
    return found
