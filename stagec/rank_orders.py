"""The order of tasks on a rank: from the schedule of a pipeline, or of one microbatch after another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from stagec.analysis.gathers import pass_of
from stagec.arrays import Ints
from stagec.dialects import stg
from stagec.dialects.sched.tasks import (
    CLIP,
    NOWHERE,
    PASS_GATHERS,
    TASK_NUMBER,
    TASKS,
    Order,
)
from stagec.dialects.types import StackType
from stagec.schedules import Schedule
from stagec.schedules.table import FIRST_TRANSFER, ActionColumns, ActionKind

TASK_OF_KIND = {
    ActionKind.FORWARD: "F",
    ActionKind.BACKWARD: "B",
    ActionKind.BACKWARD_INPUT: "I",
    ActionKind.BACKWARD_WEIGHT: "W",
    ActionKind.SEND_FORWARD: "SEND_F",
    ActionKind.RECV_FORWARD: "RECV_F",
    ActionKind.SEND_BACKWARD: "SEND_B",
    ActionKind.RECV_BACKWARD: "RECV_B",
}


def plain_order(microbatches: int, rows: Collection[str], together: int = 1) -> Order:
    """Each microbatch forward, then backward: `F0 B0 F1 B1`; where passes of two overlap `F0 F1&B0 B1`, and without a backward pass `F0&F1 F2&F3`."""
    compute = np.array([TASK_NUMBER[task] for task in ("F", "B") if task in rows], np.int64)
    inside = np.tile(compute, microbatches)
    numbers = np.repeat(np.arange(microbatches), len(compute))
    joined = np.zeros_like(inside)
    if together > 1 and len(compute) == 2:
        # Each pair is the next microbatch's way forward, and this one's way back.
        pairs = [column[1:-1].reshape(-1, 2)[:, ::-1].ravel() for column in (inside, numbers)]
        inside[1:-1], numbers[1:-1] = pairs
        joined[2::2] = 1
    else:
        joined[numbers % together > 0] = 1
    none = np.zeros_like(inside)
    return once_around(inside, none, numbers, none, joined, [rows])


def once_around(
    task: Ints,
    stage: Ints,
    microbatch: Ints,
    shift: Ints,
    joined: Ints,
    rows: Sequence[Collection[str]],
    first_tied: Sequence[int] = (0,),
) -> Order:
    """Tasks of microbatches, between those that run once per step on each stage. `task` has the reductions of stages that a schedule places.

    What several ranks share is reduced before any stage begins its step, by the place of the first such weight of a stage among all
    (`first_tied`): the norm of all gradients is over other ranks, which have these weights in stages of other numbers. So Megatron-LM's
    `finalize_model_grads` reduces embeddings before its optimizer takes the norm. That goes from stage to stage, and the last one tells other ranks.
    """
    reduced = stage[task == TASK_NUMBER["reduce"]]

    def once(name: str, besides: Ints, stages: Iterable[int] = range(len(rows))) -> Ints:
        own = [i for i in stages if name in rows[i] and i not in besides]
        number, nowhere = TASK_NUMBER[name], NOWHERE
        return np.array([(number, i, nowhere, 0, 0) for i in own], np.int64).reshape(-1, 5)

    none = np.zeros(0, np.int64)
    placed = np.stack([task, stage, microbatch, shift, joined], axis=1)
    by_weight = sorted(range(len(rows)), key=first_tied.__getitem__)
    tied = once("tied", none, by_weight)
    parts = [once("pre", none), placed, once("reduce", reduced), tied]
    parts += [once("norm", none), once(CLIP, none)[-1:], once("step", none)]
    return Order.of_table(np.concatenate(parts))


def rank_order(
    schedule: Schedule,
    rank: int,
    stages: Sequence[int],
    rows: Sequence[Collection[str]],
    gathered: Sequence[bool],
    first_tied: Sequence[int],
) -> Order:
    """A rank's tasks, from its schedule, and those of each stage that run once; `rows` has the tasks of which stages have rows.

    `gathered` says of which stages all parameters are gathered before the first microbatch, and `first_tied` which weight that several
    ranks share is the first of each.

    Where some backward passes are two halves, all are.
    """
    in_turn = sends_first(schedule.row(rank))
    row = schedule.row(rank).pick(in_turn)
    peers = schedule.peer[schedule.starts[rank] : schedule.starts[rank + 1]][in_turn]
    numbers = np.array([TASK_NUMBER[TASK_OF_KIND[kind]] for kind in ActionKind])
    places = np.full(schedule.num_stages, NOWHERE)
    places[list(stages)] = np.arange(len(stages))
    task = numbers[row.kind]
    shift = np.where(peers >= 0, (peers - rank) % schedule.num_ranks, 0)
    columns = with_parameters(
        [task, places[row.stage], np.asarray(row.microbatch), shift, overlapping(row)],
        schedule,
        rank,
        places,
    )
    task = columns[0]
    if schedule.some_in_halves:
        times = np.where(task == TASK_NUMBER["B"], 2, 1)
        columns = [np.repeat(column, times) for column in columns]
        second = np.cumsum(times)[task == TASK_NUMBER["B"]] - 1
        columns[0][second - 1] = TASK_NUMBER["I"]
        columns[0][second] = TASK_NUMBER["W"]
    has = np.array([[task in own for task in TASKS] for own in rows])
    kept = has[columns[1], columns[0]]
    # Without the first of two that overlap, the second runs alone.
    group = np.cumsum(columns[4] == 0)[kept]
    columns = [column[kept] for column in columns]
    columns[4] = np.append(False, group[1:] == group[:-1])[: len(group)].astype(np.int64)
    task, place, microbatch, shift, joined = with_gathers(columns, rows, gathered)
    return once_around(task, place, microbatch, shift, joined, rows, first_tied)


def sends_first(row: ActionColumns) -> Ints:
    """The actions of a rank, with the sends of each batch before its receives, which may share a stream, and do not wait for each other."""
    receives = (row.kind == ActionKind.RECV_FORWARD) | (row.kind == ActionKind.RECV_BACKWARD)
    return np.lexsort((receives, np.cumsum(~row.joined)))


def overlapping(row: ActionColumns) -> Ints:
    """Which computation of a rank overlaps the one before it."""
    return (row.joined & (row.kind < FIRST_TRANSFER)).astype(np.int64)


def with_gathers(
    columns: Sequence[Ints], rows: Sequence[Collection[str]], gathered: Sequence[bool]
) -> list[Ints]:
    """A rank's tasks, with gathers before each pass whose stage has freed its parameters; `gathered` says which have them from the start.

    A forward pass frees what it has used; a backward pass keeps it: FSDP2's `reshard_after_forward`, and `set_reshard_after_backward(False)`,
    which PyTorch's stages say until they have run them all (`torch/distributed/pipelining/stage.py`).
    """
    passes: dict[tuple[int, int], tuple[int, bool]] = {}
    for place, own in enumerate(rows):
        for gathers in PASS_GATHERS:
            task = pass_of(gathers, own)
            if task is not None and not set(PASS_GATHERS).isdisjoint(own):
                number = TASK_NUMBER[gathers] if gathers in own else NOWHERE
                passes[TASK_NUMBER[task], place] = number, gathers == "GATHER_B"
    if not passes:
        return list(columns)
    there = list(gathered)
    inserted: list[tuple[int, tuple[int, int, int, int, int]]] = []
    table = np.stack(columns, axis=1)
    opens = 0
    for at, (task, place, microbatch, _, joined) in enumerate(table.tolist()):
        opens = opens if joined else at
        if (task, place) in passes:
            gathers, keeps = passes[task, place]
            if not there[place] and gathers >= 0:
                inserted.append((opens, (gathers, place, microbatch, 0, 0)))
            there[place] = keeps
        elif task == TASK_NUMBER["GATHER"]:
            there[place] = True
    before = [at for at, _ in inserted]
    lines = np.array([line for _, line in inserted], np.int64).reshape(-1, 5)
    return list(np.insert(table, before, lines, axis=0).T)


def with_parameters(
    columns: Sequence[Ints], schedule: Schedule, rank: int, places: Ints
) -> list[Ints]:
    """A rank's tasks, with the reductions of stages, and the gathers of whole stages, where the schedule places them."""
    if not len(schedule.reductions) and not len(schedule.gathers):
        return list(columns)
    table = np.stack(columns, axis=1)
    at = 2 * np.arange(len(table)) + 1
    for task, events in (("reduce", schedule.reductions), ("GATHER", schedule.gathers)):
        _, stage, position = events[events[:, 0] == rank].T
        # Of gathers, which of the stage's.
        number = [np.count_nonzero(stage[:i] == own) for i, own in enumerate(stage.tolist())]
        runs = np.array(number, np.int64) if task == "GATHER" else np.full(len(stage), NOWHERE)
        name = np.full(len(stage), TASK_NUMBER[task])
        none = np.zeros_like(stage)
        lines = np.stack([name, places[stage], runs, none, none], axis=1)
        table, at = np.concatenate([table, lines]), np.concatenate([at, 2 * position])
    return list(table[np.argsort(at, kind="stable")].T)


def gathers_before(program: stg.ProgramOp) -> bool:
    """Whether parameters that are freed later are gathered before the first microbatch."""
    tops = program.body.block.ops
    before = [op for op in tops if not isinstance(op, stg.AccumulateOp)]
    marks = [inner.properties for op in before for inner in op.walk()]
    return any(stg.UNIT in each and stg.EVICTED not in each for each in marks)


def first_shared(stage_programs: Sequence[stg.ProgramOp]) -> list[int]:
    """For each stage the place of the first weight that it reduces in its task `tied`, among those of all stages; 0 without one."""
    known = {program: shared_weights(program) for program in dict.fromkeys(stage_programs)}
    numbers: dict[str, int] = {}
    for path in (path for program in stage_programs for path in known[program]):
        numbers.setdefault(path, len(numbers))
    return [min((numbers[path] for path in known[each]), default=0) for each in stage_programs]


def shared_weights(program: stg.ProgramOp) -> list[str]:
    """The weights that a stage reduces in its task `tied`, in order, without those of its layers, which no other stage has."""
    ops = program.body.block.ops
    weights = [op for op in ops if isinstance(op, stg.WeightOp)]
    layered = {op.path.data for op in weights if isinstance(op.weight.type, StackType)}
    tied = [stg.text(op, "tied") for op in ops]
    return [path for path in tied if path and path not in layered]
