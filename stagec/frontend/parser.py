"""Text to syntax: `parse`. A mistake becomes a diagnostic, and parsing goes on after it.

The grammar is `grammar/stg.lark`; `syntax.py` has a class for each of its rules.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib import resources
from importlib.util import cache_from_source
from operator import itemgetter
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput
from lark.grammar import Rule
from lark.parse_tree_builder import PropagatePositions

from stagec.diagnostics import Diagnostics, Span, refused
from stagec.frontend import syntax, syntax_errors
from stagec.frontend.keywords import PARAMETER_WORDS, RESERVED, SETTING_WORDS
from stagec.frontend.recovery import resume_after

DEEPEST = 100
"""Levels of nesting that are read. The checker recurses on expressions and repeats."""

MOST_TOKENS = 50_000
"""Words and signs that a text may have. One of so many takes seconds."""

PARSED_ONCE = 50_000
"""Letters of the texts of which the last few are kept parsed."""

MOST_ERRORS = 20
"""Syntax errors reported in one file: after that many it is not this language."""


NAMING_WORDS = PARAMETER_WORDS | SETTING_WORDS
"""Words that stand where a name may stand."""

_TOKEN = re.compile(r'#[^\n]*|"[^"\n]*"|\w+|[^\w\s]')


class _NamesAnywhere:
    """Lets the lexer see whole words everywhere, so that `overall` is never `over` and `all`."""

    always_accept = ("NAME", *sorted(word.upper() for word in RESERVED))

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


def grammar_text() -> str:
    return resources.files("stagec.grammar").joinpath("stg.lark").read_text("utf-8")


def tables_file() -> str | None:
    """Where the grammar's tables are kept between processes: where Python keeps what it compiled of the package.

    Nothing if Python is told to keep nothing, or has no folder for it.
    """
    grammar = resources.files("stagec.grammar").joinpath("stg.lark")
    if not isinstance(grammar, Path):
        return None
    file = Path(cache_from_source(str(grammar))).with_suffix(".tables")
    may_write = not sys.dont_write_bytecode and os.access(file.parent, os.W_OK)
    return str(file) if file.exists() or may_write else None


def build_parser(strict: bool = False, tables: str | None = None) -> Lark:
    """The LALR parser. `strict` looks for conflicts, which takes long: for a test.

    `tables` is a file that has the tables of this grammar, or gets them: Lark compares a hash, and builds them again if that
    differs or the file cannot be read.
    """
    return Lark(
        grammar_text(),
        start="program",
        parser="lalr",
        strict=strict,
        cache=tables or False,
        propagate_positions=True,
        maybe_placeholders=True,
        postlex=_NamesAnywhere(),
    )


@cache
def parser() -> Lark:
    """The parser, built once for a process."""
    return without_detours(build_parser(tables=tables_file()))


class OnlyRule(Rule):
    """A rule of one parser, which is equal to itself alone. Each step of parsing looks one up, and Lark's are compared by all that they say."""

    __slots__ = ()
    __eq__: Any = object.__eq__
    __hash__ = object.__hash__


class Placed:
    """Gives what a rule builds its place, as Lark's own does.

    What it was made of may reach further: of `(x)`, there is `x` left, and what begins with it begins with its parenthesis. Lark notes
    the numbers of both, and finds them by name; here the first and the last word are noted.
    """

    def __init__(self, build: Callable[[list[Any]], Any]) -> None:
        self.build = build

    def __call__(self, parts: list[Any]) -> Any:
        tree = self.build(parts)
        if not isinstance(tree, Tree):
            return tree
        first: Any = None
        last: Any = None
        for part in parts:
            if isinstance(part, Token):
                begins, ends = part, part
            else:
                begins, ends = getattr(part.meta, "words", (None, None))
            first, last = first or begins, ends or last
        if first is not None:
            meta: Any = tree.meta
            if meta.empty:
                meta.line, meta.column, meta.empty = first.line, first.column, False
                meta.end_line, meta.end_column = last.end_line, last.end_column
            meta.words = first, last
        return tree


def without_detours(built: Lark) -> Lark:
    """The same parser, that does nothing at rules like `?sum: product`, which stand for their only part.

    An operand passes a dozen of them, one for each precedence; at each Lark would look anew where the part begins and ends. That is
    half of the time of parsing.
    """
    callbacks: dict[Rule, Any] = built._callbacks
    for rule in built.rules:
        is_step = rule.options.expand1 and not rule.alias and len(rule.expansion) == 1
        if is_step and not rule.expansion[0].is_term:
            callbacks[rule] = itemgetter(0)
        elif isinstance(placed := callbacks[rule], PropagatePositions):
            callbacks[rule] = Placed(placed.node_builder)
    done = [*callbacks.items()]
    callbacks.clear()
    for rule, _ in done:
        if isinstance(rule, Rule):
            rule.__class__ = OnlyRule
    callbacks.update(done)
    return built


@cache
def _spelled_out() -> dict[str, str]:
    """The terminal of each word and sign in the grammar."""
    return {t.pattern.value: t.name for t in parser().terminals if t.pattern.type == "str"}


@cache
def class_name(rule: str) -> str:
    """`shard_target` builds `ShardTarget`."""
    return "".join(part.capitalize() for part in rule.split("_"))


@cache
def class_of(rule: str) -> Any:
    return getattr(syntax, class_name(rule))


def parse(text: str, file: str = "<text>") -> syntax.Program:
    """Raises `CompileError` with every syntax error of the text.

    Nothing changes a program that is parsed. A sweep, an editor or a notebook asks for the same text again and again, and gets the same program.
    """
    return kept_program(text, file) if len(text) <= PARSED_ONCE else parsed(text, file)


@lru_cache(maxsize=16)
def kept_program(text: str, file: str) -> syntax.Program:
    return parsed(text, file)


def parsed(text: str, file: str) -> syntax.Program:
    check_length(text, file)
    interactive = parser().parse_interactive(text)
    thread, state = interactive.lexer_thread, interactive.parser_state
    findings = Diagnostics()
    tree: Any = None
    previous: Token | None = None
    while True:
        try:
            for token in thread.lex(state):
                state.feed_token(token)
                previous = token
            tree = state.feed_token(Token("$END", "", 0, 0, 0), is_end=True)
            break
        except UnexpectedInput as error:
            where = syntax_errors.Input(text, file, _spelled_out())
            findings.add(syntax_errors.explain(error, interactive, previous, where))
            if len(findings.found) >= MOST_ERRORS or not resume_after(
                error, interactive, text, _spelled_out()
            ):
                break
    findings.raise_errors({file: text})
    program: syntax.Program = _build(tree, file, findings)
    findings.raise_errors({file: text})
    return program


def check_length(text: str, file: str) -> None:
    """E0216 for a text of too many words and signs, where the first of those is."""
    if len(text) <= MOST_TOKENS:
        return
    number = 0
    for token in _TOKEN.finditer(text):
        if token[0][0] == "#":
            continue
        number += 1
        if number > MOST_TOKENS:
            line = text.count("\n", 0, token.start()) + 1
            column = token.start() - text.rfind("\n", 0, token.start())
            message = f"the text has more than {MOST_TOKENS:,} words and signs"
            advice = "write layers that follow each other as a `repeat`"
            span = Span.point(file, line, column)
            raise refused("E0216", message, span, help=advice, sources={file: text})


def _build(tree: Tree[Any], file: str, findings: Diagnostics) -> Any:
    """Children before parents and without recursion: text may nest deeper than Python's stack."""
    built: dict[int, Any] = {}
    depths: dict[int, int] = {}
    for subtree in tree.iter_subtrees():
        parts: list[Any] = []
        depth = 0
        for child in subtree.children:
            if isinstance(child, Tree):
                parts.append(built[id(child)])
                depth = max(depth, depths[id(child)])
            else:
                parts.append(_leaf(child, file))
        rule = str(subtree.data)
        if rule.endswith("_list"):
            built[id(subtree)] = tuple(parts)
        else:
            depth += 1
            span = _span(subtree.meta, file)
            if depth == DEEPEST:
                message = f"this nests more than {DEEPEST} levels deep"
                advice = "give parts of it names, and use those"
                findings.say("E0106", message, span, help=advice)
            built[id(subtree)] = class_of(rule)(*parts, span=span)
        depths[id(subtree)] = depth
    return built[id(tree)]


def _leaf(token: Token | None, file: str) -> syntax.Name | str | None:
    if token is None:
        return None
    if token.type in ("NAME", "PASS_NAME") or token in NAMING_WORDS:
        return syntax.Name(str(token), span=_span(token, file))
    if token.type == "STRING":
        return str(token)[1:-1]
    return str(token)


def _span(place: Any, file: str) -> Span:
    if getattr(place, "empty", False):
        return Span(file, 1, 1, 1, 1)
    return Span(file, place.line, place.column, place.end_line, place.end_column)
