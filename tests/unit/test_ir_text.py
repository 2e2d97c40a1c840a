"""A verifier that has seen a module finds what verifying it from the start finds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.test import Test
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.types import TensorType
from stagec.driver import Stops, compile_text
from stagec.ir_text import Lexer, LocatingParser, TextPlaces, Verifier, parse_ir, verify_ir
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


WORDS = (
    *("stg.add", "_a$1.b", "x", "-", "->", ">", "<", "{", "{-#", "#-}", "}", "[", "]", "(", ")"),
    *(":", ",", "=", "+", "*", "/", "?", "|", "...", "..", "%0", "%x-1", "%1a", "%", "!stg.tensor"),
    *(
        "!",
        "^bb0",
        "#loc",
        "@f",
        '@"g"',
        "1",
        "1.5e3",
        "0x1F",
        '""',
        '"a b"',
        '"\\22"',
        '"\\"',
        '"',
    ),
    *(" ", "\n", "\t", "\v", "\xa0", "//", "// -> x\n", "\u00e9", "\u0663", "&"),
)
"""Tokens, parts of some, and what is between them."""


def tokens(lexer: MLIRLexer) -> list[object]:
    """Up to the end, or to the first mistake."""
    found: list[object] = []
    kind = None
    try:
        while kind != MLIRTokenKind.EOF:
            token = lexer.lex()
            kind = token.kind
            found.append((kind, type(token.span), token.span))
    except ParseError as error:
        found.append((error.span, error.msg))
    return found


def test_a_long_string_that_is_not_closed() -> None:
    with pytest.raises(CompileError) as caught:
        parse_ir(Context(), f'"{"a" * 60}', "cut.mlir")
    assert [each.code for each in caught.value.diagnostics] == ["E0708"]


def test_tokens_are_xdsls() -> None:
    draws = random.Random(0)
    for _ in range(1500):
        text = Input("".join(draws.choices(WORDS, k=draws.randint(1, 6))), "m.mlir")
        assert tokens(Lexer(text)) == tokens(MLIRLexer(text)), text.content


IR = """
%a, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>>)
%c = "test.op"(%a) {of = "!stg.tensor<[B, D], bf16>"} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor< [B, D], bf16 >
%d = "test.op"(%c, %b) : (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> !stg<tensor<[B, D], bf16>> // as before
%e = "test.op"(%d) {over = !stg.tensor<[D], bf16>} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], fp32, partial [tp]>
"""
"""Types that stand in several places."""


def read(parser: Parser) -> object:
    try:
        return str(parser.parse_module())
    except ParseError as error:
        return error.span.start, error.span.end, error.msg
    except VerifyException as error:
        return parser.pos, str(error)


def test_what_stands_in_several_places_is_read_as_xdsl_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a character of it is another one, or none."""
    # With its own, xDSL does not get to an end where a string is not closed.
    monkeypatch.setattr(MLIRLexer, "_unescaped_characters_regex", Lexer._unescaped_characters_regex)
    context, draws = Context(), random.Random(0)
    for dialect in (Builtin, Test, stg.Stg):
        context.load_dialect(dialect)
    assert isinstance(read(Parser(context, IR, "m.mlir")), str)
    for _ in range(120):
        place = draws.randrange(len(IR))
        text = IR[:place] + draws.choice(["", *'<>"[],x%! ']) + IR[place + 1 :]
        places = TextPlaces(text, "m.mlir")
        ours, theirs = LocatingParser(context, text, places), Parser(context, text, "m.mlir")
        assert read(ours) == read(theirs), text
