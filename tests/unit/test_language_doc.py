"""docs/language.md is true: each example compiles, each construct has one, each word is there."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from stagec.backend.encode import encode_traces
from stagec.devices.file import parse as parse_device
from stagec.dialects.stg import FUNCTIONS
from stagec.frontend import check, lower, parse_text, syntax, warnings_of
from stagec.frontend.checker import pools_in
from stagec.frontend.keywords import RESERVED
from stagec.plans import clauses as plan
from stagec.pools import compile_pools
from tests.unit.doc_examples import DOCS, Example, examples

PAGE = DOCS / "language.md"
TEXT = PAGE.read_text("utf-8")

EXAMPLES = examples(PAGE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"line{e.line}")
def test_example_compiles(example: Example):
    source = parse_text(example.program, str(PAGE))
    if pools_in(source, None):
        assert encode_traces(compile_pools(source, None, {}).traces)
        return
    checked = check(source)
    # A part may leave unused what it shows only the beginning of.
    expected = {"W0301"} if example.part == "plan" else set()
    module = lower(checked)
    assert {w.code for w in warnings_of(checked, module)} <= expected
    module.verify()


def nodes(tree: object) -> set[type]:
    found: set[type] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, syntax.SyntaxNode):
            found.add(type(node))
            waiting += [getattr(node, f.name) for f in fields(node)]
        elif isinstance(node, tuple):
            waiting += node
    return found


def test_every_construct_has_an_example():
    shown: set[type] = set()
    for example in EXAMPLES:
        for program in parse_text(example.program, str(PAGE)).files.values():
            shown |= nodes(program)
    classes = {c for c in vars(syntax).values() if isinstance(c, type)} - {syntax.SyntaxNode}
    assert classes - shown == set()


def test_every_plan_is_resolved_in_some_example():
    resolved = [check(parse_text(e.program, str(PAGE))).plan for e in EXAMPLES if e.part == "plan"]
    for name in ("pipeline", "zero", "units", "microbatch", "contexts", "passes", "overrides"):
        assert any(getattr(p, name) for p in resolved), name


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_built_in_op_is_listed(name: str):
    table = TEXT.split("## Built-in ops")[1].split("\n## ")[0]
    assert re.search(rf"`{name}[`(]", table)
    for option in FUNCTIONS[name].signature.options:
        assert f"{option.name} = " in table, option.name


def test_every_reserved_word_is_listed():
    listed = TEXT.split("Reserved are ")[1].split(". Words")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == RESERVED


def test_the_device_file_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    device = parse_device(text, "mine", "mine.toml")
    assert device.preset["flops_per_s"] == 800e12
    assert device.numbers["capacity"] == 40 * 2**30
    assert device.price_per_hour == 2.5
    assert device.tables


SETTINGS = {
    clause.__name__.lower(): found
    for clause in vars(plan).values()
    if isinstance(clause, type) and issubclass(clause, plan.Clause)
    if (found := [each for each in fields(clause) if "kind" in each.metadata])
}
"""The settings of each clause that has any."""


@pytest.mark.parametrize("clause", SETTINGS)
def test_every_setting_is_described(clause: str):
    section = TEXT.split(f"### `{clause}`")[1].split("\n### ")[0]
    for setting in SETTINGS[clause]:
        assert f"`{setting.name}`" in section
        for choice in setting.metadata["kind"].choices:
            assert f"`{choice}`" in section or choice in TEXT.split("## Tensors")[1]
