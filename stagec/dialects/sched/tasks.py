"""Attributes of what is scheduled: segments of tasks, their rows in issue order, the order of tasks on a rank.

A *task* is what a schedule moves as a unit: the forward pass of one microbatch through one stage (`F`), its backward pass (`B`, or
its halves `I` and `W`), the gathers that only some passes need (`GATHER`, `GATHER_F`, `GATHER_B`), a transfer (`SEND_F`, ...), and what runs once
per step: before (`pre`) and after (`step`) all microbatches, and when a stage has done its last backward pass (`reduce`). On a rank of several stages
the update is three tasks: what each stage finds of its own gradients (`norm`), what ranks tell each other of all of them (`clip`), and the rest. A *segment* is
straight-line code of a task: ops that are issued together. A *row* is a segment in one iteration of the repeats around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from stagec.arrays import Ints
from stagec.dialects.attributes import print_lines
from stagec.dialects.sched.repeats import TableError, growing, number_and_growth, read, written
from stagec.dialects.text_forms import (
    NUMBER,
    SYMBOL,
    WrittenData,
    identifier,
    listed,
    option,
    pair,
    parse_quoted,
    quoted,
    record,
    text,
)

CLIP = "clip"
"""The task that a rank runs for all of its stages, as part of one of them: what its ops make is there for the others, whose own rows of it do not run."""
TASKS = (
    *("pre", "GATHER", "RECV_F", "GATHER_F", "F", "SEND_F"),
    *("RECV_B", "GATHER_B", "B", "I", "SEND_B", "W", "reduce", "tied", "norm", CLIP, "step"),
)
"""The tasks of one microbatch, in the order in which its data goes through them."""
TASK_NUMBER = {task: number for number, task in enumerate(TASKS)}
TRANSFER_TASKS = ("RECV_F", "SEND_F", "RECV_B", "SEND_B")
COMPUTE_TASKS = ("F", "B", "I", "W")
PASS_GATHERS = ("GATHER_F", "GATHER_B")
GATHER_TASKS = ("GATHER", *PASS_GATHERS)
"""Gathers of parameters, of a whole stage or ahead of a forward or a backward pass, that run only where a stage has freed what it gathered last.

Which run a pass reads is what `gathered` of its rank's program says."""
ONCE = ("pre", "reduce", "tied", "norm", CLIP, "step")
"""Tasks that run once per step. `tied` reduces weights that several stages share, before any stage of a rank finds its `norm`, or begins its `step`."""


@irdl_attr_definition
class SegmentAttr(Data[tuple[str, int]]):
    """The segment that an op is part of, by its task and number: `F.3`."""

    name = "sched.segment"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[str, int]:
        position = parser.pos
        text = parser.parse_identifier(", a task and the number of its segment,")
        task, _, number = text.partition(".")
        if task not in TASKS or not number.isdecimal():
            parser.raise_error(f"`{text}` is not a segment of a task, like `F.3`", position)
        return task, int(number)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(".".join(map(str, self.data)))

    @property
    def task(self) -> str:
        return self.data[0]

    @property
    def number(self) -> int:
        """Among all segments of the program."""
        return self.data[1]


ROW = re.compile(r"(~)?(\d+)(?:@([-\d+.]+))?(?:>(\w+)\.([-\d+]+))?")

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one task in issue order, as columns of equal length."""

    segment: Ints
    """The number of each row's segment."""
    path: Ints
    """`[n, depth]`: which iteration of each repeat around it, the outermost first; -1 beyond those."""
    joins: Ints
    """Whether a reduction travels in one bucket with the row before."""
    behind_task: Ints
    """The task, as a number in `TASKS`, behind one of whose rows a row is issued: in its last run, a row of `pre` in its first.

    -1: where it stands."""
    behind_row: Ints

    @staticmethod
    def of(segment: Ints, path: Ints) -> Rows:
        """Rows that are issued where they stand, each on its own."""
        count = len(segment)
        nowhere = np.full(count, NOWHERE, np.int64)
        return Rows(segment, path, np.zeros(count, bool), nowhere, nowhere)

    def __len__(self) -> int:
        return len(self.segment)

    @cached_property
    def table(self) -> Ints:
        columns = (self.segment, self.joins, self.behind_task, self.behind_row)
        return np.concatenate([np.stack(columns, axis=1).astype(np.int64), self.path], axis=1)

    @staticmethod
    def of_table(table: Ints) -> Rows:
        segment, joins, behind_task, behind_row = table[:, :4].T
        return Rows(segment, table[:, 4:], joins.astype(bool), behind_task, behind_row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash(self.table.tobytes())

    def __str__(self) -> str:
        depth = self.path.shape[1]
        return written(self.table, (False, False, False, True, *[True] * depth), spell_row)

    def reordered(self, order: Ints) -> Rows:
        """The same rows in another order. None of them is behind a row of its own task."""
        assert not (self.behind_task >= 0).any(), (
            "rows stand behind rows of other tasks since `place-reductions`: reorder them before it"
        )
        return Rows.of_table(self.table[order])


def spell_row(line: list[int], growth: list[int]) -> str:
    segment, joins, task, row, *path = line
    places = ".".join(
        growing(at, grows) for at, grows in zip(path, growth[4:], strict=True) if at >= 0
    )
    behind = f">{TASKS[task]}.{growing(row, growth[3])}" if task >= 0 else ""
    return f"{'~' * joins}{segment}{f'@{places}' if places else ''}{behind}"


def read_rows(text: str) -> Rows:
    """Rows as they are written. `TableError` if they are not."""
    places = [match[3].count(".") + 1 for match in ROW.finditer(text) if match[3]]
    depth = max(places, default=0)

    def line(token: str) -> tuple[list[int], list[int]]:
        match = ROW.fullmatch(token)
        if match is None:
            raise TableError(f"`{token}` is not a row, like `3@0.1`")
        joins, segment, path, task, row = match.groups()
        if task is not None and task not in TASK_NUMBER:
            raise TableError(f"there is no task `{task}`")
        at = [number_and_growth(each) for each in path.split(".")] if path else []
        at += [(NOWHERE, 0)] * (depth - len(at))
        anchor, moves = number_and_growth(row) if task else (NOWHERE, 0)
        number = TASK_NUMBER[task] if task else NOWHERE
        numbers = [int(segment), int(bool(joins)), number, anchor, *(n for n, _ in at)]
        return numbers, [0, 0, 0, moves, *(g for _, g in at)]

    return Rows.of_table(read(text, line, 4 + depth))


@dataclass(frozen=True)
class TaskRows(Mapping[str, Rows]):
    """The rows of each task."""

    items_in_order: tuple[tuple[str, Rows], ...]

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        return dict(self.items_in_order)

    def __getitem__(self, task: str) -> Rows:
        return self._rows[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@irdl_attr_definition
class RowsAttr(Data[TaskRows]):
    """The rows of each task: `{F = "0 (1@0+1)*8 2", B = "..."}`."""

    name = "sched.rows"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TaskRows:
        def task() -> tuple[str, Rows]:
            position = parser.pos
            name = parser.parse_identifier(", the name of a task,")
            if name not in TASKS:
                parser.raise_error(f"there is no task `{name}`", position)
            parser.parse_punctuation("=")
            return name, parse_quoted(parser, "rows", read_rows)

        found = parser.parse_comma_separated_list(parser.Delimiter.BRACES, task)
        return TaskRows(tuple(found))

    def print_parameter(self, printer: Printer) -> None:
        print_lines(printer, (f'{name} = "{rows}"' for name, rows in self.data.items()))


@dataclass(frozen=True, eq=False)
class Order:
    """The tasks of a rank in order, as columns of equal length."""

    task: Ints
    """A number in `TASKS`."""
    stage: Ints
    """Which of the rank's stages, from 0."""
    microbatch: Ints
    """-1: once per step."""
    shift: Ints
    """How far along the axis of the stages the peer of a transfer is; 0 for what is no transfer."""
    joined: Ints
    """1: it overlaps the task before it."""

    def __len__(self) -> int:
        return len(self.task)

    @property
    def num_microbatches(self) -> int:
        return int(self.microbatch.max(initial=-1)) + 1

    @cached_property
    def table(self) -> Ints:
        columns = (self.task, self.stage, self.microbatch, self.shift, self.joined)
        return np.stack(columns, axis=1)

    @staticmethod
    def of_table(table: Ints) -> Order:
        return Order(*table.T)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash(self.table.tobytes())

    def __str__(self) -> str:
        return written(self.table, (False, True, True, False, False), spell_task)


def spell_task(line: list[int], growth: list[int]) -> str:
    task, stage, microbatch, shift, joined = line
    at = f".{growing(microbatch, growth[2])}" if microbatch >= 0 else ""
    peer = f">{shift}" if shift else ""
    return f"{'&' * joined}{TASKS[task]}:{growing(stage, growth[1])}{at}{peer}"


TASK = re.compile(r"(&)?(\w+):([-\d+]+)(?:\.([-\d+]+))?(?:>(\d+))?")


def read_order(text: str) -> Order:
    """An order as it is written. `TableError` if it is none."""

    def line(token: str) -> tuple[list[int], list[int]]:
        match = TASK.fullmatch(token)
        if match is None or match[2] not in TASK_NUMBER:
            raise TableError(f"`{token}` is not a task, like `F:0.3`")
        (stage, moves), microbatch = number_and_growth(match[3]), (NOWHERE, 0)
        if match[4]:
            microbatch = number_and_growth(match[4])
        joined = int(bool(match[1]))
        numbers = [TASK_NUMBER[match[2]], stage, microbatch[0], int(match[5] or 0), joined]
        return numbers, [0, moves, microbatch[1], 0, 0]

    return Order.of_table(read(text, line, 5))


@irdl_attr_definition
class OrderAttr(WrittenData[Order]):
    """The tasks of a rank: `"F:0.0 F:0.1 (B:0.0+1 F:0.2+1)*6 B:0.6 B:0.7"`. `F:0.3 &B:1.2` are two that overlap."""

    name = "sched.order"
    FORM: ClassVar = quoted("an order of tasks", read_order)


@dataclass(frozen=True, eq=False)
class PerRow:
    """A whole number for each row of a rank, row by row, task by task in the rank's order."""

    numbers: Ints
    lengths: Ints
    """Rows of each task of the order."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PerRow)
            and np.array_equal(self.numbers, other.numbers)
            and np.array_equal(self.lengths, other.lengths)
        )

    def __hash__(self) -> int:
        return hash(self.numbers.tobytes())

    @property
    def of_tasks(self) -> list[Ints]:
        return np.split(self.numbers, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


class Patterns(Data[PerRow]):
    """Shared by attributes that have numbers for each row: each pattern of a task once, then which task has which."""

    GROWS: ClassVar[bool] = False
    """Whether what repeats and grows evenly is written so."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> PerRow:
        return read_patterns(parser)

    def print_parameter(self, printer: Printer) -> None:
        print_patterns(printer, self.data, self.GROWS)


@irdl_attr_definition
class PerRowAttr(Patterns):
    """A number for each row: `{0 = "-1*3 0 -1*4"} "0 (1 0)*7"`."""

    name = "sched.per_row"


def read_patterns(parser: AttrParser) -> PerRow:
    """Numbers of tasks: each pattern once, then which task has which."""

    def pattern() -> Ints:
        parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_punctuation("=")
        return read_column(parser)

    patterns = parser.parse_comma_separated_list(parser.Delimiter.BRACES, pattern)
    position = parser.pos
    which = read_column(parser)
    if len(which) and not 0 <= which.min() <= which.max() < len(patterns):
        parser.raise_error("a task has a pattern that there is not", position)
    columns = [patterns[number] for number in which.tolist()]
    empty = np.zeros(0, np.int64)
    lengths = np.array([len(column) for column in columns], np.int64)
    return PerRow(np.concatenate([empty, *columns]), lengths)


def print_patterns(printer: Printer, data: PerRow, grows: bool = False) -> None:
    """Likewise. Where numbers grow, so is written what repeats and grows evenly."""
    numbers: dict[bytes, int] = {}
    texts: list[str] = []
    which: list[int] = []
    for column in data.of_tasks:
        number = numbers.setdefault(column.tobytes(), len(numbers))
        if number == len(texts):
            texts.append(f'{number} = "{spell_column(column, grows)}"')
        which.append(number)
    order = spell_column(np.array(which, np.int64))
    print_lines(printer, texts)
    printer.print_string(f' "{order}"')


def spell_column(column: Ints, grows: bool = False) -> str:
    return written(column[:, None], (grows,), lambda line, by: growing(line[0], by[0]))


def read_column(parser: AttrParser) -> Ints:
    def line(token: str) -> tuple[list[int], list[int]]:
        number, growth = number_and_growth(token)
        return [number], [growth]

    return parse_quoted(parser, "numbers", lambda text: read(text, line, 1)[:, 0])


@dataclass(frozen=True, eq=False)
class Lines:
    """A table of whole numbers; its attribute says what stands in which column."""

    table: Ints

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lines) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash(self.table.tobytes())


HELD = re.compile(r"([-\d+]+)\.(\d+)<(\d+)\.(\d+)")


@irdl_attr_definition
class HeldAttr(Data[Lines]):
    """Nodes that wait for other nodes: `"345.1<3.7"` says that node 1 of the row issued as number 345 waits for node 7 of the row 3 rows before it.

    As lines: row in issue order, node of it, how many rows before it the other is, node of that.
    """

    name = "sched.held"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Lines:
        def line(token: str) -> tuple[list[int], list[int]]:
            match = HELD.fullmatch(token)
            if match is None:
                raise TableError(f"`{token}` does not say what waits for what, like `7.0<2.1`")
            row, growth = number_and_growth(match[1])
            return [row, *map(int, match.groups()[1:])], [growth, 0, 0, 0]

        return parse_quoted(parser, "what is held", lambda text: Lines(read(text, line, 4)))

    def print_parameter(self, printer: Printer) -> None:
        def spell(line: list[int], growth: list[int]) -> str:
            row, node, back, awaited = line
            return f"{growing(row, growth[0])}.{node}<{back}.{awaited}"

        table = self.data.table
        printer.print_string(f'"{written(table, (True, False, False, False), spell)}"')


GATHERED = re.compile(r"([-\d+]+)@(\w+):([-\d+]+)\.([-\d+]+)<(\w+)(?:\.([-\d+]+))?")


@irdl_attr_definition
class GatheredAttr(Data[Lines]):
    """Where passes find parameters: `"1@F:0.4<GATHER_B.2"` says that `F:0.4` reads unit 1 as `GATHER_B:0.2` gathered it.

    As lines: unit, task, stage and microbatch of the pass, task and microbatch of the gather, -1 for one that runs once per step.
    """

    name = "sched.gathered"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Lines:
        def line(token: str) -> tuple[list[int], list[int]]:
            match = GATHERED.fullmatch(token)
            if match is None or not {match[2], match[5]} <= TASK_NUMBER.keys():
                wanted = "where a pass finds a unit, like `1@F:0.4<GATHER_B.2`"
                raise TableError(f"`{token}` does not say {wanted}")
            unit, stage, microbatch = (number_and_growth(match[i]) for i in (1, 3, 4))
            run = number_and_growth(match[6]) if match[6] else (NOWHERE, 0)
            pass_, gather = (TASK_NUMBER[match[2]], 0), (TASK_NUMBER[match[5]], 0)
            columns = (unit, pass_, stage, microbatch, gather, run)
            return [number for number, _ in columns], [growth for _, growth in columns]

        return parse_quoted(parser, "where parameters are", lambda text: Lines(read(text, line, 6)))

    def print_parameter(self, printer: Printer) -> None:
        def spell(line: list[int], growth: list[int]) -> str:
            unit, stage, microbatch = (growing(line[i], growth[i]) for i in (0, 2, 3))
            run = f".{growing(line[5], growth[5])}" if line[5] >= 0 else ""
            return f"{unit}@{TASKS[line[1]]}:{stage}.{microbatch}<{TASKS[line[4]]}{run}"

        grows = (True, False, True, True, False, True)
        printer.print_string(f'"{written(self.data.table, grows, spell)}"')


Tied = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class StageOfRank:
    """A stage that a rank runs: the symbol of its tasks, its number, and for each tied weight the coordinates of the ranks that have it."""

    tasks: str
    number: int
    tied: Tied = ()


@irdl_attr_definition
class RankStagesAttr(WrittenData[tuple[StageOfRank, ...]]):
    """The stages of a rank: `[0 @first, 4 @middle tied {"embed" = [0, 3]}]`."""

    name = "sched.stages"
    FORM: ClassVar = listed(
        record(
            StageOfRank,
            number=NUMBER,
            tasks=SYMBOL,
            tied=option(
                "tied", listed(pair(text("the path of a weight"), listed(NUMBER)), "{}"), ()
            ),
        )
    )


Where = tuple[tuple[str, tuple[int, ...]], ...]
AXIS = identifier("the name of an axis")


@irdl_attr_definition
class WhereAttr(WrittenData[Where]):
    """Coordinates of ranks along some axes: `{pp = [3], ep = [0, 1]}`. All ranks are at `{}`."""

    name = "sched.where"
    FORM: ClassVar = listed(pair(AXIS, listed(NUMBER)), "{}")
