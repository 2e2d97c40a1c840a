"""Changing IR keeps where it came from."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import (
    FileLineColLoc,
    IntAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
    UnknownLoc,
)
from xdsl.ir import Block, Region
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec import rewriting
from stagec.dialects import op as ops, stg
from stagec.dialects.types import TensorType
from stagec.driver import Stops, compile_program
from stagec.frontend import check
from stagec.ir_text import print_ir
from stagec.rewriting import inherit, insert_after, insert_before, programs, rewrite, set_type
from tests.unit.examples import FOLDER, parsed
from tests.unit.seldom import some

HERE = FileLineColLoc(StringAttr("model.stg"), IntAttr(3), IntAttr(7))
THERE = FileLineColLoc(StringAttr("model.stg"), IntAttr(9), IntAttr(1))


def program() -> tuple[ModuleOp, stg.UnaryOp]:
    """One op of a gradient's reduction, with all that is inherited."""
    x = TensorType.of(["B"], "bf16")
    block = Block(arg_types=[x])
    op = stg.UnaryOp("exp", block.args[0])
    op.location = HERE
    stg.marks(op).update(
        {"scope": StringAttr("Block"), "phase": StringAttr("bwd"), "late": UnitAttr()}
    )
    stg.marks(op)["in_place"] = UnitAttr()
    block.add_ops([op, stg.OutputOp([op.result])])
    return ModuleOp([stg.ProgramOp("M", Region(block))]), op


class Negate(RewritePattern):
    """exp(x) becomes -tanh(x)."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.UnaryOp, rewriter: PatternRewriter) -> None:
        if op.function.data != "exp":
            return
        inner = stg.UnaryOp("tanh", op.x)
        rewriter.replace(op, [inner, stg.UnaryOp("neg", inner.result)])


def test_a_pattern_hands_on_location_scope_and_phase():
    module, _ = program()
    rewrite(module, Negate(), "negate")
    inner, outer, _ = programs(module)[0].body.block.ops
    for op in (inner, outer):
        assert op.location == HERE
        assert dict(stg.marks(op)) == {
            "scope": StringAttr("Block"),
            "phase": StringAttr("bwd"),
            "late": UnitAttr(),
            "made_by": StringAttr("negate"),
        }


def test_what_a_new_op_says_itself_stays():
    _, op = program()
    new = stg.UnaryOp("tanh", op.x)
    new.location = THERE
    stg.marks(new).update({"phase": StringAttr("fwd"), "made_by": StringAttr("another")})
    inherit(new, op, "negate")
    assert new.location == THERE
    assert stg.marks(new)["phase"] == StringAttr("fwd")
    assert stg.marks(new)["made_by"] == StringAttr("another")
    assert stg.marks(new)["scope"] == StringAttr("Block")
    assert "in_place" not in stg.marks(new)


def test_ops_around_another_serve_it():
    module, op = program()
    before, after = stg.UnaryOp("sin", op.x), stg.UnaryOp("cos", op.result)
    insert_before(op, [before], "a")
    insert_after(op, [after], "b")
    names = [o.function.data for o in module.walk() if isinstance(o, stg.UnaryOp)]
    assert names == ["sin", "exp", "cos"]
    assert before.location == after.location == HERE
    assert (stg.made_by(before), stg.made_by(after)) == ("a", "b")


def test_a_pattern_that_does_not_match_changes_nothing():
    module, op = program()
    op.properties["function"] = StringAttr("relu")
    before = str(module)
    rewrite(module, Negate(), "negate")
    assert str(module) == before


def test_without_a_place_there_is_none_to_hand_on():
    _, op = program()
    op.location = UnknownLoc()
    new = stg.UnaryOp("tanh", op.x)
    inherit(new, op, "negate")
    assert new.location == UnknownLoc()


def test_a_value_keeps_its_identity_with_another_type():
    _, op = program()
    table = {op.result: "seen"}
    split = TensorType.of(["B"], "bf16").with_splits({"B": ("dp",)})
    set_type(op.result, split)
    assert table[op.result] == "seen"
    assert op.result.type == split
    assert next(iter(op.result.uses)).operation.operands[0].type == split


def test_a_mark_is_of_the_ops_that_it_means_something_for():
    _, op = program()
    with pytest.raises(KeyError):
        stg.marks(op)["tied"] = StringAttr("embed")
    stg.marks(op).take({"tied": StringAttr("embed"), "phase": StringAttr("wgrad")})
    assert "tied" not in stg.marks(op)
    assert stg.phase_of(op) == "wgrad"


@pytest.mark.parametrize(("name", "plan"), some([("gpt", "dp4_tp8"), ("t5_base", "pp4")]))
def test_ops_and_patterns_are_xdsls(name: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked again for each op changes nothing: xDSL's builder makes the same ops, and patterns pass over the same ones."""
    source, stops = check(parsed(FOLDER / f"{name}.stg"), plan), Stops(unroll=False)
    quick = print_ir(compile_program(source, stops=stops).module)
    own = ops.parts_of
    monkeypatch.setattr(ops, "parts_of", lambda kind: own(kind)._replace(operands=None))
    monkeypatch.setattr(rewriting, "kinds_of", lambda _: ops.Operation)
    assert print_ir(compile_program(source, stops=stops).module) == quick
