"""Passes that leave rows as they are: ours do, and one of a plug-in that says so and does not is E0723."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.diagnostics import CompileError
from stagec.dialects import sched
from stagec.driver import Stops, compile_text
from stagec.pass_manager import run_passes
from stagec.unrolling.module import KeepsRows, UnrollingContext, made_of
from tests.attack.models import MODELS, random_plan

OURS = ("interleave-tasks", "chain-streams", "order-communication", "plan-memory")


@dataclass(frozen=True)
class Hasty(KeepsRows, ModulePass):
    name = "hasty"

    leaves_out: bool = False
    """Whether it takes an op away."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        computes = [each for each in op.walk() if isinstance(each, sched.ComputeOp)]
        for each in computes if self.leaves_out else ():
            if each.result_types == each.operand_types[:1]:
                each.results[0].replace_all_uses_with(each.operands[0])
                each.detach()
                each.erase()
                return


@pytest.mark.seldom
def test_ours_leave_rows_as_they_are() -> None:
    draw = random.Random(7)
    compared = 0
    while compared < 3 * len(OURS):
        before: list[object] = []

        def passed(name: str, module: ModuleOp, before: list[object] = before) -> None:
            nonlocal compared
            now = made_of(module)
            same = before == [now]
            assert same or name not in OURS, name
            compared += name in OURS
            before[:] = [now]

        model = draw.choice(("matrices", "attention", "words"))
        try:
            compile_text(MODELS[model] + random_plan(draw, model), stops=Stops(on_pass=passed))
        except CompileError:
            continue


def test_a_promise_is_not_believed() -> None:
    module = compile_text(MODELS["matrices"] + "plan p { mesh dp = 2 shard B over dp }\n").module
    run_passes(module, [Hasty()], Stops(), context=UnrollingContext())
    with pytest.raises(CompileError, match="E0723"):
        run_passes(module, [Hasty(leaves_out=True)], Stops(), context=UnrollingContext())
