"""Every code is raised, explained in docs/errors.md, and tested; every example there is wrong so."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from stagec.checking.finding_codes import CODES as TRACE_CODES
from stagec.diagnostic_codes import CODES
from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.frontend import check, lower, parse_text, warnings_of
from stagec.frontend.checker import pools_in
from stagec.pools import compile_pools
from tests.unit.doc_examples import DOCS, Example, examples

ROOT = Path(__file__).parents[2]
PAGE = DOCS / "errors.md"
TEXT = PAGE.read_text("utf-8")
CODE = re.compile(r"\b[EW]0\d{3}\b")

TESTED_BY_CHECKING = re.compile(r"[EW]06")
"""Codes of `stagec check` and of the writer: their own tests see to them."""


def codes_in(folder: str, *suffixes: str) -> set[str]:
    """Codes that are quoted, or stand alone, in the files below a folder."""
    found: set[str] = set()
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in suffixes and path.name not in (
            "diagnostic_codes.py",
            "finding_codes.py",
            Path(__file__).name,
        ):
            found |= set(CODE.findall(path.read_text("utf-8", errors="replace")))
    return found


WRITER_CODES = set(re.findall(r"^\| (E06\d\d) \| [^|]* \|$", TEXT, re.MULTILINE))
"""Those of the writer of traces, which stand in a table of their own."""


@cache
def raised() -> set[str]:
    return codes_in("stagec", ".py") | codes_in("passes", ".py")


@cache
def raised_by_tests() -> set[str]:
    return codes_in("tests", ".py", ".stg", ".mlir")


@pytest.mark.parametrize("code", sorted(CODES))
def test_code_is_explained(code: str):
    assert f"## {code}: {CODES[code]}\n" in TEXT


def table_of_traces() -> str:
    """What docs/errors.md says of the codes of `stagec check`."""
    rows = [
        f"| {c} | {TRACE_CODES[c].title} | {TRACE_CODES[c].help} |" for c in sorted(TRACE_CODES)
    ]
    return "\n".join(["| code | | |", "|---|---|---|", *rows]) + "\n"


def test_codes_of_traces_are_listed():
    """`python -m tests.unit.test_error_codes` writes the table."""
    assert table_of_traces() in TEXT


def test_nothing_else_is_explained():
    headings = set(re.findall(r"^## (\w+):", TEXT, re.MULTILINE))
    assert headings == set(CODES)


def test_every_code_is_raised():
    assert set(CODES) - raised() == set()


def test_every_raised_code_is_known():
    known = {*CODES, *TRACE_CODES, *WRITER_CODES}
    assert raised() - known == set()


@pytest.mark.parametrize("code", sorted(c for c in CODES if not TESTED_BY_CHECKING.match(c)))
def test_code_has_a_test(code: str):
    assert code in raised_by_tests() | {example.code for example in examples(PAGE)}


@pytest.mark.parametrize("example", examples(PAGE), ids=lambda e: e.code)
def test_example_is_wrong_so(example: Example):
    try:
        source = parse_text(example.program, str(PAGE))
        if pools_in(source, None) and example.code != "E0422":
            compile_pools(source, None, {})
        checked = check(source)
        found = {w.code for w in warnings_of(checked, lower(checked))}
        if not found:
            compile_text(example.program, str(PAGE))
    except CompileError as error:
        found = {d.code for d in error.diagnostics}
    assert found == {example.code}


def test_most_codes_have_an_example():
    shown = {e.code for e in examples(PAGE)}
    needs_no_text = {"E0106", "E0107", "E0216", "E0217", "E0218", "E0410", "E0418", "E0419"}
    expected = {c for c in CODES if c[1:3] in ("01", "02", "03", "04")} - needs_no_text
    assert expected - shown == set()


if __name__ == "__main__":
    BEFORE, AFTER = "how to solve them:\n\n", "\n## E0613"
    head, rest = TEXT.split(BEFORE)
    PAGE.write_text(head + BEFORE + table_of_traces() + AFTER + rest.split(AFTER)[1], "utf-8")
