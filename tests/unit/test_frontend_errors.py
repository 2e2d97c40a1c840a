"""The lit tests of the frontend, letter for letter: FileCheck would forgive white space."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stagec.diagnostics import CompileError, Mistake, render
from stagec.frontend import check, lower, parse_file, parse_text, warnings_of

FOLDER = Path(__file__).parents[1] / "lit" / "frontend"
FILES = [
    path
    for path in sorted(FOLDER.rglob("*.stg"))
    if "inputs" not in path.parts and re.search("^# CHECK: (error|warning)", path.read_text(), re.M)
]
LEAST = 60
"""Distinct wrong inputs, of the language and its plans alone."""


def expected(text: str) -> str:
    """The rendering that the CHECK lines spell."""
    found = re.findall(r"^# CHECK(?:-NEXT|-EMPTY)?:(?: (.*))?$", text, re.MULTILINE)
    return "".join(f"{line}\n" for line in found)


def arguments(text: str) -> tuple[str | None, dict[str, str]]:
    """`--plan` and `--set` of the RUN line."""
    command = re.search(r"^# RUN: (.*?) 2>&1", text, re.MULTILINE)
    assert command
    words = shlex.split(command[1])
    plans = [words[i + 1] for i, word in enumerate(words) if word == "--plan"]
    sets = [words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set"]
    return (plans[0] if plans else None), dict(sets)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_rendering(path: Path):
    text = path.read_text("utf-8")
    plan, sets = arguments(text)
    try:
        source = parse_file(path)
        checked = check(source, plan, sets)
        found = render(warnings_of(checked, lower(checked)), source.texts)
    except CompileError as error:
        found = error.render()
    assert found.replace(str(path.parent), "{{.*}}") == expected(text)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("model M(x[N]) { loss = mean(x * N, over = [N]) }", Mistake("no dim", "N")),
        ("dim N = 4 model M(x[N]) { loss = mean(y, over = [N]) }", Mistake("no value", "y", "M")),
        ("dim N = 4 dim x = 4 model M(x[N]) { }", Mistake("name of a dim", "x")),
        ("dim N = 4 model M(x[N]) { } plan p extends q { }", Mistake("no plan", "q")),
    ],
)
def test_a_mistake_says_its_name(text: str, mistake: Mistake):
    with pytest.raises(CompileError) as caught:
        check(parse_text(text))
    assert caught.value.diagnostics[0].mistake == mistake


def test_there_are_enough():
    assert len(FILES) >= LEAST


def test_each_is_another():
    renderings = [expected(path.read_text("utf-8")) for path in FILES]
    assert len(set(renderings)) == len(renderings)
