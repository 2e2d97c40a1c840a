"""What commands print fits 80 columns, whatever the names in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagec.cli import main
from stagec.cli.names import COMMANDS
from tests.unit.seldom import some

GPT = str(Path(__file__).parents[2] / "examples" / "gpt.stg")
SMALL = ("--set", "L=2")

SCREENS = (
    ["--help"],
    *([command, "--help"] for command in COMMANDS),
    ["examples"],
    ["devices"],
    ["devices", "h100"],
    ["ops"],
    ["passes"],
    ["ops", "attention"],
    ["ops", "dist.all_gather"],
    [GPT, *SMALL],
    [GPT, *SMALL, "--memory"],
    [GPT, *SMALL, "--timeline"],
    [GPT, *SMALL, "--schedule"],
    ["explain", GPT, *SMALL],
    ["explain", GPT, *SMALL, "comm"],
    ["explain", GPT, *SMALL, "memory.peak"],
    ["explain", GPT, *SMALL, "node", "12"],
    ["explain", GPT, *SMALL, "--solve", "memory.peak < 5GiB", "--for", "microbatch"],
    ["diff", GPT, GPT, "--set-b", "L=2"],
    ["report", GPT],
)


@pytest.mark.parametrize(
    "command", some(SCREENS, 9), ids=lambda words: " ".join(map(str, words[:4]))[-40:]
)
def test_screens_fit(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        raise SystemExit(main(command))
    assert end.value.code in (0, 3)
    said = capsys.readouterr()
    assert said.out and not said.err
    assert not [line for line in said.out.splitlines() if len(line) > 80]
