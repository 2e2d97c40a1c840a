"""How diagnostics are shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xdsl.dialects.builtin import UnknownLoc

from stagec.diagnostics import (
    WIDEST_LINE,
    CompileError,
    Diagnostic,
    Diagnostics,
    Span,
    closest,
    did_you_mean,
    location_of,
    quoted,
    render,
    span_of,
)


def shown(diagnostic: Diagnostic, **sources: str) -> list[str]:
    return render([diagnostic], sources).rstrip("\n").split("\n")


def test_the_example_of_the_style_guide():
    diagnostic = Diagnostic(
        "E0301",
        "dim 1 of size 6 does not split over axis `tp`",
        Span("tiny", 3, 7, 3, 8),
        "makes a tensor<8x6xf32>",
        notes=["axis `tp` has size 4"],
        help="choose a size for `tp` that divides 6",
    )
    assert shown(diagnostic, tiny="\n\n  y = matmul(x, w)\n") == [
        "error[E0301]: dim 1 of size 6 does not split over axis `tp`",
        " --> tiny:3:7",
        "  |",
        "3 |   y = matmul(x, w)",
        "  |       ^ makes a tensor<8x6xf32>",
        "  = note: axis `tp` has size 4",
        "  = help: choose a size for `tp` that divides 6",
    ]


def test_a_place_without_an_end_is_the_word_there():
    diagnostic = Diagnostic("E0201", "m", Span.point("f", 1, 5))
    assert shown(diagnostic, f="y = matmul(x)")[-1] == "  |     ^^^^^^"


def test_lines_apart_are_shown_in_order_with_a_gap():
    diagnostic = Diagnostic(
        "E0202", "m", Span("f", 9, 1, 9, 2), secondary=[(Span("f", 2, 1, 2, 2), "first")]
    )
    lines = shown(diagnostic, f="\n".join("abcdefghi"))
    assert lines[1:] == [
        " --> f:9:1",
        "  |",
        "2 | b",
        "  | - first",
        "...",
        "9 | i",
        "  | ^",
    ]


def test_the_line_between_two_is_shown():
    diagnostic = Diagnostic(
        "E0202", "m", Span("f", 3, 1, 3, 2), secondary=[(Span("f", 1, 1, 1, 2), "")]
    )
    assert "2 | b" in shown(diagnostic, f="a\nb\nc")


def test_two_marks_in_one_line_stand_below_each_other():
    diagnostic = Diagnostic(
        "E0205",
        "m",
        Span("f", 1, 5, 1, 6),
        "this",
        secondary=[(Span("f", 1, 1, 1, 2), "that")],
    )
    assert shown(diagnostic, f="a + b")[-2:] == ["  | - that", "  |     ^ this"]


def test_other_files_follow():
    diagnostic = Diagnostic(
        "E0202", "m", Span("f", 1, 1, 1, 2), secondary=[(Span("g", 12, 3, 12, 4), "first here")]
    )
    assert shown(diagnostic, f="a", g="\n" * 11 + "  b") == [
        "error[E0202]: m",
        "  --> f:1:1",
        "   |",
        " 1 | a",
        "   | ^",
        "  ::: g:12:3",
        "   |",
        "12 |   b",
        "   |   - first here",
    ]


def test_what_has_no_place_has_an_origin():
    diagnostic = Diagnostic("E0702", "m", origin="--set foo=3", help="did you mean `for`?")
    assert shown(diagnostic) == [
        "error[E0702]: m",
        " --> --set foo=3",
        "  = help: did you mean `for`?",
    ]


def test_a_file_that_is_not_there_is_named_without_its_text():
    diagnostic = Diagnostic("E0201", "m", Span("nothing/here", 3, 1, 3, 2))
    assert shown(diagnostic) == ["error[E0201]: m", " --> nothing/here:3:1"]


def test_a_file_that_was_not_given_is_read(tmp_path):
    path = tmp_path / "a.stg"
    path.write_text("dim A = B\n")
    assert "1 | dim A = B" in shown(Diagnostic("E0201", "m", Span(str(path), 1, 9, 1, 10)))


def test_a_span_over_lines_is_marked_on_its_first():
    diagnostic = Diagnostic("E0213", "m", Span("f", 1, 3, 3, 2))
    assert shown(diagnostic, f="a { b\n\n}")[-1] == "  |   ^^^"


def test_tabs_and_wide_characters_keep_the_caret_in_place():
    text = "\ty = 漢x"
    diagnostic = Diagnostic("E0201", "m", Span("f", 1, 7, 1, 8))
    line, caret = shown(diagnostic, f=text)[-2:]
    assert line == "1 |     y = 漢x"
    assert caret == "  |           ^"  # one column more: that character is two wide


def test_nothing_can_move_the_cursor():
    diagnostic = Diagnostic("E0101", "bad \x1b[2J", Span("f\x07", 1, 1, 1, 2), "\r")
    text = render([diagnostic], {"f\x07": "\x1b[31mred\u202e"})
    assert not any(c in text for c in "\x1b\x07\r\u202e")


def test_long_lines_are_cut_around_the_place():
    text = "x" * 1000 + "HERE" + "y" * 1000
    line, caret = shown(Diagnostic("E0101", "m", Span("f", 1, 1001, 1, 1005)), f=text)[-2:]
    assert len(line) <= WIDEST_LINE + 12
    assert line.index("HERE") == caret.index("^^^^")


def test_long_advice_keeps_its_lines():
    diagnostic = Diagnostic("E0101", "m", help="write\n  this")
    assert shown(diagnostic)[-2:] == ["  = help: write", "            this"]


def test_an_unknown_code_is_our_mistake():
    with pytest.raises(AssertionError):
        Diagnostic("E9999", "m")


def test_findings_keep_the_first_of_equals_and_the_order_of_the_text():
    findings = Diagnostics()
    later = Diagnostic("E0201", "later", Span("f", 2, 1, 2, 2))
    findings.add(later)
    findings.add(Diagnostic("W0201", "doubt", Span("f", 1, 1, 1, 2)))
    findings.add(Diagnostic("E0201", "first", Span("f", 1, 5, 1, 6)))
    findings.add(later)
    assert [d.message for d in findings.errors] == ["first", "later"]
    assert [d.message for d in findings.warnings] == ["doubt"]
    with pytest.raises(CompileError) as caught:
        findings.raise_errors({"f": "text"})
    assert caught.value.render().startswith("error[E0201]: first\n --> f:1:5\n")


def test_warnings_alone_raise_nothing():
    findings = Diagnostics()
    findings.add(Diagnostic("W0201", "doubt"))
    findings.raise_errors({})


def test_spans_survive_the_ir():
    span = Span.point("f.stg", 3, 7)
    assert span_of(location_of(span)) == span
    assert span_of(UnknownLoc()) is None


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("hiden", ["hidden", "tokens"], "hidden"),
        ("TP", ["tp", "pp"], "tp"),
        ("x", ["completely"], None),
        ("same", ["same"], None),
    ],
)
def test_spelling(name: str, known: list[str], found: str | None):
    assert closest(name, known) == found
    assert did_you_mean(name, known) == (f"did you mean `{found}`?" if found else "")


def test_lists_for_people():
    assert quoted([]) == ""
    assert quoted(["a"]) == "`a`"
    assert quoted("abc", last="or") == "`a`, `b` or `c`"


def test_what_no_text_can_be_read_from_is_named_alone(tmp_path: Path) -> None:
    """IR may say any file: one that never ends, or that nobody writes to, is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    for file in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        shown = render([Diagnostic("E0709", "something", Span.point(file, 1, 2))])
        assert f"--> {file}:1:2" in shown
        assert " | " not in shown
