"""Totals of a compiled job, tallied from the nodes of its traces: what the compiler's own count of a step is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np

from stagec.backend.program import Node, RankClass, TraceSet
from stagec.dialects.sched.actions import Collective, Compute
from stagec.dialects.work import Work
from stagec.estimate.joined_kernels import work_of
from tests.fidelity.oracle import DTYPE_BYTES


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


def model_flops(trace_set: TraceSet, without: Collection[str] = ()) -> int:
    """FLOPs of contractions, convolutions, scans and attention over all ranks, backward twice forward.

    Papers count the model, not the kernels: what is computed again is left out, and so are the scores that a fused
    attention's backward computes again (Dao et al. 2022, appendix B): it counts as twice its forward. `without` names
    modules that a publication does not count.
    """
    nodes = [
        (node, ranks_of(trace_set, rank_class) * count)
        for rank_class in trace_set.classes
        for node, count in nodes_of(rank_class)
    ]
    passes = 3 if any(work_of(node) in MAKES_AGAIN for node, _ in nodes) else 1
    return sum(
        count * model_share(node) * (passes if work_of(node) in FUSED else 1)
        for node, count in nodes
        if node.scope.rpartition(".")[2] not in without
    )


MAKES_AGAIN = (Work.ATTENTION_GRAD, Work.SCAN_GRAD, Work.DELTA_RULE_GRAD)
"""What computes products of the forward pass once more: papers count it as twice that."""

FUSED = (Work.ATTENTION, Work.SCAN)
"""What has a backward pass that makes products of the forward pass again: it counts as twice that."""


def model_share(node: Node) -> int:
    """The FLOPs of a node that belong to the model. Of attention and scans only the forward pass is asked."""
    if not isinstance(node.action, Compute) or node.phase == "recompute":
        return 0
    work = node.action.work
    return node.action.num_ops if work.on_matrix_units and work not in MAKES_AGAIN else 0


def forward_flops_of_layers(trace_set: TraceSet, num_layers: int) -> int:
    """What full recomputation does again, counted by formula."""
    return sum(
        ranks_of(trace_set, rank_class) * count * model_share(node)
        for rank_class in trace_set.classes
        for layer in range(num_layers)
        for node, count in nodes_of(rank_class, layer)
        if node.phase == "fwd"
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


def ring_elements(trace_set: TraceSet, axis: str) -> int:
    """Elements that a rank sends over `axis` on a ring, but for the share that is its own.

    An all-reduce is a reduce-scatter and an all-gather, each of the whole buffer (Patarasuk and Yuan 2009).
    """
    (rank_class,) = trace_set.classes
    elements = 0
    for node, count in nodes_of(rank_class):
        action = node.action
        if isinstance(action, Collective) and action.axes == (axis,):
            whole = max(action.operand_bytes, action.result_bytes)
            passes = 2 if action.kind == "all_reduce" else 1
            elements += count * passes * whole // DTYPE_BYTES[action.dtype]
    return elements
