"""How long communication takes: an alpha-beta network.

A message of b bytes takes `latency + b / bandwidth`, and links do not slow each other down (the model of
Hockney 1994, as in Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", section 3). Collectives are rings, which reach the bandwidth bound (Patarasuk and Yuan 2009, "Bandwidth
Optimal All-reduce Algorithms for Clusters of Workstations").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stagec.backend.program import Mesh
from stagec.devices.model import DeviceModel, Reached
from stagec.devices.rules import collective_us
from stagec.dialects.sched.actions import Collective, Transfer
from stagec.estimate.kernels import Basis, Price
from stagec.plans.clauses import Device, Link, Plan

Among = tuple[tuple[str, tuple[int, ...]], ...]


ENGINES = {
    "nccl": (),
    "vllm": ("vllm custom graph",),
    "sglang": ("sglang custom graph",),
    "trtllm": ("trtllm custom",),
}
"""Tables of all-reduces in a node, by whose they are."""


@dataclass(frozen=True)
class Protocol:
    """One of NCCL's: how long a step of a ring takes beside one with large buffers, and what share of the bandwidth is data."""

    base_us: float
    near: float
    """Of the latency of a step over the links of a node, as `Simple` has it."""
    far_us: float
    """Of a step over a network whose plugin adds nothing."""
    share: float
    waits: int = 1
    """How often the latency of the network's plugin counts: large buffers are flushed besides."""

    def over_network_us(self, step_us: float) -> float:
        """Of a step over the network, where one of `Simple` takes `step_us`: 14 us and twice what the plugin says."""
        plugin_us = (step_us - SIMPLE.far_us) / SIMPLE.waits
        own = self.far_us * min(step_us / SIMPLE.far_us, 1)
        return own + self.waits * max(plugin_us, 0)


SIMPLE = Protocol(8.4, 1.0, 14.0, 1.0, waits=2)
LL128 = Protocol(14.0, 1.9 / 3.4, 4.0, 0.92)
"""120 of 128 bytes are data."""
LL = Protocol(6.6, 1.0 / 3.4, 2.7, 0.25)
"""A flag beside each four bytes, and no direct reading. A step in a node takes no less than it takes to post one to the network (`getNetOverhead`)."""
PROTOCOLS = (SIMPLE, LL128, LL)
"""Of a ring between nodes, by NCCL's cost model (`baseLat`, `hwLat`, and how `busBw` and `interLat` are made, in src/graph/tuning.cc of 2.18.3; the
same in 2.30). NCCL takes the fastest by it."""


@dataclass(frozen=True)
class Route:
    """What a ring over a group of ranks runs on."""

    size: int
    """Ranks of the group."""
    bytes_per_s: float
    latency_us: float
    """Of one pass around the ring: `size - 1` steps."""
    crossings: int = 0
    """Of these, the steps over the network."""
    far_step_us: float = 0.0
    """Of one of them."""
    protocols: tuple[Protocol, ...] = ()
    """What NCCL chooses from; none: messages take what an alpha-beta network says."""
    inside: float = 1.0
    """Share of the other ranks that are in a rank's own node."""
    tree_latency_us: float | None = None
    """Of one way up or down a double binary tree between nodes; None where the ring is all there is."""
    has_own_link: bool = False
    in_switch_us: float | None = None
    """The latency of an all-reduce in switches, up to them and down; None where they do not reduce."""

    def ring_us(self, num_bytes: int, passes: int = 1) -> float:
        """Passes around the ring, one in an all-gather or a reduce-scatter of `num_bytes` in all: (n-1) a + (n-1)/n b / B."""
        moved = 1e6 * num_bytes * (self.size - 1) / self.size / self.bytes_per_s
        near = self.latency_us - self.crossings * self.far_step_us
        return min(
            (
                p.base_us
                + passes * near * p.near
                + passes * (self.crossings * p.over_network_us(self.far_step_us) + moved / p.share)
                for p in self.protocols
            ),
            default=passes * (self.latency_us + moved),
        )


@dataclass
class Network:
    """The links of a mesh.

    Devices of a node, `node` consecutive ranks, are joined by links; other nodes are reached by a network, with one
    port for each device. An axis with a `link` of its own has that, wherever its ranks are.
    """

    mesh: Mesh
    device: Device
    links: Sequence[Link] = ()
    _routes: dict[tuple[tuple[str, ...], Among, int], Route] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan, mesh: Mesh) -> Network:
        return Network(mesh, plan.device, plan.links)

    @cached_property
    def model(self) -> DeviceModel | None:
        """The device's, with what the plan sets."""
        return self.device.model

    @cached_property
    def own(self) -> dict[str, Link]:
        """The link of each axis that has one: of speeds of its own, not of switches alone."""
        numbers = [x for x in self.links if (x.bytes_per_s, x.latency_us) != (None, None)]
        return {axis: link for link in numbers for axis in link.axes}

    def is_reduced(self, axes: Sequence[str]) -> bool:
        """Whether switches add up what ranks along all these axes have."""
        known = {axis for link in self.links if link.reduces for axis in link.axes}
        return set(axes) <= known

    def collective(self, action: Collective) -> Price:
        """By the device's table inside a node, else by a rule."""
        route = self.route(action)
        model = self.model
        if model is None:
            return Price(self.ring_collective_us(action), Basis.ROOFLINE)
        in_switch = action.kind == "all_reduce" and route.in_switch_us is not None
        in_node = round(route.inside * (route.size - 1)) + 1
        # What a node's own switches do is measured.
        measured = not route.has_own_link and (not in_switch or model.reduces_in_switch)
        asked = in_switch or in_node == route.size
        known = self.in_node(action, route, in_node) if measured and asked and in_node > 1 else None
        if known is not None and in_node == route.size:
            return known
        us = self.ring_collective_us(action)
        if known is not None and in_switch:
            us = max(us, known.us)
        return Price(us, Basis.RULE)

    def in_node(self, action: Collective, route: Route, ranks: int) -> Price | None:
        """Among so many ranks of a node, by the device's table."""
        assert self.model is not None
        table = self.model.table("collective", action.kind)
        if table is None:
            return None
        larger = max(action.operand_bytes, action.result_bytes, 1)
        known = min(ranks, round(2 ** table.axes[0].last))
        sizes = {"gpus": np.float64(known), "bytes": np.float64(larger)}
        us = float(collective_us(self.model, action.kind, sizes) * table.factor(sizes))
        if ranks > known:
            return Price(us + self.further_us(action.kind, route, known, larger), Basis.RULE)
        found = Price(us, Basis.MEASURED if table.covers(sizes) else Basis.RULE)
        return self.of_engine(found, action.kind, sizes)

    def further_us(self, kind: str, route: Route, known: int, num_bytes: int) -> float:
        """What more devices on the same links take than were measured: they move a larger share of the bytes, and a ring has more steps.

        An exchange has no steps, nor has a sum in the switch.
        """
        model = self.model
        assert model is not None
        passes = 2 if kind == "all_reduce" else 1
        moved = 1e6 * num_bytes / route.bytes_per_s
        more = passes * moved * (1 / known - 1 / route.size)
        if kind == "all_to_all" or (kind == "all_reduce" and model.reduces_in_switch):
            return more
        steps = passes * (route.size - known) * number(self.near.latency_us)
        return more + min(steps * p.near + passes * moved * (1 / p.share - 1) for p in PROTOCOLS)

    def of_engine(self, price: Price, kind: str, sizes: dict[str, np.float64]) -> Price:
        """An inference engine's own all-reduce, where it is faster: engines choose by size."""
        model, engine = self.model, self.device.all_reduce
        assert model is not None
        names = ENGINES[engine]
        if kind != "all_reduce" or not names:
            return price
        for name in names:
            table = model.table("collective", kind, name)
            if table is not None:
                us = float(collective_us(model, kind, sizes) * table.factor(sizes))
                return min(price, Price(us, price.basis), key=lambda each: each.us)
        return price

    def ring_collective_us(self, action: Collective) -> float:
        """all-gather and reduce-scatter (n-1)/n of the whole, all-reduce twice that, all-to-all (n-1)/n.

        Where switches reduce, a rank sends what it has once and gets the sum once, in both directions at a time (Graham et al., SHARP, 2016).
        """
        route = self.route(action)
        if action.kind == "all_reduce" and route.in_switch_us is not None and route.size > 1:
            return route.in_switch_us + 1e6 * action.operand_bytes / route.bytes_per_s
        if action.kind == "all_reduce":
            ring = route.ring_us(action.operand_bytes, 2)
            if route.tree_latency_us is None:
                return ring
            # NCCL takes the tree while latencies decide (Sanders, Speck and Träff 2009; NCCL 2.4).
            moved = 1e6 * action.operand_bytes / route.bytes_per_s
            return min(ring, 2 * (route.tree_latency_us + moved))
        if action.kind == "all_to_all":
            return self.exchange_us(route, action)
        return route.ring_us(max(action.operand_bytes, action.result_bytes))

    def exchange_us(self, route: Route, action: Collective) -> float:
        """Each rank sends every other its part, over the links and over the network at the same time.

        Between nodes nobody waits for another's message: what it takes to begin, and one way over the network.
        """
        moved = action.operand_bytes * (route.size - 1) / route.size
        if route.inside == 1 or set(action.axes) & self.own.keys():
            return route.latency_us + 1e6 * moved / route.bytes_per_s
        near = moved * route.inside / rate(self.near.bytes_per_s)
        far = moved * (1 - route.inside) / rate(self.far.bytes_per_s)
        latency = route.latency_us
        if route.protocols:
            latency = route.protocols[0].base_us + number(self.far.latency_us)
        return latency + 1e6 * max(near, far)

    def transfer(self, action: Transfer) -> Price:
        """Of a receive none of its own: it ends when what is sent is there."""
        basis = Basis.ROOFLINE if self.model is None else Basis.RULE
        return Price(self.transfer_us(action) if action.kind == "send" else 0.0, basis)

    def transfer_us(self, action: Transfer) -> float:
        """One message; to another pool over the network. Where some ranks' peers are in another node, that is what all of them take."""
        if action.peer is not None:
            link = self.far
        elif set(action.axes) & self.own.keys():
            link = self.slowest(action.axes)
        else:
            link = self.far if self.leaves_node(action) else self.near
        return number(link.latency_us) + 1e6 * action.num_bytes / rate(link.bytes_per_s)

    @property
    def reached(self) -> Reached:
        """What large messages reach of the links' bandwidths, where the device's file says it."""
        return self.model.reached if self.model is not None else Reached()

    @cached_property
    def near(self) -> Link:
        device = self.device
        speed = device.link_bytes_per_s
        return Link(
            axes=(),
            bytes_per_s=None if speed is None else speed * self.reached.link,
            latency_us=device.link_latency_us,
        )

    @cached_property
    def far(self) -> Link:
        """Between nodes. A device without a network of its own has the same links everywhere."""
        device = self.device
        if device.network_bytes_per_s is None:
            return self.near
        speed = device.network_bytes_per_s * self.reached.network
        return Link(axes=(), bytes_per_s=speed, latency_us=device.network_latency_us)

    def route(self, action: Collective) -> Route:
        key = action.axes, action.among, action.ranks
        if key not in self._routes:
            self._routes[key] = self.find_route(action)
        return self._routes[key]

    def find_route(self, action: Collective) -> Route:
        """Of a collective over all pools that between nodes like this pool's, one behind the other."""
        axes = action.axes
        ranks = np.arange(action.ranks) if action.ranks else self.members(axes, dict(action.among))
        size = len(ranks)
        if set(axes) & self.own.keys():
            slowest = self.slowest(axes)
            step = number(slowest.latency_us)
            in_switch = 2 * step if self.is_reduced(axes) else None
            speed = rate(slowest.bytes_per_s)
            return Route(size, speed, (size - 1) * step, has_own_link=True, in_switch_us=in_switch)
        node = self.device.node
        if node is None:
            near = self.near
            step = number(near.latency_us)
            in_switch = 2 * step if self.is_reduced(axes) else None
            speed = rate(near.bytes_per_s)
            return Route(size, speed, (size - 1) * step, in_switch_us=in_switch)
        _, counts = np.unique(ranks // node, return_counts=True)
        crossings, together = len(counts) - 1, int(counts.min())
        near, far = self.near, self.far
        latency = (size - 1 - crossings) * number(near.latency_us)
        latency += crossings * number(far.latency_us)
        speeds = []
        if together > 1:
            speeds.append(rate(near.bytes_per_s))
        if crossings:
            # As many rings as a node has ranks of the group, each over another port.
            speeds.append(together * rate(far.bytes_per_s))
        inside = (together - 1) / (size - 1) if size > 1 else 1.0
        tree = None
        protocols: tuple[Protocol, ...] = ()
        if crossings and self.model is not None:
            protocols = PROTOCOLS
            tree = (together - 1) * number(near.latency_us)
            tree += math.ceil(math.log2(crossings + 1)) * number(far.latency_us)
        speed = min(speeds or [rate(near.bytes_per_s)])
        in_switch = None
        if self.is_reduced(axes):
            # Up and down through the switches of a node, and those between nodes.
            levels = ((near, together > 1), (far, crossings > 0))
            in_switch = 2 * sum(number(link.latency_us) for link, passed in levels if passed)
        return Route(
            size,
            speed,
            latency,
            crossings,
            number(far.latency_us),
            protocols,
            inside,
            tree,
            in_switch_us=in_switch,
        )

    def members(self, axes: Sequence[str], among: dict[str, tuple[int, ...]]) -> np.ndarray:
        """The group of rank 0, ascending."""
        ranks = np.zeros(1, np.int64)
        for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True):
            if axis in axes:
                places = np.array(among.get(axis, range(size)), np.int64)
                ranks = (ranks[:, None] + places * self.mesh.stride(axis)).ravel()
        return np.sort(ranks)

    def slowest(self, axes: Sequence[str]) -> Link:
        """The least of what the axes have, each on its own."""
        links = [self.own_or_route(axis) for axis in axes]
        return Link(
            axes=tuple(axes),
            bytes_per_s=min(rate(link.bytes_per_s) for link in links),
            latency_us=max(number(link.latency_us) for link in links),
        )

    def own_or_route(self, axis: str) -> Link:
        own = self.own.get(axis)
        leaves = self.device.node is not None and bool(
            np.ptp(self.members((axis,), {}) // self.device.node)
        )
        given = self.far if leaves else self.near
        if own is None:
            return given
        speed, latency = own.bytes_per_s, own.latency_us
        return Link(
            axes=(axis,),
            bytes_per_s=given.bytes_per_s if speed is None else speed,
            latency_us=given.latency_us if latency is None else latency,
        )

    def leaves_node(self, action: Transfer) -> bool:
        node = self.device.node
        if node is None:
            return False
        ranks = self.members(action.axes, {})
        peers = np.roll(ranks, -action.shift)
        return bool(np.any(ranks // node != peers // node))


def rate(bytes_per_s: float | None) -> float:
    """A bandwidth that `needs.py` has seen to be there."""
    assert bytes_per_s is not None
    return bytes_per_s


def number(latency_us: float | None) -> float:
    """A latency; none is 0."""
    return latency_us or 0.0
