"""The README is true: its model, its commands and what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stagec.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [text.strip() for kind, text in BLOCKS if kind == "sh"]
MODEL, SUMMARY = (text for kind, text in BLOCKS if not kind)


def test_model_is_the_example():
    assert (ROOT / "examples" / "gpt.stg").read_text() == MODEL


SET_UP = ["python3 -m venv .venv", ". .venv/bin/activate"]


def test_main_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The command sets up, installs and runs; what it runs prints what the README shows."""
    *set_up, install, run = COMMANDS[0].split(" && ")
    assert set_up == SET_UP
    assert install == "pip install ."
    name, *arguments = shlex.split(run)
    assert name == "stagec"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0
    assert capsys.readouterr().out == SUMMARY
    assert len(list((tmp_path / "traces").glob("Gpt.*.et"))) == 32
    assert main(["check", "traces/"]) == 0


def test_ci_runs_the_commands_one_after_the_other():
    """`.ci/run` does what is written here, in one clone; other checks come before the tests."""
    *set_up, install, test = COMMANDS[1].split(" && ")
    assert set_up == SET_UP
    assert install == "pip install '.[test]'"
    assert test == "pytest"
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    wanted = [COMMANDS[0], " && ".join([*set_up, install]), test]
    assert [line for line in lines if line in wanted] == wanted


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert [t for t in targets if not t.startswith("http") and not (ROOT / t).exists()] == []


def test_it_fits_on_a_screen():
    assert TEXT.count("\n") < 90
