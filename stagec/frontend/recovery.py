"""Going on after a syntax error: from the next line that can start a statement where the error was.

Braces and brackets of the skipped text are counted, so that a statement is read in the body that it
stands in; a definition at the left margin ends whatever was open. Where a definition has a brace too
many or too few, nobody knows what else of it stands where: the next definition is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lark import Token
from lark.exceptions import UnexpectedInput
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_interactive_parser import InteractiveParser

from stagec.frontend.keywords import DEFINITIONS, RESERVED

_PIECE = re.compile(r'#[^\n]*|"[^"\n]*"|[A-Za-z_][A-Za-z0-9_]*|\n|[][(){}]|[^\S\n]+|.', re.DOTALL)

_MARGIN = re.compile(rf"^(?:{'|'.join(DEFINITIONS)})\b", re.MULTILINE)
_OPENERS = {"LPAR", "LSQB", "_CALL", "_INDEX"}
_CLOSERS = {"RPAR", "RSQB", "RBRACE"}


def open_brackets(values: list[Any]) -> list[Token]:
    """The brackets and braces that the parser is inside of, outermost first: those whose end it has read too are not among them."""
    found: list[Token] = []
    for value in values:
        if isinstance(value, Token) and value.type in {"LBRACE", *_OPENERS}:
            found.append(value)
        elif isinstance(value, Token) and value.type in _CLOSERS and found:
            found.pop()
    return found


def definition_around(text: str, position: int) -> tuple[int, int]:
    """Where the definition begins that a place is in, and where the next one does."""
    starts = [each.start() for each in _MARGIN.finditer(text)]
    before = max((each for each in starts if each <= position), default=0)
    return before, min((each for each in starts if each > position), default=len(text))


def braces_left(text: str, start: int, end: int) -> int:
    """How many braces of a stretch of text are not closed; less than none, if more are closed than opened."""
    signs = [each.group() for each in _PIECE.finditer(text, start, end)]
    return signs.count("{") - signs.count("}")


def left_open(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Of a definition that lacks a `}`: the brace whose lines end before it does, by how far they are indented, and where the next one begins."""
    if braces_left(text, start, end) <= 0:
        return None
    opened: list[tuple[int, int]] = []
    place = start
    for line in text[start:end].splitlines(keepends=True):
        words = line.lstrip()
        margin = len(line) - len(words)
        if words and words[0] != "#":
            if opened and 0 < opened[-1][1] >= margin + (words[0] == "}"):
                return opened[-1][0], place + margin
            for piece in _PIECE.finditer(text, place, place + len(line)):
                if piece.group() == "{":
                    opened.append((piece.start(), margin))
                elif piece.group() == "}" and opened:
                    opened.pop()
        place += len(line)
    return None


def error_position(error: UnexpectedInput, text: str) -> int:
    """Where in the text the parser stopped."""
    token = getattr(error, "token", None)
    if token is not None and token.type == "$END":
        return len(text)
    return error.pos_in_stream if error.pos_in_stream is not None else len(text)


def resume_after(
    error: UnexpectedInput, parser: InteractiveParser, text: str, keywords: Mapping[str, str]
) -> bool:
    """Put the parser where the next line starts that it can read. False at the end of the text.

    `keywords` has the terminal of each word or sign that the grammar spells out.
    """
    state = parser.parser_state
    opened = open_brackets(state.value_stack)
    level = sum(token.type == "LBRACE" for token in opened)
    after_brace = max((i for i, t in enumerate(opened) if t.type == "LBRACE"), default=-1)
    brackets = len(opened) - after_brace - 1
    start_of_line = False
    position = error_position(error, text)
    start, end = definition_around(text, position)
    if position > start and braces_left(text, start, end):
        return _resume_at(end, parser, text, keywords)
    column = position - (text.rfind("\n", 0, position) + 1)
    for piece in _PIECE.finditer(text, position):
        found = piece.group()
        if start_of_line and (found.isidentifier() or found == "}"):
            margin = column == 0 and found in DEFINITIONS
            terminal = keywords.get(found, "NAME")
            depth = _list_depth(parser, found, terminal, 0 if margin else level)
            if depth is not None and (brackets <= 0 or margin):
                _rewind(parser, depth, piece.start(), text)
                return True
        if not found.isspace() or found == "\n":
            start_of_line = found == "\n"
        column = 0 if found == "\n" else column + len(found)
        if found in ("(", "["):
            brackets += 1
        elif found in (")", "]"):
            brackets -= 1
        elif found == "{":
            level += 1
        elif found == "}":
            level = max(0, level - 1)
            brackets = 0
    return False


def _resume_at(
    position: int, parser: InteractiveParser, text: str, keywords: Mapping[str, str]
) -> bool:
    """Go on with the definition there. False at the end of the text."""
    word = _MARGIN.match(text, position)
    if word is None:
        return False
    depth = _list_depth(parser, word.group(), keywords[word.group()], 0)
    if depth is None:
        return False
    _rewind(parser, depth, position, text)
    return True


def _list_depth(parser: InteractiveParser, word: str, terminal: str, level: int) -> int | None:
    """How much of the parser's stack to keep to be at the next item of the list at that level.

    None if the word is a keyword that starts no item there. An unknown word is let through where
    only keywords can stand: it is a misspelt one.
    """
    state = parser.parser_state
    table = state.parse_conf.parse_table.states
    closes_with = "RBRACE" if level else "MODULE"
    for index in range(len(state.state_stack) - 1, -1, -1):
        braces = [v for v in open_brackets(state.value_stack[:index]) if v.type == "LBRACE"]
        actions = table[state.state_stack[index]]
        if len(braces) == level and actions.get(closes_with, (None,))[0] is Shift:
            starts = terminal in actions or ("NAME" in actions and word not in RESERVED)
            return index if starts or terminal == "NAME" else None
    return None


def _rewind(parser: InteractiveParser, depth: int, position: int, text: str) -> None:
    state = parser.parser_state
    del state.state_stack[depth + 1 :]
    del state.value_stack[depth:]
    lexer_state = parser.lexer_thread.state
    assert lexer_state is not None
    counter = lexer_state.line_ctr
    counter.char_pos = position
    counter.line = text.count("\n", 0, position) + 1
    counter.line_start_pos = text.rfind("\n", 0, position) + 1
    counter.column = position - counter.line_start_pos + 1
