"""What ops cost under the sizes of many plans at once. Plans in which an op's numbers are the same ask once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import Mesh, Node
from stagec.dialects.sched.actions import Collective, Compute, NodeAction, Transfer
from stagec.estimate.kernels import KernelPrices, Price
from stagec.estimate.network import Network
from stagec.estimate.prices import Prices
from stagec.plans.clauses import Plan
from stagec.sweeping.actions import Distinct, with_numbers
from stagec.symbolic import Size
from stagec.symbolic.columns import Columns


@dataclass(frozen=True)
class PriceColumn:
    """The price of a node by itself, in each plan."""

    us: Floats
    basis: Ints


@dataclass
class PriceColumns:
    """On the plan's device, and on the network of each plan's own mesh."""

    plan: Plan
    sizes: Columns
    axes: Sequence[str]
    kernels: KernelPrices | None
    """Of a device that is measured; they serve all meshes of as many devices."""
    _prices: dict[tuple[int, ...], Prices] = field(default_factory=dict)
    _known: dict[object, PriceColumn] = field(default_factory=dict)
    _collectives: dict[object, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = [self.sizes.names[axis] for axis in self.axes]
        table = np.stack(columns, axis=1) if columns else np.zeros((self.sizes.count, 1), np.int64)
        meshes, self.mesh = np.unique(table.astype(np.int64), axis=0, return_inverse=True)
        self.mesh = self.mesh.ravel()
        self.meshes = [
            Mesh(tuple(self.axes), tuple(row) if columns else ()) for row in meshes.tolist()
        ]
        counts = [mesh.num_ranks for mesh in self.meshes]
        self.alike = np.array([counts.index(each) for each in counts])[self.mesh]
        """Of each plan the first mesh that has as many devices."""

    def prices(self, number: int) -> Prices:
        """On one of the meshes."""
        mesh = self.meshes[number]
        if mesh.sizes not in self._prices:
            network = Network.of(self.plan, mesh)
            kernels = None if self.kernels is None else self.kernels.among(mesh.num_ranks)
            self._prices[mesh.sizes] = Prices(self.plan, network, kernels)
        return self._prices[mesh.sizes]

    def of(self, node: Node, numbers: Sequence[tuple[Size, ...]]) -> PriceColumn:
        """The prices of a node whose action has these numbers (`ActionForm`), each of which is a sum of sizes that are rounded up."""
        kind = without_numbers(node.action, len(numbers))
        key = (tuple(numbers), kind, node.phase, node.pieces)
        if key not in self._known:
            columns = [self.number(each) for each in numbers]
            meshes = self.alike if isinstance(node.action, Compute) else self.mesh
            distinct = Distinct.of([*columns, meshes], self.sizes.count)
            found = [self.one(node, row[:-1], row[-1]) for row in distinct.rows]
            us, basis = zip(*found, strict=True)
            at = distinct.inverse
            self._known[key] = PriceColumn(np.array(us, float)[at], np.array(basis, np.int64)[at])
        return self._known[key]

    def bytes_of(
        self, node: Node, numbers: Sequence[tuple[Size, ...]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """What a node that computes moves, and what it writes of that; of a collective what it has before and after. Nothing of others."""
        if not isinstance(node.action, Compute | Collective):
            return self.nothing, self.nothing
        first = int(isinstance(node.action, Compute))
        reads, written = (self.number(each).astype(float) for each in numbers[first : first + 2])
        return reads + written, written

    @cached_property
    def nothing(self) -> np.ndarray:
        return np.zeros(self.sizes.count)

    def number(self, sizes: tuple[Size, ...]) -> np.ndarray:
        total = self.sizes.number(sizes[0])
        for size in sizes[1:]:
            total = total + self.sizes.number(size)
        return total

    def one(self, node: Node, numbers: tuple[int, ...], mesh: int) -> tuple[float, int]:
        """The price in one plan."""
        action = with_numbers(node.action, numbers)
        prices = self.prices(mesh)
        price = (
            self.collective(action, prices.network)
            if isinstance(action, Collective) and node.pieces == 1
            else prices.node(replace(node, action=action))
        )
        return price.us, int(price.basis)

    def collective(self, action: Collective, network: Network) -> Price:
        """Groups of many meshes have the same route."""
        route = network.route(action)
        key = (action.kind, action.axes, route, action.operand_bytes, action.result_bytes)
        if key not in self._collectives:
            self._collectives[key] = network.collective(action)
        return self._collectives[key]


def without_numbers(action: NodeAction, count: int) -> NodeAction:
    """What actions have in common that differ in their numbers alone, and in what no price depends on."""
    found = with_numbers(action, (0,) * count)
    return replace(found, channel=0) if isinstance(found, Transfer) else found
