"""What a search minimises: `step_time`, `cost`, `token_cost`, or an expression of a plan's numbers."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from stagec.diagnostics import CompileError, Diagnostic, did_you_mean, quoted

Objective = Callable[[Mapping[str, float]], float]

TOKENS = "tokens"
KNOWN = ("step_time", "ranks", "memory.peak", TOKENS)
"""The numbers of a plan that an expression may name: seconds of a step; devices; bytes of the rank that needs most memory; tokens of a step, or new tokens of
an iteration that serves."""
SAMPLES = ((1e-3, 8.0, 1e9, 64.0), (0.5, 63.0, 2e10, 1e3), (7.0, 4096.0, 8e10, 4e6))
"""Values of these numbers to try an expression with. One that is no number for any of them is taken to be none for any plan."""
NAMED = {"cost": "step_time * ranks", "token_cost": "step_time * ranks / tokens"}
"""Objectives with names of their own. `cost` is the device-seconds of a step, `token_cost` those of a token."""
OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def objective(text: str) -> Objective:
    """The function of a plan's numbers (`KNOWN`) that an expression describes. E0710 for text that is no such expression, or the same for all plans."""
    source = NAMED.get(text.strip(), text)
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong(text, f"`{text}` is not an expression", 'write `"step_time * ranks"`') from None
    check(tree, text)

    def value(numbers: Mapping[str, float]) -> float:
        try:
            return evaluate(tree, numbers)
        except (ArithmeticError, ValueError, TypeError):  # a power that is no real number
            return float("nan")

    if not any(name_of(node) for node in ast.walk(tree) if isinstance(node, ast.expr)):
        raise wrong(text, f"`{text}` is the same for all plans", f"name one of {quoted(KNOWN)}")
    if not any(math.isfinite(value(dict(zip(KNOWN, each, strict=True)))) for each in SAMPLES):
        raise wrong(text, f"`{text}` is not a number", "look for a division by zero")
    return value


def rises(text: str) -> bool:
    """Whether an objective can be seen never to fall when one of the numbers grows, tokens apart: it has only sums, products and powers of numbers."""
    tree = ast.parse(NAMED.get(text.strip(), text).strip(), mode="eval").body
    return all(
        isinstance(node.op, ast.Add | ast.Mult | ast.Pow)
        or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and is_same(node.right))
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp | ast.UnaryOp)
    ) and all(
        isinstance(node.right, ast.Constant)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    )


def asks_time(text: str) -> bool:
    """Whether an objective depends on the time of a step."""
    tree = ast.parse(NAMED.get(text.strip(), text).strip(), mode="eval")
    names = {name_of(node) for node in ast.walk(tree) if isinstance(node, ast.expr)}
    return not names.isdisjoint(("step_time", *NAMED))


def is_same(node: ast.expr) -> bool:
    """Whether a part of an expression is above 0 and the same for all plans with the same number of tokens."""
    return isinstance(node, ast.Constant) or name_of(node) == TOKENS


def name_of(node: ast.expr) -> str | None:
    """The name that a part of an expression is, such as `memory.peak`, which Python parses as an attribute; None if it is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = name_of(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def check(node: ast.expr, text: str) -> None:
    """E0710 unless an expression has nothing but known names, numbers and the operators `+ - * / **`."""
    name = name_of(node)
    if name is not None:
        if name not in (*KNOWN, *NAMED):
            help_ = did_you_mean(name, (*KNOWN, *NAMED)) or f"there are {quoted((*KNOWN, *NAMED))}"
            raise wrong(text, f"there is no `{name}` to minimise", help_)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        check(node.left, text)
        check(node.right, text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        check(node.operand, text)
    elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        raise wrong(text, f"`{text}` is not an expression of numbers", "it takes `+ - * / **`")


def evaluate(node: ast.expr, numbers: Mapping[str, float]) -> float:
    """The value of an expression for the numbers of one plan."""
    name = name_of(node)
    if name is not None:
        if name in NAMED:
            return evaluate(ast.parse(NAMED[name], mode="eval").body, numbers)
        return numbers[name]
    if isinstance(node, ast.BinOp):
        left, right = evaluate(node.left, numbers), evaluate(node.right, numbers)
        return float(OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp):
        return -evaluate(node.operand, numbers)
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int | float)
    return float(node.value)


def wrong(text: str, message: str, help_: str) -> CompileError:
    return CompileError([Diagnostic("E0710", message, origin=f"--minimise {text}", help=help_)])
