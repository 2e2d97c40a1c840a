"""What ranks run: the tasks of each kind of stage as rows, the order of tasks on a rank, and which ranks have it.

    sched.tasks @middle of "middle" layers {L.local0 = 2} {
      F = "1 (2@0+1)*2 3"
    }
    sched.program @pp1 runs [1 @middle] order "RECV_F:0.0 F:0.0 SEND_F:0.0>1"
    sched.ranks "pp1" at {pp = [1]} run @pp1

The ops of segments stay where they are, in the rolled `stg.program`: what depends on what is there, as SSA. Unrolling follows it
through loops for each row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, SymbolNameConstraint, i64
from xdsl.irdl import opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface

from stagec.arrays import distinct_rows
from stagec.dialects.op import DefaultBuilder, DialectOp, op_definition
from stagec.dialects.sched.tasks import (
    COMPUTE_TASKS,
    GATHER_TASKS,
    NOWHERE,
    ONCE,
    TASK_NUMBER,
    TASKS,
    GatheredAttr,
    HeldAttr,
    OrderAttr,
    PerRowAttr,
    RankStagesAttr,
    Rows,
    RowsAttr,
    TaskRows,
    WhereAttr,
    spell_task,
)


@op_definition
class TasksOp(DialectOp):
    """The tasks of a kind of stage, each as rows of segments in issue order. Stages with as many layers share them.

    `layers` has what its repeats run, and a rank's coordinates where that depends on them.

    A row of a task that runs once per step may be issued behind a row of another, in the last
    run of that: a gradient's reduction behind the row that completes the gradient, in the last microbatch.
    """

    name = "sched.tasks"

    sym_name = prop_def(SymbolNameConstraint())
    kind = prop_def(StringAttr)
    layers = prop_def(DictionaryAttr)
    rows = prop_def(RowsAttr)

    traits = traits_def(SymbolOpInterface())
    assembly_format = "$sym_name `of` $kind `layers` $layers $rows attr-dict"

    def __init__(
        self, name: str, kind: str, layers: Mapping[str, int], rows: Mapping[str, Rows]
    ) -> None:
        super().__init__(
            sym_name=name,
            kind=kind,
            layers=DictionaryAttr({k: IntegerAttr(n, i64) for k, n in layers.items()}),
            rows=RowsAttr(TaskRows(tuple(rows.items()))),
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many layers each repeat of the stage has, by the name of that number."""
        found: dict[str, int] = {}
        for name, number in self.layers.data.items():
            assert isinstance(number, IntegerAttr)
            found[name] = number.value.data
        return found

    def with_rows(self, rows: Mapping[str, Rows]) -> None:
        """Other rows; a task without any is none."""
        self.rows = RowsAttr(TaskRows(tuple((task, own) for task, own in rows.items() if len(own))))

    def verify_(self) -> None:
        for name, number in self.layers.data.items():
            if not isinstance(number, IntegerAttr) or number.value.data < 0:
                raise self.mistake(f"`{name}` is not a number of layers")
        tasks = self.rows.data
        for task, rows in tasks.items():
            if len(rows) and (rows.joins[0] or (rows.path < NOWHERE).any()):
                raise self.mistake(f"the first row of `{task}` joins none before it")
            for number in set(rows.behind_task[rows.behind_task >= 0].tolist()):
                other = TASKS[number]
                behind = rows.behind_row[rows.behind_task == number]
                if other not in tasks or not 0 <= behind.min() <= behind.max() < len(tasks[other]):
                    raise self.mistake(
                        f"a row of `{task}` is behind one of `{other}` that there is not"
                    )


@op_definition
class RankProgramOp(DefaultBuilder):
    """What a rank runs: its stages, and their tasks in order. A task is `TASK:STAGE.MICROBATCH`, its stage counted on the rank.

    `>N` behind a transfer says that its peer is N further along the axis of the stages, `&` before a task that it overlaps the one before it.

    `gathered`, where a stage frees parameters and gathers them again: in which run of a gather each pass finds each unit. What a run gathered is
    there until the last pass that finds it there has read it.

    Rows are issued in the order of the host. What a row or a node does besides waiting for its data and the queues of its streams,
    is said here; a row is counted in issue order:

    - `rounds` n: rows of tasks that overlap are issued round by round, within one in their order; 0 everywhere: one task after the other.
    - `waits` n: the computation issued before the row n rows before this one has ended (0: before this one); -1: it waits for none.
    - `ahead` n: the device takes the row right after the row n rows before it, though the host issues it here; 0: in its place.
    - `held`: pairs of nodes, of which one waits for the other.
    """

    name = "sched.program"

    sym_name = prop_def(SymbolNameConstraint())
    stages = prop_def(RankStagesAttr)
    order = prop_def(OrderAttr)
    gathered = opt_prop_def(GatheredAttr)
    rounds = opt_prop_def(PerRowAttr)
    waits = opt_prop_def(PerRowAttr)
    ahead = opt_prop_def(PerRowAttr)
    held = opt_prop_def(HeldAttr)

    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name `runs` $stages `order` $order (`gathered` $gathered^)? (`rounds` $rounds^)? (`waits` $waits^)? (`ahead` $ahead^)? "
        "(`held` $held^)? attr-dict"
    )

    def verify_(self) -> None:
        order, stages = self.order.data, self.stages.data
        if len(order) and not 0 <= order.stage.min() <= order.stage.max() < len(stages):
            raise self.mistake("the order has a stage that the rank has not")
        once = np.array([task in ONCE for task in TASKS])[order.task]
        wrong = np.flatnonzero(once != (order.microbatch < 0))
        if len(wrong):
            task = TASKS[int(order.task[wrong[0]])]
            often = "step" if task in ONCE else "microbatch"
            raise self.mistake(f"`{task}` runs once per {often}")
        tasks, _, which = distinct_rows(order.table[:, :3])
        if len(tasks) < len(order):
            task, stage, microbatch = tasks[np.argmax(np.bincount(which))].tolist()
            raise self.mistake(f"`{TASKS[task]}:{stage}.{microbatch}` runs twice")
        computes = np.isin(order.task, [TASK_NUMBER[task] for task in COMPUTE_TASKS])
        alone = np.flatnonzero((order.joined > 0) & ~(computes & np.append(False, computes[:-1])))
        if len(alone):
            task = TASKS[int(order.task[alone[0]])]
            raise self.mistake(f"`&{task}` follows nothing that it can overlap")
        for name, least in (("rounds", 0), ("waits", -1), ("ahead", 0)):
            numbers = self.properties.get(name)
            if isinstance(numbers, PerRowAttr) and (numbers.data.numbers < least).any():
                raise self.mistake(f"no number of `{name}` is below {least}")
        held = self.held.data.table if self.held is not None else np.zeros((0, 4), np.int64)
        own = (held[:, 2] == 0) & (held[:, 3] >= held[:, 1])
        if own.any() or (held[:, 2] > held[:, 0]).any():
            raise self.mistake("`held` has a node that waits for one after it")
        self.verify_gathered()

    def verify_gathered(self) -> None:
        """Check that passes of the order find each unit in one run of a gather that is in the order."""
        if self.gathered is None:
            return
        runs = set(map(tuple, self.order.data.table[:, :3].tolist()))
        seen: set[tuple[int, ...]] = set()
        for unit, *reader, gather, microbatch in self.gathered.data.table.tolist():
            run = (gather, reader[1], microbatch)
            kinds = TASKS[reader[0]], TASKS[gather]
            if kinds[0] not in COMPUTE_TASKS or kinds[1] not in (*GATHER_TASKS, "pre"):
                raise self.mistake(f"`{kinds[0]}` finds nothing in `{kinds[1]}`")
            for each in (tuple(reader), run):
                if each not in runs:
                    name = spell_task([*each, 0, 0], [0] * 5)
                    raise self.mistake(f"`gathered` is about `{name}`, which does not run")
            if (unit, *reader) in seen:
                name = spell_task([*reader, 0, 0], [0] * 5)
                raise self.mistake(f"`{name}` finds unit {unit} twice")
            seen.add((unit, *reader))


@op_definition
class RanksOp(DefaultBuilder):
    """The ranks with some coordinates on the mesh's axes (whole numbers from 0), all others being any: a class. Every rank is in one."""

    name = "sched.ranks"

    class_name = prop_def(StringAttr)
    at = prop_def(WhereAttr)
    program = prop_def(SymbolNameConstraint())

    assembly_format = "$class_name `at` $at `run` $program attr-dict"

    def verify_(self) -> None:
        for axis, coordinates in self.at.data:
            if not coordinates:
                raise self.mistake(f"no rank is at none of `{axis}`")
