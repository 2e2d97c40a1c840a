"""A device as an estimate sees it: numbers of its datasheet, and tables of how far measured operators are from a rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

Floats = Any
"""A number, or an array of them."""
Key = tuple[str, ...]
"""The kind of operator, and what else chooses a table: `("product", "bf16")`."""


@dataclass(frozen=True)
class GridAxis:
    """One coordinate of a table: points at `2 ** (first + i * step)`."""

    name: str
    first: float
    step: float
    count: int

    @property
    def last(self) -> float:
        return self.first + self.step * (self.count - 1)


@dataclass(frozen=True, eq=False)
class TimeTable:
    """log2 of measured time over the rule's time, on a grid of the logarithms of sizes; between its points linear.

    Beyond the grid its edge holds: the rule alone says how time grows there.
    """

    key: Key
    axes: tuple[GridAxis, ...]
    values: Floats
    """[count of each axis]."""
    source: int = 0
    """The source in the device's list."""

    def factor(self, sizes: Mapping[str, Floats]) -> Floats:
        """What the rule's time is multiplied by."""
        alone = all(isinstance(sizes[axis.name], float) for axis in self.axes)
        found = self.corners_of_one(sizes) if alone else self.corners(sizes)
        return np.exp2(sum(w * self.values[at] for at, w in found))

    def corners_of_one(self, sizes: Mapping[str, float]) -> list[tuple[tuple[int, ...], float]]:
        """`corners` where each size is one number, without arrays."""
        found: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for axis in self.axes:
            place = (math.log2(max(sizes[axis.name], 1e-9)) - axis.first) / axis.step
            place = min(max(place, 0.0), axis.count - 1)
            low = min(int(place), max(axis.count - 2, 0))
            share = place - low
            both = ((low, 1 - share), (min(low + 1, axis.count - 1), share))
            found = [((*at, index), w * own) for at, w in found for index, own in both if own]
        return found

    def corners(self, sizes: Mapping[str, Floats]) -> list[tuple[tuple[Floats, ...], Floats]]:
        """The grid points around each size, with their weights."""
        found: list[tuple[tuple[Floats, ...], Floats]] = [((), 1.0)]
        for axis in self.axes:
            place = (np.log2(np.maximum(sizes[axis.name], 1e-9)) - axis.first) / axis.step
            place = np.minimum(np.maximum(place, 0), max(axis.count - 1, 0))
            low = np.minimum(place.astype(np.int64), max(axis.count - 2, 0))
            share = place - low
            both = ((low, 1 - share), (np.minimum(low + 1, axis.count - 1), share))
            found = [((*at, index), w * own) for at, w in found for index, own in both]
        return found

    def covers(self, sizes: Mapping[str, Floats]) -> Floats:
        """Where sizes are within what was measured, by half a power of two."""
        inside = np.ones((), bool)
        for axis in self.axes:
            place = np.log2(np.maximum(sizes[axis.name], 1e-9))
            inside = inside & (place >= axis.first - 0.5) & (place <= axis.last + 0.5)
        return inside


@dataclass(frozen=True)
class Citation:
    """Where numbers are from."""

    what: str
    licence: str = ""
    version: str = ""


@dataclass(frozen=True)
class Reached:
    """Shares of the datasheet's bandwidths that large transfers reach."""

    memory: float = 1.0
    link: float = 1.0
    network: float = 1.0
    host: float = 1.0
    crossing: float = 1.0
    """Of the links: what a ring at most reaches that leaves a node, where ports would carry more."""


class Limit(NamedTuple):
    """FLOP/s that no kernel is faster than."""

    flops_per_s: float | None
    is_of_power: bool = False
    """Whether the limit of power says so: at that no two devices are equally fast (`DeviceModel.slowest_of`)."""


@dataclass(frozen=True)
class DeviceModel:
    """What a device file says."""

    name: str
    title: str
    peaks: Mapping[str, float]
    """FLOP/s by dtype, dense."""
    numbers: Mapping[str, float | int]
    """Settings of a plan's `device`: `capacity`, `memory_bytes_per_s`, ..."""
    sustained: Mapping[str, float] = field(default_factory=dict)
    """FLOP/s by dtype of the largest products that run one after the other, where the power limit holds the clock below that of a short measurement."""
    sustained_attention: Mapping[str, float] = field(default_factory=dict)
    """The same of attention's forward kernels: those that are not here keep up what products do."""
    sustained_backward_attention: Mapping[str, float] = field(default_factory=dict)
    """And of its backward kernels."""
    sustained_spread: float = 0.0
    """By how much devices of one model differ in that: the standard deviation, of the mean."""
    units: int = 1
    """Streaming multiprocessors."""
    collective_units: int = 0
    """How many of these units a collective's kernel occupies while it runs."""
    exchange_units: int = 0
    """How many of these units an all-to-all's kernel occupies; 0: as many as any collective's."""
    block_bytes_per_s: float = 0.0
    """What one thread block of a collective carries around a ring; 0: not known, and no limit."""
    message_units: int = 0
    """How many of these units the kernel of a message between two ranks occupies."""
    loss_bytes_per_s: float = 0.0
    """Of a fused loss that makes the gradient of logits beside it: what it and its backward pass move of logits, if they were read and written once each;
    0: as fast as memory is."""
    reached: Reached = Reached()
    launch_us: float = 0.0
    """Between the end of a kernel and the start of the next one on a stream."""
    turn_us: float = 0.0
    """By how much longer the kernel of an expert's product takes among those of other experts than by itself."""
    host_launch_us: float = 0.0
    """What the host takes to launch a kernel, where no graph does it."""
    host_kernel_us: float = 0.0
    """What it takes for each further kernel of one call: of quantizations for one expert after the other."""
    host_product_us: float = 0.0
    """The same of products, for each of which a library looks for a kernel."""
    backward_attention_rate: float = 1.0
    """FLOP/s of attention's backward kernel over those of its forward kernel."""
    scalars_per_s: float = 0.0
    """Elements per second of kernels that compute them one by one, where others load vectors; 0: as fast as memory is."""
    scan_flops_per_s: float = 0.0
    """The rate of the kernels of a state-space model's scan in a forward pass; 0: as fast as memory is."""
    backward_scan_rate: float = 1.0
    """FLOP/s of a scan's kernels in a backward pass over those of the forward pass."""
    backward_fp8_rate: float = 1.0
    """FLOP/s of fp8 products in a backward pass, which add up in more bits, over those of the forward pass."""
    transposes_fp8: bool = False
    """Products of fp8 read their operands along rows alone: what is read along columns is a second, transposed copy."""
    scales_blocks: bool = False
    """Products of fp8 apply a scale for each 32 elements of their operands as they multiply (`mxfp8`); those of fp4 all do."""
    reduces_in_switch: bool = False
    """NVLink SHARP: all-reduces inside a node are summed by the switch."""
    price_per_hour: float | None = None
    tables: Mapping[Key, TimeTable] = field(default_factory=dict)
    sources: tuple[Citation, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    """The source of each number that no datasheet has."""

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def preset(self) -> Mapping[str, float | int]:
        """What `device NAME` sets in a plan."""
        return {"flops_per_s": self.peaks.get("bf16", max(self.peaks.values())), **self.numbers}

    def peak(self, dtype: str) -> float | None:
        """FLOP/s for a dtype; of one that it has no units for, those of the next wider."""
        name = DTYPE_UNITS.get(dtype, dtype)
        if name in self.peaks:
            return self.peaks[name]
        if name not in UNITS:
            return None
        wider = UNITS[UNITS.index(name) :]
        return next((self.peaks[each] for each in wider if each in self.peaks), None)

    def multiplies(self, dtype: str) -> bool:
        """Whether it has units for products of a dtype: of those that not all devices have."""
        unit = DTYPE_UNITS.get(dtype, dtype)
        if unit not in RARE_UNITS:
            return True
        return unit in self.peaks and (dtype != "mxfp8" or self.scales_blocks)

    def multiplied(self, dtype: str) -> str:
        """What products of a dtype are computed in: bf16, where there are no units for it."""
        return dtype if self.multiplies(dtype) else "bf16"

    def most_of_products(self, dtype: str) -> Limit:
        """What no product of a dtype is faster than on a typical device."""
        peak = self.peak(dtype)
        kept = self.sustained.get(dtype, self.sustained.get(DTYPE_UNITS.get(dtype, dtype)))
        if kept is None or peak is None:
            return Limit(peak)
        return Limit(min(peak, kept), is_of_power=True)

    def most_of_attention(self, dtype: str, backward: bool) -> Limit:
        """The same of a pass of attention: at a power limit its kernels have another rate than products, for a FLOP of theirs takes another power."""
        kept = self.sustained_backward_attention if backward else self.sustained_attention
        return (
            Limit(kept[dtype], is_of_power=True) if dtype in kept else self.most_of_products(dtype)
        )

    def slowest_of(self, devices: int) -> float:
        """The time of the slowest of so many devices, which wait for each other, at their power limit over that of a typical one."""
        return 1 + self.sustained_spread * furthest_of(devices)

    def table(self, *key: str) -> TimeTable | None:
        return self.tables.get(key)


@cache
def furthest_of(count: int) -> float:
    """How many standard deviations the largest of so many normally distributed numbers is from the mean (Blom 1958)."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


DTYPE_UNITS = {
    "f8e4m3": "fp8",
    "f8e5m2": "fp8",
    "mxfp8": "fp8",
    "fp8_block": "fp8",
    "fp8_1x128": "fp8",
    "fp8_1x256": "fp8",
    "fp8_128x128": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}
"""Which peak holds for a format that shares its units with another."""
TAKEN_UNITS = ("collective_units", "exchange_units", "message_units")
"""Settings of a device by which communication takes multiprocessors from computation."""
UNITS = ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32", "fp64")
"""What devices have peaks for, from the narrowest on."""
RARE_UNITS = ("fp4", "fp8", "fp64")
