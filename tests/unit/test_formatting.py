"""`stagec fmt`: one way to write a text, found in one pass, which says the same and keeps every comment."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from stagec.cli import main
from stagec.diagnostics import CompileError
from stagec.formatting import format_text
from stagec.formatting.words import tokens_of
from stagec.frontend.parser import parse
from stagec.frontend.printing import text_of
from tests.unit.doc_examples import DOCS, examples as doc_examples
from tests.unit.examples import EXAMPLES, FOLDER
from tests.unit.test_fuzz import items

SPACES = (" ", "  ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", " # why\n", "\n# a\n", "\n#b\n\n# c\n")
TEXTS = [(FOLDER / name).read_text() for name in ("gpt.stg", "dlrm.stg", "llama3_8b.stg")]


def comments(text: str) -> list[str]:
    return sorted(line.rstrip() for line in re.findall(r"#[^\n]*", text))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_formatted(path: Path) -> None:
    text = path.read_text()
    assert format_text(text, path.name) == text


PAGES = {
    page: found
    for page in sorted(DOCS.glob("*.md"))
    if (found := [each for each in doc_examples(page) if not each.code.startswith("E01")])
}
"""The examples of each page that has any. Those that show a mistake of the syntax are left as they are."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_the_documentation_are_formatted(page: Path) -> None:
    for each in PAGES[page]:
        assert formatted(each.block, each.part) == each.block, f"{page}:{each.line}"


def formatted(block: str, part: str) -> str:
    """A part of a file, as it would be inside of one."""
    head = {"body": "model M(x[B]) {\n", "plan": "plan p {\n"}.get(part, "")
    if not head:
        return format_text(block)
    inside = format_text(f"{head}{block}}}\n").removeprefix(head).removesuffix("}\n")
    return textwrap.dedent(inside)


@pytest.mark.seldom
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False), st.floats(0, 0.3))
def test_other_spaces_make_no_other_text(text: str, rng, share: float) -> None:
    """Spaces, line breaks and comments between any two words: nothing else that is said changes, and once is enough."""
    noisy, at = "", 0
    for token in tokens_of(text):
        gap = text[at : token.start_pos]
        touching = token.type in ("_CALL", "_INDEX")
        noisy += rng.choice(SPACES) + gap if not touching and rng.random() < share else gap
        noisy += str(token)
        at = token.end_pos or 0
    noisy += text[at:]
    written = format_text(noisy)
    assert parse(written) == parse(text)
    assert comments(written) == comments(noisy.replace("\r", ""))
    assert format_text(written) == written
    assert not re.search(r"[ \t]\n|\n\n\n|\{\n\n|\n\n *\}|^\n", written)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(items, max_size=4))
def test_any_syntax_tree(found) -> None:
    text = "".join(f"{text_of(item)}\n" for item in found)
    try:
        program = parse(text)
    except CompileError:  # such a tree is no program: reserved words as names
        return
    written = format_text(text)
    assert parse(written) == program
    assert format_text(written) == written


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "a.stg"
    model.write_text("dim  B = 2 # two\n")
    (tmp_path / "b.stg").write_text("dim B = 2\n")
    assert main(["fmt", "--check", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "a.stg" in shown
    assert "b.stg" not in shown
    assert model.read_text() == "dim  B = 2 # two\n"
    assert main(["fmt", str(tmp_path)]) == 0
    assert model.read_text() == "dim B = 2  # two\n"
    assert main(["fmt", "--check", str(tmp_path)]) == 0
