"""Shell scripts, read and never run: assignments and words, with variables put in."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Mapping

ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|declare[ \t]+(?:-\w+[ \t]+)*|local[ \t]+)?([A-Za-z_]\w*)(\+?)=(\((?:[^()]|\([^()]*\))*\)|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s;#]*)",
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
DEEPEST = 20


def assignments(text: str) -> dict[str, str]:
    """Variables that a script sets, the last one of each; arrays as words."""
    found: dict[str, str] = {}
    for match in ASSIGNMENT.finditer(uncommented(text)):
        name, more, value = match.groups()
        if value.startswith("(") or value[:1] in ("'", '"'):
            value = value[1:-1]
        itself = f"${{{name}}}"
        if itself in value or f"${name} " in value or more:
            value = f"{found.get(name, '')} {value.replace(itself, '').replace(f'${name} ', ' ')}"
        found[name] = value.strip() if not value.startswith("${" + name + ":-") else value
    return found


def uncommented(text: str) -> str:
    return COMMENT.sub(r"\1", text).replace("\\\n", " ")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """With variables and arithmetic put in; what nobody sets is left out."""

    def value(match: re.Match[str]) -> str:
        name, default, plain = match.groups()
        return variables.get(name or plain, default or "")

    for _ in range(DEEPEST):
        before = text
        text = VARIABLE.sub(value, text)
        text = ARITHMETIC.sub(lambda m: computed(m[1], variables), text)
        if text == before:
            break
    return text


def computed(text: str, variables: Mapping[str, str]) -> str:
    """The value of `$((...))`, in which variables have no `$`; nothing if it is no arithmetic of numbers."""
    text = re.sub(r"[A-Za-z_]\w*", lambda m: variables.get(m[0], "0") or "0", text)

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
    plain = expanded(uncommented(text), variables)
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[str] = []
    try:
        found.extend(lexer)
    except ValueError:  # a quote that does not close: by white space
        found = plain.split()
    return found
