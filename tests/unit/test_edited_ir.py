"""IR that somebody edits: what is missing there is said, at the op or by the name of the row, task or rank."""

from __future__ import annotations

import random
from functools import cache

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from stagec.diagnostics import CompileError
from stagec.dialects import dist
from stagec.dialects.types import tensor_of
from stagec.driver import compile_ir, compile_text
from stagec.ir_text import parse_ir, print_ir
from stagec.plugins import registry
from tests.resuming.cuts import texts_after_passes
from tests.resuming.texts import random_text
from tests.unit.seldom import mostly


@cache
def texts(seed: int) -> dict[str, str]:
    """The IR of a random plan after each pass."""
    text = random_text(seed)
    found, _ = texts_after_passes(lambda stops: compile_text(text, "net.stg", stops=stops))
    return {name.partition(" ")[2]: ir for name, ir in found.items()}


def parsed(text: str) -> ModuleOp:
    context = Context()
    for name, factory in registry().dialects.items():
        context.register_dialect(name, factory)
    return parse_ir(context, text, "edited.mlir")


def last_before(found: dict[str, str], name: str) -> str:
    names = list(found)
    return found[names[names.index(name) - 1]]


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_a_sum_that_nobody_makes(seed: int) -> None:
    """One of the ops that sum over ranks is taken away: whoever reads the terms as if they were the sum says so."""
    module = parsed(last_before(texts(seed), "lower-to-tasks"))
    summing = [
        op
        for op in module.walk()
        if isinstance(op, dist.AllReduceOp | dist.AllReduceGradientOp)
        and tensor_of(op.operands[0].type).partial != tensor_of(op.results[0].type).partial
    ]
    op = random.Random(seed).choice(summing)
    for operand, result in zip(op.operands, op.results, strict=True):
        result.replace_all_uses_with(operand)
    op.detach()
    op.erase()
    with pytest.raises(CompileError, match=r"E070[89]"):
        compile_ir(print_ir(module), "edited.mlir")
