"""When each value of a rank is born and dies, over the nodes of its program in issue order.

A value lives from the node that makes it to the last node that reads it, both included. The sum of a gradient over
microbatches lives from its first term on. Nothing is unrolled here but arrays: a table's rows times microbatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.analysis.stated_sizes import wrong
from stagec.arrays import Bools, Ints
from stagec.dialects.memory import Kind
from stagec.dialects.sched.tasks import CLIP, COMPUTE_TASKS, NOWHERE, ONCE
from stagec.memory.value_table import ValueTable
from stagec.unrolling.rank import (
    Arrangement,
    RankRun,
    StageRun,
    clipping_stage,
    giving_stage,
)

FORWARD = ("F", "RECV_F")
BACKWARD = ("B", "I", "W")
RECEIVED = ("RECV_F", "RECV_B")


DTYPES = (np.int64, np.int64, np.int64, np.int8, np.int16, np.int32, np.int32)
"""Of the columns of `Lifetimes`: there is a row for each value, microbatch and rank class. What is reckoned with has 64 bits."""


@dataclass(frozen=True)
class Lifetimes:
    """One row per buffer. `birth` and `death` are nodes; `value` is a row of the stage's table."""

    birth: Ints
    death: Ints
    num_bytes: Ints
    kind: Ints
    stage: Ints
    value: Ints
    microbatch: Ints
    num_nodes: int

    def __len__(self) -> int:
        return len(self.birth)

    def live_bytes(self, chosen: Ints | None = None) -> Ints:
        """Bytes alive at each node; of some buffers only, if given."""
        rows = slice(None) if chosen is None else chosen
        change = np.zeros(self.num_nodes + 1, np.int64)
        np.add.at(change, self.birth[rows], self.num_bytes[rows])
        np.subtract.at(change, self.death[rows] + 1, self.num_bytes[rows])
        return np.cumsum(change)[:-1]

    def select(self, chosen: Ints) -> Lifetimes:
        """Some of the buffers."""
        if chosen.dtype == bool and chosen.all():
            return self
        columns = (self.birth, self.death, self.num_bytes, self.kind)
        columns += (self.stage, self.value, self.microbatch)
        return Lifetimes(*(column[chosen] for column in columns), num_nodes=self.num_nodes)

    def alive_at(self, node: int) -> Ints:
        """Rows of the buffers that are alive at a node."""
        return np.flatnonzero((self.birth <= node) & (node <= self.death))


Gathered = Mapping[tuple[str, int], Mapping[int, tuple[str, int]]]
"""For the passes of a stage, by task and microbatch: the task and the microbatch that gathered what it reads of each unit."""


@dataclass
class StageLives:
    """The values of one stage in all microbatches: `[m, value]`, one row if the task runs once."""

    table: ValueTable
    microbatches: Ints
    birth: Ints
    """-1 where the value is not made."""
    death: Ints
    sum_death: Ints
    """When the sums over microbatches are freed; -1 for none."""
    saved: Ints
    """Whether the backward pass reads it."""
    deferred: Ints
    once: Ints
    first_read: Ints
    """The first reader of what was received, else the birth."""


def lifetimes(
    arrangement: Arrangement, tables: Sequence[ValueTable], position: Ints | None = None
) -> Lifetimes:
    """The buffers of a rank class. `position` has the place of each node, if it is another than that in issue order."""
    places = Places(arrangement, position)
    said = arrangement.run.gathered
    stages = [
        stage_lives(
            places,
            arrangement.run.stages[number],
            number,
            table,
            {(task, at): found for (task, stage, at), found in said.items() if stage == number},
        )
        for number, table in enumerate(tables)
    ]
    hand_over(arrangement.neighbours, stages)
    keep_given(places, arrangement.run, stages)
    last = places.last
    parts = [
        part
        for number, lives in enumerate(stages)
        for part in (buffers(lives, number), waiting(lives, number), sums(lives, number, last))
    ]
    columns = [
        np.concatenate([part[k] for part in parts], dtype=dtype, casting="same_kind")
        for k, dtype in enumerate(DTYPES)
    ]
    return Lifetimes(*columns, num_nodes=last + 1).select(columns[2] > 0)


class Places:
    """Nodes from tasks, rows and microbatches."""

    def __init__(self, arrangement: Arrangement, position: Ints | None = None) -> None:
        self.position = position
        self.place = arrangement.place
        self.first = arrangement.first
        self.bases = arrangement.bases

    @property
    def last(self) -> int:
        """The last place of a node."""
        if self.position is None:
            return int(self.first[-1]) - 1
        return int(self.position.max(initial=-1))

    def placed(self, nodes: Ints) -> Ints:
        """The places of nodes; -1 where there is none."""
        if self.position is None or not len(self.position):
            return nodes
        return np.where(nodes >= 0, self.position[nodes], -1)

    def microbatches(self, stage: int) -> Ints:
        own = [rows[:-1] >= 0 for (_, c), rows in self.bases.rows.items() if c == stage]
        found = np.flatnonzero(np.any(own, axis=0)) if own else np.zeros(0, np.int64)
        return found if len(found) else np.zeros(1, np.int64)

    def nodes(
        self,
        stage: int,
        tasks: Sequence[str],
        microbatches: Ints,
        task: Ints,
        row: Ints,
        node: Ints,
    ) -> Ints:
        """`[m, ...]`: -1 where the task does not run."""
        base = np.empty((len(microbatches), len(tasks)), np.int64)
        for column, name in enumerate(tasks):
            base[:, column] = self.bases.of_microbatches((name, stage), microbatches)
        start = base[:, task]
        rows = np.where(start >= 0, start + row, 0)
        return np.where(start >= 0, self.first[self.place[rows]] + node, -1)


def stage_lives(
    places: Places, run: StageRun, stage: int, table: ValueTable, said: Gathered
) -> StageLives:
    """`said`: where the passes of the stage find what is gathered."""
    microbatches = places.microbatches(stage)
    made = places.nodes(stage, table.tasks, microbatches, table.task, table.row, table.node)
    readers = places.nodes(
        stage, table.tasks, microbatches, table.read_task, table.read_row, table.read_node
    )
    birth, reads = places.placed(made), places.placed(readers)
    reads = np.where(reads >= 0, reads - table.read_after, -1)
    once = made_in(table, ONCE)
    latest = reads.max(axis=0) if len(microbatches) else reads
    follows = finds_gathered(table)
    of_value = ~table.of_sum & table.frees & ~follows
    death = np.maximum(birth, highest(reads[:, of_value], table.read_value[of_value], len(table)))
    death[:, once] = np.maximum(
        death, highest(latest[None, of_value], table.read_value[of_value], len(table))
    )[:, once]
    if places.position is None:
        check_reads(run, table, reads, birth, death, ~(table.of_sum | table.frees | follows))
    follow_gathered(table, said, microbatches, reads, np.flatnonzero(follows), death)
    sum_death = highest(latest[None, table.of_sum], table.read_value[table.of_sum], len(table))[0]
    saved = read_by(table, BACKWARD) & made_in(table, FORWARD)
    deferred = read_by(table, ("W",)) & made_in(table, ("I", "RECV_B"))
    first_read = birth.copy()
    received = made_in(table, RECEIVED)
    first_read[:, received] = earliest(reads, table.read_value, birth)[:, received]
    return StageLives(
        table, microbatches, birth, death, sum_death, saved, deferred, once, first_read
    )


def check_reads(
    run: StageRun, table: ValueTable, reads: Ints, birth: Ints, death: Ints, chosen: Ints
) -> None:
    """E0709 for a read of what was freed before it, of those that are `chosen`: nobody is freed by them."""
    values = table.read_value
    freed = np.zeros(len(table), bool)
    freed[values[table.frees & ~table.of_sum]] = True
    which = np.flatnonzero(chosen & freed[values] & (table.num_bytes[values] > 0))
    of = values[which]
    late = np.argwhere((birth[:, of] >= 0) & (reads[:, which] > death[:, of]))
    if not len(late):
        return
    read = int(which[late[0, 1]])
    made = table.abouts[int(table.about[values[read]])].op
    task, row = table.tasks[int(table.read_task[read])], int(table.read_row[read])
    own = run.layout.tasks[task].rows[row]
    reader = run.layout.bodies[own.body].ops[int(table.read_node[read])]
    message = f"row {row} of `{task}` reads what `{made}` made, after it was freed"
    raise wrong(
        reader, message, "name it behind `frees` of the last reader, or run `plan-memory` again"
    )


def finds_gathered(table: ValueTable) -> Ints:
    """Whether a read is one of parameters of which `gathered` says where the reader finds them."""
    in_pass = are(table.tasks, COMPUTE_TASKS)[table.read_task]
    return in_pass & ~table.of_sum & (table.unit[table.read_value] >= 0)


def follow_gathered(
    table: ValueTable, said: Gathered, microbatches: Ints, reads: Ints, follows: Ints, death: Ints
) -> None:
    """Let what was gathered live until the last reader that finds it there, as `gathered` of the rank's program says.

    `reads` has the places of all readers `[m, read]`, `follows` the reads that this is about.
    """
    if not len(follows):
        return
    number = {task: i for i, task in enumerate(table.tasks)}
    row = {at: i for i, at in enumerate(microbatches.tolist())}
    # Of what one collective gathers, the first value has the buffer of all.
    has_buffer = (table.unit >= 0) & (table.num_bytes > 0)
    value = np.full((len(table.unit_numbers), len(number)), -1, np.int64)
    value[table.unit[has_buffer], table.task[has_buffer]] = np.flatnonzero(has_buffer)
    unit = table.unit[table.read_value[follows]]
    for (task, at), found in said.items():
        in_pass = table.read_task[follows] == number[task]
        for each, (gather, run) in found.items():
            mine = np.flatnonzero(in_pass & (table.unit_numbers[unit] == each))
            # What is gathered once per step is made in the first row.
            made = value[unit[mine], number[gather]]
            known = made >= 0
            positions = reads[row[at], follows[mine[known]]]
            np.maximum.at(death[row.get(run, 0)], made[known], positions)


def are(tasks: Sequence[str], chosen: Sequence[str]) -> Bools:
    return np.array([task in chosen for task in tasks], bool)


def made_in(table: ValueTable, tasks: Sequence[str]) -> Ints:
    return are(table.tasks, tasks)[table.task]


def read_by(table: ValueTable, tasks: Sequence[str]) -> Ints:
    """Whether some reader of a value, not of its sum, is in one of these tasks."""
    readers = are(table.tasks, tasks)[table.read_task] & ~table.of_sum
    found = np.zeros(len(table), bool)
    found[table.read_value[readers]] = True
    return found


def highest(positions: Ints, values: Ints, count: int) -> Ints:
    """`[m, value]`: the last of each value's readers, -1 for none."""
    found = np.full((len(positions), count), -1, np.int64)
    if len(values):
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.diff(values[order], prepend=-1))
        found[:, values[order][starts]] = np.maximum.reduceat(positions[:, order], starts, axis=1)
    return found


def earliest(positions: Ints, values: Ints, birth: Ints) -> Ints:
    """`[m, value]`: the first of each value's readers, its birth if it has none."""
    found = birth.copy()
    if len(values):
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.diff(values[order], prepend=-1))
        found[:, values[order][starts]] = np.minimum.reduceat(positions[:, order], starts, axis=1)
    return np.maximum(found, birth)


def hand_over(neighbours: Mapping[tuple[str, int], int], stages: Sequence[StageLives]) -> None:
    """What a stage of the same rank hands over is one buffer: the receiver's, from when it is made.

    A stage that frees what it gathered may gather more often than there are microbatches, and then it has more rows.
    """
    for (task, stage), other in neighbours.items():
        direction = "forward" if task == "RECV_F" else "backward"
        for key, value in stages[stage].table.received.items():
            source = stages[other].table.sent.get(key) if key[0] == direction else None
            if source is None:
                continue
            taker, giver = stages[stage], stages[other]
            readers = taker.table.read_value == value
            if not readers.any():
                continue
            _, to, of = np.intersect1d(
                taker.microbatches, giver.microbatches, assume_unique=True, return_indices=True
            )
            made = giver.birth[of, source]
            taker.birth[to, value] = taker.first_read[to, value] = made
            taker.death[to, value] = np.maximum(taker.death[to, value], made)
            if not (giver.saved[source] or giver.deferred[source]):
                giver.birth[:, source] = -1


def keep_given(places: Places, run: RankRun, stages: Sequence[StageLives]) -> None:
    """Let what a stage gives to another one of its rank, or finds for all of them, be there until these have read it."""
    for stage, each in enumerate(run.stages):
        for task in each.layout.tasks.keys() & {"tied", "norm"}:
            for row, read in enumerate(each.layout.tasks[task].rows):
                at = [np.zeros(1, np.int64), np.array([row]), np.zeros(1, np.int64)]
                for place in read.arguments:
                    giver = giving_stage(place, stage, run.stages) if place is not None else NOWHERE
                    if place is None or giver < 0:
                        continue
                    value, of_sum = stages[giver].table.given[place.task]
                    reader = places.placed(places.nodes(stage, [task], np.array([NOWHERE]), *at))
                    lives = stages[giver]
                    deaths = lives.sum_death[None] if of_sum else lives.death
                    deaths[:, value] = np.maximum(deaths[:, value], reader)
    clips = clipping_stage(run.order)
    for stage, lives in enumerate(stages):
        if clips in (NOWHERE, stage):
            continue
        # Stages make the same in `CLIP`, one after the other.
        theirs, own = (np.flatnonzero(made_in(s.table, (CLIP,))) for s in (stages[clips], lives))
        latest = lives.death[:, own].max(axis=0)
        stages[clips].death[:, theirs] = np.maximum(stages[clips].death[:, theirs], latest)


def buffers(lives: StageLives, stage: int) -> tuple[Ints, ...]:
    """The values themselves."""
    table = lives.table
    kind = table.kind.copy()
    kind[lives.deferred & (kind == Kind.TEMPORARIES)] = Kind.DEFERRED
    kind[lives.saved & (kind == Kind.TEMPORARIES)] = Kind.SAVED
    kind[(table.accumulated > 0) & (kind == Kind.TEMPORARIES)] = Kind.GRADIENTS
    num_bytes = np.where(kind == Kind.PARAMETERS, 0, table.bytes_in(lives.microbatches))
    exists = (lives.birth >= 0) & (num_bytes > 0)
    if len(lives.microbatches) > 1:
        exists[1:, lives.once] = False
    death = lives.death.copy()
    alone = is_the_sum(lives)
    death[:, alone] = np.maximum(death, lives.sum_death)[:, alone]
    m, value = np.nonzero(exists)
    return (
        lives.first_read[m, value],
        death[m, value],
        num_bytes[m, value],
        kind[value],
        np.full(len(value), stage),
        value,
        np.where(lives.once[value], -1, lives.microbatches[m]),
    )


def waiting(lives: StageLives, stage: int) -> tuple[Ints, ...]:
    """What was received and is not read yet: a communication buffer until then."""
    num_bytes = lives.table.bytes_in(lives.microbatches)
    early = (lives.birth >= 0) & (lives.birth < lives.first_read) & (num_bytes > 0)
    m, value = np.nonzero(early)
    return (
        lives.birth[m, value],
        lives.first_read[m, value] - 1,
        num_bytes[m, value],
        np.full(len(value), int(Kind.COMMUNICATION)),
        np.full(len(value), stage),
        value,
        lives.microbatches[m],
    )


def kinds_of_sums(terms: Ints) -> Ints:
    """What microbatches store, or fetch from the host to add to, is there between them."""
    there = (terms >= Kind.HOST) | (terms == Kind.FETCHED)
    return np.where(there, int(Kind.HOST), int(Kind.GRADIENTS))


def is_the_sum(lives: StageLives) -> Ints:
    """Which values are the sum over microbatches themselves: with a single microbatch the only term is the sum, unless the sum stays from step to step."""
    alone = len(lives.microbatches) == 1
    table = lives.table
    return (table.accumulated > 0) & ~table.sum_stays & alone


def sums(lives: StageLives, stage: int, last: int) -> tuple[Ints, ...]:
    """The sums over microbatches."""
    table = lives.table
    made = (lives.birth >= 0).any(axis=0)
    value = np.flatnonzero((table.accumulated > 0) & ~is_the_sum(lives) & made)
    birth = np.where(lives.birth >= 0, lives.birth, last).min(axis=0)[value]
    death = np.maximum(lives.sum_death, lives.birth.max(axis=0))[value]
    stays = table.sum_stays[value]
    return (
        np.where(stays, 0, birth),
        np.where(stays, last, death),
        table.accumulated[value],
        kinds_of_sums(table.kind[value]),
        np.full(len(value), stage),
        value,
        np.full(len(value), -1),
    )
