"""docs/python.md and the notebook do what they say."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

import stagec
from tests.unit.reports.test_pages import check_whole

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.seldom
def test_blocks_run_and_print_what_follows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    printed = ""
    for kind, text in BLOCK.findall(PAGE):
        if kind == "text":
            assert printed == text
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(text, names)
        printed = out.getvalue()


def test_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells, one after the other; what a cell ends in shows itself as a whole picture or table."""
    notebook = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text())
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(ROOT / "examples")
    names: dict[str, object] = {}
    shown = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        *body, last = "".join(cell["source"]).strip().split("\n")
        exec("\n".join(body), names)
        try:
            value = eval(last, names)
        except SyntaxError:
            exec(last, names)
            continue
        if hasattr(value, "_repr_html_"):
            check_whole(value._repr_html_())
            shown += 1
    assert shown >= 4


def test_tables_are_columns() -> None:
    table = stagec.Table.of_rows(("a", "b"), [(1, "x"), (2, "y")])
    assert dict(table) == {"a": [1, 2], "b": ["x", "y"]}
    assert list(table.rows()) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert repr(table).splitlines()[0].split() == ["a", "b"]


def test_a_text_compiles_and_an_error_shows_the_diagnostic() -> None:
    text = "dim B = 8\nmodel Net(x[B]) {\n  weight w[B]\n  loss = mean(x * w, over = B)\n}\n"
    assert stagec.compile(text).num_ranks == 1
    with pytest.raises(stagec.CompileError) as caught:
        stagec.compile(text.replace("mean(x", "mean(y"))
    assert " --> <text>:4:15" in str(caught.value)


def words(text: str) -> str:
    """Without where lines are broken."""
    return " ".join(text.split())


def test_values_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The first screen of the README."""
    job = stagec.compile(ROOT / "examples" / "gpt.stg")
    shown = words((ROOT / "README.md").read_text())
    for line in job.headline.lines():
        assert words(line) in shown
    assert f"{job.num_parameters:,}" in shown
