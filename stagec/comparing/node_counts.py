"""The nodes of one trace, counted by class: by what they do, with whom, and by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from stagec.arrays import distinct_rows
from stagec.checking.analysis import TraceAnalysis
from stagec.checking.node_table import NodeTable
from stagec.checking.program import KIND_COLL, KIND_CPU, KIND_RECV, KIND_SEND, number
from stagec.checking.schema import COLLECTIVES, COMP, MEM_LOAD, MEM_STORE, NODE_TYPES

KINDS = {COMP: "compute", MEM_LOAD: "load", MEM_STORE: "store"}

_OURS = re.compile(r"(/L[0-9]+)?(/m[0-9]+)?\Z")
_NUMBERED = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=layer)|(?<=layers)|(?<=block)|(?<=stage)|(?<=microbatch)|(?<=mb))[0-9]+"
)
LONGEST_NAME = 200

GROUP, PEER, NOBODY = range(3)
"""What the slot of a class is."""


@dataclass(frozen=True)
class NodeCount:
    """Nodes of one class. `slot` is the number of the trace's group or peer, -1 for none."""

    kind: str
    partner: int
    slot: int
    name: str
    amounts: tuple[tuple[str, int], ...]


@cache
def op_name(name: str) -> str:
    """A name without the numbers of its layer and microbatch: `fwd/Block/contract/L003/m01` is `fwd/Block/contract`.

    Of a name in another style, numbers that stand alone, or behind a word such as `layer`, become `*`.
    """
    return _NUMBERED.sub("*", _OURS.sub("", name[:LONGEST_NAME]))


def tally(analysis: TraceAnalysis) -> list[NodeCount]:
    """The classes of a trace, in the order in which they first appear."""
    table, graph, program = analysis.table, analysis.graph, analysis.program
    assert table is not None
    assert graph is not None
    assert program is not None
    row = graph.row
    names, name_of = _names(table, row)
    collective = program.kind == KIND_COLL
    classes = np.stack(
        [
            program.kind.astype(np.int64),
            table.type[row].astype(np.int64),
            np.where(collective, program.comm_type, 0).astype(np.int64),
            program.slot.astype(np.int64),
            name_of,
        ],
        axis=1,
    )
    keys, first, inverse = distinct_rows(classes)
    moved = np.where(program.slot >= 0, program.size, number(table, "tensor_size", row))
    sums = {
        "count": [int(n) for n in np.bincount(inverse, minlength=len(keys))],
        "FLOPs": _sums(number(table, "num_ops", row), inverse, len(keys)),
        "bytes": _sums(moved, inverse, len(keys)),
        "microseconds": _sums(table.duration[row], inverse, len(keys)),
    }
    found: list[NodeCount] = []
    for at in np.argsort(first, kind="stable").tolist():
        kind, node_type, comm_type, slot, name = keys[at].tolist()
        found.append(
            NodeCount(
                kind=_kind(kind, node_type, comm_type),
                partner={KIND_COLL: GROUP, KIND_SEND: PEER, KIND_RECV: PEER}.get(kind, NOBODY),
                slot=slot,
                name=names[name],
                amounts=tuple((what, each[at]) for what, each in sums.items() if each[at]),
            )
        )
    return found


def _kind(kind: int, node_type: int, comm_type: int) -> str:
    if kind == KIND_COLL:
        known = comm_type < len(COLLECTIVES)
        return COLLECTIVES[comm_type].lower() if known else f"collective {comm_type}"
    if kind in (KIND_SEND, KIND_RECV):
        return "send" if kind == KIND_SEND else "recv"
    if kind == KIND_CPU:
        return "on the CPU"
    if node_type in KINDS:
        return KINDS[node_type]
    return NODE_TYPES[node_type].lower() if node_type < len(NODE_TYPES) else f"type {node_type}"


def _names(table: NodeTable, row: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The names of the nodes without their numbers, and which of them each node has."""
    numbers: dict[str, int] = {}
    of_node = [numbers.setdefault(op_name(table.name(r)), len(numbers)) for r in row.tolist()]
    return list(numbers), np.array(of_node, dtype=np.int64)


def _sums(values: np.ndarray, of: np.ndarray, length: int) -> list[int]:
    """Exact sums: halves of 32 bits do not overflow, as no trace has 2**32 nodes."""
    values = values.astype(np.uint64)
    low, high = np.zeros(length, np.uint64), np.zeros(length, np.uint64)
    np.add.at(low, of, values & np.uint64(0xFFFFFFFF))
    np.add.at(high, of, values >> np.uint64(32))
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    return [(upper << 32) + lower for upper, lower in pairs]
