"""Shell scripts, read and never run: assignments and words, with variables put in."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from stagec.reading import read_whole_text

MOST_SCRIPT_BYTES = 256 << 10
"""The most bytes of a script, whose words are taken apart letter by letter."""
PARENTHESES = r"\((?:[^()]|\([^()]*\))*\)"
PLAIN = rf"(?:\$\({PARENTHESES}\)|[^\s;#])*"
"""A value without quotes, in which only arithmetic may have spaces."""
ASSIGNMENT = re.compile(
    r"(?:^|;)[ \t]*(?:export[ \t]+|declare[ \t]+(?:-\w+[ \t]+)*|local[ \t]+)?([A-Za-z_]\w*)(\+?)="
    rf"({PARENTHESES}|\"(?:[^\"\\]|\\.)*\"|'[^']*'|{PLAIN})",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"(?m)(^|[ \t])#(?!\!).*$")
VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?[-=]((?:[^{}]|\$\{[^{}]*\})*))?\}|\$(\w+)")
ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
ARRAY = re.compile(r'"(\$\{\w+\[[@*]\]\})"')
DEEPEST = 20


def assignments(text: str) -> dict[str, str]:
    """Variables that a script sets, the last value of each; arrays as words."""
    found: dict[str, str] = {}
    for match in ASSIGNMENT.finditer(uncommented(text)):
        name, more, value = match.groups()
        if value.startswith("(") or value[:1] in ("'", '"'):
            value = value[1:-1]
        value = without_itself(name, value, found.get(name, ""))
        found[name] = (f"{found.get(name, '')} {value}" if more else value).strip()
    return found


def without_itself(name: str, value: str, before: str) -> str:
    """A value that mentions its own variable, `${X:-8}` or `$X more`, with what that was before, or the default."""

    def old(match: re.Match[str]) -> str:
        long, default, plain = match.groups()
        if name not in (long, plain):
            return match[0]
        return before or default or ""

    return VARIABLE.sub(old, value)


SOURCED = re.compile(r"(?m)^[ \t]*(?:source|\.)[ \t]+(.+?)[ \t]*$")


def with_sourced(text: str, folder: Path | None, depth: int = 5) -> tuple[str, list[str]]:
    """A script with the scripts beside it that it sources put in their places; the names of those that are not there."""
    missing: list[str] = []

    def inside(match: re.Match[str]) -> str:
        name = re.split(r"[/\s]", match[1].strip("\"'"))[-1]
        path = folder / name if folder is not None else None
        if path is None or not depth or not path.is_file():
            missing.append(name)
            return ""
        try:
            text = read_whole_text(path, MOST_SCRIPT_BYTES)
        except OSError:
            missing.append(name)
            return ""
        inner, absent = with_sourced(text, folder, depth - 1)
        missing.extend(absent)
        return inner

    return SOURCED.sub(inside, text), list(dict.fromkeys(missing))


def uncommented(text: str) -> str:
    return COMMENT.sub(r"\1", text).replace("\\\n", " ")


def expanded(text: str, variables: Mapping[str, str], depth: int = DEEPEST) -> str:
    """With variables and arithmetic put in; what nobody sets is left out."""

    def value(match: re.Match[str]) -> str:
        name, default, plain = match.groups()
        return variables.get(name or plain, default or "")

    for _ in range(depth):
        before = text
        text = VARIABLE.sub(value, text)
        text = ARITHMETIC.sub(lambda m: computed(m[1], variables, depth - 1), text)
        if text == before:
            break
    return text


def computed(text: str, variables: Mapping[str, str], depth: int) -> str:
    """The value of `$((...))`, in which variables need no `$` and may be arithmetic themselves; nothing if it is no arithmetic of numbers."""

    def named(match: re.Match[str]) -> str:
        return f"({expanded(variables.get(match[0], '') or '0', variables, depth)})"

    text = re.sub(r"[A-Za-z_]\w*", named, expanded(text, variables, depth))

    def of(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](of(node.left), of(node.right))
        raise ValueError

    try:
        return str(of(ast.parse(text.strip(), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError):
        return ""


def words(text: str) -> list[str]:
    """The words of a script, variables put in, in order."""
    variables = assignments(text)
    plain = expanded(ARRAY.sub(r"\1", uncommented(text)), variables)
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[str] = []
    try:
        found.extend(lexer)
    except ValueError:  # a quote that does not close: by white space
        found = plain.split()
    # An element of an array may hold a flag and its value.
    return [part for word in found for part in (word.split() if word.startswith("--") else [word])]
