"""IR text: reading it, and verifying what was read.

Unlike xDSL's own, both name the place in the file. A mistake in the text is a `CompileError`.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import LocationAttr, ModuleOp, UnknownLoc
from xdsl.ir import ErasedSSAValue, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.parser.core import ForwardDeclaredValue
from xdsl.parser.generic_parser import ParserState
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Span as Extent, Token
from xdsl.utils.mlir_lexer import (
    KIND_BY_PUNCTUATION_SPELLING,
    MLIRLexer,
    MLIRToken,
    MLIRTokenKind,
    StringLiteral,
)

from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    Span,
    location_of,
    refuse_beside,
    refused,
    span_of,
)
from stagec.dialects.marks import verify_attributes

MOST_ERRORS = 20
"""Ops with mistakes that are named; the rest follow from these more often than not."""


IR_ENDING = ".mlir"
"""How files end that have IR."""


def is_ir_file(path: str) -> bool:
    return os.path.splitext(path)[1] == IR_ENDING


def refuse_about_ir(path: str, said: Mapping[str, object]) -> None:
    """E0711 for flags or arguments about a model, where it is IR that is compiled."""
    refuse_beside(path, "is IR, whose plan is in it", said)


Said = dict[Operation, LocationAttr]
"""The `loc(...)` behind each op that has one in a text: its line of the model."""


def parse_ir(
    context: Context,
    text: str,
    file: str,
    *,
    line_offset: int = 0,
    implicit_module: bool = True,
    said: Said | None = None,
) -> ModuleOp:
    """The module in a text that starts `line_offset` lines into `file`. E0708 if it does not parse.

    Ops come from where their text says, or else from where they stand in it. With `said`, all of them do at first, so that mistakes
    in the text are shown in the text; `locate` moves them.
    """
    places = TextPlaces(text, file, line_offset)
    sources = {file: "\n" * line_offset + text}
    if not text.strip():
        help_ = "`stagec MODEL.stg --stop-after PASS` prints the IR after a pass"
        raise refused("E0708", "there is no IR in this text", origin=file, help=help_)
    try:
        # Making a parser reads the first token.
        parser = LocatingParser(context, text, places)
    except ParseError as error:
        raise _refused(error, places, sources) from None
    try:
        module = parser.parse_module(implicit_module)
        for op in module.body.ops:
            if isinstance(op, ModuleOp):
                message = "a module in a module: ops stand before or after the one that is meant"
                help_ = "write the ops of one module"
                raise refused("E0708", message, place_of(op), sources=sources, help=help_)
        for op in module.walk():
            if any(isinstance(operand, ForwardDeclaredValue) for operand in op.operands):
                message = f"`{op.name}` reads a value that nothing makes where it can be read"
                help_ = "put the op that makes it before this one"
                raise refused("E0708", message, place_of(op), sources=sources, help=help_)
        if said is None:
            locate(parser.said)
        else:
            said |= parser.said
        return module
    except ParseError as error:
        raise _refused(error, places, sources) from None
    except VerifyException as error:
        raise refused(
            "E0708", _sentence(str(error)), places.at(parser.pos), sources=sources
        ) from None


def locate(said: Said) -> None:
    """Let ops come from where the text says."""
    for op, location in said.items():
        op.location = location


def _refused(error: ParseError, places: TextPlaces, sources: dict[str, str]) -> CompileError:
    start = places.at(error.span.start)
    end = places.at(max(error.span.end, error.span.start + 1))
    # xDSL's lexer leaves this word in a message as it is.
    text = error.msg.replace("{first_char}", f"`{error.span.text[:1]}`")
    message, *notes = text.strip().split("\n")
    return refused("E0708", _sentence(message), start.to(end), notes=notes, sources=sources)


class TextPlaces:
    """Where the characters of a text stand that starts `line_offset` lines into a file."""

    def __init__(self, text: str, file: str, line_offset: int = 0) -> None:
        self.file, self.line_offset = file, line_offset
        self._starts = [0, *(i + 1 for i, c in enumerate(text) if c == "\n")]

    def at(self, position: int) -> Span:
        line = bisect.bisect_right(self._starts, position)
        column = position - self._starts[line - 1] + 1
        return Span.point(self.file, line + self.line_offset, column)


class Lexer(MLIRLexer):
    """xDSL's lexer, which takes most tokens of a text by one expression."""

    COMMON = re.compile(
        r"(?:\s+|//[^\n]*+)*+"
        r"(?:([a-zA-Z_][\w$.]*)|(%(?:\d+|[a-zA-Z$._-][\w$.-]*))|(!(?:\d+|[a-zA-Z$._-][\w$.-]*))"
        r"|(->|\{(?!-#)|[-:,()}\[\]<>=+/*?|])"
        r'|("[^"\\\n\v\f]*"))',
        re.ASCII,
    )
    KINDS = (
        MLIRTokenKind.BARE_IDENT,
        MLIRTokenKind.PERCENT_IDENT,
        MLIRTokenKind.EXCLAMATION_IDENT,
    )

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')
    """xDSL's, but that it gives nothing back: where a string is not closed, xDSL's tries all ways to cut what there is of it."""

    def lex(self) -> MLIRToken:
        found = self.COMMON.match(self.input.content, self.pos)
        if found is None:
            return super().lex()
        group = found.lastindex or 0
        start, self.pos = found.span(group)
        match group:
            case 4:
                kind = KIND_BY_PUNCTUATION_SPELLING[found[4]]
            case 5:
                return Token(MLIRTokenKind.STRING_LIT, StringLiteral(start, self.pos, self.input))
            case _:
                kind = self.KINDS[group - 1]
        return Token(kind, Extent(start, self.pos, self.input))


class LocatingParser(Parser):
    """Gives each op the place where it stands in the text, and notes where the text says that it comes from."""

    BODY = re.compile(r'<(?:[^<>"]++|"[^"\\\n]*+"|<[^<>"]*+>)*+>')

    def __init__(self, context: Context, text: str, places: TextPlaces) -> None:
        super().__init__(context, "", places.file)
        self._parser_state = ParserState(Lexer(Input(text, places.file)))
        self.places = places
        self.said: Said = {}
        self._read: dict[tuple[str, bool, str], Any] = {}

    def _parse_dialect_type_or_attribute_body(
        self, attr_name: str, is_type: bool, is_opaque: bool, starting_opaque_pos: int | None
    ) -> Any:
        """What stands in many places, as most types do, is read in the first."""
        content = self.lexer.input.content
        body = None if is_opaque else self.BODY.match(content, self.pos)
        key = (attr_name, is_type, body[0] if body else "")
        if body and key in self._read:
            self._resume_from(body.end())
            return self._read[key]
        found = super()._parse_dialect_type_or_attribute_body(
            attr_name, is_type, is_opaque, starting_opaque_pos
        )
        if body and body.end() <= self.pos and not content[body.end() : self.pos].strip():
            self._read[key] = found
        return found

    def parse_operation(self) -> Operation:
        start = self.pos
        op = super().parse_operation()
        if not isinstance(op.location, UnknownLoc):
            self.said[op] = op.location
        op.location = location_of(self.places.at(start))
        return op


def verify_ir(module: ModuleOp, sources: Mapping[str, str] | None = None) -> None:
    """E0709 for each op that does not verify."""
    gone = [op for op in module.walk() if ErasedSSAValue in map(type, op.operands)]
    if gone:
        message = f"`{gone[0].name}` reads a value that a pass took away"
        raise refused("E0709", message, place_of(gone[0]), sources=sources)
    try:
        module.verify()
        for op in module.walk():
            verify_attributes(op)
    except VerifyException as error:
        found = list(dict.fromkeys(_mistakes(module))) or [
            Diagnostic("E0709", _sentence(str(error)), place_of(module))
        ]
        raise CompileError(found, sources) from None
    verify_order(module, sources)


def verify_order(module: ModuleOp, sources: Mapping[str, str] | None = None) -> None:
    """E0709 for an op that reads what is made after it, or in a region that it is not in; xDSL's verifier does not look."""
    found = next(_out_of_order(module, set()), None)
    if found is not None:
        message = f"`{found.name}` reads a value before it is made, or outside of its region"
        raise refused("E0709", message, place_of(found), sources=sources)


def _out_of_order(op: Operation, made: set[SSAValue]) -> Iterator[Operation]:
    """The ops that read a value before it is made: this op and those in it, where `made` has the values that are there."""
    if not made.issuperset(op.operands):
        yield op
    for region in op.regions:
        inside: set[SSAValue] = set()
        for block in region.blocks:
            made.update(block.args)
            inside.update(block.args)
            for each in block.ops:
                yield from _out_of_order(each, made)
                made.update(each.results)
                inside.update(each.results)
        made -= inside


class Verifier:
    """Verifies a module after pass upon pass: what was verified before and looks the same, not again.

    What verifies an op reads the op as it is printed, its attributes and the types of its operands and results. An op with
    regions, or at the end of a block, is held against more than that: such ops are verified each time.
    """

    def __init__(self) -> None:
        self._seen: dict[Operation, tuple[object, ...]] = {}

    def verify(self, module: ModuleOp) -> None:
        """E0709 for each op that does not verify."""
        try:
            if all(map(self._holds, module.walk())):
                return
        except VerifyException:
            pass  # `verify_ir` says where.
        verify_ir(module)

    def _holds(self, op: Operation) -> bool:
        """Whether an op is part of a whole; raises `VerifyException` if it does not verify by itself."""
        if ErasedSSAValue in map(type, op.operands):
            return False
        if op.regions or op.next_op is None:
            op.verify(verify_nested_ops=False)
            verify_attributes(op)
            return all(block.first_op is not None for r in op.regions for block in r.blocks)
        looks = (
            op.parent,
            *(operand.type for operand in op.operands),
            *(result.type for result in op.results),
            *op.properties.items(),
            *op.attributes.items(),
        )
        if self._seen.get(op) != looks:
            op.verify(verify_nested_ops=False)
            verify_attributes(op)
            self._seen[op] = looks
        return True


def _mistakes(module: ModuleOp) -> Iterator[Diagnostic]:
    """What is wrong with each op by itself."""
    for op in module.walk():
        for value in op.operands:
            maker = value.owner
            if isinstance(maker, Operation) and maker.get_toplevel_object() is not module:
                message = (
                    f"`{op.name}` reads what `{maker.name}` makes, which is nowhere in the module"
                )
                yield Diagnostic("E0709", message, place_of(op))
                return
    num_found = 0
    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
            verify_attributes(op)
        except VerifyException as error:
            message = _sentence(str(error).removeprefix(f"{op.name}: "))
            yield Diagnostic("E0709", f"`{op.name}`: {message}", place_of(op))
            num_found += 1
        if num_found == MOST_ERRORS:
            return


def place_of(op: Operation) -> Span | None:
    """Where an op comes from, or what it is part of."""
    while True:
        span = span_of(op.location)
        parent = op.parent_op()
        if span is not None or parent is None:
            return span
        op = parent


def print_ir(module: Operation, read_from: str | None = None) -> str:
    """The module as text that `parse_ir` reads. Behind each op is where it comes from, but for what is of the text that was `read_from`."""
    text = StringIO()
    LocatingPrinter(text, read_from).print_op(module)
    return text.getvalue() + "\n"


class LocatingPrinter(Printer):
    """Prints `loc("model.stg":12:5)` behind ops that come from another text than what was read. xDSL's own does so behind all, and behind
    arguments of blocks."""

    def __init__(self, stream: StringIO, read_from: str | None) -> None:
        super().__init__(stream)
        self.read_from = read_from

    def print_op(self, op: Operation) -> None:
        super().print_op(op)
        place = span_of(op.location)
        if place is not None and place.file != self.read_from:
            self.print_string(" ")
            self.print_attribute(op.location)


def _sentence(message: str) -> str:
    """An xDSL message in our style: lower case, no full stop."""
    message = message.strip().removesuffix(".").removesuffix("!")
    first, _, _ = message.partition(" ")
    if first.istitle():
        message = message[0].lower() + message[1:]
    return message
