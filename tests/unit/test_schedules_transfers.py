"""Where sends and receives stand: against a simulation written round by round."""

import pytest
from hypothesis import given, settings, strategies as st

from stagec.schedules import Action, ActionKind, Schedule, build, text, validate
from stagec.schedules.transfers import around_compute, as_sent
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


@settings(max_examples=60, deadline=None)
@given(accepted(MANY_STAGES))
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
@given(accepted(("gpipe", "1f1b", "zb_h1", "zb_h2")), st.booleans())
def test_both_rules_make_the_same_transfers(schedule: Schedule, batched: bool) -> None:
    compute = schedule.compute_only()
    one, other = around_compute(compute, batched), as_sent(compute)
    for rank in range(schedule.num_ranks):
        assert sorted(one.actions(rank)) == sorted(other.actions(rank))
    assert text(one) == text(other) == text(compute)
