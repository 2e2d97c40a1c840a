"""docs/writing_a_pass.md and docs/adding_an_op.md, followed literally: their files are written, their commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lit.ShUtil import ShParser

from stagec.dialects.work import Work
from tests.lit.tools.script import Shell

ROOT = Path(__file__).parents[2]
PAGES = {"writing_a_pass": (7, 8), "adding_an_op": (6, 4)}
"""Commands and outputs of each page."""
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOL = """#!{python}
import sys
sys.path.insert(0, {root!r})
from stagec.cli import {function}
sys.exit({function}())
"""


@dataclass(frozen=True)
class Block:
    """A fenced block. One with a name is a file, `sh` are commands, `text` is in what they print."""

    kind: str
    name: str
    text: str


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


def blocks(page: str) -> Iterator[Block]:
    for kind, name, text in BLOCK.findall(text_of(page)):
        yield Block(kind, name, text)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lit, which starts processes, finds the tools of this tree, installed or not."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, function in (("stagec", "main"), ("stagec-opt", "opt_main")):
        tool = folder / name
        text = TOOL.format(python=sys.executable, root=str(ROOT), function=function)
        tool.write_text(text)
        tool.chmod(0o755)
    path = os.pathsep.join([str(folder), os.path.dirname(sys.executable), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)


def run(line: str) -> tuple[int, str]:
    """Exit status and output of a command: stagec's in this process, lit's, which starts processes, in one of its own."""
    if line.startswith("lit "):
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    return Shell().run(ShParser(line, pipefail=True).parse())


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.seldom
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    printed: list[str] = []
    num_commands = num_outputs = 0
    for block in blocks(page):
        if block.name:
            (folder / block.name).write_text(block.text)
        elif block.kind == "sh":
            printed = []
            for line in block.text.splitlines():
                status, log = run(line)
                assert status == 0, log
                printed += squeezed(log)
            num_commands += 1
        elif block.kind == "text":
            for line in squeezed(block.text):
                assert any(line in shown for shown in printed), (line, printed)
            num_outputs += 1
    assert (num_commands, num_outputs) == PAGES[page]


def test_gradients_of_an_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the page says about numbers, and that they find a gradient that is none."""
    monkeypatch.chdir(tmp_path)
    files = {block.name: block.text for block in blocks("adding_an_op")}
    op, test = Path("add_rms_norm.py"), files["test_add_rms_norm.py"]
    op.write_text(files["add_rms_norm.py"])
    made: dict[str, Callable[[], None]] = {}
    exec(test, made)
    made["test_gradients"]()
    op.write_text(files["add_rms_norm.py"].replace("terms = [dtotal] if", "terms = [dnormal] if"))
    with pytest.raises(AssertionError):
        made["test_gradients"]()


def test_kinds_of_work():
    named = re.findall(r"`([A-Z_]+)`", text_of("adding_an_op").partition("**Kinds of `Work`**")[2])
    assert {each.name for each in Work} <= set(named)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_is_named_in_the_text(page: str):
    text = text_of(page)
    for block in blocks(page):
        if block.name:
            assert f"`{block.name}`:\n\n```" in text
