"""What communication is for."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from stagec.dialects import dist, stg

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
