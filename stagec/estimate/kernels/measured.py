"""What the tables of a device's file say, and how fast its memory is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stagec.devices.model import DeviceModel
from stagec.devices.rules import KINDS, Sizes, cache_part
from stagec.dialects.types import QUANTIZED, bytes_per_element
from stagec.estimate.kernels.price import Basis, Price

WIDE_BYTES = 2
"""Bytes of an element before it is quantized: bf16."""
BLOCKS = ("fp8_block", "fp8")
TABLES = {
    "fp16": ("bf16",),
    **dict.fromkeys(QUANTIZED, BLOCKS),
    "fp8": ("fp8",),
    "nvfp4": ("nvfp4", "fp4"),
}
"""For a dtype of operands, the names of the tables of products that apply, the best first; a dtype that is not listed is the name of its own table.

Formats with many scales have kernels, and so tables, of their own."""


@dataclass(frozen=True)
class MeasuredKernels:
    """The times of kernels that a device's file has tables of, and of those that its memory bounds."""

    device: DeviceModel
    _by_table: dict[object, Price | None] = field(default_factory=dict)
    _known: dict[object, Price] = field(default_factory=dict)

    @property
    def memory_rate(self) -> float:
        """The bytes per second that kernels reach which are bound by memory."""
        return float(self.device.numbers["memory_bytes_per_s"]) * self.device.reached.memory

    def scalars_us(self, elements: float) -> float:
        """The time in µs in which the device computes so many elements one by one; 0 where its file does not say it."""
        rate = self.device.scalars_per_s
        return 1e6 * elements / rate if rate else 0.0

    def moved(self, num_bytes: float, num_ops: float = 0.0) -> Price:
        """The time of a kernel that is bound by memory: it reads and writes `num_bytes` bytes, and computes `num_ops` FLOPs."""
        key = (num_bytes, num_ops)
        if key not in self._known:
            self._known[key] = self.find_moved(num_bytes, num_ops)
        return self._known[key]

    def find_moved(self, num_bytes: float, num_ops: float) -> Price:
        """Compute what `moved` keeps: by the table of copies, else by the bandwidth of memory."""
        found = self.by_table(("memory",), {"bytes": np.float64(max(num_bytes, 1))})
        if found is not None:
            return found
        peak = self.device.peak("fp32")
        seconds = max(num_bytes / self.memory_rate, num_ops / peak if peak else 0.0)
        return Price(1e6 * seconds + self.device.launch_us, Basis.ROOFLINE)

    def by_cache(self, key: tuple[str, ...], cache: str, sizes: Sizes) -> Price | None:
        """The time by the table for a cache of this dtype, or without one by the table of the nearest dtype: then the time changes with the bytes of the
        cache as the rule of its kind says. None if there is no table at all.
        """
        cache = cache or key[1]
        read = {**sizes, "cache_bytes": np.float64(bytes_per_element(cache))}
        alike = (cache, *(("fp8",) if cache in QUANTIZED else ()), key[1])
        for each in alike:
            found = self.by_table((*key, *cache_part(key[1], each)), read)
            if found is not None:
                same = bytes_per_element(each) == bytes_per_element(cache)
                return found if same else Price(found.us, Basis.RULE)
        return None

    def by_table(self, key: tuple[str, ...], sizes: Sizes) -> Price | None:
        """The time by one of the device's tables: measured within it, a rule beyond it. None if the device does not have the table."""
        asked = (key, tuple(sizes.items()))
        if asked not in self._by_table:
            self._by_table[asked] = self.find_by_table(key, sizes)
        return self._by_table[asked]

    def find_by_table(self, key: tuple[str, ...], sizes: Sizes) -> Price | None:
        """Compute what `by_table` keeps."""
        table = self.device.tables.get(key)
        if table is None:
            return None
        kind = KINDS[key[0]]
        axes = kind.axes(sizes)
        dtype = key[1] if len(key) > 1 else ""
        us = float(np.asarray(kind.rule(self.device, dtype, sizes)) * table.factor(axes))
        return Price(us, Basis.MEASURED if bool(table.covers(axes)) else Basis.RULE)
