"""What a rank does according to its trace, read back from the files that stagec wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from stagec.backend.et_def_pb2 import CollectiveCommType, Node, NodeType
from stagec.backend.et_file import read_trace
from tests.fidelity.model_text import EXPERT_PRODUCT
from tests.fidelity.oracle import axes_of
from tests.fidelity.record import (
    ATTENTION,
    ATTENTION_GRAD,
    CONVOLUTION,
    MATMUL,
    Communication,
    Compute,
    Memory,
    RankRecord,
)

KINDS = {
    "contract": MATMUL,
    EXPERT_PRODUCT: MATMUL,
    f"{EXPERT_PRODUCT}_back": MATMUL,
    "attention": ATTENTION,
    "attention_grad": ATTENTION_GRAD,
    "causal_conv": CONVOLUTION,
}
"""Ops that PyTorch counts."""

PHASES = {"wgrad": "bwd", "grad_reduce": "bwd"}
"""Phases that a measured run does not tell from another."""

NAME = re.compile(r"(?P<phase>\w+)/((?P<scope>.*)/)?(?P<op>\w+)(\[(?P<dtype>\w+)\])?")
INSTANCE = re.compile(r"(/s\d+)?(/L\d+)?(/m\d+)?$")


class Traces:
    """A directory that stagec wrote."""

    def __init__(self, directory: Path, model: str, mesh: Mapping[str, int]) -> None:
        self.directory = directory
        self.model = model
        self.mesh = mesh
        groups = directory / "comm_group.json"
        self.groups: dict[str, list[int]] = (
            json.loads(groups.read_text()) if groups.exists() else {}
        )

    def rank(self, rank: int, memory: Memory | None) -> RankRecord:
        """What it does, in the order of the file: that in which PyTorch's host issues it.

        Node ids are the order in which a device does: a gather that runs ahead has a lower one than what stands before it.
        """
        _, nodes = read_trace(self.directory / f"{self.model}.{rank}.et")
        computes: list[Compute] = []
        communications: list[Communication] = []
        for node in nodes:
            if node.type == NodeType.COMP_NODE:
                computes += self._compute(node)
            elif node.type not in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE):
                communications.append(self._communication(node))
        return RankRecord(tuple(computes), tuple(communications), memory)

    def _compute(self, node: Node) -> list[Compute]:
        name = parts(node.name)
        if name["op"] not in KINDS:
            return []
        if KINDS[name["op"]] == CONVOLUTION and phase(name) == "bwd":
            return []
        flops = attributes(node)["num_ops"]
        return [Compute(phase(name), KINDS[name["op"]], int(flops))]

    def _communication(self, node: Node) -> Communication:
        name = parts(node.name)
        given = attributes(node)
        size = int(given["comm_size"])
        if node.type == NodeType.COMM_COLL_NODE:
            kind = CollectiveCommType.Name(int(given["comm_type"])).lower()
            ranks = tuple(sorted(self.groups[str(given["pg_name"])]))
            bytes_in, bytes_out = collective_bytes(kind, size, len(ranks))
        else:
            sends = node.type == NodeType.COMM_SEND_NODE
            kind = "send" if sends else "recv"
            ranks = tuple(sorted((int(given["comm_src"]), int(given["comm_dst"]))))
            bytes_in, bytes_out = (size, 0) if sends else (0, size)
        return Communication(
            phase=phase(name),
            kind=kind,
            dtype=name["dtype"],
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            axis=axes_of(ranks, self.mesh),
            ranks=ranks,
            scope=name["scope"],
            reduces_gradient=name["phase"] == "grad_reduce",
        )


def collective_bytes(kind: str, size: int, members: int) -> tuple[int, int]:
    """Before and after, on one rank. `comm_size` is what a rank puts in."""
    match kind:
        case "all_gather":
            return size, size * members
        case "reduce_scatter":
            return size, size // members
        case _:
            return size, size


def parts(name: str) -> dict[str, str]:
    """`bwd/Block.wq/all_gather[bf16]/L003/m01` in its parts; layer and microbatch are left out."""
    found = NAME.fullmatch(INSTANCE.sub("", name))
    assert found, f"a node is called `{name}`"
    return {key: value or "" for key, value in found.groupdict().items()}


def phase(name: Mapping[str, str]) -> str:
    return PHASES.get(name["phase"], name["phase"])


def attributes(node: Node) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for attribute in node.attr:
        field = attribute.WhichOneof("value")
        if field and not field.endswith("_list"):
            found[attribute.name] = getattr(attribute, field)
    return found
