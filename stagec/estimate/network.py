"""How long communication takes: an alpha-beta network.

A message of b bytes takes `latency + b / bandwidth`, and links do not slow each other down (the model of
Hockney 1994, as in Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", section 3). Collectives are rings, which reach the bandwidth bound (Patarasuk and Yuan 2009, "Bandwidth
Optimal All-reduce Algorithms for Clusters of Workstations"). A group of ranks is a hierarchy of levels, the fastest
inside: what goes over a slower one has as many ports as it joins ranks that the faster ones join.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stagec.backend.program import Mesh
from stagec.devices.model import DeviceModel, Reached
from stagec.devices.rules import collective_us
from stagec.dialects.sched.actions import Collective, Transfer
from stagec.estimate.kernels.price import Basis, Price
from stagec.plans.clauses import Device, Link, Plan

Among = tuple[tuple[str, tuple[int, ...]], ...]


ENGINES = {
    "nccl": (),
    "vllm": ("vllm custom graph",),
    "sglang": ("sglang custom graph",),
    "trtllm": ("trtllm custom",),
}
"""For each setting `all_reduce` of a device, the names of the tables of an engine's own all-reduces within a node. NCCL's tables have no name."""


@dataclass(frozen=True)
class Protocol:
    """One of NCCL's protocols: how long a step of a ring takes, and which share of the bandwidth carries data."""

    base_us: float
    """The time that a collective takes besides its steps, in µs."""
    near: float
    """The latency of a step within a node, as a multiple of that of the protocol `Simple`."""
    far_us: float
    """The latency of a step between nodes in µs, over a network whose plugin adds nothing."""
    share: float
    """The bytes of data over all bytes that are sent."""
    waits: int = 1
    """How many times the latency of the network's plugin counts in a step: `Simple` also flushes its large buffers."""

    def over_network_us(self, step_us: float) -> float:
        """The time of a step between nodes in µs, where a step of `Simple` takes `step_us`: for that, 14 µs and twice the latency of the plugin."""
        plugin_us = (step_us - SIMPLE.far_us) / SIMPLE.waits
        own = self.far_us * min(step_us / SIMPLE.far_us, 1)
        return own + self.waits * max(plugin_us, 0)


SIMPLE = Protocol(8.4, 1.0, 14.0, 1.0, waits=2)
LL128 = Protocol(14.0, 1.9 / 3.4, 4.0, 0.92)
"""120 of 128 bytes are data."""
LL = Protocol(6.6, 1.0 / 3.4, 2.7, 0.25)
"""A flag beside each four bytes, and no direct reading. A step in a node takes no less than it takes to post one to the network (`getNetOverhead`)."""
PROTOCOLS = (SIMPLE, LL128, LL)
"""The protocols of a ring between nodes, with the numbers of NCCL's cost model (`baseLat`, `hwLat`, and how `busBw` and `interLat` are made, in
src/graph/tuning.cc of 2.18.3; the same in 2.30). NCCL takes the one that is fastest by this model."""


@dataclass(frozen=True)
class Level:
    """One kind of connection within a group of ranks. It joins single ranks, or the sets of ranks that faster levels have joined."""

    size: int
    """How many ranks or sets it joins; if nodes have different numbers of ranks of the group, the smallest."""
    steps: float
    """How many steps a ring takes that passes through all of them and is not closed; if nodes have different numbers, the mean."""
    bytes_per_s: float
    """The bandwidth of one rank's port."""
    latency_us: float
    is_far: bool
    """Whether it joins ranks of several nodes."""


@dataclass(frozen=True)
class Route:
    """The connections that a collective over a group of ranks runs on."""

    size: int
    """How many ranks the group has."""
    levels: tuple[Level, ...]
    """The kinds of connections, those within a node before those between nodes, and the faster first."""
    bytes_per_s: float
    """The bandwidth of a ring through all ranks."""
    latency_us: float
    """The latency of one pass around the ring, which is `size - 1` steps."""
    crossings: int = 0
    """How many of these steps are between nodes."""
    far_step_us: float = 0.0
    """The latency of one step between nodes."""
    protocols: tuple[Protocol, ...] = ()
    """The protocols that NCCL chooses from. Empty: messages take what an alpha-beta network says."""
    in_node: int = 1
    """How many ranks of the group are in one node."""
    tree_latency_us: float | None = None
    """The latency of one way up or down a double binary tree between nodes; None where there is only the ring."""
    in_switch_us: float | None = None
    """The latency of an all-reduce in switches, up to them and down again; None where switches do not reduce."""
    blocks_bytes_per_s: float = math.inf
    """What the thread blocks of a collective carry at most around a ring, if a plan says how many there are."""

    def carried(self, share: float = 1.0) -> float:
        """The bytes of data per second of a ring through all ranks, if they are this share of all bytes that are sent."""
        return min(self.bytes_per_s * share, self.blocks_bytes_per_s)

    def ring_us(self, num_bytes: int, passes: int = 1) -> float:
        """The time in µs of some passes around the ring: an all-gather or a reduce-scatter of b = `num_bytes` in all is one pass, an all-reduce is two.

        A pass takes (n-1) a + (n-1)/n b / B, where n ranks have links of latency a and bandwidth B (Thakur, Rabenseifner and Gropp 2005).
        """
        moved = 1e6 * num_bytes * (self.size - 1) / self.size
        near = self.latency_us - self.crossings * self.far_step_us
        return min(
            (
                p.base_us
                + passes * near * p.near
                + passes * self.crossings * p.over_network_us(self.far_step_us)
                + passes * moved / self.carried(p.share)
                for p in self.protocols
            ),
            default=passes * (self.latency_us + moved / self.carried()),
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
        """What the device's file says, with the numbers that the plan sets; None for a device that is a few settings alone."""
        return self.device.model

    @cached_property
    def own(self) -> dict[str, Link]:
        """The link of each axis that the plan gives a bandwidth or a latency of its own. A `link` that only says that switches reduce is none."""
        numbers = [x for x in self.links if (x.bytes_per_s, x.latency_us) != (None, None)]
        return {axis: link for link in numbers for axis in link.axes}

    def is_reduced(self, axes: Sequence[str]) -> bool:
        """Whether the switches of the network reduce over all of these axes."""
        known = {axis for link in self.links if link.reduces for axis in link.axes}
        return set(axes) <= known

    def collective(self, action: Collective) -> Price:
        """The time of a collective: by the device's table if the group is within a node, else by a rule."""
        route = self.route(action)
        model, switch_us = self.model, self.switch_us(action)
        if model is None:
            return Price(min(self.ring_collective_us(action), switch_us), Basis.ROOFLINE)
        in_switch, in_node = switch_us < math.inf, route.in_node
        # What a node's own switches do is measured.
        measured = not in_switch or model.reduces_in_switch
        asked = in_switch or in_node == route.size
        known = self.in_node(action, route) if measured and asked and in_node > 1 else None
        if known is not None and in_node == route.size:
            return known
        if known is not None and in_switch:
            switch_us = max(switch_us, known.us)
        # NCCL takes the algorithm that it expects to take least (`topoGetAlgoInfo`).
        return Price(min(self.ring_collective_us(action), switch_us), Basis.RULE)

    def switch_us(self, action: Collective) -> float:
        """The time in µs of an all-reduce in switches: a rank sends its operand once and receives the sum once, both at the same time (Graham et al., SHARP,
        2016). Infinite where they do not reduce.
        """
        route = self.route(action)
        if action.kind != "all_reduce" or route.in_switch_us is None:
            return math.inf
        return route.in_switch_us + 1e6 * action.operand_bytes / route.carried()

    def in_node(self, action: Collective, route: Route) -> Price | None:
        """The time of a collective among the ranks of the group in one node, by the device's table; None without one.

        Where an axis has links of its own, they take the place of the device's links.
        """
        model = self.model
        assert model is not None
        table = model.table("collective", action.kind)
        if table is None:
            return None
        ranks = route.in_node
        if set(action.axes) & self.own.keys():
            speed, latency = ring_of([level for level in route.levels if not level.is_far])
            numbers = {
                "link_bytes_per_s": speed / self.reached.link,
                "link_latency_us": latency / (ranks - 1),
            }
            model = replace(model, numbers={**model.numbers, **numbers})
        larger = max(action.operand_bytes, action.result_bytes, 1)
        known = min(ranks, round(2 ** table.axes[0].last))
        sizes = {"gpus": np.float64(known), "bytes": np.float64(larger)}
        us = float(collective_us(model, action.kind, sizes) * table.factor(sizes))
        passes = 2 if action.kind == "all_reduce" else 1
        if action.kind != "all_to_all" and not (passes == 2 and model.reduces_in_switch):
            us = max(us, 1e6 * passes * larger * (1 - 1 / known) / route.blocks_bytes_per_s)
        if ranks > known:
            return Price(us + self.further_us(action.kind, route, known, larger), Basis.RULE)
        found = Price(us, Basis.MEASURED if table.covers(sizes) else Basis.RULE)
        return self.of_engine(model, found, action.kind, sizes)

    def further_us(self, kind: str, route: Route, known: int, num_bytes: int) -> float:
        """The time in µs that a group needs beyond a measured one of `known` ranks: more ranks move a larger share of the bytes, and a ring has more steps.

        An all-to-all has no steps, nor has an all-reduce in the switch.
        """
        model = self.model
        assert model is not None
        passes = 2 if kind == "all_reduce" else 1
        moved = 1e6 * num_bytes / route.carried()
        more = passes * moved * (1 / known - 1 / route.size)
        if kind == "all_to_all" or (kind == "all_reduce" and model.reduces_in_switch):
            return more
        steps = passes * (route.size - known) * route.latency_us / (route.size - 1)
        return more + min(steps * p.near + passes * moved * (1 / p.share - 1) for p in PROTOCOLS)

    def of_engine(
        self, model: DeviceModel, price: Price, kind: str, sizes: dict[str, np.float64]
    ) -> Price:
        """The price of an inference engine's own all-reduce where that is faster, since engines choose by size; else `price`, which is that of NCCL."""
        names = ENGINES[self.device.all_reduce]
        if kind != "all_reduce" or not names:
            return price
        for name in names:
            table = model.table("collective", kind, name)
            if table is not None:
                us = float(collective_us(model, kind, sizes) * table.factor(sizes))
                return min(price, Price(us, price.basis), key=lambda each: each.us)
        return price

    def ring_collective_us(self, action: Collective) -> float:
        """The time of a collective in µs without a table. On a ring of n ranks each sends (n-1)/n of the whole tensor in an all-gather or a reduce-scatter,
        and twice that in an all-reduce (Patarasuk and Yuan 2009); for an all-to-all see `exchange_us`.
        """
        route = self.route(action)
        if action.kind == "all_reduce":
            ring = route.ring_us(action.operand_bytes, 2)
            if route.tree_latency_us is None:
                return ring
            # NCCL takes the tree while latencies decide (Sanders, Speck and Träff 2009; NCCL 2.4).
            moved = 1e6 * action.operand_bytes / route.carried()
            return min(ring, 2 * (route.tree_latency_us + moved))
        if action.kind == "all_to_all":
            return self.exchange_us(route, action)
        return route.ring_us(max(action.operand_bytes, action.result_bytes))

    def exchange_us(self, route: Route, action: Collective) -> float:
        """The time of an all-to-all in µs: each rank sends every other one its part, over all levels at the same time.

        Between nodes no message waits for another, so its latency is the time to begin and that of one way over the network.
        """
        part, joined, longest = action.operand_bytes / route.size, 1, 0.0
        for level in route.levels:
            is_last = level is route.levels[-1]
            reached = route.size if is_last else joined * level.size
            longest = max(longest, part * (reached - joined) / level.bytes_per_s)
            joined = reached
        latency = route.latency_us
        if route.protocols:
            latency = route.protocols[0].base_us
            latency += max(level.latency_us for level in route.levels if level.is_far)
        return latency + 1e6 * longest

    def transfer(self, action: Transfer) -> Price:
        """The time of a send. A receive has none of its own: it ends when the message is there."""
        basis = Basis.ROOFLINE if self.model is None else Basis.RULE
        return Price(self.transfer_us(action) if action.kind == "send" else 0.0, basis)

    def transfer_us(self, action: Transfer) -> float:
        """The time of one message in µs. A message to another pool goes over the network; so do all, if the peer of some rank is in another node."""
        if action.peer is not None:
            link = self.far
        elif set(action.axes) & self.own.keys():
            link = self.slowest(action.axes)
        else:
            link = self.far if self.leaves_node(action) else self.near
        return latency_or_zero(link.latency_us) + 1e6 * action.num_bytes / rate(link.bytes_per_s)

    @property
    def reached(self) -> Reached:
        """The shares of the bandwidths of links that large messages reach, where the device's file says them; else 1."""
        return self.model.reached if self.model is not None else Reached()

    @cached_property
    def near(self) -> Link:
        """The link between devices of one node, with the bandwidth that large messages reach."""
        return self.reaching(self.datasheet(is_far=False), is_far=False)

    @cached_property
    def far(self) -> Link:
        """The link between nodes, with the bandwidth that large messages reach."""
        return self.reaching(self.datasheet(is_far=True), is_far=True)

    def datasheet(self, is_far: bool) -> Link:
        """The bandwidth and latency that the device states, within a node or between nodes. One without a network of its own has the same links everywhere."""
        device = self.device
        if is_far and device.network_bytes_per_s is not None:
            speed, latency = device.network_bytes_per_s, device.network_latency_us
        else:
            speed, latency = device.link_bytes_per_s, device.link_latency_us
        return Link(axes=(), bytes_per_s=speed, latency_us=latency)

    def reaching(self, link: Link, is_far: bool) -> Link:
        """The link with the bandwidth that large messages reach."""
        if link.bytes_per_s is None:
            return link
        is_network = is_far and self.device.network_bytes_per_s is not None
        share = self.reached.network if is_network else self.reached.link
        return replace(link, bytes_per_s=link.bytes_per_s * share)

    def route(self, action: Collective) -> Route:
        """The connections that a collective runs on."""
        key = action.axes, action.among, action.ranks
        if key not in self._routes:
            self._routes[key] = self.find_route(action)
        return self._routes[key]

    def find_route(self, action: Collective) -> Route:
        """Compute what `route` keeps."""
        levels = self.levels(action)
        size = action.ranks or len(self.members(action.axes, dict(action.among)))
        speed, latency = ring_of(levels)
        near = [level for level in levels if not level.is_far]
        far = [level for level in levels if level.is_far]
        crossings = math.prod(level.size for level in far) - 1
        if crossings and self.reached.crossing < 1 and not set(action.axes) & self.own.keys():
            links = rate(self.datasheet(is_far=False).bytes_per_s)
            speed = min(speed, links * self.reached.crossing)
        far_step_us, tree = 0.0, None
        protocols: tuple[Protocol, ...] = ()
        if crossings:
            far_step_us = ring_of(far)[1] / crossings
        if crossings and self.model is not None:
            protocols = PROTOCOLS
            depth = math.log2(crossings + 1)
            way = sum(math.log2(level.size) * level.latency_us for level in far)
            tree = ring_of(near)[1] + math.ceil(depth) * way / depth
        # Up and down through the switches of a node, and those between nodes.
        slowest = (max((x.latency_us for x in each), default=0.0) for each in (near, far))
        in_switch = 2 * sum(slowest)
        return Route(
            size,
            levels,
            speed,
            latency,
            crossings,
            far_step_us,
            protocols,
            math.prod(level.size for level in near),
            tree,
            in_switch if self.is_reduced(action.axes) else None,
            self.blocks_bytes_per_s,
        )

    @cached_property
    def blocks_bytes_per_s(self) -> float:
        """What the thread blocks carry that a plan gives collectives. Infinite if it says nothing: NCCL has as many as links need."""
        blocks, model = self.device.collective_units, self.model
        if blocks is None or model is None or model.units <= 1 or not model.block_bytes_per_s:
            return math.inf
        return blocks * model.block_bytes_per_s

    def levels(self, action: Collective) -> tuple[Level, ...]:
        """The kinds of connections of a collective's group. Each axis with links of its own is a level; ranks along the other axes are in nodes, which makes
        one level within nodes and one between them. Levels with the same numbers are joined to one.

        A collective over all pools is taken to run on nodes like those of this pool, one behind the other.
        """
        among = dict(action.among)
        found: list[Level] = []
        for axis in set(action.axes) & self.own.keys():
            size = len(among.get(axis, range(self.mesh.sizes[self.mesh.axes.index(axis)])))
            found.append(level_of(self.own_or_route(axis), size, size - 1, self.leaves(axis)))
        others = [axis for axis in action.axes if axis not in self.own]
        ranks = np.arange(action.ranks) if action.ranks else self.members(others, among)
        if len(ranks) > 1:
            node = self.device.node or int(ranks[-1]) + 1
            _, counts = np.unique(ranks // node, return_counts=True)
            nodes = len(counts)
            inside = (len(ranks) - nodes) / nodes
            found.append(level_of(self.near, int(counts.min()), inside, is_far=False))
            found.append(level_of(self.far, nodes, nodes - 1, is_far=True))
        merged: dict[tuple[bool, float, float], Level] = {}
        for level in found:
            key = level.is_far, -level.bytes_per_s, level.latency_us
            if level.steps:
                merged[key] = as_one(merged[key], level) if key in merged else level
        return tuple(merged[key] for key in sorted(merged))

    def members(self, axes: Sequence[str], among: dict[str, tuple[int, ...]]) -> np.ndarray:
        """The ranks of the group along these axes that rank 0 is in, in ascending order. `among` limits the places on an axis."""
        ranks = np.zeros(1, np.int64)
        for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True):
            if axis in axes:
                places = np.array(among.get(axis, range(size)), np.int64)
                ranks = (ranks[:, None] + places * self.mesh.stride(axis)).ravel()
        return np.sort(ranks)

    def slowest(self, axes: Sequence[str]) -> Link:
        """A link with the lowest bandwidth and the highest latency that any of these axes has."""
        links = [self.own_or_route(axis) for axis in axes]
        return Link(
            axes=tuple(axes),
            bytes_per_s=min(rate(link.bytes_per_s) for link in links),
            latency_us=max(latency_or_zero(link.latency_us) for link in links),
        )

    def own_or_route(self, axis: str) -> Link:
        """The link that joins ranks along an axis, with the bandwidth that large messages reach."""
        return self.reaching(self.said_of(axis), self.leaves(axis))

    def said_of(self, axis: str) -> Link:
        """The link along an axis as the plan states it, and where it does not, as the device does."""
        own, given = self.own.get(axis), self.datasheet(self.leaves(axis))
        if own is None:
            return given
        speed, latency = own.bytes_per_s, own.latency_us
        return Link(
            axes=(axis,),
            bytes_per_s=given.bytes_per_s if speed is None else speed,
            latency_us=given.latency_us if latency is None else latency,
        )

    def leaves(self, axis: str) -> bool:
        """Whether ranks along an axis are in several nodes."""
        node = self.device.node
        return node is not None and bool(np.ptp(self.members((axis,), {}) // node))

    def leaves_node(self, action: Transfer) -> bool:
        """Whether some rank's peer in a transfer is in another node."""
        node = self.device.node
        if node is None:
            return False
        ranks = self.members(action.axes, {})
        peers = np.roll(ranks, -action.shift)
        return bool(np.any(ranks // node != peers // node))


def level_of(link: Link, size: int, steps: float, is_far: bool) -> Level:
    """A level with the numbers of a link."""
    return Level(size, steps, rate(link.bytes_per_s), latency_or_zero(link.latency_us), is_far)


def as_one(one: Level, other: Level) -> Level:
    """Two levels with the same numbers as one."""
    return replace(one, size=one.size * other.size, steps=(one.steps + 1) * (other.steps + 1) - 1)


def ring_of(levels: Sequence[Level]) -> tuple[float, float]:
    """The bandwidth of a ring over levels in bytes per second, and the latency of one pass around it in µs. Ranks that a faster level joins are neighbours.

    Bytes go by bandwidths and steps by latencies, so that neither is worse where the other is better.
    """
    speed, joined = math.inf, 1
    for level in levels:
        speed = min(speed, joined * level.bytes_per_s)
        joined *= level.size
    latency, outside = 0.0, 1
    for level in sorted(levels, key=lambda level: (level.is_far, level.latency_us), reverse=True):
        latency += outside * level.steps * level.latency_us
        outside *= level.size
    return speed, latency


def rate(bytes_per_s: float | None) -> float:
    """A bandwidth that is known to be stated: `stagec.estimate.costs.require_numbers` has checked it."""
    assert bytes_per_s is not None
    return bytes_per_s


def latency_or_zero(latency_us: float | None) -> float:
    """A latency in µs; 0 if none is stated."""
    return latency_us or 0.0
