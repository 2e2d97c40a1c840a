"""Can the ranks get through their transfers, however sends behave?

An eager send returns at once; a rendezvous send returns when its receive is there. Here every rank
does one action after the other, and waits at a receive and at a rendezvous send until the other
end is there; a batch waits for all its transfers at once. No implementation waits more than that
(one with streams of their own for transfers waits less), so what passes here passes everywhere,
and what passes with rendezvous passes with eager sends. Compute needs no look here: the validator
has seen that every action stands behind the receive of what it reads.
"""

from dataclasses import dataclass

import numpy as np

from stagec.arrays import Bools, Ints
from stagec.schedules.dependencies import positions
from stagec.schedules.errors import EAGER, RENDEZVOUS
from stagec.schedules.table import ActionKind, Schedule
from stagec.schedules.wait_cycles import deadlock


@dataclass(frozen=True, eq=False)
class Transfers:
    """The transfers of a schedule in order, cut into batches (most of one transfer)."""

    index: Ints
    """Where they are in the schedule."""
    mate: Ints
    """The other end of each, as a position in these arrays."""
    batch: Ints
    batch_starts: Ints
    rank_starts: Ints
    """The first batch of each rank."""
    is_send: Bools


def transfers_of(schedule: Schedule) -> Transfers:
    index = np.flatnonzero(schedule.is_transfer)
    number = np.cumsum(schedule.is_transfer) - 1
    kind, stage, microbatch, joined = schedule.table.pick(index)
    mate = np.empty(len(index), np.int64)
    for of, other, offset in (
        (ActionKind.SEND_FORWARD, ActionKind.RECV_FORWARD, 1),
        (ActionKind.RECV_FORWARD, ActionKind.SEND_FORWARD, -1),
        (ActionKind.SEND_BACKWARD, ActionKind.RECV_BACKWARD, -1),
        (ActionKind.RECV_BACKWARD, ActionKind.SEND_BACKWARD, 1),
    ):
        here = np.flatnonzero(kind == of)
        mate[here] = number[positions(schedule, other)[stage[here] + offset, microbatch[here]]]
    opens = ~joined
    num_batches = np.bincount(schedule.rank[index][opens], minlength=schedule.num_ranks)
    return Transfers(
        index=index,
        mate=mate,
        batch=np.cumsum(opens) - 1,
        batch_starts=np.append(np.flatnonzero(opens), len(index)),
        rank_starts=np.concatenate([[0], np.cumsum(num_batches)]),
        is_send=(kind == ActionKind.SEND_FORWARD) | (kind == ActionKind.SEND_BACKWARD),
    )


def waits(transfers: Transfers, eager: bool) -> dict[int, int]:
    """Where each rank that cannot finish waits: the first transfer without its other end.

    All ranks go on together, a batch a round: whoever finds that the batches at the other ends of its transfers have begun.
    """
    mate, batch, edges = transfers.mate, transfers.batch, transfers.batch_starts
    begins, ends = transfers.rank_starts[:-1], transfers.rank_starts[1:]
    rank_of = np.repeat(np.arange(len(begins)), ends - begins)
    blocks = ~transfers.is_send if eager else np.ones(len(mate), bool)
    widest = int(np.diff(edges).max(initial=1))
    # The batch that each transfer of a batch waits for: its own, where it waits for none.
    needed = np.tile(np.arange(len(edges)), (widest, 1))
    needed[(np.arange(len(mate)) - edges[batch])[blocks], batch[blocks]] = batch[mate[blocks]]
    of = np.append(rank_of, 0)[needed]
    position = begins.copy()
    going = position < ends
    while going.any():
        there = position.take(of.take(position, axis=1)) >= needed.take(position, axis=1)
        going = there.all(axis=0) & (position < ends)
        position += going
    return {
        rank: next(
            i
            for i in range(edges[at], edges[at + 1])
            if blocks[i] and position[rank_of[batch[mate[i]]]] < batch[mate[i]]
        )
        for rank, at in enumerate(position.tolist())
        if at < ends[rank]
    }


def prove_no_deadlock(schedule: Schedule) -> None:
    """Raise `InvalidSchedule` with the cycle if transfers can deadlock."""
    transfers = transfers_of(schedule)
    heads = waits(transfers, eager=False)
    if not heads:
        return
    eager_heads = waits(transfers, eager=True)
    sends = "eager sends" if eager_heads else "rendezvous sends"
    index, number = transfers.index, {int(i): k for k, i in enumerate(transfers.index)}
    raise deadlock(
        schedule,
        {rank: int(index[head]) for rank, head in (eager_heads or heads).items()},
        lambda head: int(index[transfers.mate[number[head]]]),
        what=f"schedule `{schedule.name}` deadlocks with {sends}",
        reason=EAGER if eager_heads else RENDEZVOUS,
        help="move a receive before the send, or batch the two: `[SEND_F3 RECV_B0]`",
    )
