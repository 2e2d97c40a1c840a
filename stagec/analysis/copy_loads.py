"""Copies for nodes and for devices where experts are not equally busy: how many each device sends and gets.

All of them are whole, and each exchange brings what was sent. A device gets no fewer copies than its busiest expert has tokens and no
more than all its experts have; a node no fewer than one of its devices and no more than all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from stagec.analysis.apportioning import apportion
from stagec.analysis.token_copies import Routing, likely_parts, num_copies

SCALE = 2**40
"""Probabilities are rounded to this part of one before copies are dealt out by them."""


@dataclass(frozen=True)
class CopyLoad:
    """Copies of one layer; rows are nodes, columns their devices."""

    to_nodes: list[list[int]]
    """Sent to nodes by each device."""
    in_nodes: list[list[int]]
    """Arrived at each device for its node."""
    to_devices: list[list[int]]
    """Sent on to devices of the node."""
    on_devices: list[list[int]]
    """Arrived for the device's own experts."""


def copy_load(routing: Routing, counts: Sequence[int], nodes: int, local: int) -> CopyLoad:
    """From the tokens of each expert: those of all devices that exchange tokens, in one microbatch."""
    devices = nodes * local
    own = routing.experts // devices
    experts = [counts[own * d : own * (d + 1)] for d in range(devices)]
    wanted = reached(routing, counts, devices, devices)
    on = [clamped(w, max(e), sum(e)) for w, e in zip(wanted, experts, strict=True)]
    on_devices = [on[local * n : local * (n + 1)] for n in range(nodes)]
    wanted = reached(routing, counts, nodes, devices)
    arrived = [clamped(w, max(o), sum(o)) for w, o in zip(wanted, on_devices, strict=True)]
    in_nodes = [spread(number, local) for number in arrived]
    sent = [spread(sum(column), nodes) for column in zip(*in_nodes, strict=True)]
    return CopyLoad(
        to_nodes=[list(row) for row in zip(*sent, strict=True)],
        in_nodes=in_nodes,
        to_devices=[spread(sum(row), local) for row in on_devices],
        on_devices=on_devices,
    )


def reached(routing: Routing, counts: Sequence[int], parts: int, devices: int) -> list[int]:
    """Copies that each part of the experts gets. As many leave each device as under an even load with as many parts reached."""
    total = sum(counts)
    here = total // routing.chosen // devices
    if len(set(counts)) == 1:
        number, weights = num_copies(routing, parts, here), [1] * parts
    else:
        chances = likely_parts(routing, parts, [n * routing.chosen / total for n in counts])
        number = floor(sum(chances) * here + 0.5)
        weights = [round(chance * SCALE) for chance in chances]
    return apportion(weights, number * devices, here * devices)


def clamped(number: int, least: int, most: int) -> int:
    return max(least, min(number, most))


def spread(total: int, ways: int) -> list[int]:
    """Evenly, the first ones one more."""
    return [total // ways + (i < total % ways) for i in range(ways)]
