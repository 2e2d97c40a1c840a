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
from stagec.estimate.network import Network, Route
from stagec.estimate.prices import Prices, agreement
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
    """Measured operators, if the device has any."""
    _prices: dict[tuple[int, ...], Prices] = field(default_factory=dict)
    _known: dict[object, PriceColumn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = [self.sizes.names[axis] for axis in self.axes]
        table = np.stack(columns, axis=1) if columns else np.zeros((self.sizes.count, 1), np.int64)
        meshes, self.mesh = np.unique(table.astype(np.int64), axis=0, return_inverse=True)
        self.mesh = self.mesh.ravel()
        self.meshes = [
            Mesh(tuple(self.axes), tuple(row) if columns else ()) for row in meshes.tolist()
        ]
        each = range(len(self.meshes))
        self.slowness = np.array([self.prices(number).slowness for number in each])[self.mesh]
        """`[plan]`: that of the slowest device (`Prices.slowness`)."""

    def prices(self, number: int) -> Prices:
        """The prices on one of `meshes`, by its number."""
        mesh = self.meshes[number]
        if mesh.sizes not in self._prices:
            network = Network.of(self.plan, mesh)
            self._prices[mesh.sizes] = Prices(self.plan, network, self.kernels)
        return self._prices[mesh.sizes]

    def of(self, node: Node, numbers: Sequence[tuple[Size, ...]]) -> PriceColumn:
        """How long a node takes in each plan. `numbers` are those of its action (`ActionForm`), each a sum of sizes, every one of which is rounded up."""
        kind = without_numbers(node.action, len(numbers))
        key = (tuple(numbers), kind, node.phase, node.pieces)
        if key not in self._known:
            columns = [self.number(each) for each in numbers]
            distinct = DistinctRows.of([*columns, self.where(node)], self.sizes.count)
            found = [self.price_in_one_plan(node, row[:-1], row[-1]) for row in distinct.rows]
            us, held, besides, basis = (
                np.array([getattr(price, name) for price in found])[distinct.inverse]
                for name in ("us", "held_us", "besides_us", "basis")
            )
            longest = np.maximum(us, held * self.slowness + besides)
            self._known[key] = PriceColumn(longest, basis)
        return self._known[key]

    def where(self, node: Node) -> Ints:
        """`[plan]`: the first of `meshes` on which the node costs as much as on the plan's own, if its numbers are the same.

        A kernel costs the same on all, unless ranks agree on a number in it. What ranks do together depends on the route between them.
        """
        action = node.action
        if isinstance(action, Compute):
            if not self.prices(0).agrees(action):
                return np.zeros(self.sizes.count, np.int64)
            action = agreement(action)
        if not isinstance(action, Collective):
            return self.mesh
        first: dict[Route, int] = {}
        each = range(len(self.meshes))
        return np.array(
            [first.setdefault(self.prices(mesh).network.route(action), mesh) for mesh in each]
        )[self.mesh]

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

    def price_in_one_plan(self, node: Node, numbers: tuple[int, ...], mesh: int) -> Price:
        """The price where the node's action has these numbers, on the mesh with this number."""
        action = with_numbers(node.action, numbers)
        return self.prices(mesh).node(replace(node, action=action))


def without_numbers(action: NodeAction, count: int) -> NodeAction:
    """The action with its numbers (`count` of them) set to zero: equal for actions that differ in their numbers alone, or in what no price depends on."""
    found = with_numbers(action, (0,) * count)
    return replace(found, channel=0) if isinstance(found, Transfer) else found
