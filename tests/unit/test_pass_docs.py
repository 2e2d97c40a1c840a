"""The example in each pass's docstring is true: the pass makes *after* of *before*."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.arg_spec import parse_spec

from stagec.dialects import stg
from stagec.ir_text import parse_ir, verify_ir
from stagec.passes import ALL_PASSES, load_pass
from stagec.plugins import registry

EXAMPLE = re.compile(
    r"^Before `(?P<call>[^`]+)`:\n\n(?P<before>(?: {4}.*\n|\n)+)"
    r"After:\n\n(?P<after>(?: {4}.*\n|\n)+)",
    re.MULTILINE,
)

INHERITED = ("made_by", "scope", "phase")
"""What every new op takes over from the one it serves. Examples need not say so."""


@dataclass(frozen=True)
class Example:
    """One pair of programs in a docstring."""

    call: str
    before: str
    after: str


def examples(name: str) -> Iterator[Example]:
    text = (inspect.getdoc(inspect.getmodule(load_pass(name))) or "") + "\n"
    for match in EXAMPLE.finditer(text):
        before, after = (textwrap.dedent(match[key]) for key in ("before", "after"))
        yield Example(match["call"], before, written_out(before, after))


def written_out(before: str, after: str) -> str:
    """`...` stands for what is as before: up to the line that follows it, or to the end."""
    known, lines = before.strip().splitlines(), after.strip().splitlines()
    found: list[str] = []
    at = 0
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        if line == "...":
            end = len(known) if following is None else known.index(following, at)
            found += known[at:end]
            at = end
        else:
            found.append(line)
            at = known.index(line, at) + 1 if line in known[at:] else at
    return "\n".join(found)


def context() -> Context:
    made = Context()
    for name, factory in registry().dialects.items():
        made.register_dialect(name, factory)
    return made


def bare(module: ModuleOp) -> str:
    """The text without names of values and what ops inherit."""
    for op in module.walk():
        for name in INHERITED:
            stg.marks(op).pop(name, None)
        for result in op.results:
            result.name_hint = None
        for region in op.regions:
            for block in region.blocks:
                for argument in block.args:
                    argument.name_hint = None
    return str(module)


ALL = [(name, example) for name in ALL_PASSES for example in examples(name)]


@pytest.mark.parametrize(("name", "example"), ALL, ids=[name for name, _ in ALL])
def test_example(name: str, example: Example):
    spec = parse_spec(example.call)
    assert spec.name == name
    module = parse_ir(context(), example.before, f"{name}-before")
    verify_ir(module)
    registry().make_pass(name, spec.parameters).apply(context(), module)
    verify_ir(module)
    expected = parse_ir(context(), example.after, f"{name}-after")
    verify_ir(expected)
    assert bare(module) == bare(expected)


@pytest.mark.parametrize("name", ALL_PASSES)
def test_every_pass_has_an_example(name: str):
    assert list(examples(name)), f"{name} shows no `Before` and `After`"
