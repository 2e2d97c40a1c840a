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


def test_main_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The command sets up, installs and runs; what it runs prints what the README shows."""
    set_up, install, run = (shlex.split(part) for part in COMMANDS[0].split(" && "))
    assert set_up == ["python3", "-m", "venv", ".venv"]
    assert install == [".venv/bin/pip", "install", "."]
    assert run[0] == ".venv/bin/stagec"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(run[1:]) == 0
    assert capsys.readouterr().out == SUMMARY
    assert len(list((tmp_path / "traces").glob("Gpt.*.et"))) == 32
    assert main(["check", "traces/"]) == 0


def test_test_command_is_the_one_of_ci():
    """`.ci/run` installs and runs the same, in a fresh environment of its own."""
    script = (ROOT / ".ci" / "run").read_text()
    _, install, test = (shlex.split(part) for part in COMMANDS[1].split(" && "))
    assert install == [".venv/bin/pip", "install", ".[test]"]
    assert test == [".venv/bin/pytest"]
    assert "install -q '.[test]'" in script
    assert re.search(r"^\S*pytest\b[^|]*$", script, re.MULTILINE)


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert [t for t in targets if not t.startswith("http") and not (ROOT / t).exists()] == []


def test_it_fits_on_a_screen():
    assert TEXT.count("\n") < 80
