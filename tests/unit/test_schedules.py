"""The schedules of the catalogue: their order, their formulas, the sizes they take."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.schedules import (
    CATALOGUE,
    ActionCosts,
    ActionKind,
    Schedule,
    ScheduleError,
    ScheduleReport,
    build,
    names,
    picture,
    text,
    validate,
)


@st.composite
def accepted(
    draw: st.DrawFn, only: tuple[str, ...] | None = None, transfers: str | None = None
) -> Schedule:
    """A schedule at sizes that it accepts: sizes are drawn freely, refused ones drawn again."""
    name = draw(st.sampled_from(only or tuple(names())))
    p, m = draw(st.integers(1, 9)), draw(st.integers(1, 24))
    v = CATALOGUE[name].stages_per_rank or draw(st.integers(1, 5))
    if name == "dualpipe":
        p, m = p + p % 2, m + m % 2
    if name.startswith("dualpipe"):
        m = max(m, 2 * p)
    try:
        return build(name, p, v, m, transfers=transfers)
    except ScheduleError as error:
        assert error.reason in ("too-few-microbatches", "uneven-rounds"), error
        return build(name, p, v, m * p, transfers=transfers)


@settings(max_examples=75, deadline=None)
@given(accepted())
def test_what_a_schedule_accepts_validates(schedule: Schedule) -> None:
    report = validate(schedule)
    p, v, m = schedule.num_ranks, schedule.stages_per_rank, schedule.num_microbatches
    per_stage = 3 if schedule.has_backward else 1
    assert np.all(report.timing.busy == per_stage * schedule.num_stages * m / p)
    assert report.makespan >= report.timing.busy.max()
    assert schedule.num_stages == (p if schedule.name == "dualpipe" else p * v)


def in_flight_formula(name: str, p: int, v: int, m: int, rank: int) -> int | None:
    """The published peak of a rank, in stage-microbatches; see catalogue and the oracles' notes."""
    rounds = max(1, m // p)
    match name:
        case "gpipe":
            return m
        case "1f1b":
            return min(m, p - rank)
        case "looped_bfs":
            return m * v
        case "interleaved_1f1b":
            return min(m * v, (v - 1) * (m // rounds) + 2 * (p - 1 - rank) + 1)
        case "overlapped_1f1b":
            return min(m * v, (v - 1) * (m // rounds) + 2 * (p - 1 - rank) + 2)
        case "zb_h1":
            return min(m, p)
        case "zb_h2":
            return min(m, 2 * p - 1)
        case "zb_v":
            return 2 * p if m >= 2 * p else None
        case "dualpipe":
            return p + 1
        case "dualpipe_v":
            return 2 * p + 1
        case "forward_only":
            return 0
    return None


def over_time(
    report: ScheduleReport, rank: int, stage: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Times at which a rank's count changes, and the count from then on; of one stage if given.

    It rises when F starts and falls when B or W ends.
    """
    schedule, timing = report.schedule, report.timing
    row = slice(int(schedule.starts[rank]), int(schedule.starts[rank + 1]))
    change = report.in_flight.change[row]
    here = change != 0
    if stage is not None:
        here &= schedule.table.stage[row] == stage
    times = np.where(change > 0, timing.start[row], timing.end[row])[here]
    return times, np.cumsum(change[here])


@pytest.mark.seldom
@settings(max_examples=75, deadline=None)
@given(accepted())
def test_in_flight_counts_obey_the_formula(schedule: Schedule) -> None:
    report = validate(schedule)
    p, v, m = schedule.num_ranks, schedule.stages_per_rank, schedule.num_microbatches
    for rank in range(p):
        formula = in_flight_formula(schedule.name, p, v, m, rank)
        if formula is not None:
            assert report.in_flight.rank_peak[rank] == formula
        times, counts = over_time(report, rank)
        assert counts.max(initial=0) == report.in_flight.rank_peak[rank]
        assert not len(counts) or counts[-1] == 0
        assert np.all(np.diff(times) >= 0)
        for stage in schedule.stages_of(rank):
            _, of_stage = over_time(report, rank, stage)
            assert of_stage.max(initial=0) == report.in_flight.stage_peak[rank, stage]


COSTS = st.sampled_from([(1, 1, 1), (2, 2, 1), (1, 1.5, 0.75), (3, 2, 1), (1, 0.5, 0.5)])


@pytest.mark.seldom
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(0, 20), COSTS)
def test_bubbles_of_one_stage_per_rank(p: int, more: int, costs: tuple[float, ...]) -> None:
    m = 2 * p - 1 + more
    forward, first, second = costs
    whole = first + second
    for name, bubble in (
        ("gpipe", (p - 1) * (forward + whole)),
        ("1f1b", (p - 1) * (forward + whole)),
        ("zb_h1", (p - 1) * (forward + whole - 2 * second)),
        ("zb_h2", (p - 1) * (forward + whole - 3 * second)),
    ):
        report = validate(build(name, p, 1, m), ActionCosts(*costs))
        assert report.bubble == pytest.approx(bubble, abs=1e-9)
        assert report.bubble_fraction == pytest.approx(bubble / (m * (forward + whole)), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_interleaving_divides_the_bubble(p: int, v: int, rounds: int) -> None:
    report = validate(build("interleaved_1f1b", p, v, p * rounds))
    assert report.bubble == 3 * (p - 1)
    assert report.bubble_fraction == pytest.approx((p - 1) / (v * p * rounds))


@pytest.mark.seldom
@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(0, 8), st.sampled_from([3.0, 2.5, 2.0]))
def test_dualpipe_bubble(half: int, more: int, overlapped: float) -> None:
    p, m = 2 * half, 4 * half + 2 * more
    report = validate(build("dualpipe", p, 2, m), ActionCosts(1, 1, 1, overlapped=overlapped))
    idle = report.makespan - report.timing.busy
    assert idle.max() == pytest.approx((p / 2 - 1) * (overlapped + 2 - 3))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 12))
def test_zb_v_has_no_bubble_with_equal_costs(p: int, more: int) -> None:
    assert validate(build("zb_v", p, 2, 2 * p - 1 + more)).bubble == 0


def test_text() -> None:
    lines = text(build("1f1b", 2, 1, 3)).splitlines()
    assert lines == ["rank 0: F0 F1 B0 F2 B1 B2", "rank 1: F0 B0 F1 B1 F2 B2"]
    lines = text(build("1f1b", 2, 1, 2), transfers=True).splitlines()
    assert lines[0] == "rank 0: F0 SEND_F0 F1 [SEND_F1 RECV_B0] B0 RECV_B1 B1"
    assert text(build("zb_h1", 2, 1, 2)).splitlines()[1] == "rank 1: F0 I0 F1 I1 W0 W1"
    assert text(build("dualpipe", 2, 2, 4)).splitlines()[0] == (
        "rank 0: 0F0 1F2 0F1 1B2 1F3&0B0 1B3 0I1 0W1"
    )
    assert str(build("looped_bfs", 1, 2, 2)) == "rank 0: 0F0 0F1 1F0 1F1 1B1 1B0 0B1 0B0"


def test_picture() -> None:
    assert picture(build("1f1b", 2, 1, 2)).splitlines() == [
        "rank 0: F0 F1 .  .  B0 B0 .  B1 B1",
        "rank 1: .  F0 B0 B0 F1 B1 B1 .  .",
    ]
    halves = picture(build("gpipe", 2, 1, 1), ActionCosts(0.5, 0.5, 0.5))
    assert halves.splitlines()[1] == "rank 1: .  F0 B0 B0 .  ."
    with pytest.raises(ValueError, match="above 10"):
        picture(build("1f1b", 4, 1, 8), widest=10)


def test_zb_h1_is_the_figure_of_the_paper() -> None:
    """arXiv:2401.10241, figure 3 top, written for four ranks and six microbatches."""
    assert text(build("zb_h1", 4, 1, 6)).splitlines()[3] == (
        "rank 3: F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5"
    )


def test_dualpipe_halves_mirror_each_other() -> None:
    """Rank p - 1 - r does what rank r does, with the two streams exchanged."""
    schedule = build("dualpipe", 6, 2, 16)
    for rank in range(3):
        near, far = schedule.actions(rank), schedule.actions(5 - rank)
        near = [a for a in near if not a.is_transfer]
        far = [a for a in far if not a.is_transfer]
        assert [(a.kind, a.stage, (a.microbatch + 8) % 16) for a in near] == [
            (b.kind, b.stage, b.microbatch) for b in far
        ]
    assert [int(r) for r in schedule.owner[:, 0]] == [0, 1, 2, 3, 4, 5]
    assert [int(r) for r in schedule.owner[:, 8]] == [5, 4, 3, 2, 1, 0]


def test_placements() -> None:
    loop = build("interleaved_1f1b", 4, 3, 8)
    assert [loop.stages_of(rank) for rank in (0, 3)] == [[0, 4, 8], [3, 7, 11]]
    v_shape = build("zb_v", 4, 2, 8)
    assert [v_shape.stages_of(rank) for rank in (0, 3)] == [[0, 7], [3, 4]]


def test_object_view_and_peers() -> None:
    schedule = build("1f1b", 2, 1, 2)
    groups = schedule.groups(0)
    assert [len(group) for group in groups] == [1, 1, 1, 2, 1, 1, 1]
    assert groups[0][0].kind is ActionKind.FORWARD
    assert str(groups[3][1]) == "0RECV_B0"
    assert [int(rank) for rank in schedule.peer[:5]] == [-1, 1, -1, 1, 1]


def test_costs_per_stage_and_latency() -> None:
    schedule = build("gpipe", 2, 1, 1)
    report = validate(schedule, ActionCosts([1, 2], [3, 4], [5, 6], latency=10))
    assert report.makespan == (1 + 10 + 2) + (4 + 6) + 10 + (3 + 5)
    assert list(report.timing.busy) == [9, 12]
    # RECV_F F B SEND_B on rank 1: the transfers lie between their two computations.
    start = report.timing.start[schedule.starts[1] :]
    assert list(start) == [1, 11, 13, 23]
    assert report.timing.end[schedule.starts[1] + 3] == 33
    with pytest.raises(ValueError, match="2 stages"):
        validate(schedule, ActionCosts([1, 2, 3]))


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "reason", "message", "help"),
    [
        ("1f1b", 8, 1, 4, "too-few-microbatches", "m = 4, p = 8", "m >= 8"),
        ("1f1b", 4, 2, 8, "stages-per-rank", "1 stage per rank: v = 2", "`interleaved_1f1b`"),
        ("zb_v", 4, 1, 8, "stages-per-rank", "2 stages per rank: v = 1", "v = 2"),
        ("interleaved_1f1b", 3, 2, 7, "uneven-rounds", "m = 7 does not divide", "m = 6 or m = 8"),
        ("interleaved_zero_bubble", 3, 2, 7, "uneven-rounds", "2 rounds", "multiple of 3"),
        ("dualpipe_v", 4, 2, 7, "too-few-microbatches", "2 p = 8", "m >= 8"),
        ("dualpipe", 3, 2, 8, "odd", "p = 3", "an even p"),
        ("dualpipe", 4, 2, 9, "odd", "m = 9", "an even m"),
        ("dualpipe", 4, 2, 6, "too-few-microbatches", "m = 6", "m >= 8"),
        ("gpipe", 0, 1, 1, "not-positive", "p = 0", "p >= 1"),
        ("looped_bfs", 1, 0, 1, "not-positive", "v = 0", "v >= 1"),
        ("forward_only", 1, 1, 0, "not-positive", "m = 0", "m >= 1"),
        ("zbv", 2, 2, 4, "unknown", "no schedule `zbv`", "did you mean `zb_v`?"),
    ],
)
def test_refusals(name: str, p: int, v: int, m: int, reason: str, message: str, help: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        build(name, p, v, m)
    assert caught.value.reason == reason
    assert message in caught.value.message
    assert help in caught.value.help
    assert str(caught.value) == f"{caught.value.message}\nhelp: {caught.value.help}"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40))
def test_what_the_help_proposes_is_accepted(p: int, m: int) -> None:
    try:
        build("interleaved_1f1b", p, 2, m)
    except ScheduleError as error:
        below, above = (int(word) for word in error.help.replace(",", "").split() if word.isdigit()
                        and int(word) != p)  # fmt: skip
        assert below < m < above
        build("interleaved_1f1b", p, 2, below)
        build("interleaved_1f1b", p, 2, above)


def test_every_entry_names_its_source() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.about, name
        assert entry.source, name
