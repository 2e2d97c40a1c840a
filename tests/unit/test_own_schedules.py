"""Schedules that a user brings: the page's example as it stands, and whatever may be wrong with one."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from stagec.cli import main
from tests.unit.doc_examples import DOCS, PARTS
from tests.unit.seldom import some

PAGE = (DOCS / "language.md").read_text("utf-8")
FILES = dict(re.findall(r"^```\w+ (mine\.\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PLAN = next(
    block
    for block in re.findall(r"^```stg plan\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    if "mine.py" in block
)


def model(folder: Path, schedule: str, plan: str = PLAN) -> str:
    path = folder / "model.stg"
    path.write_text(PARTS["plan"].format(block=plan.replace("mine.py:one_ahead", schedule)))
    return str(path)


def test_function_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text(FILES["mine.py"])
    assert main([model(tmp_path, "mine.py:one_ahead"), "--schedule", "--allow-code"]) == 0
    printed = capsys.readouterr().out
    assert "rank 0: F0 F1 F2 B0 F3 B1 B2 B3\nrank 1: F0 F1 B0 F2 B1 F3 B2 B3\n" in printed


def test_table_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.csv").write_text(FILES["mine.csv"])
    traces = tmp_path / "traces"
    assert main([model(tmp_path, "mine.csv"), "--schedule", "-o", str(traces)]) == 0
    printed = capsys.readouterr().out
    assert "rank 0: F0 F1 B0 F2 B1 F3 B2 B3\nrank 1: F0 B0 F1 B1 F2 B2 F3 B3\n" in printed
    inputs = json.loads((traces / "manifest.json").read_text())["about"]["inputs"]
    assert set(inputs) == {"model.stg", "mine.csv"}
    assert main(["check", str(traces)]) == 0


PYTHON = """
def raises(p, v, m):
    return 1 / 0

def leaves(p, v, m):
    raise SystemExit(0)

def numbers(p, v, m):
    return [[1, 2], [3]]

def not_rows(p, v, m):
    return [["F0"], 3]

def nothing(p, v, m):
    pass

def generates(p, v, m):
    yield ["F0", "B0"]

def takes_one(p):
    return []

constant = 3
"""
TABLES = {
    "letters.csv": "F0,F1\nF0,Q1\n",
    "short.csv": "F0,B0\n",
    "empty.csv": "",
    "outside.csv": "F0,F9\nF0\n",
    "incomplete.csv": "F0,F1,F2,F3,B0,B1,B2\nF0,F1,F2,F3,B0,B1,B2,B3\n",
    "backwards.csv": "F0,F1,F2,F3,B0,B1,B2,B3\nB0,F0,F1,F2,F3,B1,B2,B3\n",
    "stuck.csv": "F0,B0,F1,B1,F2,B2,F3,B3\nF0,F1,B0,B1,F2,B2,F3,B3\n",
    "forward.csv": "F0,F1,F2,F3\nF0,F1,F2,F3\n",
    "half_sent.csv": "F0,SEND_F0,F1,F2,F3,B0,B1,B2,B3\nRECV_F0,F0,F1,F2,F3,B0,B1,B2,B3\n",
}
WRONG = {
    "letters.csv": "`Q1` in schedule",
    "short.csv": "has 1 row, one per rank, and there are 2 ranks",
    "empty.csv": "has 0 rows, one per rank, and there are 2 ranks",
    "outside.csv": "is outside of 2 stages and 4 microbatches",
    "incomplete.csv": "rank 0 lacks `B3`, B of stage 0 and microbatch 3",
    "backwards.csv": "rank 1: `B0` stands before `F0`, which it needs",
    "stuck.csv": "deadlocks: rank 0 never gets past `B0`",
    "forward.csv": "has no backward passes, and the model has a loss to train",
    "half_sent.csv": "rank 0 lacks `SEND_F1`, SEND_F of stage 0 and microbatch 1",
    "absent.csv": "cannot read the schedule",
    "folder.csv": "cannot read the schedule",
    "bytes.csv": "cannot read the schedule",
    "mine.py:raises": "failed: ZeroDivisionError: division by zero (mine.py, line 3)",
    "mine.py:leaves": "failed: SystemExit: 0 (mine.py, line 6)",
    "mine.py:numbers": "`1` in schedule",
    "mine.py:not_rows": "returned `3` as the actions of a rank",
    "mine.py:nothing": "returned `None`, not the actions of each rank",
    "mine.py:generates": "returned a generator, not the actions of each rank",
    "mine.py:takes_one": "failed: TypeError: takes_one() takes 1 positional argument",
    "mine.py:constant": "has no function `constant`",
    "mine.py:absent": "has no function `absent`",
    "absent.py:f": "there is no file",
    "syntax.py:f": "failed: SyntaxError: ",
    "import.py:f": "failed: RuntimeError: not today (import.py, line 1)",
    "1f1": "no schedule `1f1`",
    "": "no schedule ``",
}


@pytest.mark.parametrize("schedule", some(WRONG, 4))
def test_what_is_wrong_is_said_once(
    schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.py").write_text(PYTHON)
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "import.py").write_text('raise RuntimeError("not today")\n')
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
    out = tmp_path / "traces"
    assert main([model(tmp_path, schedule), "-o", str(out), "--allow-code"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("error[") == printed.count("error[E0409]") == 1
    assert WRONG[schedule] in printed
    # It is shown where the plan names the schedule, with advice.
    assert f'schedule = "{schedule}"' in printed
    assert "= help: " in printed
    assert not out.exists()


def test_a_deadlock_says_who_waits_for_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "stuck.csv").write_text(TABLES["stuck.csv"])
    assert main([model(tmp_path, "stuck.csv")]) == 1
    printed = capsys.readouterr().err
    assert "= note: rank 0 waits at B0 for B0 of rank 1\n" in printed
    assert "= note: rank 1 waits at F1 for F1 of rank 0\n" in printed


def test_a_schedule_is_beside_the_file_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "mine.csv").write_text(FILES["mine.csv"])
    model(folder, "mine.csv")
    whole = tmp_path / "whole.stg"
    whole.write_text(
        'import "shared/model.stg"\nmodel Two(x[B, S, D]) {\n'
        "  repeat L { x = Block(x) }\n  loss = mean(x, over = [B, S, D])\n}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["whole.stg", "--plan", "p", "--schedule"]) == 0
    assert "schedule shared/mine.csv: 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_is_wrong_is_shown(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """In its line of the table, whatever comments and empty lines are above."""
    draws = random.Random(seed)
    rows = [line for line in FILES["mine.csv"].splitlines() if line and not line.startswith("#")]
    number = draws.randrange(len(rows))
    cells = rows[number].split(",")
    cells[draws.randrange(len(cells))] = "F99" if seed % 2 else "XX"
    rows[number] = wrong = ",".join(cells)
    lines = [line for row in rows for line in (*draws.choices(["", "# a"], k=2), row)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    assert main([model(tmp_path, "mine.csv"), "-q"]) == 1
    printed = capsys.readouterr().err
    place = lines.index(wrong) + 1
    assert f"--> {tmp_path / 'mine.csv'}:{place}:1\n" in printed
    assert f"{place} | {wrong}\n" in printed
    assert "the plan names it" in printed
