"""Totals of a compiled job, summed over rank classes without unrolling them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from stagec.backend.program import Collective, Compute, Node, RankClass, TraceSet
from tests.fidelity.trace import KINDS

Pick = Callable[[Node], bool]


def ranks_of(trace_set: TraceSet, rank_class: RankClass) -> int:
    """How many ranks share the class's program."""
    count = 1
    for axis in trace_set.mesh.axes:
        where = rank_class.where.get(axis)
        count *= trace_set.mesh.size(axis) if where is None else len(where)
    return count


def nodes_of(rank_class: RankClass, in_layer: int | None = None) -> Iterator[tuple[Node, int]]:
    """Each node template and how often a rank runs it; of one layer, or of the whole step."""
    program = rank_class.program
    chosen = np.ones(len(program.segment), dtype=bool)
    if in_layer is not None:
        chosen = program.layer == in_layer
    counts = np.bincount(program.segment[chosen], minlength=len(program.segments))
    for segment, count in zip(program.segments, counts, strict=True):
        for node in segment.nodes:
            yield node, int(count)


def counted_flops(trace_set: TraceSet, pick: Pick = lambda node: True) -> int:
    """FLOPs of contractions and attention over all ranks: what published counts count."""
    return sum(
        ranks_of(trace_set, rank_class) * count * node.action.num_ops
        for rank_class in trace_set.classes
        for node, count in nodes_of(rank_class)
        if isinstance(node.action, Compute) and node.op in KINDS and pick(node)
    )


def layer_flops(trace_set: TraceSet, num_layers: int, phase: str) -> int:
    """The same, of all layers in one phase."""
    return sum(
        ranks_of(trace_set, rank_class) * count * node.action.num_ops
        for rank_class in trace_set.classes
        for layer in range(num_layers)
        for node, count in nodes_of(rank_class, layer)
        if isinstance(node.action, Compute) and node.op in KINDS and node.phase == phase
    )


def layer_collectives(trace_set: TraceSet, axis: str, layer: int) -> Counter[tuple[str, str, int]]:
    """Phase, kind and the larger of operand and result bytes of a layer's collectives over `axis`."""
    found: Counter[tuple[str, str, int]] = Counter()
    (rank_class,) = trace_set.classes
    for node, count in nodes_of(rank_class, layer):
        action = node.action
        if isinstance(action, Collective) and action.axes == (axis,) and count:
            size = max(action.operand_bytes, action.result_bytes)
            found[node.phase, action.kind, size] += count
    return found
