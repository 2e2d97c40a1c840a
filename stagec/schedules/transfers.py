"""Put sends and receives between the compute actions of a schedule.

A forward is followed by a send when the next stage is on another rank, an input gradient when the
stage before is; every send has its receive there. Three rules say where in the order they stand.

`beside_compute`, for one stage per rank: a receive just before the compute that needs it, a send
just after the compute that made it. PyTorch's `ScheduleGPipe` does this. When a send is followed at
once by a receive from the rank it goes to, the two are one batch (`in_pairs`): this is what keeps 1F1B
from deadlock with rendezvous sends. PyTorch's `Schedule1F1B` does this, and Megatron-LM's
`send_forward_recv_backward` is the same batch.

`as_sent`, for any placement: a send just after its compute, and its receive on the other rank at
that moment, behind whatever that rank has done by then. So all transfers have one global order that
every rank follows, and nothing deadlocks however sends behave. The moment is found by letting all
ranks take one action per round, rank 0 first. PyTorch's pipeline runtime orders transfers so; it
spends rounds on the parameters of stages too (fully sharded ones are gathered and freed), and so
must this rule: `slots_before`. A rank's receives have that order whichever it reads first, so that
one which it needs later can hold up one which it needs now.

`batched`, for any placement: what a rank sends of what it has just computed and what it receives for
what it computes next are one batch, in which nothing waits for the rest of it. So a pass or a pair of
two waits for what it reads alone. Of these batches it is not certain that they get through: a rank goes on when all of one
is through, also what it sends (`prove_no_deadlock`). A schedule may put some transfers elsewhere, as DualPipe's
code does (`_commit_and_wait_comm` in deepseek-ai/DualPipe at 3da1bbe); then it has to put all. Megatron-LM's interleaved
1F1B has such batches too (`send_forward_backward_recv_forward_backward`), and where it overlaps them it waits
before each pass for what that reads (`pp_pre_forward` and `pp_pre_backward` in its `pipeline_parallel/schedules.py`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stagec.arrays import Bools, Ints
from stagec.schedules.dependencies import positions, producers
from stagec.schedules.longest_path import Stuck, longest_path
from stagec.schedules.table import (
    FIRST_TRANSFER,
    ActionColumns,
    ActionKind,
    Schedule,
    concatenate,
)
from stagec.schedules.wait_cycles import no_order

Rule = Callable[[Schedule], Schedule]
"""How transfers are put into a schedule that has none, or in place of those that its source has."""

RESIDENT_STAGES = 3
"""Stages of a rank whose parameters PyTorch keeps gathered: those that are used next."""

SEND_OF = np.array(
    [ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD, ActionKind.SEND_BACKWARD, 0], np.uint8
)
RECV_OF = np.array(
    [ActionKind.RECV_FORWARD, ActionKind.RECV_BACKWARD, ActionKind.RECV_BACKWARD, 0], np.uint8
)


def sent(schedule: Schedule) -> tuple[Ints, Ints]:
    """The compute actions whose result another rank reads, and the stage that reads it."""
    kind, stage, microbatch, _ = schedule.table
    reader = stage.astype(np.int64) + np.where(kind == ActionKind.FORWARD, 1, -1)
    index = np.flatnonzero(
        (kind != ActionKind.BACKWARD_WEIGHT) & (reader >= 0) & (reader < schedule.num_stages)
    )
    leaves = schedule.owner[reader[index], microbatch[index]] != schedule.rank[index]
    return index[leaves], reader[index[leaves]]


def in_order(schedule: Schedule, parts: list[tuple[ActionColumns, Ints, Ints]]) -> Schedule:
    """The schedule of all actions in `parts`, each with its rank and its key within that rank."""
    table = concatenate([part for part, _, _ in parts])
    rank = np.concatenate([ranks for _, ranks, _ in parts])
    key = np.concatenate([keys for _, _, keys in parts])
    order = np.argsort(rank * (key.max(initial=0) + 1) + key, kind="stable")
    counts = np.bincount(rank, minlength=schedule.num_ranks)
    return schedule.with_actions(table.pick(order), np.concatenate([[0], np.cumsum(counts)]))


def both_ends(schedule: Schedule, index: Ints, reader: Ints) -> tuple[ActionColumns, ActionColumns]:
    """The sends of what these actions made, and their receives, for these stages."""
    kind, stage, microbatch, _ = schedule.table.pick(index)
    sends = ActionColumns(SEND_OF[kind], stage, microbatch, np.zeros(len(index), bool))
    return sends, sends._replace(kind=RECV_OF[kind], stage=reader.astype(np.int32))


def beside_compute(schedule: Schedule) -> Schedule:
    """Receives just before what reads them, sends just after what made them; of two that overlap, before and after both."""
    index, reader = sent(schedule)
    sends, receives = both_ends(schedule, index, reader)
    forwards = positions(schedule, ActionKind.FORWARD)
    backwards = positions(schedule, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
    goes_forward = sends.kind == ActionKind.SEND_FORWARD
    cells = reader, sends.microbatch
    read_at = np.where(goes_forward, forwards[cells], backwards[cells])
    in_turn = np.argsort(read_at)
    read_at, receives = read_at[in_turn], receives.pick(in_turn)
    key = 3 * np.cumsum(~schedule.table.joined)
    return in_order(
        schedule,
        [
            (schedule.table, schedule.rank, key + 1),
            (sends, schedule.rank[index], key[index] + 2),
            (receives, schedule.rank[read_at], key[read_at]),
        ],
    )


def batched(schedule: Schedule) -> Schedule:
    """One batch between what is computed; see the module's docstring.

    Of transfers that the schedule has, those between stages of one rank are left out.
    """
    plain = schedule.compute_only()
    if schedule.is_transfer.any():
        keep = ~schedule.is_transfer | (schedule.peer != schedule.rank)
        kept = np.concatenate([[0], np.cumsum(keep)])
        whole = schedule.with_actions(schedule.table.pick(keep), kept[schedule.starts])
    else:
        whole = beside_compute(plain)
    transfers, rank = whole.is_transfer, whole.rank
    joined = whole.table.joined.copy()
    joined[1:] |= transfers[1:] & transfers[:-1] & (rank[1:] == rank[:-1])
    whole = whole.with_actions(whole.table._replace(joined=joined), whole.starts)
    other = as_sent(plain)
    return whole.with_parameters(
        carried(other.reductions, other, whole, behind=True),
        carried(other.gathers, other, whole, behind=False),
    )


def carried(events: Ints, before: Schedule, after: Schedule, behind: bool) -> Ints:
    """What `before` does to the parameters of stages, in a schedule that computes the same: between the same passes, `behind` transfers or before them."""
    found = events.copy()
    for rank in range(before.num_ranks):
        own = events[:, 0] == rank
        computed = np.concatenate([[0], np.cumsum(before.row(rank).kind < FIRST_TRANSFER)])
        kind = after.row(rank).kind
        passes = np.flatnonzero(kind < FIRST_TRANSFER)
        places = np.append(passes, len(kind)) if behind else np.append(0, passes + 1)
        found[own, 2] = places[computed[events[own, 2]]]
    return found


def in_pairs(schedule: Schedule) -> Schedule:
    """`beside_compute`, where each receive is joined to a send just before it that goes to the rank it comes from."""
    schedule = beside_compute(schedule)
    kind, peer, rank = schedule.table.kind, schedule.peer, schedule.rank
    sends = (kind == ActionKind.SEND_FORWARD) | (kind == ActionKind.SEND_BACKWARD)
    receives = schedule.is_transfer & ~sends
    joined = schedule.table.joined.copy()
    joined[1:] |= receives[1:] & sends[:-1] & (peer[1:] == peer[:-1]) & (rank[1:] == rank[:-1])
    return schedule.with_actions(schedule.table._replace(joined=joined), schedule.starts)


def as_sent(schedule: Schedule) -> Schedule:
    """Receives at the moment of their sends, wherever the schedule has its own; see the module's docstring."""
    schedule = schedule.compute_only()
    joined = schedule.table.joined
    rank = schedule.rank
    after = producers(schedule)
    later_round = (after >= 0) & (rank[after] > rank)
    step = np.where(joined, 0, 1 + slots_before(schedule))
    try:
        rounds = longest_path(schedule.starts, after, step, later_round.astype(np.int64))
    except Stuck as stuck:
        raise no_order(schedule, after, stuck.heads) from None
    # A pair waits for the inputs of both and is done in one round.
    opens = np.flatnonzero(joined) - 1
    rounds[opens] = rounds[opens + 1]
    moment = (rounds * schedule.num_ranks + rank) * 3
    index, reader = sent(schedule)
    sends, receives = both_ends(schedule, index, reader)
    when = moment[index] + 2
    parts = [
        (schedule.table, rank, moment + joined),
        (sends, rank[index], when),
        (receives, schedule.owner[reader, sends.microbatch], when),
    ]
    keys = [
        np.sort(np.concatenate([k[r == own] for _, r, k in parts]))
        for own in range(schedule.num_ranks)
    ]
    return in_order(schedule, parts).with_parameters(
        reductions(schedule, rounds, keys), gathers(schedule, rounds, keys)
    )


def gathers(
    schedule: Schedule, rounds: Ints, keys: list[Ints], resident: int = RESIDENT_STAGES
) -> Ints:
    """When the parameters of stages are gathered: those that come among the `resident` used next, in that order, in the rounds after what was freed for them.

    `keys` are those of each rank's actions, sorted.
    """
    found: list[tuple[int, int, int]] = []
    slots = parameter_slots(schedule, resident)
    for rank, own in slots.items():
        begin = int(schedule.starts[rank])
        of_cell = rounds[begin + own.first_of_cell]
        before = np.concatenate([[0], of_cell[:-1]])
        for cell in np.flatnonzero(own.comes.any(axis=0)).tolist():
            coming = np.flatnonzero(own.comes[:, cell])
            coming = coming[np.argsort(own.next_use[coming, cell], kind="stable")]
            start = int(before[cell] + own.reduced[cell] + own.goes[:, cell].sum())
            for number, place in enumerate(coming.tolist(), start=1):
                key = ((start + number) * schedule.num_ranks + rank) * 3
                at = int(np.searchsorted(keys[rank], key))
                found.append((rank, int(own.stages[place]), at))
    return np.array(found, np.int64).reshape(-1, 3)


def reductions(schedule: Schedule, rounds: Ints, keys: list[Ints]) -> Ints:
    """When the gradients of each stage are reduced: in the round after its last backward pass; for stages that end together one after the other.

    PyTorch's `_add_reduce_grad` and `_PipelineScheduleRuntime`. `keys` are those of each rank's actions, sorted.
    """
    found: list[tuple[int, int, int]] = []
    for rank in range(schedule.num_ranks):
        begin = int(schedule.starts[rank])
        row = schedule.row(rank)
        ends: dict[int, int] = {}
        for at in np.flatnonzero(ends_gradient(row.kind)).tolist():
            ends.pop(int(row.stage[at]), None)
            ends[int(row.stage[at])] = int(rounds[begin + at])
        taken: dict[int, int] = {}
        for stage, last in ends.items():
            taken[last] = taken.get(last, 0) + 1
            key = ((last + taken[last]) * schedule.num_ranks + rank) * 3
            found.append((rank, stage, int(np.searchsorted(keys[rank], key))))
    return np.array(found, np.int64).reshape(-1, 3)


def ends_gradient(kind: Ints) -> Bools:
    """Whether an action adds to the gradients of weights."""
    return (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_WEIGHT)


def slots_before(schedule: Schedule, resident: int = RESIDENT_STAGES) -> Ints:
    """Rounds that PyTorch's runtime spends on a stage's parameters before each compute action.

    One for each stage that is gathered and each that is freed, when just the `resident` stages that
    are used next are kept (`_add_unshard_reshard`), and one after the last backward of a stage, for
    the reduction of its gradients (`_add_reduce_grad`).
    """
    slots = np.zeros(len(schedule), np.int64)
    for rank, own in parameter_slots(schedule, resident).items():
        changes = own.comes.sum(axis=0) + own.goes.sum(axis=0)
        row = slice(int(schedule.starts[rank]), int(schedule.starts[rank + 1]))
        slots[row] = (changes + own.reduced)[own.cell]
    return slots


class ParameterSlots(NamedTuple):
    """What a rank does with parameters before each of its cells."""

    stages: Ints
    cell: Ints
    """The cell of each action."""
    first_of_cell: Ints
    next_use: Ints
    """The cell in which each stage is used next, `[stage, cell]`."""
    comes: Bools
    """Which stages are gathered, `[stage, cell]`."""
    goes: Bools
    """Which are freed."""
    reduced: Ints
    """How many are reduced."""


def parameter_slots(schedule: Schedule, resident: int) -> dict[int, ParameterSlots]:
    """For each rank that does something."""
    kind, stage, _, joined = schedule.table
    found: dict[int, ParameterSlots] = {}
    for rank in range(schedule.num_ranks):
        begin, end = int(schedule.starts[rank]), int(schedule.starts[rank + 1])
        if begin == end:
            continue
        row = slice(begin, end)
        cell = np.cumsum(~joined[row]) - 1
        stages, local = np.unique(stage[row], return_inverse=True)
        next_use, kept = resident_stages(local, cell, resident)
        earlier = np.concatenate([np.zeros((len(kept), 1), bool), kept[:, :-1]], axis=1)
        adds = ends_gradient(kind[row])
        reduced = np.zeros(int(cell[-1]) + 2, np.int64)
        for number in range(len(kept)):
            of_stage = np.flatnonzero(adds & (local == number))
            if len(of_stage):
                reduced[cell[of_stage[-1]] + 1] += 1
        first = np.flatnonzero(~joined[row])
        found[rank] = ParameterSlots(
            stages, cell, first, next_use, kept & ~earlier, earlier & ~kept, reduced[:-1]
        )
    return found


def resident_stages(local: Ints, cell: Ints, resident: int) -> tuple[Ints, Bools]:
    """In which cell each stage is used next, and whether it is among the next `resident` different ones, at [stage, cell].

    `local` is the stage of each action of a rank, `cell` the number of its cell: a pair has one.
    """
    num_cells = int(cell[-1]) + 1
    never = num_cells
    next_use = np.full((int(local.max()) + 1, num_cells), never)
    next_use[local, cell] = cell
    next_use = np.minimum.accumulate(next_use[:, ::-1], axis=1)[:, ::-1]
    if len(next_use) <= resident:
        return next_use, next_use < never
    furthest = np.partition(next_use, resident - 1, axis=0)[resident - 1]
    return next_use, (next_use <= furthest) & (next_use < never)
