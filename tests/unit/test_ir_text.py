"""A verifier that has seen a module finds what verifying it from the start finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.passes import ModulePass

from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.types import TensorType
from stagec.driver import Stops, compile_text
from stagec.ir_text import Verifier, parse_ir, verify_ir
from stagec.pass_manager import apply_pass
from stagec.rewriting import set_type
from stagec.symbolic import symbol

TEXT = """
dim B = 4
dim D = 8
dim L = 2

module Block(x[B, D]) -> [B, D] {
  weight w[D, C]
  return silu((x @ w)[C -> D])
}
dim C = D

model Net(x[B, D]) {
  repeat L { x = Block(x) }
  loss = mean(x, over = [B, D])
}
"""
OTHER = TensorType.of(["B"], "fp32")


def first(module: ModuleOp, kind: type) -> stg.TensorOp:
    return next(op for op in module.walk() if isinstance(op, kind))


def retype_a_result(module: ModuleOp) -> None:
    set_type(first(module, stg.ContractOp).results[0], OTHER)


def retype_an_operand(module: ModuleOp) -> None:
    set_type(first(module, stg.WeightOp).results[0], OTHER)


def swap_operands(module: ModuleOp) -> None:
    op = first(module, stg.ContractOp)
    op.operands = [op.operands[0]] * 2


def drop_a_property(module: ModuleOp) -> None:
    del first(module, stg.WeightOp).properties["path"]


def replace_a_property(module: ModuleOp) -> None:
    first(module, stg.WeightOp).properties["path"] = UnitAttr()


def add_a_property(module: ModuleOp) -> None:
    first(module, stg.WeightOp).properties["of"] = StringAttr("nobody")


def add_an_op(module: ModuleOp) -> None:
    op = first(module, stg.ContractOp)
    copy = op.clone()
    set_type(copy.results[0], OTHER)
    assert op.parent is not None
    op.parent.insert_op_before(copy, op)


def drop_a_terminator(module: ModuleOp) -> None:
    op = next(op for op in module.walk() if isinstance(op, stg.YieldOp))
    op.detach()


def empty_a_block(module: ModuleOp) -> None:
    op = next(op for op in module.walk() if isinstance(op, stg.RepeatOp))
    for each in reversed(list(op.body.block.ops)):
        each.detach()


BREAKS = [
    retype_a_result,
    retype_an_operand,
    swap_operands,
    drop_a_property,
    replace_a_property,
    add_a_property,
    add_an_op,
    drop_a_terminator,
    empty_a_block,
]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__)
def test_what_changed_is_verified_again(broken: Callable[[ModuleOp], None]) -> None:
    module = compile_text(TEXT, stops=Stops(after="lower")).module
    verifier = Verifier()
    verifier.verify(module)
    broken(module)
    with pytest.raises(CompileError) as expected:
        verify_ir(module)
    with pytest.raises(CompileError) as found:
        verifier.verify(module)
    assert found.value.render() == expected.value.render()


def test_the_use_of_an_erased_op_is_found() -> None:
    module = compile_text(TEXT, stops=Stops(after="lower")).module
    verifier = Verifier()
    verifier.verify(module)
    op = first(module, stg.ContractOp)
    op.detach()
    op.erase(safe_erase=False)
    with pytest.raises(CompileError, match="reads a value that a pass took away"):
        verifier.verify(module)


class Asks(ModulePass):
    name = "asks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbol("Q").evaluate({})


def test_a_size_without_a_number_is_said() -> None:
    """Where a pass asks for it."""
    module = compile_text(TEXT, stops=Stops(after="lower")).module
    with pytest.raises(CompileError, match="the size `Q` has no number"):
        apply_pass(Asks(), Context(), module)


@pytest.mark.parametrize("text", ["! {", '"builtin.module"() ({ ! })', "%", "@ {"])
def test_words_that_are_cut_short(text: str) -> None:
    """Also as the first of a text, which is read when its parser is made."""
    with pytest.raises(CompileError) as caught:
        parse_ir(Context(), text, "cut.mlir")
    (found,) = caught.value.diagnostics
    assert found.code == "E0708"
    assert "{" not in found.message
