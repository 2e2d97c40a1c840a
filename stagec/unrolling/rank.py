"""All tasks of a rank as rows in issue order: what a `sched.program` says, for nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.stated_sizes import wrong
from stagec.arrays import Ints, distinct_rows
from stagec.dialects import sched, stg
from stagec.dialects.sched.tasks import (
    CLIP,
    GATHER_TASKS,
    NOWHERE,
    ONCE,
    TASK_NUMBER,
    TASKS,
    TRANSFER_TASKS,
    Order,
    PerRowAttr,
    Rows,
    spell_task,
)
from stagec.unrolling.stage import FOUND, TAKEN, NodePlace, Row, RowBody, StageLayout

WRITES = {"rounds": "interleave-tasks", "waits": "chain-streams", "ahead": "order-communication"}
"""The pass that writes a property of a rank's program."""

Owners = Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""For a weight that several ranks have, by path: the axis of the stages, and the ranks' coordinates on it."""


@dataclass(frozen=True)
class StageRun:
    """A virtual stage that a rank runs: its part of the model, its rows, the numbers of its sizes."""

    program: stg.ProgramOp
    lay_out: Callable[[], StageLayout]
    """Unrolls its rows, for all stages that are like it once."""
    values: Mapping[str, int]
    stage: int = 0
    owners: Owners = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    """Its rows by task, as `sched.tasks` lists them."""
    in_microbatches: Sequence[Mapping[str, int]] = ()
    """The numbers of its sizes in each microbatch, where these are not alike."""

    def at(self, microbatch: int) -> StageRun:
        """With the numbers that sizes have in a microbatch; -1: in a step."""
        if microbatch < 0 or not self.in_microbatches:
            return self
        return replace(self, values=self.in_microbatches[microbatch], in_microbatches=())

    @property
    def layout(self) -> StageLayout:
        return self.lay_out()

    @cached_property
    def coordinates(self) -> tuple[tuple[str, int], ...]:
        """The numbers that are of its rank's place."""
        return tuple(sorted((n, v) for n, v in self.values.items() if n.endswith(SUFFIX)))


@dataclass(frozen=True)
class RankRun:
    """What a rank class runs: its stages, and the order of their tasks."""

    name: str
    where: dict[str, tuple[int, ...]]
    stages: Sequence[StageRun]
    program: sched.RankProgramOp
    axis: str = ""
    """The axis of the stages; empty without a pipeline."""

    @property
    def order(self) -> Order:
        return self.program.order.data

    def task_name(self, number: int) -> tuple[str, int, int]:
        """Task, stage of the rank and microbatch (-1: once per step) of a task of the order."""
        task, stage, microbatch = self.order.table[number, :3].tolist()
        return TASKS[task], stage, microbatch

    @cached_property
    def gathered(self) -> Mapping[tuple[str, int, int], Mapping[int, tuple[str, int]]]:
        """For each pass, by task, stage and microbatch: the run of a gather in which it finds each unit."""
        found: dict[tuple[str, int, int], dict[int, tuple[str, int]]] = {}
        if self.program.gathered is not None:
            for unit, task, stage, at, gather, run in self.program.gathered.data.table.tolist():
                found.setdefault((TASKS[task], stage, at), {})[unit] = (TASKS[gather], run)
        return found

    @property
    def kinds_of_tasks(self) -> tuple[list[tuple[str, int]], Ints]:
        """Tasks and their stages, each once; which of them each task of the order is."""
        found, _, which = distinct_rows(self.order.table[:, :2])
        return [(TASKS[task], stage) for task, stage in found.tolist()], which


@dataclass(frozen=True, eq=False)
class RankBody:
    """A body as a rank runs it: of which of its stages; of a transfer, which boundary it crosses and how far the peer is."""

    body: RowBody
    stage: int
    shift: int = 0
    microbatch: int = -1
    """Where microbatches have other numbers: of which."""


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


@dataclass(frozen=True)
class Bases:
    """The first row of each task of an order."""

    rows: Mapping[tuple[str, int], Ints]
    """By task and stage: of each microbatch, -1 where it does not run; at the end what runs once."""
    first_run: Mapping[tuple[str, int], int]
    """By task and stage: the microbatch that it runs first."""
    last_run: Mapping[tuple[str, int], int]

    @staticmethod
    def of(order: Order, start: Ints) -> Bases:
        """The bases of the tasks of an order that begin at these rows."""
        count = int(order.microbatch.max(initial=-1)) + 2
        rows: dict[tuple[str, int], Ints] = {}
        first_run: dict[tuple[str, int], int] = {}
        last_run: dict[tuple[str, int], int] = {}
        kinds, _, kind = distinct_rows(order.table[:, :2])
        for number, (task, stage) in enumerate(kinds.tolist()):
            at = np.flatnonzero(kind == number)
            own = rows[TASKS[task], stage] = np.full(count, NOWHERE, np.int64)
            own[order.microbatch[at]] = start[at]
            first_run[TASKS[task], stage] = int(order.microbatch[at[0]])
            last_run[TASKS[task], stage] = int(order.microbatch[at[-1]])
        return Bases(rows, first_run, last_run)

    def of_microbatches(self, task: tuple[str, int], microbatches: Ints) -> Ints:
        """The first row of a task of a stage in each microbatch, -1 where it does not run. What runs once belongs to microbatch -1."""
        own = self.rows.get(task)
        once = np.full(len(microbatches), NOWHERE) if task[0] in ONCE else microbatches
        return np.full(len(microbatches), NOWHERE, np.int64) if own is None else own[once]

    def of_runs(
        self, task: tuple[str, int], microbatches: Ints, outer: Mapping[tuple[str, int], int]
    ) -> Ints:
        """Which run of a task readers in these microbatches mean: of their own; from outside the loop that of the microbatch in `outer`."""
        inside = np.where(microbatches < 0, outer.get(task, NOWHERE), microbatches)
        return self.of_microbatches(task, inside)


@dataclass
class Arrangement:
    """All rows of a rank, task by task, and where each is in issue order."""

    run: RankRun
    neighbours: Mapping[tuple[str, int], int]
    """For a stage that receives nothing in a direction: the stage of the rank that it continues."""
    bases: Bases
    bodies: Sequence[RankBody]
    body: Ints
    """For each row, an index into `bodies`."""
    source_row: Ints
    """`[n, slots]`: the row behind each argument, -1 for none."""
    source_node: Ints
    """`[n, slots]`: which node of that row."""
    behind: Ints
    """The row behind which each is issued, -1 for none."""
    lengths: Ints
    """Rows of each task of the order."""
    num_nodes: Ints
    """The number of nodes of each row."""
    rounds: PerRowAttr | None
    """In which tasks that overlap take turns."""
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
        name, stage, microbatch = self.run.task_name(task)
        at = f"{name}:{stage}" + (f".{microbatch}" if microbatch >= 0 else "")
        return f"row {number} of `{at}`"

    def said(self, name: str, numbers: PerRowAttr | None, otherwise: int) -> Ints:
        """What a property of the rank's program says of each row, in issue order. E0709 if it is about other rows than there are."""
        if numbers is None:
            return np.full(len(self.order), otherwise, np.int64)
        return said_of_rows(self.run.program, name, numbers, self.lengths)[self.order]

    def column(self, of_task: Ints) -> Ints:
        """A number of each task of the order, for each of its rows."""
        return np.repeat(of_task, self.lengths)

    def layer(self, stages: Sequence[StageRun]) -> Ints:
        """The layer of each row, for stages that may begin elsewhere than those that were arranged."""
        known = [
            {task: np.array(own, np.int64) for task, own in each.layout.layers(each.values).items()}
            for each in stages
        ]
        kinds, which = self.run.kinds_of_tasks
        begin = np.cumsum(self.lengths) - self.lengths
        found = np.zeros(len(self.body), np.int64)
        for number, (task, stage) in enumerate(kinds):
            own = known[stage][task]
            found[begin[which == number][:, None] + np.arange(len(own))] = own
        return found


@dataclass
class Arrangements:
    """Where the rows of ranks stand. Classes that run the same program differ in numbers alone."""

    _known: dict[object, Arrangement] = field(default_factory=dict)

    def of(self, run: RankRun) -> Arrangement:
        program = run.program
        key = (program, program.order, program.gathered)
        known = self._known.get(key) or arrange(run)
        if known.rounds is not program.rounds:
            order, place, first = issued(program, known.behind, known.lengths, known.num_nodes)
            known = replace(known, rounds=program.rounds, order=order, place=place, first=first)
        self._known[key] = known
        return known if known.run is run else replace(known, run=run)


def arrange(run: RankRun) -> Arrangement:
    """Give the rows of all tasks their places."""
    stages, order = run.stages, run.order
    layouts = [each.layout for each in stages]
    bodies: list[RankBody] = []
    first_of: dict[int, int] = {}
    for number, layout in enumerate(layouts):
        # Stages that differ in the numbers of their layers share these.
        if id(layout) not in first_of:
            first_of[id(layout)] = len(bodies)
            bodies += [RankBody(body, number) for body in layout.bodies]
    neighbours, clips = local_neighbours(run), clipping_stage(order)
    kinds, kind = alike(order)
    packed: list[Packed] = []
    for number, stage, shift in kinds:
        rows = layouts[stage].tasks[TASKS[number]].rows
        rows = [handed_over(row, stage, neighbours, stages, clips) for row in rows]
        packed.append(pack(rows, stage, first_of[id(layouts[stage])]))
        if TASKS[number] in TRANSFER_TASKS:
            direct(packed[-1], bodies, stage, shift)
    lengths = np.array([len(each.body) for each in packed] or [0], np.int64)[kind]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    bases = Bases.of(order, ends - lengths)
    width = max((p.source_task.shape[1] for p in packed), default=0)
    body = np.zeros(total, np.int32)
    behind = np.full(total, NOWHERE, np.int32)
    source_row = np.full((total, width), NOWHERE, np.int32)
    source_node = np.zeros((total, width), np.int16)
    for which, (number, stage, _) in enumerate(kinds):
        made = packed[which]
        tasks = np.flatnonzero(kind == which)
        here = (ends - lengths)[tasks][:, None] + np.arange(len(made.body))
        body[here] = made.body
        if stages[stage].in_microbatches and TASKS[number] not in ONCE:
            distinct, which_of = np.unique(made.body, return_inverse=True)
            for at, rows in zip(order.microbatch[tasks].tolist(), here, strict=True):
                body[rows] = len(bodies) + which_of
                bodies += [replace(bodies[each], microbatch=at) for each in distinct.tolist()]
        outer = bases.first_run if TASKS[number] == "pre" else bases.last_run
        sources = np.full((len(tasks), len(made.tasks) + 1), NOWHERE, np.int64)
        for column, task in enumerate(made.tasks):
            sources[:, column] = bases.of_runs(task, order.microbatch[tasks], outer)
        own = made.source_task.shape[1]
        base = sources[:, made.source_task]
        known = (made.source_task >= 0) & (base >= 0)
        source_row[here, :own] = np.where(known, base + made.source_row, NOWHERE)
        source_node[here, :own] = made.source_node
        anchor = sources[:, made.behind[:, 0]]
        behind[here] = np.where(anchor >= 0, anchor + made.behind[:, 1], NOWHERE)
        read_gathered(run, layouts, made, tasks, here, bases, source_row)
    num_nodes = np.array([each.body.num_nodes for each in bodies] or [0], np.int32)[body]
    rows = run, neighbours, bases, bodies, body, source_row, source_node, behind, lengths, num_nodes
    return Arrangement(*rows, run.program.rounds, *issued(run.program, behind, lengths, num_nodes))


def issued(
    program: sched.RankProgramOp, behind: Ints, lengths: Ints, num_nodes: Ints
) -> tuple[Ints, Ints, Ints]:
    """Rows in issue order, each row's position in it, and the first node of each position."""
    order = issue_order(behind, overlapped(program, lengths)).astype(np.int32)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = np.zeros(len(order) + 1, np.int32)
    np.cumsum(num_nodes[order], out=first[1:])
    return order, place, first


def alike(order: Order) -> tuple[list[tuple[int, int, int]], Ints]:
    """The tasks of an order without their microbatches, as task, stage and shift, each once where it comes first; which of them each is."""
    columns = order.table[:, [0, 1, 3]]
    found, first, which = distinct_rows(columns)
    in_order = np.argsort(first, kind="stable")
    number = np.empty_like(in_order)
    number[in_order] = np.arange(len(in_order))
    task, stage, shift = found[in_order].T.tolist() if len(found) else ([], [], [])
    return list(zip(task, stage, shift, strict=True)), number[which]


def read_gathered(
    run: RankRun,
    layouts: Sequence[StageLayout],
    made: Packed,
    tasks: Ints,
    here: Ints,
    bases: Bases,
    source_row: Ints,
) -> None:
    """Let what passes of a kind read of gathers be the runs of these that `gathered` names. E0709 where it names none.

    `here` has the rows of each of the `tasks`.
    """
    columns = [(n, *read) for n, read in enumerate(made.tasks) if read[0] in GATHER_TASKS]
    alike: dict[tuple[tuple[int, str], ...], list[tuple[int, list[int]]]] = {}
    for number, task in enumerate(tasks.tolist() if columns else ()):
        found = run.gathered.get(run.task_name(task), {})
        units = tuple((unit, other) for unit, (other, _) in found.items())
        alike.setdefault(units, []).append((number, [at for _, at in found.values()]))
    width = made.source_task.shape[1]
    for units, passes in alike.items():
        numbers, runs = [n for n, _ in passes], np.array([at for _, at in passes], np.int64)
        rows = source_row[here[numbers], :width]
        task, stage, microbatch = run.task_name(int(tasks[numbers[0]]))
        for column, read, of in columns:
            reads = made.source_task == column
            own = rows if task in GATHER_TASKS else np.full_like(rows, NOWHERE)
            for (unit, other), at in zip(units, runs.T, strict=True):
                twins = layouts[of].twins(read, unit, other)
                same = twins[np.where(reads, made.source_row, 0)]
                base = bases.of_microbatches((other, of), at)[:, None, None]
                own = np.where(same >= 0, base + same, own)
            if (own[:, reads] < 0).any():
                at = spell_task([TASK_NUMBER[task], stage, microbatch, 0, 0], [0] * 5)
                message = f"`gathered` does not say where `{at}` finds parameters that it reads"
                raise wrong(run.program, message)
            rows = np.where(reads, own, rows)
        source_row[here[numbers], :width] = rows


def overlapped(program: sched.RankProgramOp, lengths: Ints) -> Ints:
    """Where each row stands among all, but for those that are behind others: tasks that overlap take turns by `rounds`."""
    numbers = np.arange(lengths.sum())
    if program.rounds is None:
        return numbers
    rounds = said_of_rows(program, "rounds", program.rounds, lengths)
    opens = np.cumsum(program.order.data.joined == 0)
    place = np.empty_like(numbers)
    place[np.lexsort((rounds, np.repeat(opens, lengths)))] = numbers
    return place


def said_of_rows(
    program: sched.RankProgramOp, name: str, numbers: PerRowAttr, lengths: Ints
) -> Ints:
    """What a property of a rank's program says of each row, task by task. E0709 if it is about other rows than there are."""
    if not np.array_equal(numbers.data.lengths, lengths):
        help_ = f"run `{WRITES[name]}` again, and what follows it, after what changes rows"
        raise wrong(program, f"`{name}` is about other rows than there are", help_)
    return numbers.data.numbers


def issue_order(behind: Ints, place: Ints) -> Ints:
    """Rows in issue order, by their `place`: one that is behind another comes right after it, of several the first one first."""
    position = np.where(behind >= 0, place[behind], place)
    moved = np.flatnonzero(behind >= 0)
    tie = np.zeros(len(behind), np.int64)
    tie[moved] = 1 + np.arange(len(moved))
    return np.lexsort((tie, position))


def direct(packed: Packed, bodies: list[RankBody], stage: int, shift: int) -> None:
    """Give the transfers of a stage their peer."""
    for position, old in enumerate(packed.body.tolist()):
        packed.body[position] = len(bodies)
        bodies.append(RankBody(bodies[old].body, stage, shift))


def clipping_stage(order: Order) -> int:
    """Which stage of a rank runs `CLIP` for all of them; -1: none does."""
    return int(order.stage[order.task == TASK_NUMBER[CLIP]].max(initial=NOWHERE))


def local_neighbours(run: RankRun) -> dict[tuple[str, int], int]:
    """For a stage that receives nothing in a direction: the stage of the same rank that it continues."""
    received = {*run.kinds_of_tasks[0]}
    by_stage = {each.stage: position for position, each in enumerate(run.stages)}
    found: dict[tuple[str, int], int] = {}
    for position, each in enumerate(run.stages):
        for task, step in (("RECV_F", -1), ("RECV_B", 1)):
            other = by_stage.get(each.stage + step)
            if other is not None and (task, position) not in received:
                found[task, position] = other
    return found


def handed_over(
    row: Row,
    stage: int,
    neighbours: Mapping[tuple[str, int], int],
    stages: Sequence[StageRun],
    clips: int,
) -> Row:
    """A row whose arguments come straight from other stages of the rank: from the neighbouring one, from those that give gradients or numbers, and from that
    which runs `CLIP` for all.
    """

    def behind(place: NodePlace | None) -> NodePlace | None:
        if place is not None and place.task.startswith((TAKEN, FOUND)):
            return given(place, stage, stages)
        if place is not None and place.task == CLIP:
            return place._replace(stage=clips)
        other = neighbours.get((place.task, stage)) if place is not None else None
        if place is None or other is None:
            return place
        direction = "forward" if place.task == "RECV_F" else "backward"
        number = stages[stage].layout.received[direction, place.row, place.node]
        source = stages[other].layout.handed_over[direction, number]
        return source._replace(stage=other) if source is not None else None

    arguments = list(map(behind, row.arguments))
    return row if arguments == row.arguments else replace(row, arguments=arguments)


def given(place: NodePlace, stage: int, stages: Sequence[StageRun]) -> NodePlace | None:
    """The node behind a gradient that another stage of the rank gives, or behind what the one before has found."""
    giver = giving_stage(place, stage, stages)
    source = stages[giver].layout.given[place.task] if giver >= 0 else None
    return source._replace(stage=giver) if source is not None else None


def giving_stage(place: NodePlace, stage: int, stages: Sequence[StageRun]) -> int:
    """The stage of the rank that has the node behind such a place; -1: none."""
    givers = [i for i, each in enumerate(stages) if i != stage and place.task in each.layout.given]
    if place.task.startswith(FOUND):
        givers = [i for i in givers if i < stage]
    return givers[place.row] if givers else NOWHERE


def pack(rows: Sequence[Row], stage: int, first_body: int) -> Packed:
    def key(place: NodePlace) -> tuple[str, int]:
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
