"""What one op costs on the plan's device and network, under other sizes than it was compiled with."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.backend.program import Mesh, Node
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.network import Network
from stagec.estimate.prices import Prices as NodePrices
from stagec.plans.clauses import Plan


def kernels_of(plan: Plan) -> KernelPrices | None:
    """Of a device that is measured; they serve all meshes."""
    model = plan.device.model
    if model is None:
        return None
    return KernelPrices(model, plan.precision.products, plan.device.kernels != "eager")


@dataclass
class Prices:
    """For one mesh."""

    nodes: NodePrices

    @staticmethod
    def of(plan: Plan, mesh: Mesh, kernels: KernelPrices | None) -> Prices:
        return Prices(NodePrices(plan, Network.of(plan, mesh), kernels))

    def seconds(self, node: Node, in_layer: bool) -> float:
        """By itself: what neighbours share is not told here."""
        return self.nodes.node(node, in_layer).us / 1e6
