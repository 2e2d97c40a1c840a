"""A schedule as columns: for each pp rank, what it does, in order.

An action is a kind, a (global) stage and a microbatch. The actions of all ranks lie one rank after
the other in four columns, so that questions about a schedule are questions to numpy:

    kind        F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B
    stage       the stage that computes; of a transfer, the stage at this end
    microbatch
    joined      this action and the one before it are issued together

`joined` marks a batch of transfers (printed `[SEND_F3 RECV_B0]`) or a forward and a backward whose
computation and communication overlap each other (DualPipe's F&B, printed `0F3&3B1`).
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stagec.arrays import Bools, Ints, distinct


class ActionKind(IntEnum):
    """What a rank does. `BACKWARD` is both halves: input gradient, then weight gradient."""

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3
    SEND_FORWARD = 4
    RECV_FORWARD = 5
    SEND_BACKWARD = 6
    RECV_BACKWARD = 7

    @property
    def symbol(self) -> str:
        return SYMBOLS[self]


SYMBOLS = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
KIND_OF_SYMBOL = {symbol: ActionKind(number) for number, symbol in enumerate(SYMBOLS)}
FIRST_TRANSFER = ActionKind.SEND_FORWARD
HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


class Action(NamedTuple):
    """One action, for people; `str` prefixes the stage as PyTorch does: `2F0`, `2SEND_F0`."""

    kind: ActionKind
    stage: int
    microbatch: int

    @property
    def is_transfer(self) -> bool:
        return self.kind >= FIRST_TRANSFER

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.symbol}{self.microbatch}"


class ActionColumns(NamedTuple):
    """Actions in order, of one rank or of several one after the other."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    joined: np.ndarray

    @property
    def size(self) -> int:
        return len(self.kind)

    def pick(self, index: Ints | Bools) -> "ActionColumns":
        return ActionColumns(*(column[index] for column in self))


def columns(
    kind: object, stage: object, microbatch: object, joined: object = False
) -> ActionColumns:
    """Columns from arrays or scalars of one length."""
    arrays = np.broadcast_arrays(
        np.asarray(kind, np.uint8),
        np.asarray(stage, np.int32),
        np.asarray(microbatch, np.int32),
        np.asarray(joined, np.bool_),
    )
    return ActionColumns(*(np.ascontiguousarray(array) for array in arrays))


def concatenate(parts: list[ActionColumns]) -> ActionColumns:
    return ActionColumns(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """What each of `num_ranks` pipeline ranks does, in order.

    Rank r's actions are `starts[r]:starts[r + 1]` of every column. Arrays are not to be written.
    """

    name: str
    num_ranks: int
    stages_per_rank: int
    num_microbatches: int
    num_stages: int
    table: ActionColumns
    starts: Ints
    reductions: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """`[n, 3]`: a rank, a stage of it, and how many of the rank's actions come before the stage's gradients are reduced.

    A stage without a line is reduced when its rank has done everything."""

    gathers: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """`[n, 3]`, in order: a rank, a stage of it, and how many of the rank's actions come before the stage's parameters are gathered."""

    @classmethod
    def of_rows(cls, name: str, p: int, v: int, m: int, rows: list[ActionColumns]) -> "Schedule":
        """A schedule from the actions of each rank; the number of stages is what they use."""
        table = concatenate(rows)
        starts = np.concatenate([[0], np.cumsum([row.size for row in rows])])
        num_stages = int(table.stage.max(initial=-1)) + 1
        return cls(name, p, v, m, num_stages, table, starts)

    def with_actions(self, table: ActionColumns, starts: Ints) -> "Schedule":
        none = np.zeros((0, 3), np.int64)
        return replace(self, table=table, starts=starts, reductions=none, gathers=none)

    def with_parameters(self, reductions: Ints, gathers: Ints) -> "Schedule":
        return replace(self, reductions=reductions, gathers=gathers)

    def __len__(self) -> int:
        return self.table.size

    @cached_property
    def rank(self) -> Ints:
        """The rank of each action."""
        return np.repeat(np.arange(self.num_ranks), np.diff(self.starts))

    @cached_property
    def is_transfer(self) -> Bools:
        return self.table.kind >= FIRST_TRANSFER

    @cached_property
    def has_backward(self) -> bool:
        kind = self.table.kind
        return bool(np.any((kind != ActionKind.FORWARD) & (kind < FIRST_TRANSFER)))

    @cached_property
    def some_in_halves(self) -> bool:
        """Whether some backward passes are two actions, one for inputs and one for weights."""
        return bool(np.isin(self.table.kind, HALVES).any())

    @cached_property
    def owner(self) -> Ints:
        """The rank that computes stage s of microbatch k, at [s, k]; -1 if none does.

        One row is one value, except under DualPipe, where half of the microbatches travel the other way.
        """
        owner = np.full((self.num_stages, self.num_microbatches), -1)
        forward = self.table.kind == ActionKind.FORWARD
        owner[self.table.stage[forward], self.table.microbatch[forward]] = self.rank[forward]
        return owner

    @cached_property
    def peer(self) -> Ints:
        """The rank at the other end of each transfer; -1 for compute."""
        kind, stage, microbatch, _ = self.table
        down = (kind == ActionKind.SEND_FORWARD) | (kind == ActionKind.RECV_BACKWARD)
        other = np.clip(stage + np.where(down, 1, -1), 0, max(self.num_stages - 1, 0))
        return np.where(self.is_transfer, self.owner[other, microbatch], -1)

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a rank computes, ascending."""
        row = self.row(rank)
        return [int(stage) for stage in distinct(row.stage[row.kind < FIRST_TRANSFER])]

    def has_halves(self, rank: int) -> bool:
        """Whether the backward passes of a rank are two actions, one for inputs and one for weights."""
        return bool(np.isin(self.row(rank).kind, HALVES).any())

    def row(self, rank: int) -> ActionColumns:
        """The columns of one rank."""
        return self.table.pick(np.arange(self.starts[rank], self.starts[rank + 1]))

    def actions(self, rank: int) -> list[Action]:
        """The actions of one rank as objects."""
        kind, stage, microbatch, _ = self.row(rank)
        triples = zip(kind.tolist(), stage.tolist(), microbatch.tolist(), strict=True)
        return [Action(ActionKind(k), s, i) for k, s, i in triples]

    def groups(self, rank: int) -> list[tuple[Action, ...]]:
        """The actions of one rank, those that are issued together in one tuple."""
        actions, joined = self.actions(rank), self.row(rank).joined
        edges = [*np.flatnonzero(~joined).tolist(), len(actions)]
        return [tuple(actions[a:b]) for a, b in pairwise(edges)]

    def action(self, index: int) -> Action:
        """The action at a position of the columns."""
        kind, stage, microbatch, _ = self.table
        return Action(ActionKind(kind[index]), int(stage[index]), int(microbatch[index]))

    def compute_only(self) -> "Schedule":
        """The same schedule without its transfers."""
        keep = ~self.is_transfer
        kept = np.concatenate([[0], np.cumsum(keep)])
        return self.with_actions(self.table.pick(keep), kept[self.starts])

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        p, v, m = self.num_ranks, self.stages_per_rank, self.num_microbatches
        return f"Schedule({self.name!r}, p={p}, v={v}, m={m}, {len(self)} actions)"


def text(schedule: Schedule, transfers: bool = False) -> str:
    """One line per rank, as a paper draws it: `rank 0: F0 F1 B0 F2 B1 B2`.

    With several stages per rank the stage comes first, as PyTorch writes it: `rank 0: 0F0 2F0`. An
    overlapped pair is `0F3&3B1`. With `transfers`, sends and receives too: `[SEND_F3 RECV_B0]`.
    """
    shown = schedule if transfers else schedule.compute_only()
    return "\n".join(
        f"rank {rank}: {' '.join(group_text(group, shown) for group in shown.groups(rank))}"
        for rank in range(schedule.num_ranks)
    )


def group_text(group: tuple[Action, ...], schedule: Schedule) -> str:
    words = [action_text(action, schedule) for action in group]
    if len(words) == 1:
        return words[0]
    return f"[{' '.join(words)}]" if group[0].is_transfer else "&".join(words)


def action_text(action: Action, schedule: Schedule) -> str:
    """An action as `text` prints it: without its stage where a rank has only one."""
    words = str(action)
    return words if schedule.stages_per_rank > 1 else words.lstrip("0123456789")
