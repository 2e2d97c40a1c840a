"""Sizes as text: `parse` is the inverse of `str`."""

from __future__ import annotations

import re
from functools import lru_cache

from stagec.symbolic.algebra import FUNCTIONS, Size, SizeError, as_size, call, constant, symbol

LARGEST_EXPONENT = 64


def size(value: Size | int | str) -> Size:
    """A size from an int, from a size's text, or itself."""
    return parse(value) if isinstance(value, str) else as_size(value)


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z_0-9.]*)|(\*\*|[-+*/(),%]))")


@lru_cache(maxsize=1 << 14)
def parse(text: str) -> Size:
    """The inverse of `str`. Raises `SizeError` on anything else."""
    tokens: list[str] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise SizeError(f"`{text}` is not a size")
        tokens.append(match.group(match.lastindex or 0))
        position = match.end()
    parser = _Parser(text, tokens)
    try:
        result = parser.sum()
    except RecursionError:
        raise SizeError("a size is nested too deeply") from None
    if parser.position != len(tokens):
        raise SizeError(f"`{text}` is not a size")
    return result


class _Parser:
    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text, self.tokens, self.position = text, tokens, 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise SizeError(f"`{self.text}` is not a size")
        self.position += 1
        return token

    def sum(self) -> Size:
        result = self.product()
        while self.peek() in ("+", "-"):
            if self.take() == "+":
                result = result + self.product()
            else:
                result = result - self.product()
        return result

    def product(self) -> Size:
        result = self.unary()
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                result = result * self.unary()
            else:
                result = result / self.unary()
        return result

    def unary(self) -> Size:
        if self.peek() == "-":
            self.take()
            return -self.unary()
        base = self.atom()
        if self.peek() == "**":
            self.take()
            exponent = self.take()
            if not exponent.isdigit() or int(exponent) > LARGEST_EXPONENT:
                raise SizeError(f"`{self.text}` is not a size")
            base = base ** int(exponent)
        return base

    def atom(self) -> Size:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.take(")")
            return inner
        if token.isdigit():
            return constant(int(token))
        if token in FUNCTIONS and self.peek() == "(":
            self.take("(")
            arguments = [self.sum()]
            while self.peek() == ",":
                self.take(",")
                arguments.append(self.sum())
            self.take(")")
            return call(token, *arguments)
        if token[0].isalpha() or token[0] == "_":
            return symbol(token)
        raise SizeError(f"`{self.text}` is not a size")
