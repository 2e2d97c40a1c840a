"""Schedules that a user brings, in a table or as a function."""

from pathlib import Path

import pytest

from stagec.schedules import (
    InvalidSchedule,
    ScheduleError,
    build,
    from_csv,
    from_function,
    from_rows,
    text,
    validate,
)

TABLE = "# two ranks, two microbatches\nF0,F1,B0,,B1\nF0,B0,F1,B1\n"


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(TABLE)
    schedule = build("mine.csv", 2, 1, 2, directory=tmp_path)
    assert text(schedule).splitlines() == ["rank 0: F0 F1 B0 B1", "rank 1: F0 B0 F1 B1"]
    assert validate(schedule).bubble == 3
    assert text(from_csv(tmp_path / "mine.csv", 2, 1, 2)) == text(schedule)


def test_what_is_printed_is_read_back() -> None:
    for name, p, v, m in (("1f1b", 4, 1, 6), ("dualpipe", 4, 2, 10), ("zb_v", 3, 2, 6)):
        schedule = build(name, p, v, m)
        rows = [
            [word.replace("~", " ") for word in batches(line).split()]
            for line in text(schedule, transfers=True).splitlines()
        ]
        again = from_rows(name, rows, p, v, m)
        assert text(again, transfers=True) == text(schedule, transfers=True)
        assert validate(again).makespan == validate(schedule).makespan


def batches(line: str) -> str:
    """The actions of a printed line with `~` for the blanks inside of batches."""
    inside, out = False, ""
    for letter in line.split(": ", 1)[1]:
        inside = (inside or letter == "[") and letter != "]"
        out += "~" if inside and letter == " " else letter
    return out


def test_a_table_of_pytorch() -> None:
    """Overlapped pairs and what is done to parameters are spelled as in its CSV files."""
    row = ["0UNSHARD", "0F0", "1F0", "(0F1;1B0)OVERLAP_F_B", None, "(1F1;0B0)OVERLAP_F_B",
           "1B1", "1REDUCE_GRAD", "1RESHARD", "0B1", "0REDUCE_GRAD"]  # fmt: skip
    schedule = from_rows("torch", [row], 1, 2, 2)
    assert text(schedule) == "rank 0: 0F0 1F0 0F1&1B0 1F1&0B0 1B1 0B1"
    assert validate(schedule).makespan == 12


def test_a_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def last_first(p, v, m):\n"
        "    forwards = [f'F{i}' for i in range(m)]\n"
        "    return [forwards + [f'B{i}' for i in reversed(range(m))] for _ in range(p)]\n"
    )
    schedule = build("mine.py:last_first", 2, 1, 2, directory=tmp_path)
    assert text(schedule).splitlines()[0] == "rank 0: F0 F1 B1 B0"
    validate(schedule)


def test_a_function_that_returns_actions() -> None:
    gpipe = build("gpipe", 3, 1, 4)

    def same(p: int, v: int, m: int) -> list:
        return [[a for a in gpipe.actions(rank) if not a.is_transfer] for rank in range(p)]

    assert text(from_function(same, 3, 1, 4)) == text(gpipe)


@pytest.mark.parametrize(
    ("table", "reason", "message"),
    [
        ("F0,B0\n", "ranks", "has 1 row, one per rank, and there are 2 ranks"),
        ("F0,X0\nF0,B0\n", "not-an-action", "`X0` in schedule"),
        ("F0,B0\nF0,B0 F1\n", "not-an-action", "row 2, column 2"),
        ("F0,B1\nF0,B0\n", "unknown", "outside of 2 stages and 1 microbatches (row 1, column 2)"),
        ("F0,2B0\nF0,B0\n", "unknown", "`2B0`"),
    ],
)
def test_bad_tables(tmp_path: Path, table: str, reason: str, message: str) -> None:
    (tmp_path / "bad.csv").write_text(table)
    with pytest.raises(ScheduleError) as caught:
        build("bad.csv", 2, 1, 1, directory=tmp_path)
    assert caught.value.reason == reason
    assert message in caught.value.message
    assert caught.value.help


def test_bad_order_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("F0,B0\nB0,F0\n")
    with pytest.raises(InvalidSchedule, match="rank 1: `B0` stands before `F0`"):
        build("bad.csv", 2, 1, 1, directory=tmp_path)
    (tmp_path / "lacks.csv").write_text("F0\nF0,B0\n")
    with pytest.raises(InvalidSchedule, match="rank 0 lacks `B0`"):
        build("lacks.csv", 2, 1, 1, directory=tmp_path)


def test_stages_need_their_number_when_there_are_several() -> None:
    with pytest.raises(ScheduleError) as caught:
        from_rows("mine", [["F0"]], 1, 2, 1)
    assert "2F0 (stage 2, microbatch 0)" in caught.value.help


def test_missing_files(tmp_path: Path) -> None:
    for name in ("no.csv", "no.py:f"):
        with pytest.raises(ScheduleError) as caught:
            build(name, 2, 1, 2, directory=tmp_path)
        assert caught.value.reason == "unreadable"
    (tmp_path / "mine.py").write_text("f = 3\n")
    with pytest.raises(ScheduleError, match="has no function `f`"):
        build("mine.py:f", 2, 1, 2, directory=tmp_path)
    (tmp_path / "mine.py").write_text("def f(p, v, m):\n    return None\n")
    with pytest.raises(ScheduleError, match="returned `None`"):
        build("mine.py:f", 2, 1, 2, directory=tmp_path)
