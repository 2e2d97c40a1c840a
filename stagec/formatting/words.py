"""A text as words, with what the grammar drops: comments and blank lines before each, and where statements begin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from lark import Token

from stagec.frontend import syntax
from stagec.frontend.parser import parser

GAP = re.compile(r"(?P<comment>#[^\n]*)|(?P<newline>\n)")


@dataclass(frozen=True)
class Comment:
    """`# why`, and whether it stands behind a word, or on a line of its own."""

    text: str
    behind: bool
    blank_before: bool


@dataclass
class SpacedToken:
    """A token, and what stands between it and the one before."""

    type: str
    text: str
    newline: bool
    """Whether a line break comes before it."""
    blank: bool
    """Whether a blank line comes right before it, after all comments."""
    comments: tuple[Comment, ...]
    starts: str = ""
    """`item`, `statement` or `setting` where one begins here."""


END = "$END"
"""The type of the word after the last, which has the comments at the end."""


def words_of(text: str, program: syntax.Program) -> list[SpacedToken]:
    """Every word of a text that parses; the last is the end."""
    begins = {(node.span.line, node.span.column): kind for node, kind in units(program)}
    words: list[SpacedToken] = []
    at = 0
    for token in tokens_of(text):
        assert token.start_pos is not None
        assert token.end_pos is not None
        word = word_after(text[at : token.start_pos], token.type, str(token), not words)
        word.starts = begins.get((token.line or 0, token.column or 0), "")
        words.append(word)
        at = token.end_pos
    words.append(word_after(text[at:], END, "", not words))
    return words


def tokens_of(text: str) -> Iterator[Token]:
    interactive = parser().parse_interactive(text)
    for token in interactive.lexer_thread.lex(interactive.parser_state):
        interactive.parser_state.feed_token(token)
        yield token


def word_after(gap: str, kind: str, text: str, is_first: bool) -> SpacedToken:
    """What stands in the white space before a word."""
    comments: list[Comment] = []
    newlines = 2 if is_first else 0
    any_newline = is_first
    for match in GAP.finditer(gap):
        if match["newline"]:
            newlines += 1
            any_newline = True
            continue
        comments.append(Comment(match["comment"].rstrip(), newlines == 0, newlines > 1))
        newlines = 0
    blank = newlines > 1 and (bool(comments) or not is_first)
    return SpacedToken(kind, text, any_newline, blank, tuple(comments))


def units(node: syntax.SyntaxNode) -> Iterator[tuple[syntax.SyntaxNode, str]]:
    """The parts of a program that begin lines."""
    stack: list[object] = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, tuple):
            stack += each
            continue
        if not isinstance(each, syntax.SyntaxNode):
            continue
        if isinstance(each, syntax.Program):
            kind, parts = "item", each.items
        elif isinstance(each, syntax.Body):
            kind, parts = "statement", each.statements
        elif isinstance(each, syntax.Plan | syntax.Pool):
            kind, parts = "statement", each.clauses
        elif isinstance(each, syntax.Settings):
            kind, parts = "setting", each.entries
        else:
            kind, parts = "", ()
        for part in parts:
            yield part, kind
        stack += [getattr(each, field.name) for field in fields(each)]
