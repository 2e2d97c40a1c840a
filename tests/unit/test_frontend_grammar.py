"""The grammar is free of conflicts, and its rules are the syntax classes."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest
from lark import Lark
from lark.exceptions import GrammarError

from stagec.diagnostics import CompileError
from stagec.frontend import syntax
from stagec.frontend.keywords import CLAUSES, DEFINITIONS, RESERVED, SETTING_WORDS
from stagec.frontend.parser import (
    DEEPEST,
    MOST_TOKENS,
    build_parser,
    check_length,
    class_name,
    grammar_text,
    parse,
    tables_file,
)
from stagec.frontend.printing import text_of
from stagec.frontend.syntax_errors import TERMINAL_NAMES
from stagec.plans import clauses

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def whole_parser() -> Lark:
    """As Lark builds it. Nobody changes what this returns."""
    return build_parser()


def built_rules() -> set[str]:
    """Rules that build something: not those that stand for their parts."""
    rules = whole_parser().rules
    names = {str(r.alias or r.origin.name) for r in rules if r.alias or not r.options.expand1}
    return {n for n in names if not n.startswith("_") and not n.endswith("_list")}


def test_no_conflicts():
    build_parser(strict=True)


def test_a_conflict_would_be_found(monkeypatch: pytest.MonkeyPatch):
    ambiguous = grammar_text().replace('"return" expr_list', '"return" expr_list?')
    assert ambiguous != grammar_text()
    monkeypatch.setattr("stagec.frontend.parser.grammar_text", lambda: ambiguous)
    with pytest.raises(GrammarError, match="conflict"):
        build_parser(strict=True)


def test_tables_are_kept_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is read back parses alike; a broken file, or one of another grammar, is built again."""
    file = tmp_path / "stg.tables"
    built = build_parser(tables=str(file))
    kept = file.read_bytes()
    text = "dim A = 1\nmodule F(x[A]) -> [A] {\n  return x\n}\n"
    assert build_parser(tables=str(file)).parse(text) == built.parse(text)
    assert file.read_bytes() == kept
    file.write_bytes(kept[: len(kept) // 2])
    assert build_parser(tables=str(file)).parse(text) == built.parse(text)
    other = grammar_text().replace('"module"', '"part"')
    monkeypatch.setattr("stagec.frontend.parser.grammar_text", lambda: other)
    assert build_parser(tables=str(file)).parse(text.replace("module", "part"))


def test_steps_that_are_left_out_change_nothing(monkeypatch: pytest.MonkeyPatch):
    """Neither what a text says nor where."""
    texts = [
        path.read_text("utf-8") for path in (EXAMPLES / "gpt.stg", EXAMPLES / "mixtral_8x22b.stg")
    ]
    fast = [parse(text) for text in texts]
    monkeypatch.setattr("stagec.frontend.parser.parser", whole_parser)
    assert [parse(text) for text in texts] == fast
    assert [spans(parse(text)) for text in texts] == [spans(each) for each in fast]


def spans(node: object) -> list[object]:
    """Where each part of a syntax tree stands, in order."""
    if isinstance(node, tuple):
        return [place for part in node for place in spans(part)]
    if not isinstance(node, syntax.SyntaxNode):
        return []
    return [node.span, *(place for part in vars(node).values() for place in spans(part))]


def test_tables_are_where_python_keeps_what_it_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert Path(tables_file() or "").parent.name == "__pycache__"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert tables_file() is None


def test_each_rule_builds_a_class_and_each_class_has_a_rule():
    classes = {c.__name__ for c in vars(syntax).values() if isinstance(c, type)}
    assert {class_name(rule) for rule in built_rules()} == classes - {"SyntaxNode", "Name"}


def test_reserved_words_are_those_that_name_nothing_in_the_grammar():
    for word in RESERVED:
        with pytest.raises(CompileError):
            parse(f"dim {word} = 1")
    for free in ("mesh", "over", "plan_", "in", "extends", "zero", "set", "1f1b"):
        assert parse(f"dim {free} = 1").items


def test_every_terminal_can_be_named_in_a_diagnostic():
    lark = whole_parser()
    named = {t.name for t in lark.terminals if t.pattern.type == "str"} | set(TERMINAL_NAMES)
    assert {t.name for t in lark.terminals} - named == set(lark.ignore_tokens)


def test_definitions_are_the_items_of_a_program():
    rule = next(line for line in grammar_text().split("\n") if line.startswith("_item:"))
    items = {part.strip() for part in rule.removeprefix("_item:").split("|")}
    assert items == {"import_file" if d == "import" else d for d in DEFINITIONS}


def test_nodes_know_where_they_stand():
    text = "dim A = 1\n\nmodule F(x[A]) -> [A] {\n  return (x * 2)[A -> A]\n}\n"
    module = parse(text, "f.stg").items[1]
    assert (module.span.file, module.span.line, module.span.column) == ("f.stg", 3, 1)
    assert (module.span.end_line, module.span.end_column) == (5, 2)
    assert isinstance(module, syntax.Module)
    (statement,) = module.body.statements
    assert isinstance(statement, syntax.Return)
    span = statement.values[0].span
    assert text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1].endswith(
        "x * 2)[A -> A]"
    )


def test_nodes_are_equal_wherever_they_stand():
    assert parse("dim A = 1 + 2") == parse("# other\n\n  dim A=1+2", "elsewhere")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a - b - c", "(a - b) - c"),
        ("a * b @ c / d", "((a * b) @ c) / d"),
        ("a + b * -c ** 2", "a + (b * (-(c ** 2)))"),
        ("a ** -b ** c", "a ** (-(b ** c))"),
        ("-a[S -> T]", "-(a[S -> T])"),
        ("a == b or c < d and e > f", "(a == b) or ((c < d) and (e > f))"),
        ("f(x)[S -> T, T -> S] @ y", "((f(x))[S -> T, T -> S]) @ y"),
    ],
)
def test_strength_of_operators(text: str, same: str):
    assert parse(f"dim A = {text}") == parse(f"dim A = {same}")


@pytest.mark.parametrize("text", ["a == b == c", "a < b < c"])
def test_comparisons_do_not_chain(text: str):
    with pytest.raises(CompileError):
        parse(f"dim A = {text}")


def test_printing_needs_no_more_parentheses_than_the_grammar():
    text = "dim A = (a + b) * c - (d - e) ** 2 @ -f(x, over = [S, T])\n"
    assert text_of(parse(text)) == text


def test_commas_between_settings_may_be_left_out():
    with_commas = parse("plan p { overlap { zero = true, tp = false, } }")
    assert parse("plan p { overlap { zero = true\n tp = false } }") == with_commas


@pytest.mark.parametrize("word", sorted({"cache", *SETTING_WORDS}))
def test_settings_that_are_called_as_clauses_need_no_commas_either(word: str):
    """Behind a name too, where a clause could begin outside of the braces."""
    (plan,) = parse(f"plan p {{ precision {{ weights = bf16 {word} = fp32 last = none }} }}").items
    assert isinstance(plan, syntax.Plan)
    (clause,) = plan.clauses
    assert isinstance(clause, syntax.Precision)
    assert [entry.name.text for entry in clause.settings.entries] == ["weights", word, "last"]


def test_no_other_setting_is_called_as_a_clause_is():
    words = {each.pattern.value for each in whole_parser().terminals}
    kinds = [each for each in vars(clauses).values() if is_dataclass(each)]
    named = {entry.name for each in kinds for entry in fields(each) if "kind" in entry.metadata}
    assert named & words == {"cache", *SETTING_WORDS}


def test_optional_parts_are_none():
    plan = parse("plan p { zero 1 over dp  device h100  pipeline none }").items[0]
    assert isinstance(plan, syntax.Plan)
    zero, device, pipeline = plan.clauses
    assert isinstance(zero, syntax.Zero)
    assert zero.settings is None
    assert isinstance(device, syntax.Device)
    assert (str(device.preset), device.settings) == ("h100", None)
    assert isinstance(pipeline, syntax.Pipeline)
    assert pipeline.axis is None


def test_line_ends_of_windows_and_byte_order_marks_are_white_space():
    assert parse("dim A = 1\r\ndim B = 2\r\n") == parse("dim A = 1\ndim B = 2\n")


def test_length_is_bounded_where_the_diagnostic_says():
    text = "# a comment of many words\n" + "dim A = 1\n" * (MOST_TOKENS // 4)
    check_length(text, "long.stg")
    with pytest.raises(CompileError, match="E0216") as error:
        parse(f"{text}dim B = 1\n", "long.stg")
    (found,) = error.value.diagnostics
    assert found.span is not None
    assert (found.span.line, found.span.column) == (MOST_TOKENS // 4 + 2, 1)


def test_depth_is_bounded_where_the_diagnostic_says():
    parse("dim A = " + "-" * (DEEPEST - 4) + "1")
    with pytest.raises(CompileError, match="E0106"):
        parse("dim A = " + "-" * DEEPEST + "1")


def test_each_clause_is_shown_as_it_is_written():
    """What an unfinished clause is answered with parses, as a clause of that word; no clause lacks it."""
    rules = grammar_text().split("\n_clause:")[1].split("\n\n")[0].replace("|", " ").split()
    words = {rule: rule for rule in rules} | {"resize": "set"}
    assert {words[rule] for rule in rules} == CLAUSES.keys()
    for word, form in CLAUSES.items():
        source = parse(f"plan p {{ {form.replace('...', '')} }}", "p.stg")
        (plan,) = source.items
        assert isinstance(plan, syntax.Plan)
        (clause,) = plan.clauses
        rule = next(rule for rule in rules if words[rule] == word)
        assert type(clause).__name__ == class_name(rule)
