"""How long ops take in many plans at once. An op is priced once for all plans in which its numbers and the mesh are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import Mesh, Node
from stagec.dialects.sched.actions import Collective, Compute, NodeAction, Transfer
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.kernels.price import Price
from stagec.estimate.network import Network
from stagec.estimate.prices import Prices
from stagec.plans.clauses import Plan
from stagec.sweeping.actions import DistinctRows, with_numbers
from stagec.symbolic import Size
from stagec.symbolic.columns import Columns


@dataclass(frozen=True)
class PriceColumn:
    """How long a node takes in each plan if nothing else runs beside it."""

    us: Floats
    """`[plan]`, in µs."""
    basis: Ints
    """`[plan]`: what the price is based on (`Basis`)."""


@dataclass
class PriceColumns:
    """Prices of nodes in many plans: on the one device that all plans name, and on the network of each plan's own mesh."""

    plan: Plan
    sizes: Columns
    axes: Sequence[str]
    """The axes of the mesh. Plans may give them different sizes."""
    kernels: KernelPrices | None
    """Measured operators, if the device has any. They are shared by meshes that have the same number of devices."""
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
        """`[plan]`: the first of `meshes` that has as many devices as the plan's own mesh."""

    def prices(self, number: int) -> Prices:
        """The prices on one of `meshes`, by its number."""
        mesh = self.meshes[number]
        if mesh.sizes not in self._prices:
            network = Network.of(self.plan, mesh)
            kernels = None if self.kernels is None else self.kernels.among(mesh.num_ranks)
            self._prices[mesh.sizes] = Prices(self.plan, network, kernels)
        return self._prices[mesh.sizes]

    def of(self, node: Node, numbers: Sequence[tuple[Size, ...]]) -> PriceColumn:
        """How long a node takes in each plan. `numbers` are those of its action (`ActionForm`), each a sum of sizes, every one of which is rounded up."""
        kind = without_numbers(node.action, len(numbers))
        key = (tuple(numbers), kind, node.phase, node.pieces)
        if key not in self._known:
            columns = [self.number(each) for each in numbers]
            meshes = self.alike if isinstance(node.action, Compute) else self.mesh
            distinct = DistinctRows.of([*columns, meshes], self.sizes.count)
            found = [self.price_in_one_plan(node, row[:-1], row[-1]) for row in distinct.rows]
            us, basis = zip(*found, strict=True)
            at = distinct.inverse
            self._known[key] = PriceColumn(np.array(us, float)[at], np.array(basis, np.int64)[at])
        return self._known[key]

    def bytes_of(
        self, node: Node, numbers: Sequence[tuple[Size, ...]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Two columns of bytes, `[plan]` each: those that a computing node reads and writes together, and those of them that it writes.

        A collective counts as reading its operand and writing its result. Both columns are zero for other nodes.
        """
        if not isinstance(node.action, Compute | Collective):
            return self.nothing, self.nothing
        first = int(isinstance(node.action, Compute))
        reads, written = (self.number(each).astype(float) for each in numbers[first : first + 2])
        return reads + written, written

    @cached_property
    def nothing(self) -> np.ndarray:
        """`[plan]`: zero for each plan."""
        return np.zeros(self.sizes.count)

    def number(self, sizes: tuple[Size, ...]) -> np.ndarray:
        """`[plan]`: the sum of these sizes."""
        total = self.sizes.number(sizes[0])
        for size in sizes[1:]:
            total = total + self.sizes.number(size)
        return total

    def price_in_one_plan(
        self, node: Node, numbers: tuple[int, ...], mesh: int
    ) -> tuple[float, int]:
        """The price in µs and its basis where the node's action has these numbers, on the mesh with this number."""
        action = with_numbers(node.action, numbers)
        prices = self.prices(mesh)
        price = (
            self.collective(action, prices.network)
            if isinstance(action, Collective) and node.pieces == 1
            else prices.node(replace(node, action=action))
        )
        return price.us, int(price.basis)

    def collective(self, action: Collective, network: Network) -> Price:
        """The price of a collective, kept by its route through the network: groups of devices of many meshes have the same one."""
        route = network.route(action)
        key = (action.kind, action.axes, route, action.operand_bytes, action.result_bytes)
        if key not in self._collectives:
            self._collectives[key] = network.collective(action)
        return self._collectives[key]


def without_numbers(action: NodeAction, count: int) -> NodeAction:
    """The action with its numbers (`count` of them) set to zero: equal for actions that differ in their numbers alone, or in what no price depends on."""
    found = with_numbers(action, (0,) * count)
    return replace(found, channel=0) if isinstance(found, Transfer) else found
