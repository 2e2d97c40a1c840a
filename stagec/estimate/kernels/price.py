"""The time of one kernel or message, and what it is based on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stagec.devices.model import Floats


class Basis(IntEnum):
    """What a time is based on: a measurement, a rule that starts from one, or the roofline of the device. A smaller number is the better basis."""

    MEASURED = 0
    RULE = 1
    ROOFLINE = 2


@dataclass(frozen=True, slots=True)
class Price:
    """The time of one kernel or message in µs, and what it is based on."""

    us: float
    basis: Basis


def stretched(us: float, least_us: float, share: float) -> float:
    """The time of a kernel that computes `share` times as much as one that takes `us`. The fixed time (`least_us`) does not change."""
    fixed = min(us, least_us)
    return fixed + (us - fixed) * share


def at_most(flops_per_s: float | None, price: Price, flops: float) -> Price:
    """The price, but no less than what so many FLOPs take at that rate, if there is one. Tables are made of short measurements, and between the points of a
    table its rule may be a little too fast.
    """
    least = 0.0 if flops_per_s is None else 1e6 * flops / flops_per_s
    return Price(max(price.us, least), price.basis)


def scaled(price: Price, share: Floats | float) -> Price:
    """The price times a factor."""
    return Price(float(price.us * share), price.basis)
