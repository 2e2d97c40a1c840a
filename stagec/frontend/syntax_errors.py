"""What to say about a text that does not parse: what was found, what could stand there, what to write.

The parser only knows tokens; `explain` looks at the text around them for the mistakes people make.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput
from lark.parsers.lalr_interactive_parser import InteractiveParser

from stagec.diagnostics import Diagnostic, Span, closest, did_you_mean, quoted, suggestion
from stagec.frontend.foreign_names import written_here
from stagec.frontend.keywords import CLAUSES, DEFINED, DEFINITIONS, SETTING_WORDS
from stagec.frontend.recovery import (
    definition_around,
    error_position,
    left_open,
    open_brackets,
)
from stagec.plans.clauses import settings_of

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
_CLOSING = {"(": "RPAR", "[": "RSQB"}
"""The terminal that ends what a bracket begins."""
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

_MEANT_TWICE = {"ASSIGN", "SLASH", "STAR", "MINUS", "LESS", "MORE", "$END"}
"""What another sign begins with, or ends."""
_SETTING_NAMES = {"CACHE", *(word.upper() for word in SETTING_WORDS)}
"""Words of clauses which settings are called too: names, to a user."""
_VALUES = {"NAME", "INT", "FLOAT", "BYTES", "TRUE", "FALSE"}
"""What may follow `=`."""

_DIGITS = "write whole numbers in digits (`8192`), bytes with their unit (`80GiB`)"
_DECIMAL = r"([0-9]+(?:\.[0-9]+)?)"

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
    if found in "µμ" and (digits := re.search(r"[0-9.]+\s*$", text[:position])):
        number = re.compile(r"[0-9.]+[^\S\n]*.[A-Za-z0-9_.]*").match(text, digits.start())
    if number:
        position = number.start()
        span = source.place(position, number.end())
        message = f"`{number.group()}` is not a number"
        setting = re.search(r"(\w+)\s*=\s*$", text[text.rfind("\n", 0, position) + 1 : position])
        word = re.sub(r"\s", "", number.group())
        help_ = number_meant(word, setting[1] if setting else "")
        return Diagnostic("E0105", message, span, help=help_)
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


def blanks(found: re.Match[str]) -> str:
    """As many blanks, in place of a comment."""
    return " " * len(found[0])


def of_unit(word: str, setting: str) -> str:
    """How a number with a unit is written for a setting whose name ends with another, or with none."""
    if setting.endswith("_us") and (time := re.fullmatch(rf"{_DECIMAL}([munµμ]?)s", word, re.I)):
        per = {"": 10**6, "m": 1000, "n": Decimal("0.001")}.get(time[2].lower(), 1)
        return f"it is in microseconds, without a unit: write `{decimal(time[1], per)}`"
    if re.search("(?<!per)_s$", setting) and (
        time := re.fullmatch(rf"{_DECIMAL}([munµμ]?)s", word, re.I)
    ):
        exponent = {"": 0, "m": 3, "n": 9}.get(time[2].lower(), 6)
        number = f"{time[1]}e-{exponent}" if exponent else time[1]
        return f"it is in seconds, without a unit: write `{number}`"
    if setting.endswith("flops_per_s") and (
        rate := re.fullmatch(rf"{_DECIMAL}([kmgtp]?)(flops?(s|ps)?)?", word, re.I)
    ):
        zeros = 3 * " kmgtp".index(rate[2].lower() or " ")
        return f"it is in FLOPs per second, without a unit: write `{rate[1]}e{zeros}`"
    if setting.endswith("bytes_per_s") and (
        rate := re.fullmatch(rf"{_DECIMAL}([kmgt]i?)?(b|bit)?(ps)?", word, re.I)
    ):
        prefix = (rate[2] or "").upper().replace("I", "i")
        prefix = prefix if prefix.endswith("i") else prefix.replace("K", "k")
        written = f"it is in bytes per second: write `{rate[1]}{prefix}B`"
        if rate[3] in ("b", "bit", "Bit"):
            return (
                f"{written}, or `{decimal(rate[1], Decimal('0.125'))}{prefix}B` if these are bits"
            )
        return written
    return ""


def decimal(number: str, times: Decimal | int) -> str:
    """A product, without zeros that say nothing."""
    found = f"{Decimal(number) * times:f}"
    return found.rstrip("0").rstrip(".") if "." in found else found


def number_meant(word: str, setting: str = "") -> str:
    """How what begins as a number does is written: where a setting has it, in the unit of that setting."""
    if closest(word, ("1f1b",)):
        return "did you mean `1f1b`?"
    if in_its_unit := of_unit(word, setting):
        return in_its_unit
    if thousands := re.fullmatch(r"(\d+)([kmgt])", word, re.I):
        power = "kmgt".index(thousands[2].lower()) + 1
        binary = "1024" if power == 1 else f"1024**{power}"
        return (
            f"write the number out: `{thousands[1]} * {binary}`, or `{thousands[1]}{'000' * power}`"
        )
    if size := re.fullmatch(r"([0-9.]+)(([kmgt])(i?)b?|b)", word, re.I):
        prefix = (size[3] or "").upper().replace("K", "K" if size[4] else "k")
        return f"write `{size[1]}{prefix}{size[4] or ''}B`"
    return _DIGITS


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
        self.line = self.text[self.text.rfind("\n", 0, position) + 1 : position]
        """What stands before it in its line."""
        self.starts_line = not self.line.strip()
        last = values[-1] if values else None
        self.previous = last if isinstance(last, Token) else None

    def explain(self) -> Diagnostic:
        for attempt in (
            self.left_open,
            self.closes_nothing,
            self.unit_apart,
            self.unclosed,
            self.doubled,
            self.extends_inside,
            self.swallowed,
            self.unassigned,
            self.bare_statement,
            self.without_comma,
            self.unfinished,
            self.body_not_opened,
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
        message = f"expected {self.expected()}, found {self.found}"
        return self.not_closed(message) or self.error("E0101", message, self.advice())

    def error(self, code: str, message: str, help_: str = "", label: str = "") -> Diagnostic:
        return Diagnostic(code, message, self.span, label, help=help_)

    def span_from(self, start: Token) -> Span:
        """From a token before to the end of this one."""
        return self.source.place(start.start_pos or 0, self.position + len(self.token))

    def span_of(self, token: Token) -> Span:
        start = token.start_pos or 0
        return self.source.place(start, start + len(token))

    def on_line_of(self, token: Token) -> bool:
        return "\n" not in self.text[token.start_pos or 0 : self.position]

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
        if left >= _SETTING_NAMES:
            left -= _SETTING_NAMES
        if "an expression" in words:
            left -= {"NAME", "STRING", "LSQB", "WEIGHT", "CACHE", "REPEAT", "RETURN"}
        if words == ["a clause"] or "a definition" in words:
            left &= {"RBRACE", "$END", "COMMA", *_OPERATORS}
        if _OPERATORS & left - {"_INDEX"}:
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

    @property
    def braces_of(self) -> str:
        """The word of the clause whose settings stand here."""
        opened = open_brackets(self.values)
        if not opened or opened[-1] != "{":
            return ""
        start = opened[-1].start_pos or 0
        before = [e for e in self.values if isinstance(e, Token) and (e.start_pos or 0) < start]
        return next((str(each) for each in reversed(before) if each in CLAUSES), "")

    def left_open(self) -> Diagnostic | None:
        """A brace that is not closed before a line that is indented no further than that of the brace."""
        before = max(0, self.position - 1)  # what begins here may be the next definition
        found = left_open(self.text, *definition_around(self.text, before))
        if found is None or found[1] > self.position:
            return None
        start, next_ = found
        word = re.compile(r"\w*|.").match(self.text, next_)
        assert word is not None
        where = [(self.source.place(next_, max(word.end(), next_ + 1)), "before this line")]
        span = self.source.place(start, start + 1)
        help_ = "end with `}` what it begins"
        message, label = "`{` is not closed", "`}` is missing"
        return Diagnostic("E0103", message, span, label, secondary=where, help=help_)

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
            help=f"end with `{closer}` what it begins",
        )

    def not_closed(self, message: str) -> Diagnostic | None:
        """Another sign where the innermost bracket could end, and its own end, or that of one around it, or a line, is what comes."""
        opened = open_brackets(self.values)
        opener = str(opened[-1]) if opened else ""
        ends = self.token.type in ("RPAR", "RSQB", "RBRACE", "ARROW", "LBRACE", "COLON")
        if _CLOSING.get(opener) not in self.accepted or not (ends or self.starts_line):
            return None
        closer = _CLOSERS[opener]
        where = [(self.span_of(opened[-1]), f"`{opener}` is open")]
        end = self.position + len(self.token)
        if ends and (after := re.compile(rf"\s*{re.escape(closer)}").match(self.text, end)):
            span = self.source.place(self.position, after.end())
            help_ = f"write `{closer}{self.token}`"
            return Diagnostic("E0101", message, span, secondary=where, help=help_)
        around = [_CLOSERS[str(each)] for each in opened[:-1]]
        replaces = self.token.type in ("RPAR", "RSQB") and str(self.token) not in around[-1:]
        help_ = f"write `{closer}`" if replaces else f"write `{closer} {self.token}`"
        return Diagnostic("E0101", message, self.span, secondary=where, help=help_)

    def unit_apart(self) -> Diagnostic | None:
        """`bucket_bytes = 25 MB`: the unit was read as the name of the next setting."""
        unit = self.before
        if self.accepted != {"ASSIGN"} or unit is None:
            return None
        start = unit.start_pos or 0
        line = self.text[self.text.rfind("\n", 0, start) + 1 : start]
        number = re.search(rf"(\w+)\s*=\s*{_DECIMAL}\s+$", line)
        if number is None or (help_ := number_meant(number[2] + unit, number[1])) == _DIGITS:
            return None
        begin = start - len(line) + number.start(2)
        message = f"`{number[2]} {unit}` is not a number"
        span = self.source.place(begin, start + len(unit))
        return Diagnostic("E0105", message, span, help=help_)

    def doubled(self) -> Diagnostic | None:
        """The same word or sign once more."""
        if self.before is None:
            return None
        if self.accepted == {"ASSIGN"}:  # the second was read as the name of what follows
            word = self.before
            if re.search(rf"(?<!\w){re.escape(word)}\s+$", self.text[: word.start_pos or 0]):
                span, help_ = self.span_of(word), "leave one of them out"
                return Diagnostic("E0101", f"`{word}` stands twice", span, help=help_)
        if self.token != self.before or self.token.type in _MEANT_TWICE:
            return None
        return self.error("E0101", f"`{self.token}` stands twice", "leave one of them out")

    def extends_inside(self) -> Diagnostic | None:
        """`plan a { extends b`: what a plan extends stands before its brace."""
        values = self.values
        if self.token != "extends" or self.before is None or self.before != "{" or len(values) < 3:
            return None
        kind, name = values[-3:-1]
        base = re.match(r"\s+(\w+)", self.text[self.position + len(self.token) :])
        if kind not in ("plan", "pool") or not isinstance(name, Token) or base is None:
            return None
        message = "`extends` stands before the brace"
        end = self.position + len(self.token) + base.end()
        span = self.source.place(self.before.start_pos or 0, end)
        return Diagnostic("E0101", message, span, help=f"write `extends {base[1]} {{`")

    def swallowed(self) -> Diagnostic | None:
        """What breaks off before a clause, whose word was read as a name that belongs to it."""
        word = self.before
        if word is None or word not in CLAUSES or self.is_given_a_value:
            return None
        if word.type != "NAME":
            if self.token.type != "RBRACE" and not self.starts_line:
                return None
            help_ = f"write `{self.with_module(CLAUSES[word])}`"
            return Diagnostic("E0101", f"nothing follows `{word}`", self.span_of(word), help=help_)
        start = word.start_pos or 0
        line = self.text[self.text.rfind("\n", 0, start) + 1 : start]
        last = re.search(r"(\w+|[^\w\s])\s*$", re.sub(r"#[^\n]*", blanks, self.text[:start]))
        if line.strip() or last is None or self.token.type == "ASSIGN":
            return None
        where = [(self.span_of(word), f"and `{word}` begins another clause")]
        if last[1] == ",":
            help_ = "leave the comma out: none stands between clauses"
        elif (clause := CLAUSES.get(last[1])) is not None:
            help_ = f"write `{self.with_module(clause)}`"
        elif (clause := self.clause_at(last.start(1))) is not None:
            help_ = f"this clause is written `{self.with_module(clause)}`"
        else:
            help_ = f"write what follows `{last[1]}`, or leave it out"
        span = self.source.place(last.start(1), last.end(1))
        return Diagnostic(
            "E0101", f"nothing follows `{last[1]}`", span, secondary=where, help=help_
        )

    def clause_at(self, position: int) -> str | None:
        """The example of the clause that begins this line."""
        words = self.text[self.text.rfind("\n", 0, position) + 1 : position].split(maxsplit=1)
        return CLAUSES.get(words[0]) if words else None

    def with_module(self, clause: str) -> str:
        """The example with a module that the text has."""
        module = re.search(r"^module ([A-Za-z_]\w*)", self.text, re.MULTILINE)
        return re.sub(r"\b(Block|Tower)$", module[1], clause) if module else clause

    def unassigned(self) -> Diagnostic | None:
        """`mesh dp 8`, `dim B 8`, `weights bf16`: a name, and its value without `=`."""
        name = self.before
        if name is None or name.type != "NAME" or self.token.type not in _VALUES:
            return None
        if name in CLAUSES:
            return None
        is_entry = self.clause in ("mesh", "set") and "ASSIGN" in self.accepted
        if not (is_entry or self.accepted == {"ASSIGN"}) or not self.on_line_of(name):
            return None
        if is_entry and self.is_given_a_value:  # a comma is missing
            return None
        message = f"expected `=` after `{name}`, found {self.found}"
        if entry := did_you_mean(name, ("prefill", "decode")):
            return Diagnostic("E0101", message, self.span_of(name), help=entry)
        help_ = f"write `{name} = {self.token}`"
        return Diagnostic("E0101", message, self.span_from(name), help=help_)

    def without_comma(self) -> Diagnostic | None:
        """`weight a[D] b[D]`: what follows was read as the target of an assignment; `at 1500 block = 16`: as a word about tokens."""
        if self.clause == "serve" and self.token.type == "ASSIGN":
            name = self.before
            if name is None or name.type != "NAME":
                return None
            return self.comma_before(name.start_pos or 0)
        if "ASSIGN" not in self.accepted or not self.accepted <= {"ASSIGN", "COMMA"}:
            return None
        is_value = self.token.type in {*_VALUES, "LPAR"} and not self.starts_line
        is_list = re.search(r"\bweight\b|\bcache\b", self.line)
        if is_value and self.before == "]" and not is_list:
            message = f"expected {self.expected()}, found {self.found}"
            return self.error("E0101", message, f"write `= {self.token}`")
        for value in reversed(self.values):
            place: Any = value if isinstance(value, Token) else getattr(value, "meta", None)
            start = getattr(place, "start_pos", None)
            if start is None or not self.text[start].isidentifier():
                continue
            before = self.text[self.text.rfind("\n", 0, start) + 1 : start].rstrip()
            if before.endswith("]"):
                return self.comma_before(start)
            name = re.compile(r"\w+").match(self.text, start)
            if name is not None and not before and self.starts_line:
                message = f"nothing is assigned to `{name[0]}`"
                help_ = f"write `weight {name[0]}` if these are weights"
                span = self.source.place(start, name.end())
                return Diagnostic("E0101", message, span, help=help_)
        return None

    def comma_before(self, start: int) -> Diagnostic | None:
        """A finding for the name that starts there."""
        name = re.compile(r"\w+").match(self.text, start)
        if name is None:
            return None
        message = f"a comma is missing before `{name[0]}`"
        span = self.source.place(start, name.end())
        return Diagnostic("E0101", message, span, help=f"write `, {name[0]}`")

    def body_not_opened(self) -> Diagnostic | None:
        """The brace of a plan, a body or a repeat left out."""
        if "LBRACE" not in self.accepted or self.before is None or "MESH" in self.accepted:
            return None
        if {"RETURN", "DIM", "LPAR", "NAME"} & self.accepted:
            return None
        is_statement = self.token.type in _STATEMENTS and self.token.type != "NAME"
        starts = is_statement or self.token in CLAUSES or self.is_given_a_value
        if not (self.starts_line or starts):
            return None
        message = f"expected {self.expected()} after `{self.before}`"
        where = [(self.span, "but here a new line starts" if self.starts_line else "not this")]
        help_ = f"write `{self.before} {{`"
        span = self.span_of(self.before)
        return Diagnostic("E0101", message, span, secondary=where, help=help_)

    def bare_statement(self) -> Diagnostic | None:
        """A lone name where a statement starts: a forgotten operator, or a result thrown away."""
        name = self.previous
        if name is None or name.type != "NAME" or "ASSIGN" not in self.accepted:
            return None
        if "COMMA" not in self.accepted or self.in_call:
            return None
        start = name.start_pos or 0
        span = self.source.place(start, start + len(name))
        if re.search(rf"(?<!\w){name}\s+$", self.text[:start]):
            help_ = "leave one of them out"
            if self.token.type != "_CALL":
                help_ += ", or put an operator between them, such as `@`, `*` or `+`"
            return Diagnostic("E0101", f"`{name}` stands twice", span, help=help_)
        keyword = closest(name, ["weight", "cache", "repeat", "return"])
        if keyword and self.token.type in ("NAME", "INT", "LPAR"):
            message = f"`{name}` does not start a statement"
            return Diagnostic("E0101", message, span, help=f"did you mean `{keyword}`?")
        if self.text[:start].rstrip().endswith(",") and name in self.spelling.values():
            message = f"`{name}` begins a clause, and no comma stands between clauses"
            return Diagnostic(
                "E0101", message, span, help="begin a line with it, without the comma"
            )
        before = self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()
        joins = bool(before) and before[-1] not in "{}"
        if self.token.type == "_CALL" and not joins:
            message = f"the result of `{name}(...)` is not used"
            return Diagnostic("E0101", message, span, help=f"write `x = {name}(...)`")
        if joins:
            message = f"`{name}` starts a new statement, but nothing is assigned to it"
            help_ = "put an operator before it, such as `@`, `*` or `+`"
            return Diagnostic("E0101", message, span, help=help_)
        message = f"expected `=` after `{name}`, found {self.found}"
        if self.token.type in _VALUES and self.on_line_of(name):
            help_ = f"write `{name} = {self.token}`"
            return Diagnostic("E0101", message, self.span_from(name), help=help_)
        if self.token.type in ("WEIGHT", "CACHE") and self.on_line_of(name):
            help_ = f"write `{self.token} {name}`"
            return Diagnostic("E0101", message, self.span_from(name), help=help_)
        if self.token.type in _OPERATORS and self.on_line_of(name):
            help_ = f"write `return {name}`, or `y = {name}`"
            return Diagnostic("E0101", message, span, help=help_)
        help_ = self.advice() or f"leave `{name}` out, or assign to it: `{name} = x`"
        return self.error("E0101", message, help_)

    def unfinished(self) -> Diagnostic | None:
        """A line that breaks off: the next starts with a keyword, which is not what is wrong."""
        starters = {*_DEFINITIONS, "WEIGHT", "REPEAT", "RETURN"}
        if self.before is None:
            return None
        start = self.before.start_pos or 0
        span = self.source.place(start, start + len(self.before))
        message = f"expected {self.expected()} after `{self.before}`"
        if self.is_end:
            return Diagnostic("E0101", message, span, help=self.end_of_line())
        if not self.starts_line or self.token.type not in starters:
            return None
        if self.is_name or {"RETURN", "DIM"} & self.accepted:
            return None
        where = [(self.span, "but here a new line starts")]
        return Diagnostic("E0101", message, span, secondary=where, help=self.end_of_line())

    def end_of_line(self) -> str:
        """What a line that breaks off may lack."""
        opened = [str(each) for each in open_brackets(self.values)]
        if opened and _CLOSING.get(opened[-1]) in self.accepted:
            return f"write `{self.before}{_CLOSERS[opened[-1]]}`"
        if self.accepted >= {"NAME", "INT"} and self.before is not None:
            is_sign = self.before.type in _OPERATORS
            return f"write what follows `{self.before}`{', or leave it out' * is_sign}"
        if "LBRACE" in self.accepted:
            return f"write `{self.before} {{`"
        return "close the body with `}` before it" if "RBRACE" in self.accepted else ""

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
        help_ = suggestion(word, settings_of(self.braces_of)) or help_
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
        if "COMMA" in self.accepted:
            words = [word for word in words if word not in ("and", "or")]
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
        if not self.in_call and self.before in ("over", "at", "x", *CLAUSES):
            return None
        if self.clause == "serve" and not self.is_given_a_value:
            return None
        if not re.fullmatch(r"\w[\w.]*", self.token) or not re.search(r"[\w\"\])]$", self.before):
            return None
        # What starts a line may be a clause that is not known, unless it is given a value.
        if self.starts_line and not self.is_given_a_value:
            return None
        if self.token.type in _STATEMENTS - {"NAME"}:
            return None
        opened = open_brackets(self.values)
        if self.starts_line and opened and (opened[-1] == "[" or self.is_outside(opened[-1])):
            return None
        what = "a comma or an operator" if self.in_call else "a comma"
        help_ = f"write `{self.before}, {self.token}`"
        if self.in_call and self.before.type == "NAME" and not self.is_given_a_value:
            help_ += f", or `{self.before} = {self.token}`"
        elif "OVER" in self.accepted and not re.search(
            r"\bover\b", self.text[self.position :].split("\n", 1)[0]
        ):
            what, help_ = "`over`", f"write `{self.before} over {self.token}`"
        message = f"{what} is missing between `{self.before}` and `{self.token}`"
        return Diagnostic("E0101", message, self.span_from(self.before), help=help_)

    def is_outside(self, opener: Token) -> bool:
        """Whether this line begins no further to the right than that of a round bracket that is open: it is the next statement."""
        before = self.text[: opener.start_pos or 0].rsplit("\n", 1)[-1]
        margin = len(before) - len(before.lstrip())
        return opener == "(" and len(self.line) <= margin

    def advice(self) -> str:
        """What to write instead, for the mistakes that have a name."""
        token, accepted = self.token.type, self.accepted
        if accepted == {"EXTENDS", "LBRACE"}:
            return f"write `{{`, or `extends` between the names of two plans: `plan {self.before} extends {self.token} {{`"
        if (
            token in ("RPAR", "RSQB", "RBRACE")
            and self.before is not None
            and str(self.before) in ("(", "[", "{")
        ):
            return f"leave `{self.before}` out, or close it after what belongs in it"
        if accepted == {"ARROW"}:
            return "say what it returns: `-> [B, S, D]`"
        if token == "LBRACE" and self.before == "repeat":
            return "say how often before it: `repeat 2 {`"
        if token == "ASSIGN" and self.before is not None and self.before.type == "ASSIGN":
            return "`=` assigns, `==` compares"
        if token == "ASSIGN" and self.before is not None and self.before.type in _DEFINITIONS:
            return f"a name follows `{self.before}`: `{DEFINED[str(self.before)]}`"
        if token == "ASSIGN" and (self.starts_line or self.before in (",", "(")):
            return "write before `=` the name of what it is for"
        if token == "ASSIGN" and "EQUAL" in accepted:
            return "`==` compares, `=` assigns"
        if token == "SLASH" and self.before is not None and self.before.type == "SLASH":
            return "a comment starts with `#`; whole division is `floordiv(a, b)`"
        if self.before == "over" and "OVER" in accepted:
            return "say what comes before `over`: `shard B over dp`, `zero 1 over dp`"
        if {"_CALL"} == accepted:
            return "its inputs follow the name: `(x[B, S, D])`"
        if accepted == {"LSQB"}:
            return f"write `[{self.token}`"
        if accepted == {"_INDEX"}:
            return f"a shape follows the name: `{self.before}[B, S, D]`"
        if token in ("LSQB", "_INDEX") and "NAME" in accepted and "INT" not in accepted:
            return "a name stands before its shape: `x[B, S, D]`"
        if self.before == ":" and "NAME" in accepted:
            return "a dtype follows `:`, such as `i32`"
        is_word = token in _EXPRESSION - {"LPAR", "MINUS"}
        if is_word and "COMMA" not in accepted and not self.starts_line and _OPERATORS & accepted:
            return "put an operator before it, such as `@`, `*` or `+`"
        clause = self.clause
        if clause:
            return f"this clause is written `{self.with_module(CLAUSES[clause])}`"
        if token == "COMMA" and {"NAME", "RPAR", "RSQB", "RBRACE"} & accepted:
            return "leave the comma out, or write what stands before it"
        if token == "COMMA" and "RPAR" in accepted:
            return "round brackets alone hold one expression: a call has its name before them"
        if token in _OPERATORS - {"MINUS", "_INDEX"} and accepted >= _EXPRESSION:
            return f"leave `{self.token}` out, or write what stands before it"
        if token in ("RPAR", "RSQB", "RBRACE") and accepted >= _EXPRESSION and self.before:
            return f"write what follows `{self.before}`, or leave it out"
        if "MESH" in accepted:
            words = {w for t, w in self.spelling.items() if t in accepted and w.isidentifier()}
            return f"clauses are {quoted(sorted(words - {'and', 'or', 'over', 'in'}))}"
        if "DIM" in accepted and "MODULE" in accepted:
            words = sorted(self.spelling[t] for t in _DEFINITIONS)
            return f"definitions are {quoted(words)}"
        return self.without_it()

    def without_it(self) -> str:
        """What is too much, where the text goes on as it may without it; or the only sign that may stand here."""
        if self.is_end or self.before is None:
            return ""
        after = re.compile(r"\s*(\w+|->|[^\w\s])").match(self.text, self.position + len(self.token))
        if after is not None and self.terminal(after[1]) in self.accepted:
            return f"leave `{self.token}` out"
        if self.before == "," and self.token.type in _CLOSING.values():
            return "leave out the comma before it"
        signs = [self.spelling[each] for each in self.accepted if each in self.spelling]
        if len(signs) == len(self.accepted) == 1:
            return f"write `{self.before} {signs[0]}`"
        return ""

    def terminal(self, word: str) -> str:
        """What the grammar calls a word or a sign."""
        kind = "INT" if word.isdecimal() else "NAME" if word.isidentifier() else ""
        return self.source.keywords.get(word, kind)

    def attribute(self) -> Diagnostic | None:
        """`x.T`, `x.view(...)`: tensors have no attributes."""
        named = re.match(r"\.([A-Za-z_]\w*)", self.text[self.position :])
        if named is None or self.before is None or not _OPERATORS & self.accepted:
            return None
        name = named[1]
        help_ = written_here(name) or f"functions take what they are of: `{name}({self.before})`"
        return self.error("E0101", f"tensors have no attributes, such as `.{name}`", help_)
