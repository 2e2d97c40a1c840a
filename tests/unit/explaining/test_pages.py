"""What `stagec explain` prints of plans whose axes a rule divides, of plans that are equal, and of conditions that nothing meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stagec.cli import main
from stagec.compiled import Compiled
from stagec.driver import compile_checked, compile_text
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.summary import summarize
from stagec.sweeping import plans

SHARED_HEADS = """
dim B = 8
dim S = 8
dim D = 16
dim H = 8
dim K = 2
dim E = 4
dim L = 2

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  return attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
}

model Net(x[B, S, D]) {
  repeat L { x = Attention(x) }
  loss = mean(x, over = [B, S, D])
}

plan p {
  mesh dp = 2, tp = 4
  shard B over dp
  shard H over tp
  shard K over tp { replicate = true }
}
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "net.stg"
    file.write_text(SHARED_HEADS)
    return str(file)


def test_communication_over_parts_of_an_axis() -> None:
    """`tp.K` and `tp.copies` are words of a question, alone and together."""
    compiled = compile_text(SHARED_HEADS, "net.stg")
    job = NamedJob(compiled)
    (own,) = summarize(compiled.module, compiled.counts).classes
    assert {row.axes for row in own.traffic} == {("dp",), ("tp.K", "tp.copies"), ("tp.copies",)}
    for row in own.traffic:
        for what in (f"{'+'.join(row.axes)}.{row.kind}", f"{row.kind}.{'+'.join(row.axes)}"):
            assert ask(job, f"comm.{what}").worst.value == row.operand_bytes
            assert ask(job, f"comm.{what}.count").worst.value == row.count


@pytest.mark.seldom
def test_an_overview_and_a_sweep_of_parts_of_an_axis(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", path]) == 0
    printed = capsys.readouterr().out
    assert "comm.tp.K+tp.copies" in printed
    asked = "comm.tp.K+tp.copies,comm.tp.copies,memory.cache,memory.transposed"
    assert main(["explain", path, asked, "--sweep", "L=1..3", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["comm.tp.copies"] for row in rows] == [512, 1024, 1536]


@pytest.mark.seldom
def test_plans_that_are_equal_are_all_kept(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With another order of axes, say: no plan beats the other."""
    line = ["explain", path, "--sweep", "dp=2,4,8", "tp=1,2,4", "--format", "json"]
    kept: dict[str, list[tuple[int, int]]] = {}
    for names in ("ranks", "ranks,memory.static", "memory.static"):
        assert main([*line, "--pareto", names]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        kept[names] = sorted((row["dp"], row["tp"]) for row in rows)
    assert kept["ranks"] == [(2, 1)]
    assert kept["ranks,memory.static"] == [(2, 1), (2, 2), (2, 4)]
    assert kept["memory.static"] == [(2, 4), (4, 4), (8, 4)]


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("comm.dp.count < 5", "largest: L = 1 (comm.dp.count = 4) not met: L = 2"),
        ("flops > 1T", "L = 256 (flops = "),
        ("memory.peak < 100kB", "13 were tried, and 13 can be compiled) smallest: L = 1 "),
        ("memory.static < 10", "L = 1 (memory.static = 6,144, 6.144 kB) comes closest"),
        ("memory.static >= 1TB", "L = 256 (memory.static = 1,572,864, 1.573 MB) comes closest"),
    ],
)
def test_conditions(
    condition: str, told: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes closest is on the other side of the limit, and counts are no bytes."""
    main(["explain", path, "--solve", condition, "--for", "L"])
    assert told in " ".join(capsys.readouterr().out.split())


def test_values_that_cannot_be_compiled_are_not(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside one that can be: few of thousands of sizes of microbatches divide a batch."""
    compiled: list[object] = []

    def noted(*given: Any, **named: Any) -> Compiled:
        compiled.append(given)
        return compile_checked(*given, **named)

    monkeypatch.setattr(plans, "compile_checked", noted)
    assert main(["explain", path, "--solve", "memory.peak < 1GB", "--for", "microbatch"]) == 0
    assert "3 can be compiled" in " ".join(capsys.readouterr().out.split())
    assert 0 < len(compiled) < 12
