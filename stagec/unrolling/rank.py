"""All tasks of a rank as rows in issue order: what a `sched.program` says, for nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stagec.dialects import sched, stg
from stagec.dialects.tasks import (
    GATHER_TASKS,
    NOWHERE,
    ONCE,
    TASK_NUMBER,
    TASKS,
    TRANSFER_TASKS,
    Order,
    PerRowAttr,
    spell_task,
)
from stagec.unrolling.checks import wrong
from stagec.unrolling.stage import TAKEN, Body, Layout, Place, Row

Ints = np.ndarray

Owners = Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""For a weight that several ranks have, by path: the axis of the stages, and the ranks' coordinates on it."""


@dataclass(frozen=True)
class StageRun:
    """A virtual stage that a rank runs: its part of the model, its rows, the numbers of its sizes."""

    program: stg.ProgramOp
    lay_out: Callable[[], Layout]
    """Unrolls its rows, for all stages that are like it once."""
    values: Mapping[str, int]
    stage: int = 0
    owners: Owners = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.lay_out()


@dataclass(frozen=True)
class RankRun:
    """What a rank class runs: its stages, and the order of their tasks."""

    name: str
    where: dict[str, tuple[int, ...]]
    stages: Sequence[StageRun]
    program: sched.RankProgramOp
    axis: str = ""
    """Of the stages; empty without a pipeline."""

    @property
    def order(self) -> Order:
        return self.program.order.data

    @cached_property
    def task_names(self) -> list[tuple[str, int, int]]:
        """Task, stage of the rank and microbatch (-1: once per step), in order."""
        order = self.order
        columns = (order.task.tolist(), order.stage.tolist(), order.microbatch.tolist())
        return [(TASKS[task], stage, m) for task, stage, m in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class RankBody:
    """A body as a rank runs it: of which of its stages; of a transfer, which boundary it crosses and how far the peer is."""

    body: Body
    stage: int
    shift: int = 0


@dataclass
class Packed:
    """A task's rows as arrays. `source_task[i, k]` is an index into `tasks`, or -1."""

    body: Ints
    behind: Ints
    """`[n, 2]`: an index into `tasks`, and a row of it; -1 for none."""
    source_task: Ints
    source_row: Ints
    source_node: Ints
    tasks: tuple[tuple[str, int], ...]
    """Task and stage."""


@dataclass
class Arrangement:
    """All rows of a rank, task by task, and where each is in issue order."""

    run: RankRun
    neighbours: Mapping[tuple[str, int], int]
    """For a stage that receives nothing in a direction: the stage of the rank that it continues."""
    bases: Mapping[tuple[str, int, int], int]
    """The first row of each task, by task, stage and microbatch."""
    bodies: Sequence[RankBody]
    body: Ints
    """Of each row, an index into `bodies`."""
    source_row: Ints
    """`[n, slots]`: the row behind each argument, -1 for none."""
    source_node: Ints
    """`[n, slots]`: which node of that row."""
    lengths: Ints
    """Rows of each task of the order."""
    order: Ints
    """Rows in issue order."""
    place: Ints
    """Each row's position in issue order."""
    first: Ints
    """The first node of each position; one more has the total."""

    def node_at(self, node: int) -> tuple[int, int]:
        """The row of a node, and its place in that row."""
        position = int(np.searchsorted(self.first, node, side="right")) - 1
        return int(self.order[position]), node - int(self.first[position])

    def task_at(self, row: int) -> tuple[int, int]:
        """Which task of the order a row is of, and its number among the rows of that."""
        ends = np.cumsum(self.lengths)
        task = int(np.searchsorted(ends, row, side="right"))
        return task, row - int(ends[task] - self.lengths[task])

    def describe(self, row: int) -> str:
        """A row as users may find it."""
        task, number = self.task_at(row)
        name, stage, microbatch = self.run.task_names[task]
        at = f"{name}:{stage}" + (f".{microbatch}" if microbatch >= 0 else "")
        return f"row {number} of `{at}`"

    def said(self, name: str, numbers: PerRowAttr | None, otherwise: int) -> Ints:
        """What a property of the rank's program says of each row, in issue order. E0709 if it is about other rows than there are."""
        if numbers is None:
            return np.full(len(self.order), otherwise, np.int64)
        if not np.array_equal(numbers.data.lengths, self.lengths):
            help_ = "run `chain-streams` again, and what follows it, after what changes rows"
            raise wrong(self.run.program, f"`{name}` is about other rows than there are", help_)
        return numbers.data.numbers[self.order]

    def column(self, of_task: Ints) -> Ints:
        """A number of each task of the order, for each of its rows."""
        return np.repeat(of_task, self.lengths)

    def layer(self, stages: Sequence[StageRun]) -> Ints:
        """The layer of each row, for stages that may begin elsewhere than those that were arranged."""
        known = [
            {task: np.array(own, np.int64) for task, own in each.layout.layers(each.values).items()}
            for each in stages
        ]
        parts = [known[stage][task] for task, stage, _ in self.run.task_names]
        return np.concatenate([np.zeros(0, np.int64), *parts])


@dataclass
class Arrangements:
    """Where the rows of ranks stand. Classes that run the same program differ in numbers alone."""

    _known: dict[sched.RankProgramOp, Arrangement] = field(default_factory=dict)

    def of(self, run: RankRun) -> Arrangement:
        if run.program not in self._known:
            self._known[run.program] = arrange(run)
        known = self._known[run.program]
        return known if known.run is run else replace(known, run=run)


def arrange(run: RankRun) -> Arrangement:
    """Give the rows of all tasks their places."""
    stages, order = run.stages, run.order
    bodies: list[RankBody] = []
    first_of: dict[int, int] = {}
    for number, each in enumerate(stages):
        # Stages that differ in the numbers of their layers share these.
        if id(each.layout) not in first_of:
            first_of[id(each.layout)] = len(bodies)
            bodies += [RankBody(body, number) for body in each.layout.bodies]
    offsets = [first_of[id(each.layout)] for each in stages]
    neighbours = local_neighbours(run)
    packed: dict[tuple[int, int, int], Packed] = {}
    bases: dict[tuple[str, int, int], int] = {}
    keys = list(map(tuple, order.table[:, [1, 0, 3]].tolist()))
    lengths = np.zeros(len(keys), np.int64)
    total = 0
    names = run.task_names
    for at, key in enumerate(keys):
        stage, number, shift = key
        if key not in packed:
            rows = stages[stage].layout.tasks[TASKS[number]].rows
            rows = [handed_over(row, stage, neighbours, stages) for row in rows]
            packed[key] = pack(rows, stage, offsets[stage])
            if TASKS[number] in TRANSFER_TASKS:
                direct(packed[key], bodies, stage, shift)
        bases[names[at]] = total
        lengths[at] = len(packed[key].body)
        total += lengths[at]
    width = max((p.source_task.shape[1] for p in packed.values()), default=0)
    last = {(task, stage): microbatch for task, stage, microbatch in names}
    first_run = {(task, stage): microbatch for task, stage, microbatch in reversed(names)}
    body = np.zeros(total, np.int64)
    behind = np.full(total, NOWHERE, np.int64)
    source_row = np.full((total, width), NOWHERE, np.int64)
    source_node = np.zeros((total, width), np.int64)
    gathered: dict[int, dict[str, tuple[str, int, int]]] = {
        number: {} for number in range(len(stages))
    }
    for key, name in zip(keys, names, strict=True):
        if name[0] in stages[name[1]].layout.gathered_units:
            # The last run of each task that gathers, the latest at the end.
            gathered[name[1]].pop(name[0], None)
            gathered[name[1]][name[0]] = name
        made, start = packed[key], bases[name]
        here = slice(start, start + len(made.body))
        body[here] = made.body
        outer = first_run if name[0] == "pre" else last
        sources = np.array(
            [bases.get(run_of(name, *task, outer), NOWHERE) for task in made.tasks] + [NOWHERE],
            np.int64,
        )
        own = made.source_task.shape[1]
        base, row_of_task = sources[made.source_task], made.source_row
        for number, (task, stage) in enumerate(made.tasks):
            if task == "GATHER" or (task in GATHER_TASKS and sources[number] < 0):
                # What did not run: the last gathers of the same units.
                reads = made.source_task == number
                at_unit, base = made.source_row * reads, np.where(reads, NOWHERE, base)
                for other, run_before in gathered[stage].items():
                    twins = stages[stage].layout.twins(task, other)[at_unit]
                    found = reads & (twins >= 0)
                    row_of_task = np.where(found, twins, row_of_task)
                    base = np.where(found, bases[run_before], base)
                if (base[reads] < 0).any():
                    at = spell_task([TASK_NUMBER[name[0]], name[1], name[2], 0], [0] * 4)
                    message = f"`{at}` reads parameters that no task before it gathers"
                    raise wrong(run.program, message)
        known = (made.source_task >= 0) & (base >= 0)
        source_row[here, :own] = np.where(known, base + row_of_task, NOWHERE)
        source_node[here, :own] = made.source_node
        anchor = sources[made.behind[:, 0]]
        behind[here] = np.where(anchor >= 0, anchor + made.behind[:, 1], NOWHERE)
    issued = issue_order(behind)
    place = np.empty(total, np.int64)
    place[issued] = np.arange(total)
    num_nodes = np.array([each.body.num_nodes for each in bodies] or [0], np.int64)
    first = np.concatenate([[0], np.cumsum(num_nodes[body[issued]])])
    return Arrangement(
        run, neighbours, bases, bodies, body, source_row, source_node, lengths, issued, place, first
    )


def issue_order(behind: Ints) -> Ints:
    """Rows in issue order: one that is behind another comes right after it, of several the first one first."""
    position = np.where(behind >= 0, behind, np.arange(len(behind)))
    moved = np.flatnonzero(behind >= 0)
    tie = np.zeros(len(behind), np.int64)
    tie[moved] = 1 + np.arange(len(moved))
    return np.lexsort((tie, position))


def direct(packed: Packed, bodies: list[RankBody], stage: int, shift: int) -> None:
    """Give the transfers of a stage their peer."""
    for position, old in enumerate(packed.body.tolist()):
        packed.body[position] = len(bodies)
        bodies.append(RankBody(bodies[old].body, stage, shift))


def local_neighbours(run: RankRun) -> dict[tuple[str, int], int]:
    """For a stage that receives nothing in a direction: the stage of the same rank that it continues."""
    received = {(task, stage) for task, stage, _ in run.task_names}
    by_stage = {each.stage: position for position, each in enumerate(run.stages)}
    found: dict[tuple[str, int], int] = {}
    for position, each in enumerate(run.stages):
        for task, step in (("RECV_F", -1), ("RECV_B", 1)):
            other = by_stage.get(each.stage + step)
            if other is not None and (task, position) not in received:
                found[task, position] = other
    return found


def handed_over(
    row: Row, stage: int, neighbours: Mapping[tuple[str, int], int], stages: Sequence[StageRun]
) -> Row:
    """A row whose arguments come straight from the neighbouring stage, where that is on the same rank."""
    arguments: list[Place | None] = []
    for place in row.arguments:
        if place is not None and place.task.startswith(TAKEN):
            arguments.append(given(place, stage, stages))
            continue
        other = neighbours.get((place.task, stage)) if place is not None else None
        if place is None or other is None:
            arguments.append(place)
            continue
        direction = "forward" if place.task == "RECV_F" else "backward"
        number = stages[stage].layout.received[direction, place.row, place.node]
        source = stages[other].layout.handed_over[direction, number]
        arguments.append(replace(source, stage=other) if source is not None else None)
    return replace(row, arguments=arguments)


def given(place: Place, stage: int, stages: Sequence[StageRun]) -> Place | None:
    """The node behind a gradient that another stage of the rank gives."""
    weight = place.task.removeprefix(TAKEN)
    givers = [i for i, each in enumerate(stages) if i != stage and weight in each.layout.given]
    source = stages[givers[place.row]].layout.given[weight]
    return replace(source, stage=givers[place.row]) if source is not None else None


def pack(rows: Sequence[Row], stage: int, first_body: int) -> Packed:
    def key(place: Place) -> tuple[str, int]:
        return place.task, stage if place.stage < 0 else place.stage

    named = {key(a) for r in rows for a in r.arguments if a is not None}
    names = sorted(named | {(r.behind[0], stage) for r in rows if r.behind is not None})
    width = max((len(r.arguments) for r in rows), default=0)
    shape = (len(rows), width)
    source_task = np.full(shape, -1, np.int64)
    source_row = np.zeros(shape, np.int64)
    source_node = np.zeros(shape, np.int64)
    behind = np.full((len(rows), 2), -1, np.int64)
    index = {name: i for i, name in enumerate(names)}
    for i, row in enumerate(rows):
        if row.behind is not None:
            behind[i] = index[row.behind[0], stage], row.behind[1]
        for k, place in enumerate(row.arguments):
            if place is not None:
                source_task[i, k] = index[key(place)]
                source_row[i, k] = place.row
                source_node[i, k] = place.node
    body = np.array([r.body + first_body for r in rows], np.int64)
    return Packed(body, behind, source_task, source_row, source_node, tuple(names))


def run_of(
    reader: tuple[str, int, int], task: str, stage: int, outer: Mapping[tuple[str, int], int]
) -> tuple[str, int, int]:
    """Which run of a task a row means: of its own microbatch; from outside the loop that of the microbatch in `outer`, the first or the last."""
    if task in ONCE:
        return task, stage, NOWHERE
    microbatch = reader[2]
    return task, stage, outer.get((task, stage), NOWHERE) if microbatch < 0 else microbatch
