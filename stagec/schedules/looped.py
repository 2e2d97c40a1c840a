"""Schedules whose stages loop over the ranks: stage s is on rank s mod p.

All of them are one pattern. Every rank has an order of forwards and an order of backwards over its
`v` stages and `m` microbatches. Of the forwards, `warm_up` come first; from then on a beat is one
forward, one backward, and, where the backward is split, the weight gradient that is `delay` beats
old. What is left when the forwards run out is the cool-down.

    beats(..., warm_up=1):   F0 | F1 B0 | F2 B1 | B2

Where both of a beat run overlapped, it is `F1&B0`.
"""

import numpy as np

from stagec.arrays import Bools, Ints
from stagec.schedules.table import ActionColumns, ActionKind, columns, concatenate

Order = tuple[Ints, Ints]
"""Which of the rank's stages (0 to v - 1), and which microbatch, one after the other."""


def depth_first(v: int, m: int, group: int) -> tuple[Order, Order]:
    """Forwards and backwards that take `group` microbatches through all stages, then the next."""
    local, microbatch = (grid.ravel() for grid in np.indices((v, m)))
    forward = np.lexsort((microbatch, local, microbatch // group))
    backward = np.lexsort((microbatch, -local, microbatch // group))
    return (local[forward], microbatch[forward]), (local[backward], microbatch[backward])


def breadth_first(v: int, m: int) -> tuple[Order, Order]:
    """All microbatches through a stage, then the next; backwards exactly in reverse."""
    local, microbatch = (grid.ravel() for grid in np.indices((v, m)))
    return (local, microbatch), (local[::-1], microbatch[::-1])


def beats(
    rank: int, p: int, forward: Order, backward: Order, warm_up: int, delay: int | None = None
) -> ActionColumns:
    """The actions of one rank. `delay` splits the backward and is in beats; see the module."""
    count = len(forward[0])
    beat = np.arange(count)

    def act(kind: ActionKind, order: Order) -> ActionColumns:
        return columns(kind, order[0] * p + rank, order[1])

    if delay is None:
        parts = [act(ActionKind.FORWARD, forward), act(ActionKind.BACKWARD, backward)]
        keys = [(beat - warm_up) * 3, beat * 3 + 1]
    else:
        parts = [
            act(ActionKind.FORWARD, forward),
            act(ActionKind.BACKWARD_INPUT, backward),
            act(ActionKind.BACKWARD_WEIGHT, backward),
        ]
        keys = [(beat - warm_up) * 3, beat * 3 + 1, (beat + delay) * 3 + 2]
    order = np.argsort(np.concatenate(keys), kind="stable")
    return ActionColumns(*(np.concatenate(column)[order] for column in zip(*parts, strict=True)))


def microbatches_per_round(p: int, m: int) -> int:
    """Microbatches that go through all stages before the next ones start.

    p as in Megatron-LM when p divides m; else the m / (m div p) of Llama 3's flexible schedule
    (arXiv:2407.21783, section 3.3.2; PyTorch calls it flex_pp).
    """
    return m // max(1, m // p)


def gpipe(p: int, v: int, m: int) -> list[ActionColumns]:
    forward, backward = depth_first(v, m, m)
    return [beats(rank, p, forward, backward, warm_up=m) for rank in range(p)]


def one_f_one_b(p: int, v: int, m: int) -> list[ActionColumns]:
    orders = depth_first(v, m, m)
    return [beats(rank, p, *orders, warm_up=min(m, p - 1 - rank)) for rank in range(p)]


def interleaved_1f1b(p: int, v: int, m: int) -> list[ActionColumns]:
    """With transfers, as Megatron-LM has them."""
    group = microbatches_per_round(p, m)
    orders = depth_first(v, m, group)
    rows: list[ActionColumns] = []
    for rank in range(p):
        warm_up = min(v * m, (v - 1) * group + 2 * (p - 1 - rank))
        row = beats(rank, p, *orders, warm_up)
        rows.append(with_transfers(row, of_beats(row, warm_up), rank, p, group))
    return rows


def overlapped_1f1b(p: int, v: int, m: int) -> list[ActionColumns]:
    """One forward earlier than in interleaved 1F1B, so that those of a beat need nothing of each other: they run overlapped."""
    group = microbatches_per_round(p, m)
    orders = depth_first(v, m, group)
    rows: list[ActionColumns] = []
    for rank in range(p):
        warm_up = min(v * m, (v - 1) * group + 2 * (p - 1 - rank) + 1)
        row = beats(rank, p, *orders, warm_up)
        pairs = of_beats(row, warm_up)
        rows.append(with_transfers(row._replace(joined=pairs), pairs, rank, p, group))
    return rows


def of_beats(row: ActionColumns, warm_up: int) -> Bools:
    """The backwards that are of one beat with the forward before them."""
    place = np.arange(row.size)
    is_steady = (place >= warm_up) & (place < row.size - warm_up)
    return (row.kind == ActionKind.BACKWARD) & is_steady


def with_transfers(
    row: ActionColumns, follows: Bools, rank: int, p: int, group: int
) -> ActionColumns:
    """What a rank sends and receives in Megatron-LM's interleaved 1F1B: before each beat what it reads, and behind it what it made.

    `follows`: what is of the same beat as the action before it. `send_forward_backward_recv_forward_backward` in the main
    loop of Megatron-LM's `pipeline_parallel/schedules.py`. Where a `group` of more than p microbatches goes through all
    stages before the next, what comes round from the other end is received as many passes earlier as there are more
    (`fwd_recv_buffer_size`, `recv_tensor_from_previous_stage`). First and last stages have transfers here with nobody.
    """
    key = 3 * np.cumsum(~follows)
    parts, keys = [row], [key + 1]
    for kind, receive, send, end in (
        (ActionKind.FORWARD, ActionKind.RECV_FORWARD, ActionKind.SEND_FORWARD, 0),
        (ActionKind.BACKWARD, ActionKind.RECV_BACKWARD, ActionKind.SEND_BACKWARD, p - 1),
    ):
        at = np.flatnonzero(row.kind == kind)
        earlier = max(0, group - p) if rank == end else 0
        before = at[np.maximum(np.arange(len(at)) - earlier, 0)]
        _, stage, microbatch, _ = row.pick(at)
        parts += [columns(each, stage, microbatch) for each in (receive, send)]
        keys += [key[before], key[at] + 2]
    return concatenate(parts).pick(np.argsort(np.concatenate(keys), kind="stable"))


def looped_bfs(p: int, v: int, m: int) -> list[ActionColumns]:
    orders = breadth_first(v, m)
    return [beats(rank, p, *orders, warm_up=v * m) for rank in range(p)]


def interleaved_zero_bubble(p: int, v: int, m: int) -> list[ActionColumns]:
    """Rank r holds back its first r weight gradients; with v = 1 this is ZB-H1."""
    group = microbatches_per_round(p, m)
    orders = depth_first(v, m, group)
    warm_up = [min(v * m, (v - 1) * group + (p - 1 - rank)) for rank in range(p)]
    return [beats(rank, p, *orders, warm_up=warm_up[rank], delay=rank) for rank in range(p)]


def zb_h2(p: int, v: int, m: int) -> list[ActionColumns]:
    """Rank r starts with 2 (p - r) - 1 forwards and holds back its first 2 r weight gradients."""
    orders = depth_first(v, m, m)
    warm_up = [min(v * m, 2 * (p - 1 - rank)) for rank in range(p)]
    return [beats(rank, p, *orders, warm_up=warm_up[rank], delay=2 * rank) for rank in range(p)]


def forward_only(p: int, v: int, m: int) -> list[ActionColumns]:
    (local, microbatch), _ = depth_first(v, m, p)
    return [columns(ActionKind.FORWARD, local * p + rank, microbatch) for rank in range(p)]
