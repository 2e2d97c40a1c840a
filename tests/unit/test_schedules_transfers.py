"""Where sends and receives stand: against a simulation written round by round."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.dialects.sched.tasks import TASKS, Order
from stagec.rank_orders import rank_order
from stagec.schedules import (
    CATALOGUE,
    TRANSFERS,
    Action,
    ActionKind,
    Schedule,
    ScheduleError,
    build,
    check_sizes,
    text,
    usual_transfers,
    validate,
)
from stagec.schedules.transfers import Rule, as_sent, batched, beside_compute, in_pairs
from tests.unit.test_schedules import accepted

Cell = list[Action] | str


def with_parameter_slots(cells: list[list[Action]], resident: int) -> list[Cell]:
    """The compute of a rank and, as text, what PyTorch does to parameters between."""
    active: list[int] = []
    result: list[Cell] = []
    for number, cell in enumerate(cells):
        coming: list[int] = []
        for later in cells[number:]:
            coming += [a.stage for a in later if a.stage not in coming]
            if len(coming) >= resident:
                break
        for stage in [s for s in active if s not in coming]:
            active.remove(stage)
            result.append(f"free {stage}")
        for stage in [s for s in coming if s not in active]:
            active.append(stage)
            result.append(f"gather {stage}")
        result.append(cell)
    ends = [
        a
        for cell in cells
        for a in cell
        if a.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
    ]
    last = {action.stage: action for action in ends}
    reduced: list[Cell] = []
    for cell in result:
        reduced.append(cell)
        if not isinstance(cell, str):
            reduced += [f"reduce {a.stage}" for a in cell if last.get(a.stage) == a]
    return reduced


Event = tuple[int, int, int]
"""A rank, a stage, and how many of the rank's actions came before."""


def round_by_round(schedule: Schedule) -> tuple[list[list[Action]], list[Event], list[Event]]:
    """Each rank takes one cell a round, rank 0 first; a send puts its receive on the other rank.

    The actions of each rank, the reductions and the gathers of stages.
    """
    last = schedule.num_stages - 1
    compute = schedule.compute_only()
    todo = [
        with_parameter_slots([list(g) for g in compute.groups(rank)], 3)
        for rank in range(schedule.num_ranks)
    ]
    out: list[list[Action]] = [[] for _ in todo]
    reduced: list[Event] = []
    gathered: list[Event] = []

    def reads(action: Action, rank: int) -> bool:
        kind, stage, mb = action
        if kind == ActionKind.FORWARD and stage > 0:
            needs = [(ActionKind.RECV_FORWARD, stage), (ActionKind.FORWARD, stage - 1)]
        elif kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT) and stage < last:
            above = [(k, stage + 1) for k in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)]
            needs = [(ActionKind.RECV_BACKWARD, stage), *above]
        else:
            return True
        return any(Action(k, s, mb) in out[rank] for k, s in needs)

    while any(todo):
        progress = False
        for rank, cells in enumerate(todo):
            if not cells:
                continue
            cell = cells[0]
            if isinstance(cell, str):
                word, _, stage = cell.partition(" ")
                event = (rank, int(stage), len(out[rank]))
                reduced += [event] if word == "reduce" else []
                gathered += [event] if word == "gather" else []
                cells.pop(0)
                progress = True
                continue
            if not all(reads(action, rank) for action in cell):
                continue
            cells.pop(0)
            progress = True
            out[rank] += cell
            for kind, stage, mb in cell:
                to = stage + 1 if kind == ActionKind.FORWARD else stage - 1
                if kind == ActionKind.BACKWARD_WEIGHT or not 0 <= to <= last:
                    continue
                there = int(schedule.owner[to, mb])
                if there != rank:
                    down = kind == ActionKind.FORWARD
                    send = ActionKind.SEND_FORWARD if down else ActionKind.SEND_BACKWARD
                    receive = ActionKind.RECV_FORWARD if down else ActionKind.RECV_BACKWARD
                    out[rank].append(Action(send, stage, mb))
                    out[there].append(Action(receive, to, mb))
        assert progress
    return out, reduced, gathered


MANY_STAGES = ("interleaved_1f1b", "overlapped_1f1b", "interleaved_zero_bubble", "looped_bfs",
               "zb_v", "dualpipe_v", "zb_h2", "dualpipe")  # fmt: skip


@pytest.mark.seldom
@settings(max_examples=60, deadline=None)
@given(accepted(MANY_STAGES, "as_sent"))
def test_transfers_and_parameters_stand_where_the_rounds_put_them(schedule: Schedule) -> None:
    small = schedule.num_stages * schedule.num_microbatches <= 200
    if small:
        expected, reduced, gathered = round_by_round(schedule)
        for rank in range(schedule.num_ranks):
            assert schedule.actions(rank) == expected[rank]
        assert sorted(map(tuple, schedule.reductions.tolist())) == sorted(reduced)
        assert sorted(map(tuple, schedule.gathers.tolist())) == sorted(gathered)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 5, 6), (3, 4, 5), (4, 4, 8)])
def test_parameter_slots_matter(p: int, v: int, m: int) -> None:
    """With more than three stages on a rank, stages are gathered and freed again and again."""
    schedule = build("interleaved_1f1b", p, v, m)
    actions, _, gathered = round_by_round(schedule)
    assert [schedule.actions(r) for r in range(p)] == actions
    assert len(gathered) > p * v
    assert sorted(map(tuple, schedule.gathers.tolist())) == sorted(gathered)


def test_receives_and_sends_around_compute() -> None:
    schedule = build("gpipe", 3, 1, 2)
    assert text(schedule, transfers=True).splitlines()[1] == (
        "rank 1: RECV_F0 F0 SEND_F0 RECV_F1 F1 SEND_F1 RECV_B0 B0 SEND_B0 RECV_B1 B1 SEND_B1"
    )
    validate(schedule)


def test_only_a_send_and_a_receive_with_the_same_rank_are_batched() -> None:
    lines = text(build("1f1b", 4, 1, 4), transfers=True).splitlines()
    assert lines[0].endswith("F3 [SEND_F3 RECV_B0] B0 RECV_B1 B1 RECV_B2 B2 RECV_B3 B3")
    assert lines[1].endswith("B1 SEND_B1 RECV_B2 B2 SEND_B2 RECV_B3 B3 SEND_B3")


def test_stages_of_one_rank_exchange_nothing() -> None:
    for name, v in (("interleaved_1f1b", 3), ("zb_v", 2), ("gpipe", 1), ("dualpipe_v", 2)):
        assert not build(name, 1, v, 4).is_transfer.any()
    # At the turn of a V the last rank hands over to itself.
    turn = [a for a in build("zb_v", 2, 2, 3).actions(1) if a.is_transfer]
    assert all(
        a.stage == 1 or a.kind in (ActionKind.SEND_FORWARD, ActionKind.RECV_BACKWARD) for a in turn
    )
    assert {(a.kind.symbol, a.stage) for a in turn} == {
        ("RECV_F", 1), ("SEND_F", 2), ("RECV_B", 2), ("SEND_B", 1),
    }  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(accepted(("gpipe", "1f1b", "zb_h1", "zb_h2")), st.sampled_from([beside_compute, in_pairs]))
def test_both_rules_make_the_same_transfers(schedule: Schedule, rule: Rule) -> None:
    compute = schedule.compute_only()
    one, other = rule(compute), as_sent(compute)
    for rank in range(schedule.num_ranks):
        assert sorted(one.actions(rank)) == sorted(other.actions(rank))
    assert text(one) == text(other) == text(compute)


READERS = {
    ActionKind.RECV_FORWARD: (ActionKind.FORWARD,),
    ActionKind.RECV_BACKWARD: (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT),
}
MAKERS = {
    ActionKind.SEND_FORWARD: (ActionKind.FORWARD,),
    ActionKind.SEND_BACKWARD: (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT),
}


@pytest.mark.seldom
@settings(max_examples=50, deadline=None)
@given(accepted())
def test_a_batch_is_what_passes_around_it_made_and_read(schedule: Schedule) -> None:
    """Also of schedules whose ranks do not get through such batches."""
    made, other = batched(schedule.compute_only()), as_sent(schedule)
    assert text(made) == text(schedule)
    for rank in range(schedule.num_ranks):
        assert sorted(made.actions(rank)) == sorted(other.actions(rank))
        groups = made.groups(rank)
        for one, behind in pairwise(groups):
            assert not (one[0].is_transfer and behind[0].is_transfer)
        for before, batch, behind in zip([(), *groups], groups, [*groups[1:], ()], strict=False):
            for kind, *own in batch:
                if kind in READERS:
                    assert any([*a[1:]] == own and a.kind in READERS[kind] for a in behind)
                elif kind in MAKERS:
                    assert any([*a[1:]] == own and a.kind in MAKERS[kind] for a in before)


@settings(max_examples=30, deadline=None)
@given(accepted(("overlapped_1f1b", "interleaved_1f1b", "dualpipe", "zb_h1"), "batched"))
def test_parameters_come_and_go_between_the_same_passes(schedule: Schedule) -> None:
    """In either order of transfers: a gather before them, a reduction when what was made has been sent."""
    other = as_sent(schedule)
    for rank in range(schedule.num_ranks):
        passes, before = (
            np.concatenate([[0], np.cumsum(each.row(rank).kind < ActionKind.SEND_FORWARD)])
            for each in (schedule, other)
        )
        for name, step in (("gathers", -1), ("reductions", 1)):
            ours, theirs = (
                getattr(e, name)[getattr(e, name)[:, 0] == rank] for e in (schedule, other)
            )
            assert ours[:, 1].tolist() == theirs[:, 1].tolist()
            assert passes[ours[:, 2]].tolist() == before[theirs[:, 2]].tolist()
            beside = np.clip(ours[:, 2] + step, 0, len(passes) - 1)
            at_end = ours[:, 2] == beside
            assert (at_end | (passes[beside] != passes[ours[:, 2]])).all()


@pytest.mark.parametrize(
    ("name", "v"),
    [
        (name, v)
        for name, entry in CATALOGUE.items()
        for v in ((1, 2, 3) if entry.stages_per_rank is None else (entry.stages_per_rank,))
    ],
)
def test_all_orders_that_hold_without_a_word_are_known(name: str, v: int) -> None:
    """Each leaves ranks the tasks that they have without it, and any other does not, at some size."""
    sizes = [(p, m) for p in (2, 4) for m in (4, 5, 8, 12) if builds(name, p, v, m)]
    same = [
        order
        for order in TRANSFERS
        if all(tasks(name, p, v, m, order) == tasks(name, p, v, m, None) for p, m in sizes)
    ]
    assert list(usual_transfers(name, v)) == same


def builds(name: str, p: int, v: int, m: int) -> bool:
    try:
        check_sizes(name, p, v, m)
    except ScheduleError:
        return False
    return True


def tasks(name: str, p: int, v: int, m: int, order: str | None) -> list[Order]:
    """What each rank does in turn; where it has few stages, none is gathered again."""
    schedule = build(name, p, v, m, transfers=order)
    rows = [set(TASKS) - {"GATHER"}] * v
    return [
        rank_order(schedule, rank, schedule.stages_of(rank), rows, [True] * v, [0] * v)
        for rank in range(p)
    ]


def test_transfers_of_a_table_stand_as_they_are_sent() -> None:
    assert usual_transfers("mine.csv", 1) == ("as_sent",)


def test_some_transfers_of_dualpipe_stand_apart_from_their_passes() -> None:
    """As in its code (`tests.fidelity.deepseek_schedules`): `recv=False`, `send=False`."""
    first, last = text(build("dualpipe_v", 2, 2, 4), transfers=True).splitlines()
    assert first.startswith(
        "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0F2 3RECV_F0 3F0 0SEND_F2 3I0 [3SEND_B0 3RECV_F1] 3W0 3F1 "
        "0F3&3B1 [0SEND_F3 3SEND_B1 3RECV_F2 0RECV_B0] 3F2&0B0 3B2 "
    )
    assert last.startswith(
        "rank 1: 1RECV_F0 1F0 1RECV_F1 2F0 2SEND_F0 1F1 1RECV_F2 2F1 1F2 [2SEND_F1 2RECV_B0] 2B0 "
        "2F2&1B0 [2SEND_F2 1SEND_B0 1RECV_F3 2RECV_B1] 1F3&2B1 "
    )


def test_what_comes_round_is_received_as_early_as_megatron_lm_receives_it() -> None:
    """With 6 microbatches in a round of 4 ranks two passes ahead, at either end."""
    first, *_, last = text(build("overlapped_1f1b", 4, 2, 6), transfers=True).splitlines()
    assert "0F3 [0SEND_F3 4RECV_F0] 0F4 [0SEND_F4 4RECV_F1] 0F5 [0SEND_F5 4RECV_F2] 4F0 " in first
    assert "7F4&7B3 [7SEND_B3 7RECV_F5 3RECV_B0] 7F5&7B4 [7SEND_B4 3RECV_B1] 7B5 " in last
