"""Exact size expressions: `B*S*D`, `S/(cp*tp)`, `ceildiv(V, dp)*D`.

A `Size` is a polynomial with rational coefficients and integer exponents (negative ones divide)
over *atoms*. An atom is a named size (`S`, `tp`) or an opaque function of sizes (`ceildiv`, `max`,
`min`, `floordiv`, `mod`), so that every expression has one canonical form: equal sizes compare and hash equal.
Never a float: sizes exceed 2**53. sympy is for people (`stagec explain`), not for this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Monomial = tuple[tuple["Atom", int], ...]


class SizeError(Exception):
    """A size that is no whole number, or divides by zero; the message says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """An opaque function of sizes. `function` is a key of `FUNCTIONS`."""

    function: str
    arguments: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


Atom = str | Call


def _ceildiv(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(-(-a // b))


FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "ceildiv": _ceildiv,
    "floordiv": lambda a, b: Fraction(a // b),
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def _order(atom: Atom) -> tuple[int, str]:
    return (0, atom) if isinstance(atom, str) else (1, str(atom))


class Size:
    """An exact expression. Immutable; `+ - * /` and `**` take sizes and ints."""

    __slots__ = ("_hash", "_text", "terms")
    terms: tuple[tuple[Monomial, Fraction], ...]

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        kept = [(m, c) for m, c in terms.items() if c]
        kept.sort(key=lambda term: (-_degree(term[0]), [(_order(a), -e) for a, e in term[0]]))
        self.terms = tuple(kept)
        self._hash = hash(self.terms)
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            other = constant(other)
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: Size | int) -> Size:
        other = size(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        total = dict(self.terms)
        for monomial, coefficient in other.terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Size(total)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return Size({m: -c for m, c in self.terms})

    def __sub__(self, other: Size | int) -> Size:
        return self + -size(other)

    def __rsub__(self, other: Size | int) -> Size:
        return size(other) + -self

    def __mul__(self, other: Size | int) -> Size:
        return _multiply(self, size(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Size | int) -> Size:
        other = size(other)
        if not other.terms:
            raise SizeError(f"`{self}` is divided by zero")
        if self == other:
            return ONE
        if len(other.terms) > 1:
            quotient = _exact_quotient(self, other)
            if quotient is None:
                raise SizeError(f"`{self}` is divided by the sum `{other}`")
            return quotient
        monomial, coefficient = next(iter(other.terms))
        inverse = Size({tuple((a, -e) for a, e in monomial): 1 / coefficient})
        return self * inverse

    def __rtruediv__(self, other: Size | int) -> Size:
        return size(other) / self

    def __pow__(self, exponent: int) -> Size:
        if exponent < 0:
            return ONE / self**-exponent
        result = ONE
        for _ in range(exponent):
            result = result * self
        return result

    def __str__(self) -> str:
        if self._text is None:
            self._text = _print(self)
        return self._text

    def __repr__(self) -> str:
        return f"Size({str(self)!r})"

    @property
    def names(self) -> frozenset[str]:
        """Every name in the expression, inside functions too."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    for argument in atom.arguments:
                        found |= argument.names
        return frozenset(found)

    @property
    def constant(self) -> Fraction | None:
        """The value, if no name is left in it."""
        if not self.terms:
            return Fraction(0)
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def substitute(self, bindings: Mapping[str, Size | int]) -> Size:
        """Replace names by sizes, in functions too."""
        if not any(name in bindings for name in self.names):
            return self
        total = ZERO
        for monomial, coefficient in self.terms:
            term = Size({(): coefficient})
            for atom, exponent in monomial:
                if isinstance(atom, str):
                    value = size(bindings[atom]) if atom in bindings else symbol(atom)
                else:
                    value = call(atom.function, *(a.substitute(bindings) for a in atom.arguments))
                term = term * value**exponent
            total = total + term
        return total

    def evaluate(self, values: Mapping[str, int | Fraction]) -> Fraction:
        """The exact number. Raises `KeyError` for a name that has no value."""
        total = Fraction(0)
        for monomial, coefficient in self.terms:
            # Whole numbers until the one division at the end: Fraction reduces at every step.
            numerator, denominator = coefficient.numerator, coefficient.denominator
            for atom, exponent in monomial:
                if isinstance(atom, str):
                    value = values[atom]
                else:
                    arguments = [a.evaluate(values) for a in atom.arguments]
                    value = FUNCTIONS[atom.function](*arguments)
                if isinstance(value, Fraction):
                    top, bottom = value.numerator, value.denominator
                else:
                    top, bottom = value, 1
                if exponent < 0:
                    top, bottom, exponent = bottom, top, -exponent
                numerator *= top**exponent
                denominator *= bottom**exponent
            if denominator == 0:
                raise SizeError(f"`{self}` divides by zero")
            total += Fraction(numerator, denominator)
        return total

    def integer(self, values: Mapping[str, int | Fraction]) -> int:
        """The number, which must be whole."""
        value = self.evaluate(values)
        if value.denominator != 1:
            raise SizeError(f"`{self}` is {value}, not a whole number")
        return value.numerator


def _degree(monomial: Monomial) -> int:
    return sum(exponent for _, exponent in monomial)


@lru_cache(maxsize=1 << 16)
def _multiply(a: Size, b: Size) -> Size:
    total: dict[Monomial, Fraction] = {}
    for left, x in a.terms:
        for right, y in b.terms:
            product = _merge(left, right)
            total[product] = total.get(product, Fraction(0)) + x * y
    return Size(total)


@lru_cache(maxsize=1 << 16)
def _merge(left: Monomial, right: Monomial) -> Monomial:
    exponents = dict(left)
    for atom, exponent in right:
        exponents[atom] = exponents.get(atom, 0) + exponent
    kept = [(a, e) for a, e in exponents.items() if e]
    return tuple(sorted(kept, key=lambda factor: _order(factor[0])))


def _exact_quotient(a: Size, b: Size) -> Size | None:
    """The quotient when it is a monomial: `(2*x*y + 2*x) / (y + 1)` is `2*x`."""
    if not a.terms or len(a.terms) != len(b.terms):
        return None
    quotient = Size(dict(a.terms[:1])) / Size(dict(b.terms[:1]))
    return quotient if quotient * b == a else None


def constant(value: int | Fraction) -> Size:
    return Size({(): Fraction(value)}) if value else ZERO


@lru_cache(maxsize=1 << 12)
def symbol(name: str) -> Size:
    return Size({((name, 1),): Fraction(1)})


def size(value: Size | int | str) -> Size:
    """A size from an int, from a size's text, or itself."""
    if isinstance(value, Size):
        return value
    if isinstance(value, int):
        return constant(value)
    return parse(value)


def call(function: str, *arguments: Size | int) -> Size:
    """`ceildiv(a, b)` and its like; a number if every argument is one."""
    sizes = tuple(size(a) for a in arguments)
    values = [s.constant for s in sizes]
    known = [v for v in values if v is not None]
    if len(known) == len(values):
        if function in ("ceildiv", "floordiv", "mod") and known[1] == 0:
            raise SizeError(f"`{Call(function, sizes)}` divides by zero")
        return constant(FUNCTIONS[function](*known))
    if function in ("ceildiv", "floordiv") and values[1] == 1:
        return sizes[0]
    if function in ("max", "min") and len(set(sizes)) == 1:
        return sizes[0]
    return Size({((Call(function, sizes), 1),): Fraction(1)})


def ceildiv(a: Size | int, b: Size | int) -> Size:
    return call("ceildiv", a, b)


def product(factors: Iterable[Size | int]) -> Size:
    result = ONE
    for factor in factors:
        result = result * factor
    return result


def total(terms: Iterable[Size | int]) -> Size:
    """The sum; linear in the number of terms, where repeated `+` is quadratic."""
    sums: dict[Monomial, Fraction] = {}
    for term in terms:
        for monomial, coefficient in size(term).terms:
            sums[monomial] = sums.get(monomial, Fraction(0)) + coefficient
    return Size(sums)


ZERO = Size({})
ONE = constant(1)


def _print(expression: Size) -> str:
    if not expression.terms:
        return "0"
    text = ""
    for i, (monomial, coefficient) in enumerate(expression.terms):
        sign = "-" if coefficient < 0 else ("+" if i else "")
        top = [_power(a, e) for a, e in monomial if e > 0]
        bottom = [_power(a, -e) for a, e in monomial if e < 0]
        numerator, denominator = abs(coefficient.numerator), coefficient.denominator
        if numerator != 1 or not top:
            top.insert(0, str(numerator))
        if denominator != 1:
            bottom.insert(0, str(denominator))
        term = "*".join(top)
        if len(bottom) == 1:
            term += f"/{bottom[0]}"
        elif bottom:
            term += f"/({'*'.join(bottom)})"
        text += f" {sign} {term}" if i else f"{sign}{term}"
    return text


def _power(atom: Atom, exponent: int) -> str:
    return f"{atom}**{exponent}" if exponent > 1 else str(atom)


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
    result = parser.sum()
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
            if not exponent.isdigit():
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
