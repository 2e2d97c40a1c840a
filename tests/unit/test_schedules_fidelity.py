"""The comparison with PyTorch's runs and the papers' formulas finds nothing, and can."""

import json
from pathlib import Path

import pytest

from stagec.schedules import from_rows
from tests.fidelity.archive import RECORDED
from tests.fidelity.pipelines import compare_all, main, runs_in, runtime
from tests.fidelity.published_pipelines import EVEN, compare_formula, evaluate

MEASURED = RECORDED.with_name("pipelines.jsonl.gz")
"""What PyTorch 2.13's runtime issued, of 40 schedules and sizes."""


@pytest.mark.seldom
def test_agrees_with_pytorch_and_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(MEASURED)]) == 0
    assert ", 0 differ, 0 not compared" in capsys.readouterr().out


def test_tables_of_pytorch_become_its_runtime_order() -> None:
    """A user's table gets the transfers that PyTorch gives it; its lowered table is read as is."""
    seen = 0
    for name, oracle in runs_in(MEASURED):
        if "lowered" not in oracle:
            continue
        p, v, m = (oracle[key] for key in ("ranks", "stages_per_rank", "microbatches"))
        for form in ("table", "lowered"):
            rows = [oracle[form][str(rank)] for rank in range(p)]
            schedule = from_rows(name, rows, p, v, m)
            for rank in range(p):
                assert runtime(schedule, rank) == oracle["runtime"][str(rank)], (name, form)
        seen += 1
    assert seen > 20


def oracle_of_one_rank() -> dict:
    return {
        "schedule": "GPipe", "ranks": 1, "stages_per_rank": 1, "microbatches": 1,
        "stages_of_rank": {"0": [0]}, "runtime": {"0": ["0F0", "0B0"]}, "errors": {},
        "peak_inflight_microbatches_per_stage": {"0": {"0": 1}},
        "peak_inflight_chunks_per_rank": {"0": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"runtime": {"0": ["0F0", "0I0", "0W0"]}}, "action 1: ours 0B0, theirs 0I0"),
        ({"runtime": {"0": ["0F0", "0B0", "0B1"]}}, "action 2: ours nothing, theirs 0B1"),
        ({"stages_of_rank": {"0": [1]}}, "has stages [0], theirs [1]"),
        ({"peak_inflight_chunks_per_rank": {"0": 2}}, "peaks at 1 in flight, theirs 2"),
        ({"peak_inflight_microbatches_per_stage": {"0": {"0": 2}}}, "peaks per stage at"),
        ({"rejected": "ValueError('no')"}, "we accept it, they do not"),
        ({"schedule": "1F1B", "ranks": 2}, "we reject it: "),
        ({"schedule": "1F1B", "ranks": 2, "rejected": "'other'"}, "for too-few-microbatches, they"),
    ],
)
def test_a_difference_is_found(
    tmp_path: Path, change: dict, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.json").write_text(json.dumps(oracle_of_one_rank()))
    assert main([str(tmp_path)]) == 0
    (tmp_path / "bad.json").write_text(json.dumps(oracle_of_one_rank() | change))
    assert main([str(tmp_path)]) == 1
    assert "1 agree, 1 differ" in capsys.readouterr().out
    bad = compare_all(tmp_path)[0]
    assert bad.verdict == "DIFFERS"
    assert note in bad.note


def test_other_schedules_and_failed_runs_are_not_compared(tmp_path: Path) -> None:
    oracle = oracle_of_one_rank()
    (tmp_path / "a.json").write_text(json.dumps(oracle | {"schedule": "Chimera"}))
    (tmp_path / "b.json").write_text(json.dumps(oracle | {"errors": {"0": "gone"}}))
    assert [line.verdict for line in compare_all(tmp_path)] == ["not ours", "no oracle"]
    (tmp_path / "nothing").mkdir()
    assert main([str(tmp_path / "nothing")]) == 1
    assert main([str(tmp_path / "not_there")]) == 2
    assert main([]) == 2


def test_published_formulas_are_read() -> None:
    assert evaluate("(p/2-1)(F&B+B-3W)", p=8, F=1, B=2, W=1, FB=3) == 6
    assert evaluate("min(m, p - i)", m=4, p=8, i=5) == 3
    note = compare_formula("t", "1f1b", "(p-1)(F+B-W)", EVEN, lambda report: report.bubble)[2]
    assert note.startswith("(p-1)(F+B-W) = 2.0, ours 3.0 (p 2")
