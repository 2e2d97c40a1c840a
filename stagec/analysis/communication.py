"""What communication is for, and what it waits for besides its operands."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from stagec.dialects import dist, sched, stg
from stagec.dialects.use_def import followed, from_stack

COMMUNICATION_KINDS = ("tp", "cp", "ep", "zero", "p2p")


def communication_kind(op: Operation, contexts: Sequence[str]) -> str:
    """What a communication is for, in the words of a plan's `overlap`; empty for computation.

    `contexts` are the axes that attention's sequence is split over.
    """
    moves = (dist.CollectiveBase, dist.RotateOp, dist.GatherBlocksOp, dist.SendOp, dist.RecvOp)
    if isinstance(op, moves):
        of_context = set(op.axes.data) <= set(contexts)
        return stg.text(op, "purpose", "cp" if of_context else "tp")
    if isinstance(op, dist.StorageOp):
        return "zero"
    if isinstance(op, dist.StageSendOp | dist.StageRecvOp):
        return "p2p"
    if isinstance(op, dist.PoolSendOp | dist.PoolRecvOp):
        return stg.text(op, "purpose") if op.direction is None else "p2p"
    return ""


def updates_in_place(op: Operation) -> bool:
    """Whether an op writes into operands, which has no result that a reader would wait for."""
    return isinstance(op, sched.ComputeOp) and op.memory_effects.updates is not None


def gathers_updated(op: Operation) -> bool:
    """Whether a node gathers parameters behind their update, which is in place: it reads nothing that the update makes, and waits for it all the same."""
    if not isinstance(op, sched.CollectiveOp) or stg.phase_of(op) != "optim":
        return False
    shards = (followed(value, from_stack) for value in op.operands)
    return any(map(is_updated, shards))


def is_updated(shard: SSAValue) -> bool:
    """Whether an op writes into a value, or, layer by layer, into its elements."""
    return any(
        updates_in_place(use.operation)
        or (
            isinstance(use.operation, stg.RepeatOp)
            and is_updated(use.operation.body.block.args[use.index])
        )
        for use in shard.uses
    )
