"""Nodes of a plan of memory, and what they read and make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import numpy as np
from xdsl.ir import Operation

from stagec.dialects import sched, stg
from stagec.dialects.memory import OPERAND
from stagec.memory import ClassPlan
from stagec.unrolling.rank import RankBody

OF_ACTIVATIONS = ("insert-collectives", "recompute-activations")
"""The passes whose collectives are over activations and their gradients."""


def nodes_by(
    plan: ClassPlan, phase: str, ops: tuple[str, ...] = (), made_by: tuple[str, ...] = ()
) -> dict[int, int]:
    """Nodes of a phase, of these ops and these passes if they are given, and the bytes that each makes."""
    lives = plan.lives
    found: dict[int, int] = {}
    for row in range(len(lives)):
        said = plan.about(row)
        right = said.phase == phase and (not ops or said.op in ops)
        if right and (not made_by or said.made_by in made_by):
            node = int(lives.birth[row])
            found[node] = found.get(node, 0) + int(lives.num_bytes[row])
    return found


def op_at(plan: ClassPlan, node: int) -> tuple[RankBody, Operation]:
    """What runs at a node, and in which body."""
    row, number = plan.arrangement.node_at(node)
    run = plan.arrangement.bodies[int(plan.arrangement.body[row])]
    return run, run.body.nodes[number]


def is_of_activations(op: Operation) -> TypeGuard[sched.CollectiveOp]:
    return isinstance(op, sched.CollectiveOp) and stg.made_by(op) in OF_ACTIVATIONS


def collectives_of_activations(
    plan: ClassPlan,
) -> Iterator[tuple[int, RankBody, sched.CollectiveOp]]:
    """The nodes of collectives over activations and their gradients, and what runs there."""
    for node in range(int(plan.arrangement.first[-1])):
        run, op = op_at(plan, node)
        if is_of_activations(op):
            yield node, run, op


def sums_in_place(plan: ClassPlan) -> Iterator[tuple[int, int]]:
    """Nodes where all-reduces of tensor parallelism overwrite their operands, and the bytes of these: DTensor's have results of their own."""
    for node, run, op in collectives_of_activations(plan):
        planned = op.planned
        is_in_place = planned is not None and planned.buffers[0].where == OPERAND
        if op.kind.data == "all_reduce" and is_in_place:
            numbers = plan.stages[run.stage].at(max(run.microbatch, 0)).values
            yield node, int(op.moved.evaluate(numbers))


def last_read(plan: ClassPlan, node: int) -> int:
    """Bytes of what a node reads last."""
    lives = plan.lives
    return int(lives.num_bytes[(lives.death == node) & (lives.birth < node)].sum())


def loss_nodes(plan: ClassPlan, microbatches: int) -> list[int]:
    """Where the loss of the last microbatch begins, beside gradients of those before, and where its gradient does."""
    lives = plan.lives
    ops = np.array([plan.about(row).op for row in range(len(lives))])
    found = [np.sort(lives.birth[ops == name]) for name in ("max_logit", "target_grad")]
    return [int(births[-len(births) // microbatches]) for births in found if len(births)]


def heads_of(plan: ClassPlan) -> list[int]:
    """Where logits are made."""
    lives = plan.lives
    found = [
        int(lives.birth[row])
        for row in range(len(lives))
        if (said := plan.about(row)).phase == "fwd"
        and said.op == "contract"
        and said.scope in ("", "Head")
    ]
    return sorted(found)


def sums_of_blocks(plan: ClassPlan) -> list[tuple[int, int]]:
    """Where a forward pass adds to what goes from block to block, twice in each, and the rows of the sums."""
    lives = plan.lives
    found = [
        (int(lives.birth[row]), row)
        for row in range(len(lives))
        if (said := plan.about(row)).phase == "fwd" and (said.op, said.scope) == ("add", "Block")
    ]
    return sorted(found)


def last_of_blocks(plan: ClassPlan) -> int:
    """Where the backward pass of the first block ends."""
    lives = plan.lives
    found = (
        int(lives.birth[row])
        for row in range(len(lives))
        if plan.about(row).phase == "bwd" and plan.about(row).scope.startswith("Block")
    )
    return max(found, default=0)


def nodes_of_feed(plan: ClassPlan, phase: str) -> list[int]:
    """Where a phase has the products of feed-forward networks."""
    lives = plan.lives
    found = {
        int(lives.birth[row])
        for row in range(len(lives))
        if (said := plan.about(row)).phase == phase
        and said.op == "contract"
        and said.scope.endswith(".SwiGLU")
    }
    return sorted(found)
