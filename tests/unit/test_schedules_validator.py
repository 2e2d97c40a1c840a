"""The validator refutes what is wrong, says where, and agrees with a naive machine."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.schedules import (
    Action,
    ActionCosts,
    ActionKind,
    InvalidSchedule,
    Schedule,
    build,
    from_rows,
    validate,
)
from stagec.schedules.table import ActionColumns
from stagec.schedules.transfers import as_sent, batched, beside_compute
from tests.unit.test_schedules import accepted


def of_text(*rows: str, v: int = 1, m: int = 1) -> Schedule:
    """A schedule from its printed rows; batches are written with `~`: `[SEND_F0~RECV_B0]`."""
    cells = [[cell.replace("~", " ") for cell in row.split()] for row in rows]
    return from_rows("test", cells, len(rows), v, m)


def refuted(schedule: Schedule) -> InvalidSchedule:
    with pytest.raises(InvalidSchedule) as caught:
        validate(schedule)
    return caught.value


GOOD = ("F0 SEND_F0 RECV_B0 B0", "RECV_F0 F0 B0 SEND_B0")


def test_the_good_one_is_good() -> None:
    assert validate(of_text(*GOOD)).makespan == 6


@pytest.mark.parametrize(
    ("rows", "reason", "rank", "action", "message"),
    [
        (("F0 SEND_F0 RECV_B0", GOOD[1]), "incomplete", 0, "B0", "rank 0 lacks `B0`"),
        (("F0 F0 SEND_F0 RECV_B0 B0", GOOD[1]), "repeated", 0, "F0", "repeats `F0`"),
        (("F0 SEND_F0 RECV_B0 I0 B0 W0", GOOD[1]), "repeated", 0, "B0", "beside an I or a W"),
        (("F0 SEND_F0 RECV_B0 I0", GOOD[1]), "incomplete", 0, "W0", "lacks `W0`"),
        (("F0 SEND_F0 RECV_B0 W0 I0", GOOD[1]), "order", 0, "W0", "before `I0`, which it needs"),
        (("F0 SEND_F0 RECV_B0 B0", "RECV_F0 B0 F0 SEND_B0"), "order", 1, "B0", "before `F0`"),
        (("F0 SEND_F0 RECV_B0 B0", "F0 RECV_F0 B0 SEND_B0"), "order", 1, "F0", "before `RECV_F0`"),
        (("SEND_F0 F0 RECV_B0 B0", GOOD[1]), "order", 0, "SEND_F0", "before `F0`"),
        (("F0 SEND_F0 RECV_B0 B0", "RECV_F0 F0 SEND_B0 B0"), "order", 1, "SEND_B0", "before `B0`"),
        (("F0 SEND_F0 B0 RECV_B0", GOOD[1]), "order", 0, "B0", "before `RECV_B0`"),
        (("F0 RECV_B0 B0", GOOD[1]), "incomplete", 0, "SEND_F0", "lacks `SEND_F0`"),
        (("F0 SEND_F0 RECV_B0 B0", "F0 B0 SEND_B0"), "incomplete", 1, "RECV_F0", "lacks"),
        (("F0 SEND_F0 SEND_F0 RECV_B0 B0", GOOD[1]), "repeated", 0, "SEND_F0", "repeats"),
        (("F0 SEND_F0 RECV_B0 B0 SEND_B0", GOOD[1]), "repeated", 0, "SEND_B0", "nobody"),
        (("F0 [SEND_F0~RECV_B0] B0 RECV_F0", GOOD[1]), "repeated", 0, "RECV_F0", "nobody"),
        (("F0 [SEND_F0~B0] RECV_B0", GOOD[1]), "group", 0, "B0", "issued together"),
        (("F0 SEND_F0 RECV_B0 B0", "RECV_F0 F0&B0 SEND_B0"), "group", 1, "B0", "together"),
        (("F0 RECV_B0 B0", GOOD[1] + " 0SEND_F0"), "away", 1, "SEND_F0", "belongs on rank 0"),
        (("F0 RECV_B0 SEND_F0 B0", GOOD[1]), "deadlock-eager", 0, "RECV_B0", "eager sends"),
    ],
)
def test_what_is_wrong_is_named(
    rows: tuple[str, str], reason: str, rank: int, action: str, message: str
) -> None:
    error = refuted(of_text(*rows))
    assert (error.reason, error.rank, error.action) == (reason, rank, action)
    assert message in error.message


def test_a_stage_stays_on_its_rank() -> None:
    rows = (
        "0F0 0SEND_F0 0RECV_B0 0B0 1F1 1SEND_B1 1B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 0F1 0SEND_F1 0B1",
    )
    error = refuted(of_text(*rows, v=2, m=2))
    assert error.reason != ""
    error = refuted(of_text("0F0 0SEND_F0 1B0", "1RECV_F0 1F0 1SEND_B0 0B0", v=2))
    assert (error.reason, error.rank) == ("away", 0)
    assert "away from its F" in error.message


def test_ranks_have_the_stages_they_say() -> None:
    error = refuted(of_text("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0", v=2))
    assert error.reason == "stages-per-rank"
    assert "computes 1 stages, [0], instead of 2" in error.message


def test_rendezvous_deadlock_names_the_cycle() -> None:
    """1F1B without batches: a forward meets a gradient that comes the other way."""
    schedule = beside_compute(build("1f1b", 2, 1, 4).compute_only())
    error = refuted(schedule)
    assert error.reason == "deadlock-rendezvous"
    assert (error.rank, error.action) == (0, "SEND_F1")
    assert error.cycle == (
        "rank 0 waits at SEND_F1 for RECV_F1 of rank 1",
        "rank 1 waits at SEND_B0 for RECV_B0 of rank 0",
    )
    assert "note: rank 1 waits at SEND_B0" in str(error)


def test_a_cycle_excludes_the_ranks_that_only_wait_for_it() -> None:
    schedule = beside_compute(build("1f1b", 4, 1, 8).compute_only())
    error = refuted(schedule)
    ranks = {line.split()[1] for line in error.cycle}
    waited_for = {line.split()[-1] for line in error.cycle}
    assert ranks == waited_for
    assert 2 <= len(ranks) <= 4


def test_compute_order_that_deadlocks() -> None:
    with pytest.raises(InvalidSchedule) as caught:
        of_text("F0 B0 F1 B1", "F1 B1 F0 B0", m=2)
    assert caught.value.reason == "stuck"
    assert caught.value.cycle == (
        "rank 0 waits at B0 for B0 of rank 1",
        "rank 1 waits at F1 for F1 of rank 0",
    )


def machine(schedule: Schedule, eager: bool) -> bool:
    """Whether all ranks finish, each doing one group at a time, in the most naive way."""
    rows = [schedule.groups(rank) for rank in range(schedule.num_ranks)]
    other = {
        ActionKind.SEND_FORWARD: (ActionKind.RECV_FORWARD, 1),
        ActionKind.RECV_FORWARD: (ActionKind.SEND_FORWARD, -1),
        ActionKind.SEND_BACKWARD: (ActionKind.RECV_BACKWARD, -1),
        ActionKind.RECV_BACKWARD: (ActionKind.SEND_BACKWARD, 1),
    }
    position = [0] * len(rows)
    posted: set[tuple[int, ...]] = set()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            if position[rank] == len(row):
                continue
            group = row[position[rank]]
            fresh = {tuple(a) for a in group} - posted
            posted |= fresh
            moved |= bool(fresh)
            ready = all(
                not a.is_transfer
                or (eager and a.kind in (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD))
                or (other[a.kind][0], a.stage + other[a.kind][1], a.microbatch) in posted
                for a in group
            )
            if ready:
                position[rank] += 1
                moved = True
    return all(at == len(row) for at, row in zip(position, rows, strict=True))


def shuffled(schedule: Schedule, seed: int, swaps: int) -> Schedule:
    """Exchange neighbours in the order of a rank, and take batches apart, at random."""
    chance = random.Random(seed)
    order = np.arange(len(schedule))
    for _ in range(swaps):
        at = chance.randrange(len(order) - 1)
        if schedule.rank[at] == schedule.rank[at + 1]:
            order[[at, at + 1]] = order[[at + 1, at]]
    table = schedule.table.pick(order)
    single = ActionColumns(table.kind, table.stage, table.microbatch, np.zeros(len(order), bool))
    return schedule.with_actions(single, schedule.starts)


def regrouped(schedule: Schedule, seed: int) -> Schedule:
    """Transfers that stand side by side as batches, at random."""
    chance = np.random.default_rng(seed)
    transfers, rank = schedule.is_transfer, schedule.rank
    joined = schedule.table.joined.copy()
    beside = transfers[1:] & transfers[:-1] & (rank[1:] == rank[:-1])
    joined[1:] = np.where(beside, chance.random(len(beside)) < chance.random(), joined[1:])
    return schedule.with_actions(schedule.table._replace(joined=joined), schedule.starts)


COMPUTE, SEND, RECEIVE = range(3)


def queue_of(action: Action) -> int:
    if not action.is_transfer:
        return COMPUTE
    return SEND if action.kind in (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD) else RECEIVE


def runs_as_nodes(schedule: Schedule, serial: bool) -> bool:
    """Whether a simulator gets through that starts a node when what it waits for is done: what it reads, and the node before it in its queue.

    A rank has a queue of passes, of sends and of receives, or one for all (`serial`), in which the sends of a batch come before its receives.
    """
    backward = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
    done: set[Action] = set()

    def is_there(*actions: Action) -> bool:
        return any(action in done for action in actions)

    def passes(kind: ActionKind, stage: int, microbatch: int) -> list[Action]:
        kinds = (kind,) if kind == ActionKind.FORWARD else backward
        return [Action(each, stage, microbatch) for each in kinds]

    def may_start(action: Action) -> bool:
        kind, stage, microbatch = action
        match kind:
            case ActionKind.SEND_FORWARD:
                return is_there(*passes(ActionKind.FORWARD, stage, microbatch))
            case ActionKind.SEND_BACKWARD:
                return is_there(*passes(ActionKind.BACKWARD, stage, microbatch))
            case ActionKind.RECV_FORWARD:
                return is_there(Action(ActionKind.SEND_FORWARD, stage - 1, microbatch))
            case ActionKind.RECV_BACKWARD:
                return is_there(Action(ActionKind.SEND_BACKWARD, stage + 1, microbatch))
            case ActionKind.FORWARD:
                received = Action(ActionKind.RECV_FORWARD, stage, microbatch)
                return stage == 0 or is_there(received, *passes(kind, stage - 1, microbatch))
            case ActionKind.BACKWARD_WEIGHT:
                return True
            case _:
                received = Action(ActionKind.RECV_BACKWARD, stage, microbatch)
                is_last = stage == schedule.num_stages - 1
                return is_last or is_there(received, *passes(kind, stage + 1, microbatch))

    queues: list[list[Action]] = []
    for rank in range(schedule.num_ranks):
        own: list[list[Action]] = [[], [], []]
        for group in schedule.groups(rank):
            for action in sorted(group, key=queue_of):
                own[0 if serial else queue_of(action)].append(action)
        queues += own
    is_moving = True
    while is_moving:
        is_moving = False
        for queue in queues:
            while queue and may_start(queue[0]):
                done.add(queue.pop(0))
                is_moving = True
    return not any(queues)


@pytest.mark.seldom
@settings(max_examples=80, deadline=None)
@given(
    accepted(("1f1b", "gpipe", "zb_h1", "zb_v", "interleaved_1f1b", "dualpipe_v")),
    st.sampled_from([None, batched, as_sent]),
    st.integers(0, 2**32),
    st.integers(0, 12),
)
def test_agrees_with_a_naive_machine(
    schedule: Schedule, rule: Callable[[Schedule], Schedule] | None, seed: int, swaps: int
) -> None:
    schedule = rule(schedule.compute_only()) if rule is not None else schedule
    changed = shuffled(schedule, seed, swaps) if len(schedule) > 1 and swaps else schedule
    changed = regrouped(changed, seed) if seed % 2 else changed
    try:
        validate(changed)
        verdict = ""
    except InvalidSchedule as error:
        verdict = error.reason
    if verdict in ("order", "group"):
        return
    assert verdict in ("", "deadlock-rendezvous", "deadlock-eager")
    assert machine(changed, eager=False) == (verdict == "")
    assert machine(changed, eager=True) == (verdict != "deadlock-eager")
    if verdict != "deadlock-eager":
        assert runs_as_nodes(changed, serial=False)
        assert runs_as_nodes(changed, serial=True)


@pytest.mark.seldom
@settings(max_examples=30, deadline=None)
@given(accepted(("dualpipe", "dualpipe_v", "overlapped_1f1b", "interleaved_1f1b"), "batched"))
def test_ranks_get_through_the_batches_that_authors_have(schedule: Schedule) -> None:
    validate(schedule)
    assert machine(schedule, eager=False)
    assert runs_as_nodes(schedule, serial=False)
    assert runs_as_nodes(schedule, serial=True)


@settings(max_examples=80, deadline=None)
@given(accepted(), st.integers(0, 2**32), st.sampled_from(["drop", "double", "renumber"]))
def test_no_damage_goes_unseen(schedule: Schedule, seed: int, damage: str) -> None:
    """Without one action, with one twice, or with one of another microbatch it is refuted."""
    chance = random.Random(seed)
    at = chance.randrange(len(schedule))
    rank = int(schedule.rank[at])
    index = np.arange(len(schedule))
    starts = schedule.starts.copy()
    if damage == "drop":
        index = np.delete(index, at)
        starts[rank + 1 :] -= 1
    elif damage == "double":
        index = np.insert(index, at, at)
        starts[rank + 1 :] += 1
    table = schedule.table.pick(index)
    if damage == "renumber":
        if schedule.num_microbatches == 1:
            return
        table.microbatch[at] = (table.microbatch[at] + 1) % schedule.num_microbatches
    damaged = schedule.with_actions(table, starts)
    if not damaged.has_backward and schedule.has_backward:
        return  # the only backward is gone: what is left is a schedule for inference
    with pytest.raises(InvalidSchedule):
        validate(damaged)


@settings(max_examples=60, deadline=None)
@given(accepted(), st.integers(0, 2**32))
def test_times_are_the_least_that_respect_what_is_read(schedule: Schedule, seed: int) -> None:
    """Every compute action starts when the rank is free and its values are there, not later."""
    chance = random.Random(seed)
    stages = schedule.num_stages
    forward, first, second = ([chance.randint(1, 9) for _ in range(stages)] for _ in range(3))
    latency = chance.randint(0, 5)
    report = validate(schedule, ActionCosts(forward, first, second, latency=latency))
    timing = report.timing
    end = {(a.kind, a.stage, a.microbatch): float(timing.end[i])
           for i, a in enumerate(all_actions(schedule))}  # fmt: skip
    end |= {(ActionKind.BACKWARD_INPUT, s, k): t for (kind, s, k), t in end.items()
            if kind == ActionKind.BACKWARD}  # fmt: skip
    for rank in range(schedule.num_ranks):
        free, at = 0.0, int(schedule.starts[rank])
        for group in schedule.groups(rank):
            if not group[0].is_transfer:
                ready, cost = free, 0
                for kind, stage, mb in group:
                    if kind == ActionKind.FORWARD:
                        source, cost = (ActionKind.FORWARD, stage - 1, mb), cost + forward[stage]
                    elif kind == ActionKind.BACKWARD_WEIGHT:
                        source, cost = None, cost + second[stage]
                    else:
                        source = (ActionKind.BACKWARD_INPUT, stage + 1, mb)
                        cost += first[stage] + (second[stage] if kind == ActionKind.BACKWARD else 0)
                    if source in end:
                        away = schedule.owner[source[1], mb] != rank
                        ready = max(ready, end[source] + latency * away)
                assert timing.start[at] == ready
                assert timing.end[at] == ready + cost
                free = float(timing.end[at])
            at += len(group)


def test_a_pair_ends_as_one() -> None:
    """What reads the forward of an overlapped pair waits for the end of both."""
    schedule = of_text("F0 F1&B0 B1", "F0 B0 F1 B1", m=2)
    assert validate(schedule).makespan == 1 + 3 + 3 + 1 + 2 + 2
    assert validate(schedule, ActionCosts(overlapped=2)).makespan == 1 + 3 + 2 + 1 + 2 + 2


def all_actions(schedule: Schedule) -> list:
    return [action for rank in range(schedule.num_ranks) for action in schedule.actions(rank)]
