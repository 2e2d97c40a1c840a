"""The time of one kernel or message, and what it is based on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stagec.devices.model import Floats, Limit


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
    held_us: float = 0.0
    """The time of FLOPs at the rate at which a device holds its limit of power, for which the slowest of several devices needs longer."""
    besides_us: float = 0.0
    """What a kernel takes besides that."""

    def on_slowest(self, slowness: float) -> float:
        """The time in µs on a device that needs so many times as long as a typical one where the limit of power decides (`DeviceModel.slowest_of`)."""
        return max(self.us, self.held_us * slowness + self.besides_us)

    def plus(self, us: float) -> Price:
        """With a further time in µs."""
        return Price(self.us + us, self.basis, self.held_us, self.besides_us + us)

    def times(self, factor: Floats) -> Price:
        """Times a factor."""
        us, held, besides = self.us * factor, self.held_us * factor, self.besides_us * factor
        return Price(float(us), self.basis, float(held), float(besides))


def stretched(us: float, least_us: float, share: float) -> float:
    """The time of a kernel that computes `share` times as much as one that takes `us`. The fixed time (`least_us`) does not change."""
    fixed = min(us, least_us)
    return fixed + (us - fixed) * share


def at_most(limit: Limit, price: Price, flops: float) -> Price:
    """The price, but no less than what so many FLOPs take at that rate, if there is one. Tables are made of short measurements, and between the points of a
    table its rule may be a little too fast.
    """
    least = 0.0 if limit.flops_per_s is None else 1e6 * flops / limit.flops_per_s
    return Price(max(price.us, least), price.basis, least if limit.is_of_power else 0.0)
