"""What to say about a text that does not parse: what was found, what could stand there, what to write.

The parser only knows tokens; `explain` looks at the text around them for the mistakes people make.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput
from lark.parsers.lalr_interactive_parser import InteractiveParser

from stagec.diagnostics import Diagnostic, Span, closest, quoted
from stagec.frontend.foreign_names import written_here
from stagec.frontend.keywords import CLAUSES, DEFINITIONS
from stagec.frontend.recovery import error_position, open_brackets

_EXPRESSION = {"NAME", "INT", "FLOAT", "BYTES", "TRUE", "FALSE", "LPAR", "MINUS"}
_OPERATORS = set(
    ["PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "AT", "POWER", "_INDEX", "AND", "OR"]
)
_COMPARISONS = set(["EQUAL", "UNEQUAL", "AT_MOST", "AT_LEAST", "LESS", "MORE"])
_STATEMENTS = {"NAME", "WEIGHT", "CACHE", "REPEAT", "RETURN"}
_DEFINITIONS = {word.upper() for word in DEFINITIONS}
_GROUPS = (
    (_EXPRESSION, "an expression"),
    (_STATEMENTS, "a statement"),
    (_DEFINITIONS, "a definition"),
    ({"MESH", "SHARD", "ZERO"}, "a clause"),
)
_CLOSERS = {"{": "}", "(": ")", "[": "]"}
TERMINAL_NAMES = {
    "NAME": "a name",
    "INT": "a whole number",
    "FLOAT": "a number",
    "BYTES": "a number of bytes",
    "PASS_NAME": "the name of a pass",
    "STRING": "a string in quotes",
    "_CALL": "`(`",
    "_INDEX": "`[`",
    "$END": "the end of the file",
}
"""What people call the terminals that the grammar does not spell out."""

_HELP_AT = {
    ";": "a statement ends with its line: leave `;` out",
    "'": 'strings stand in double quotes: `"..."`',
    "^": "a power is written `**`",
    "&": "conditions are joined with `and`",
    "|": "conditions are joined with `or`",
    "!": "`!=` compares; there is no `!`",
    "×": "a product is written `*`, a contraction `@`",
    "·": "a product is written `*`, a contraction `@`",
    "→": "an arrow is written `->`",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "“": 'strings stand in straight quotes: `"..."`',
    "”": 'strings stand in straight quotes: `"..."`',
    "$": "shell variables are not replaced here: use `--set NAME=VALUE`",
}


@dataclass(frozen=True)
class Input:
    """What is parsed. `keywords` has the terminal of each word or sign that the grammar spells out."""

    text: str
    file: str
    keywords: Mapping[str, str]

    def place(self, start: int, end: int) -> Span:
        """The span of `text[start:end]`."""
        line, column = self._line_column(start)
        return Span(self.file, line, column, *self._line_column(end))

    def _line_column(self, position: int) -> tuple[int, int]:
        start = self.text.rfind("\n", 0, position) + 1
        return self.text.count("\n", 0, position) + 1, position - start + 1


def explain(
    error: UnexpectedInput, parser: InteractiveParser, previous: Token | None, source: Input
) -> Diagnostic:
    """The diagnostic for one place where the parser stopped, after the token `previous`."""
    position = error_position(error, source.text)
    if isinstance(error, UnexpectedCharacters):
        return _character(position, source)
    token: Token = error.token  # pyright: ignore[reportAttributeAccessIssue]
    accepted = parser.accepts() | ({"$END"} if "$END" in parser.choices() else set())
    values = parser.parser_state.value_stack
    return _Unexpected(token, previous, accepted, values, position, source).explain()


def _character(position: int, source: Input) -> Diagnostic:
    text = source.text
    found = text[position]
    number = re.compile(r"[0-9][A-Za-z0-9_.]*").match(text, position)
    if number:
        span = source.place(position, number.end())
        unit = re.fullmatch(r"(\d+)([kKmMgG])", number.group())
        help_ = "write whole numbers in digits (`8192`), bytes with their unit (`80GiB`)"
        if unit:
            power = "kmg".index(unit[2].lower()) + 1
            binary = "1024" if power == 1 else f"1024**{power}"
            help_ = f"write the number out: `{unit[1]} * {binary}`, or `{unit[1]}{'000' * power}`"
        if closest(number.group(), ("1f1b",)):
            help_ = "did you mean `1f1b`?"
        return Diagnostic("E0105", f"`{number.group()}` is not a number", span, help=help_)
    end = text.find("\n", position)
    if found == '"':
        span = source.place(position, end if end >= 0 else len(text))
        return Diagnostic(
            "E0103", "a string is not closed", span, help='end it with `"` on the same line'
        )
    span = source.place(position, position + 1)
    shown = f"`{found}`" if found.isprintable() else f"the character U+{ord(found):04X}"
    help_ = _HELP_AT.get(found, "")
    if found.isalpha() and not help_:
        help_ = "names consist of the letters a to z and A to Z, digits and `_`"
    return Diagnostic("E0101", f"{shown} has no meaning here", span, help=help_)


class _Unexpected:
    """One token that cannot stand where it stands."""

    def __init__(
        self,
        token: Token,
        previous: Token | None,
        accepted: set[str],
        values: list[Any],
        position: int,
        source: Input,
    ) -> None:
        self.token, self.before, self.accepted, self.values = token, previous, accepted, values
        self.position, self.source, self.text = position, source, source.text
        self.spelling = {terminal: word for word, terminal in source.keywords.items()}
        self.is_end = token.type == "$END"
        self.span = source.place(position, position + max(1, len(token)))
        line = self.text.rfind("\n", 0, position) + 1
        self.starts_line = not self.text[line:position].strip()
        last = values[-1] if values else None
        self.previous = last if isinstance(last, Token) else None

    def explain(self) -> Diagnostic:
        for attempt in (
            self.closes_nothing,
            self.unclosed,
            self.bare_statement,
            self.unfinished,
            self.reserved,
            self.apart,
            self.line_joined,
            self.misspelt,
            self.comma_left_out,
            self.attribute,
        ):
            found = attempt()
            if found is not None:
                return found
        return self.error("E0101", f"expected {self.expected()}, found {self.found}", self.advice())

    def error(self, code: str, message: str, help_: str = "", label: str = "") -> Diagnostic:
        return Diagnostic(code, message, self.span, label, help=help_)

    @property
    def found(self) -> str:
        return "the end of the file" if self.is_end else f"`{self.token}`"

    @property
    def is_name(self) -> bool:
        """Whether a keyword is used as a name: by what follows it."""
        after = self.text[self.position + len(self.token) :].lstrip()
        return after.startswith(("=", ",", "[", ":"))

    @property
    def is_given_a_value(self) -> bool:
        """Whether `=` follows."""
        return bool(re.match(r"\s*=(?!=)", self.text[self.position + len(self.token) :]))

    @property
    def in_call(self) -> bool:
        """Whether the innermost bracket that is open is round."""
        opened = open_brackets(self.values)
        return bool(opened) and str(opened[-1]) == "("

    def expected(self) -> str:
        """What could stand here, in a user's words."""
        left = set(self.accepted)
        words: list[str] = []
        for group, word in _GROUPS:
            if group <= left:
                words.append(word)
                left -= group
        if "an expression" in words:
            left -= {"NAME", "STRING", "LSQB", "WEIGHT", "CACHE", "REPEAT", "RETURN"}
        if words == ["a clause"] or "a definition" in words:
            left &= {"RBRACE", "$END", "COMMA", *_OPERATORS}
        if _OPERATORS & left:
            left -= _OPERATORS | _COMPARISONS
            words.append("an operator")
        words += sorted(TERMINAL_NAMES.get(t) or f"`{self.spelling[t]}`" for t in left)
        if len(words) > 1:
            return ", ".join(words[:-1]) + " or " + words[-1]
        return words[0] if words else "the end of the file"

    @property
    def clause(self) -> str:
        """The word of the clause that is not finished here; none where a new line may begin another, or within settings."""
        if self.starts_line and "MESH" in self.accepted:
            return ""
        unfinished = [each for each in self.values if isinstance(each, Token)]
        for before, each in zip(unfinished[-2::-1], reversed(unfinished), strict=False):
            if each.type != "NAME" and str(each) in CLAUSES:
                return str(each)
            if each == "{":
                return "serve" if before == "serve" else ""  # where it has no settings alone
        return ""

    def closes_nothing(self) -> Diagnostic | None:
        """A bracket that was never opened."""
        opener = {"RBRACE": "{", "RPAR": "(", "RSQB": "["}.get(self.token.type)
        if opener is None or opener in map(str, open_brackets(self.values)):
            return None
        return self.error(
            "E0103", f"`{self.token}` closes nothing", f"there is no `{opener}` for it"
        )

    def unclosed(self) -> Diagnostic | None:
        """The text, or the next definition, comes before a bracket's end."""
        opened = open_brackets(self.values)
        definition = self.token.type in _DEFINITIONS and self.span.column == 1 and not self.is_name
        if not opened or not (self.is_end or definition):
            return None
        opener = opened[-1]
        closer = _CLOSERS[str(opener)]
        start = opener.start_pos or 0
        span = self.source.place(start, start + 1)
        stop = "the file ends" if self.is_end else f"`{self.token}` starts a definition"
        return Diagnostic(
            "E0103",
            f"`{opener}` is not closed",
            span,
            f"`{closer}` is missing",
            secondary=[(self.span, f"{stop} here")],
        )

    def bare_statement(self) -> Diagnostic | None:
        """A lone name where a statement starts: a forgotten operator, or a result thrown away."""
        name = self.previous
        if name is None or name.type != "NAME" or "ASSIGN" not in self.accepted:
            return None
        if "COMMA" not in self.accepted or self.in_call:
            return None
        start = name.start_pos or 0
        span = self.source.place(start, start + len(name))
        if self.token.type == "_CALL":
            message = f"the result of `{name}(...)` is not used"
            return Diagnostic("E0101", message, span, help=f"write `x = {name}(...)`")
        keyword = closest(name, ["weight", "cache", "repeat", "return"])
        if keyword and not self.is_end and self.token.type == "NAME":
            message = f"`{name}` does not start a statement"
            return Diagnostic("E0101", message, span, help=f"did you mean `{keyword}`?")
        if self.text[:start].rstrip().endswith(",") and name in self.spelling.values():
            message = f"`{name}` begins a clause, and no comma stands between clauses"
            return Diagnostic(
                "E0101", message, span, help="begin a line with it, without the comma"
            )
        before = self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()
        if before and before[-1] not in "{}":
            message = f"`{name}` starts a new statement, but nothing is assigned to it"
            help_ = "put an operator before it, such as `@`, `*` or `+`"
            return Diagnostic("E0101", message, span, help=help_)
        message = f"expected `=` after `{name}`, found {self.found}"
        return self.error("E0101", message, self.advice())

    def unfinished(self) -> Diagnostic | None:
        """A line that breaks off: the next starts with a keyword, which is not what is wrong."""
        starters = {*_DEFINITIONS, "WEIGHT", "REPEAT", "RETURN"}
        if self.before is None:
            return None
        start = self.before.start_pos or 0
        span = self.source.place(start, start + len(self.before))
        message = f"expected {self.expected()} after `{self.before}`"
        if self.is_end:
            return Diagnostic("E0101", message, span)
        if not self.starts_line or self.token.type not in starters:
            return None
        if self.is_name or {"RETURN", "DIM"} & self.accepted:
            return None
        where = [(self.span, "but here a new line starts")]
        return Diagnostic("E0101", message, span, secondary=where)

    def reserved(self) -> Diagnostic | None:
        """A word that means something else where a name is wanted."""
        word = str(self.token)
        if not word.isidentifier() or "NAME" not in self.accepted or self.token.type == "NAME":
            return None
        help_ = f"choose another name, such as `{word}_` or `{word[0].upper()}{word[1:]}`"
        in_a_body = {"RETURN", "WEIGHT"} & self.accepted
        if self.token.type in _DEFINITIONS and in_a_body and not self.is_name:
            message = f"`{word}` belongs to the top level of the file"
            return self.error("E0101", message, "close the body with `}` before it")
        return self.error("E0102", f"`{word}` is a reserved word and cannot be a name", help_)

    def apart(self) -> Diagnostic | None:
        """White space before a bracket that applies to what is before it."""
        wanted = {"LPAR": "_CALL", "LSQB": "_INDEX"}.get(self.token.type)
        if wanted not in self.accepted:
            return None
        before = self.text[: self.position].rstrip()
        name = re.search(r"[A-Za-z0-9_]*$", before)
        shown = f"`{name.group()}`" if name and name.group() else "what is before it"
        if self.starts_line:
            message = f"no line starts with `{self.token}`"
            help_ = f"move it behind {shown}, or finish the statement before it"
        else:
            message = f"`{self.token}` does not touch {shown}"
            help_ = "leave out the space before it"
        return self.error("E0104", message, help_)

    def line_joined(self) -> Diagnostic | None:
        """A statement that starts with a sign."""
        if self.token.type not in ("LPAR", "LSQB", "MINUS") or not self.starts_line:
            return None
        if "LPAR" in self.accepted:
            return None
        help_ = f"a statement starts with a name or a keyword, never with `{self.token}`"
        return self.error("E0104", f"no line starts with `{self.token}`", help_)

    def misspelt(self) -> Diagnostic | None:
        """An unknown word where only keywords can stand."""
        if self.token.type != "NAME" or "NAME" in self.accepted:
            return None
        if self.is_given_a_value and "COMMA" in self.accepted:
            return None
        words = [w for t, w in self.spelling.items() if t in self.accepted and w.isidentifier()]
        keyword = closest(str(self.token), words)
        if keyword is None:
            return None
        wanted = "a clause" if "MESH" in self.accepted else self.expected()
        wanted = "a definition" if "MODULE" in self.accepted else wanted
        message = f"expected {wanted}, found {self.found}"
        return self.error("E0101", message, f"did you mean `{keyword}`?")

    def comma_left_out(self) -> Diagnostic | None:
        """Two things of a list without a comma between them: `mesh dp = 8 tp = 4`."""
        if self.before is None or "COMMA" not in self.accepted:
            return None
        if "ASSIGN" in self.accepted and not self.in_call:
            return None
        if self.before == "over" or (not self.in_call and self.before in ("at", "x", *CLAUSES)):
            return None
        if not re.fullmatch(r"\w[\w.]*", self.token) or not re.search(r"[\w\"\])]$", self.before):
            return None
        # What starts a line may be a clause that is not known, unless it is given a value.
        if self.starts_line and not self.is_given_a_value:
            return None
        what = "a comma or an operator" if self.in_call else "a comma"
        message = f"{what} is missing between `{self.before}` and `{self.token}`"
        return self.error("E0101", message, f"write `{self.before}, {self.token}`")

    def advice(self) -> str:
        """What to write instead, for the mistakes that have a name."""
        token, accepted = self.token.type, self.accepted
        if accepted == {"ARROW"}:
            return "say what it returns: `-> [B, S, D]`"
        if token == "ASSIGN" and self.before is not None and self.before.type == "ASSIGN":
            return "`=` assigns, `==` compares"
        if token == "ASSIGN" and "EQUAL" in accepted:
            return "`==` compares, `=` assigns"
        if token == "SLASH" and self.before is not None and self.before.type == "SLASH":
            return "a comment starts with `#`; whole division is `floordiv(a, b)`"
        if self.before == "over" and "OVER" in accepted:
            return "say what comes before `over`: `shard B over dp`, `zero 1 over dp`"
        entry = closest(str(self.before), ("prefill", "decode"))
        if accepted == {"ASSIGN"} and entry is not None and entry != self.before:
            return f"did you mean `{entry}`?"
        if {"_CALL"} == accepted:
            return "its inputs follow the name: `(x[B, S, D])`"
        clause = self.clause
        if clause:
            return f"this clause is written `{CLAUSES[clause]}`"
        if "MESH" in accepted:
            words = {w for t, w in self.spelling.items() if t in accepted and w.isidentifier()}
            return f"clauses are {quoted(sorted(words - {'and', 'or', 'over', 'in'}))}"
        if "DIM" in accepted and "MODULE" in accepted:
            words = sorted(self.spelling[t] for t in _DEFINITIONS)
            return f"definitions are {quoted(words)}"
        return ""

    def attribute(self) -> Diagnostic | None:
        """`x.T`, `x.view(...)`: tensors have no attributes."""
        named = re.match(r"\.([A-Za-z_]\w*)", self.text[self.position :])
        if named is None or self.before is None or not _OPERATORS & self.accepted:
            return None
        name = named[1]
        help_ = written_here(name) or f"functions take what they are of: `{name}({self.before})`"
        return self.error("E0101", f"tensors have no attributes, such as `.{name}`", help_)
