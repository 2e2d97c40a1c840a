"""The algebra: what `+ - * /` and functions make of sizes, and the one form of each expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Monomial = tuple[tuple["Atom", int], ...]


class SizeError(ValueError):
    """A size that is no whole number, or divides by zero; the message says which."""


class NoNumberError(SizeError, KeyError):
    """A size names what has no number."""

    __str__ = Exception.__str__


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """An opaque function of sizes. `function` is a key of `FUNCTIONS`."""

    function: str
    arguments: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


Atom = str | OpaqueCall


def _ceildiv(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(-(-a // b))


FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "ceildiv": _ceildiv,
    "floordiv": lambda a, b: Fraction(a // b),
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


DIVISIONS = ("ceildiv", "floordiv", "mod")
"""Functions of a dividend and a divisor; the others take any number of sizes, in any order."""


def _order(atom: Atom) -> tuple[int, str]:
    return (0, atom) if isinstance(atom, str) else (1, str(atom))


class Size:
    """An exact expression. Immutable; `+ - * /` and `**` take sizes and ints."""

    __slots__ = ("_hash", "_text", "terms")
    terms: tuple[tuple[Monomial, Fraction], ...]

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        kept = [(m, c) for m, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=lambda term: (-_degree(term[0]), [(_order(a), -e) for a, e in term[0]]))
        self.terms = tuple(kept)
        self._hash: int | None = None
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            other = constant(other)
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: Size | int) -> Size:
        other = as_size(other)
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
        return self + -as_size(other)

    def __rsub__(self, other: Size | int) -> Size:
        return as_size(other) + -self

    def __mul__(self, other: Size | int) -> Size:
        return _multiply(self, as_size(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Size | int) -> Size:
        other = as_size(other)
        if not other.terms:
            raise SizeError(f"`{self}` is divided by zero")
        if self == other:
            return ONE
        if not self.terms:
            return ZERO
        if len(other.terms) > 1:
            quotient = _exact_quotient(self, other)
            if quotient is None:
                raise SizeError(f"`{self}` is divided by the sum `{other}`")
            return quotient
        monomial, coefficient = next(iter(other.terms))
        inverse = Size({tuple((a, -e) for a, e in monomial): 1 / coefficient})
        return self * inverse

    def __rtruediv__(self, other: Size | int) -> Size:
        return as_size(other) / self

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
                    value = as_size(bindings[atom]) if atom in bindings else symbol(atom)
                else:
                    value = call(atom.function, *(a.substitute(bindings) for a in atom.arguments))
                term = term * value**exponent
            total = total + term
        return total

    def evaluate(self, values: Mapping[str, int | Fraction]) -> Fraction:
        """The exact number. Raises `NoNumberError`, a `KeyError`, for a name that has no value."""
        if type(values) is not dict and (exact := getattr(values, "exact", None)):
            return exact(self)
        whole, rest = 0, Fraction(0)
        for monomial, coefficient in self.terms:
            # Whole numbers until the one division at the end: Fraction reduces at every step.
            numerator, denominator = coefficient.numerator, coefficient.denominator
            for atom, exponent in monomial:
                if isinstance(atom, str):
                    try:
                        value = values[atom]
                    except KeyError:
                        raise NoNumberError(f"the size `{atom}` has no number") from None
                else:
                    arguments = [a.evaluate(values) for a in atom.arguments]
                    if atom.function in DIVISIONS and not arguments[1]:
                        raise SizeError(f"`{atom}` divides by zero")
                    value = FUNCTIONS[atom.function](*arguments)
                if type(value) is Fraction:
                    top, bottom = value.numerator, value.denominator
                else:
                    top, bottom = value, 1
                if exponent < 0:
                    top, bottom, exponent = bottom, top, -exponent
                numerator *= top**exponent
                denominator *= bottom**exponent
            if denominator == 0:
                raise SizeError(f"`{self}` divides by zero")
            if numerator % denominator:
                rest += Fraction(numerator, denominator)
            else:
                whole += numerator // denominator
        return rest + whole if rest else Fraction(whole)

    def integer(self, values: Mapping[str, int | Fraction]) -> int:
        """The number, which must be whole."""
        known = self.constant
        value = self.evaluate(values) if known is None else known
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
    if len(a.terms) != len(b.terms):
        return None
    first = Size(dict(b.terms[:1]))
    quotients = (Size(dict([term])) / first for term in a.terms)
    return next((q for q in quotients if q * b == a), None)


def constant(value: int | Fraction) -> Size:
    return Size({(): Fraction(value)}) if value else ZERO


@lru_cache(maxsize=1 << 12)
def symbol(name: str) -> Size:
    return Size({((name, 1),): Fraction(1)})


def as_size(value: Size | int) -> Size:
    return value if isinstance(value, Size) else constant(value)


@lru_cache(maxsize=1 << 14)
def call(function: str, *arguments: Size | int) -> Size:
    """`ceildiv(a, b)` and its like; a number if every argument is one."""
    sizes = tuple(as_size(a) for a in arguments)
    if function in DIVISIONS:
        if len(sizes) != 2:
            raise SizeError(f"`{function}` takes two sizes, not {len(sizes)}")
        if sizes[1] == ZERO:
            raise SizeError(f"`{OpaqueCall(function, sizes)}` divides by zero")
        if function != "mod" and sizes[1] == ONE and is_whole(sizes[0]):
            return sizes[0]
    else:
        # In one order, so that equal ones are equal.
        sizes = tuple(sorted(set(sizes), key=str))
        if len(sizes) == 1:
            return sizes[0]
    known = [v for s in sizes if (v := s.constant) is not None]
    if len(known) == len(sizes):
        return constant(FUNCTIONS[function](*known))
    return Size({((OpaqueCall(function, sizes), 1),): Fraction(1)})


def is_whole(value: Size) -> bool:
    """Whether nothing divides in a size: it is a whole number if its names are."""
    return all(
        coefficient.denominator == 1 and all(exponent > 0 for _, exponent in monomial)
        for monomial, coefficient in value.terms
    )


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
        for monomial, coefficient in as_size(term).terms:
            before = sums.get(monomial)
            sums[monomial] = coefficient if before is None else before + coefficient
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
