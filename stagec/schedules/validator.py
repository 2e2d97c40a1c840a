"""Prove a schedule right, whoever wrote it, and measure it.

A schedule is right when

1. every stage runs every microbatch once: F, and B or both of I and W (no backward at all if it is
   for inference), all on one rank; every rank has as many stages as it says;
2. every action stands after what it reads: B and I after their F, W after its I, and F and B after
   their neighbour's, or after the receive from it;
3. every value that another rank reads is sent once, after it is computed, and received once, and
   nothing else is;
4. no rank waits for ever, with eager and with rendezvous sends (`deadlock`).
"""

from dataclasses import dataclass

import numpy as np

from stagec.schedules.deadlock import prove_no_deadlock
from stagec.schedules.dependencies import positions
from stagec.schedules.errors import InvalidSchedule
from stagec.schedules.in_flight import InFlight, in_flight
from stagec.schedules.table import (
    FIRST_TRANSFER,
    SYMBOLS,
    Action,
    ActionKind,
    Ints,
    Schedule,
    action_text,
)
from stagec.schedules.timing import ActionCosts, Timing, simulate


@dataclass(frozen=True, eq=False)
class ScheduleReport:
    """What is known of a schedule that was proved right."""

    schedule: Schedule
    timing: Timing
    in_flight: InFlight

    @property
    def makespan(self) -> float:
        return self.timing.makespan

    @property
    def bubble(self) -> float:
        return self.timing.bubble

    @property
    def bubble_fraction(self) -> float:
        return self.timing.bubble_fraction


def prove(schedule: Schedule) -> None:
    """Raise `InvalidSchedule` if the schedule is not right."""
    Proof(schedule).run()


def validate(schedule: Schedule, costs: ActionCosts | None = None) -> ScheduleReport:
    """Prove the schedule right and measure it with these costs; else raise `InvalidSchedule`."""
    prove(schedule)
    return ScheduleReport(schedule, simulate(schedule, costs), in_flight(schedule))


class Proof:
    """The checks in turn; each relies on those before it. Tables are [stage, microbatch]."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.shape = (schedule.num_stages, schedule.num_microbatches)
        self.count: dict[ActionKind, Ints] = {}
        self.at: dict[ActionKind, Ints] = {}

    def run(self) -> None:
        self.run_compute()
        self.paired()
        prove_no_deadlock(self.schedule)

    def run_compute(self) -> None:
        """What can be said of the compute actions alone, rank by rank."""
        self.names_exist()
        for kind in ActionKind:
            self.at[kind] = positions(self.schedule, kind)
            self.count[kind] = self.counts(kind)
        self.groups_are_whole()
        self.complete()
        self.in_order()

    def names_exist(self) -> None:
        """Stages and microbatches are those of the schedule; each rank has its number of stages."""
        schedule = self.schedule
        _, stage, microbatch, _ = schedule.table
        outside = (stage < 0) | (microbatch < 0) | (microbatch >= schedule.num_microbatches)
        if outside.any():
            index = int(np.argmax(outside))
            raise self.wrong(
                index, f"is not one of the {schedule.num_microbatches} microbatches", "unknown"
            )
        for rank in range(schedule.num_ranks):
            stages = schedule.stages_of(rank)
            if len(stages) != schedule.stages_per_rank:
                raise InvalidSchedule(
                    f"rank {rank} computes {len(stages)} stages, {stages}, instead of "
                    f"{schedule.stages_per_rank}",
                    reason="stages-per-rank",
                    rank=rank,
                    action="",
                )

    def counts(self, kind: ActionKind) -> Ints:
        kinds, stage, microbatch, _ = self.schedule.table
        here = kinds == kind
        cell = stage[here] * np.int64(self.shape[1]) + microbatch[here]
        return np.bincount(cell, minlength=self.shape[0] * self.shape[1]).reshape(self.shape)

    def groups_are_whole(self) -> None:
        """What is issued together is transfers, or one F and one B that do not read each other."""
        kind, stage, microbatch, joined = self.schedule.table
        first = self.schedule.starts[:-1][np.diff(self.schedule.starts) > 0]
        here = np.flatnonzero(joined)
        transfer = kind >= FIRST_TRANSFER
        backward = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_INPUT)
        pair = (kind[here - 1] == ActionKind.FORWARD) & backward[here] & ~joined[here - 1]
        own = (stage[here] == stage[here - 1]) & (microbatch[here] == microbatch[here - 1])
        good = (transfer[here - 1] & transfer[here]) | (pair & ~own)
        good &= ~np.isin(here, first)
        if not good.all():
            index = int(here[np.argmin(good)])
            raise self.wrong(index, "cannot be issued together with what is before it", "group")

    def complete(self) -> None:
        """Each stage and microbatch has F once, and B once or I and W once, on one rank."""
        count, schedule = self.count, self.schedule
        whole, first, second = (
            count[kind]
            for kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
        )
        self.once(ActionKind.FORWARD, np.ones(self.shape, np.int64))
        if schedule.has_backward:
            both = (whole > 0) & (first + second > 0)
            if both.any():
                index = int(self.at[ActionKind.BACKWARD].ravel()[np.argmax(both)])
                raise self.wrong(index, "stands beside an I or a W, the halves of it", "repeated")
            split = first + second > 0
            self.once(ActionKind.BACKWARD, np.where(split, 0, 1))
            self.once(ActionKind.BACKWARD_INPUT, np.where(split, 1, 0))
            self.once(ActionKind.BACKWARD_WEIGHT, np.where(split, 1, 0))
        _, stage, microbatch, _ = schedule.table
        away = (schedule.rank != schedule.owner[stage, microbatch]) & ~schedule.is_transfer
        if away.any():
            index = int(np.argmax(away))
            home = int(schedule.owner[stage[index], microbatch[index]])
            raise self.wrong(index, f"is away from its F, which is on rank {home}", "away")

    def once(self, kind: ActionKind, expected: Ints) -> None:
        """Each cell has `expected` (0 or 1) actions of a kind."""
        wrong = self.count[kind] != expected
        if not wrong.any():
            return
        stage, microbatch = (int(i) for i in np.unravel_index(np.argmax(wrong), self.shape))
        action = Action(kind, stage, microbatch)
        times, wanted = int(self.count[kind][stage, microbatch]), int(expected[stage, microbatch])
        owner = self.schedule.owner
        rank = int(
            owner[stage, microbatch] if owner[stage, microbatch] >= 0 else owner[stage].max()
        )
        if times:
            rank = int(self.schedule.rank[self.at[kind][stage, microbatch]])
        name = action_text(action, self.schedule)
        what = f"`{name}`, {SYMBOLS[kind]} of stage {stage} and microbatch {microbatch}"
        if not times:
            message, reason = f"rank {rank} lacks {what}", "incomplete"
        elif wanted:
            message, reason = f"rank {rank} repeats {what}: {times} times", "repeated"
        else:
            message, reason = f"rank {rank} has {what}, which nobody waits for", "repeated"
        raise InvalidSchedule(message, reason=reason, rank=rank, action=name)

    def in_order(self) -> None:
        """Actions stand after what they read on their own rank."""
        forward, at = self.at[ActionKind.FORWARD], self.at
        backward = np.maximum(at[ActionKind.BACKWARD], at[ActionKind.BACKWARD_INPUT])
        self.after(backward, forward)
        self.after(at[ActionKind.BACKWARD_WEIGHT], at[ActionKind.BACKWARD_INPUT])
        owner = self.schedule.owner
        same = owner[1:] == owner[:-1]
        self.after(np.where(same, forward[1:], -1), forward[:-1])
        self.after(np.where(same, backward[:-1], -1), backward[1:])

    def paired(self) -> None:
        """Every value that leaves its rank is sent and received once, in its place; no others."""
        at, owner = self.at, self.schedule.owner
        leaves = np.zeros(self.shape, np.int64)
        leaves[:-1] = owner[1:] != owner[:-1]
        backward = np.maximum(at[ActionKind.BACKWARD], at[ActionKind.BACKWARD_INPUT])
        self.transfers_are(ActionKind.SEND_FORWARD, leaves)
        self.transfers_are(ActionKind.RECV_FORWARD, np.roll(leaves, 1, axis=0))
        returns = np.roll(leaves, 1, axis=0) if self.schedule.has_backward else 0 * leaves
        self.transfers_are(ActionKind.SEND_BACKWARD, returns)
        self.transfers_are(ActionKind.RECV_BACKWARD, np.roll(returns, -1, axis=0))
        self.after(at[ActionKind.SEND_FORWARD], at[ActionKind.FORWARD])
        self.after(
            np.where(at[ActionKind.RECV_FORWARD] < 0, -1, at[ActionKind.FORWARD]),
            at[ActionKind.RECV_FORWARD],
        )
        self.after(at[ActionKind.SEND_BACKWARD], backward)
        self.after(
            np.where(at[ActionKind.RECV_BACKWARD] < 0, -1, backward), at[ActionKind.RECV_BACKWARD]
        )

    def transfers_are(self, kind: ActionKind, expected: Ints) -> None:
        self.once(kind, expected)
        at, owner = self.at[kind], self.schedule.owner
        astray = (at >= 0) & (self.schedule.rank[at] != owner)
        if astray.any():
            index = int(at.ravel()[np.argmax(astray)])
            home = int(owner.ravel()[np.argmax(astray)])
            raise self.wrong(index, f"belongs on rank {home}, which has its stage", "away")

    def after(self, later: Ints, earlier: Ints) -> None:
        """Where both exist, `later` stands behind `earlier`, on the same rank."""
        early = (later >= 0) & (later < earlier)
        if early.any():
            index = int(later.ravel()[np.argmax(early)])
            needed = self.schedule.action(int(earlier.ravel()[np.argmax(early)]))
            name = action_text(needed, self.schedule)
            raise self.wrong(index, f"stands before `{name}`, which it needs", "order")

    def wrong(self, index: int, what: str, reason: str) -> InvalidSchedule:
        rank = int(self.schedule.rank[index])
        name = action_text(self.schedule.action(index), self.schedule)
        return InvalidSchedule(
            f"rank {rank}: `{name}` {what}", reason=reason, rank=rank, action=name
        )
