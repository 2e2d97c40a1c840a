"""Closed forms for people: sympy's simplification, derivatives, and the three spellings.

The only module that imports sympy. Sizes are whole numbers, and positive but for what counts from 0; `ceildiv(a, b)` is a ceiling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy.core.parameters import global_parameters
from sympy.printing.str import StrPrinter

from stagec.analysis.coordinates import SUFFIX
from stagec.dialects.dist.stages import is_first_layer, is_local_count
from stagec.symbolic import OpaqueCall, Size

MOST_TERMS_FACTORED = 24
"""Factoring a longer sum takes seconds."""
MOST_CHARACTERS, MOST_CHOICES = 2000, 16
"""Of a longer form, or of more remainders, largest and smallest in each other, sympy takes minutes to find out which is larger, or whole."""

Expression = Any
"""A `sympy.Expr`. Its methods return unions that a type checker cannot narrow."""


def variable(name: str) -> sympy.Symbol:
    """A dim, an axis or a setting, which is 1 or more; or what counts from 0: a coordinate, a first layer, the layers of a stage."""
    if name.endswith(SUFFIX) or is_first_layer(name) or is_local_count(name):
        return sympy.Symbol(name, nonnegative=True, integer=True)
    return sympy.Symbol(name, positive=True, integer=True)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceildiv": lambda a, b: sympy.ceiling(a / b),
    "floordiv": lambda a, b: sympy.floor(a / b),
    "mod": sympy.Mod,
    "max": lambda *a: sympy.Max(*a, evaluate=global_parameters.evaluate),
    "min": lambda *a: sympy.Min(*a, evaluate=global_parameters.evaluate),
}


def expression(size: Size) -> Expression:
    """A size as sympy's."""
    terms: list[Any] = []
    for monomial, coefficient in size.terms:
        factors: list[Any] = [sympy.Rational(coefficient.numerator, coefficient.denominator)]
        for atom, exponent in monomial:
            base = variable(atom) if isinstance(atom, str) else function(atom)
            factors.append(base if exponent == 1 else base**exponent)
        terms.append(sympy.Mul(*factors))
    return sympy.Add(*terms)


def function(call: OpaqueCall) -> Expression:
    return FUNCTIONS[call.function](*(expression(a) for a in call.arguments))


def is_long(form: Size) -> bool:
    """Whether a form is more than people read, and than sympy simplifies in seconds."""
    text = str(form)
    choices = sum(text.count(f"{name}(") for name in ("max", "min", "mod"))
    return len(text) > MOST_CHARACTERS or choices > MOST_CHOICES


def simplified(*forms: Size) -> Expression:
    """The shortest of what equal forms can be written as; the shorter one as it is, where both are long."""
    short = [form for form in forms if not is_long(form)]
    if not short:
        with sympy.evaluate(False):
            return expression(min(forms, key=lambda form: len(str(form))))
    candidates: list[Expression] = []
    for form in short:
        found = expression(form)
        candidates += [found, sympy.factor_terms(found)]
        if len(form.terms) <= MOST_TERMS_FACTORED:
            candidates.append(sympy.factor(found))
            candidates.append(nested(found))
    return min(candidates, key=length)


def shortest(form: Expression) -> Expression:
    """The shortest of what one form can be written as; a long one as it is."""
    if len(str(form)) > MOST_CHARACTERS:
        return form
    return min([form, sympy.factor_terms(form), nested(form)], key=length)


def length(form: Expression) -> tuple[int, int]:
    return int(sympy.count_ops(form)), len(str(form))


def nested(form: Expression) -> Expression:
    """Terms over a common denominator, with what all of them share in front."""
    top, bottom = sympy.fraction(sympy.together(form))
    content, rest = sympy.factor_terms(top).as_independent(sympy.Add, as_Add=False)
    return sympy.Mul(content, rest) / bottom


def derivative(form: Size, name: str) -> Expression:
    """By one name, the others held. Roundings have none: they are taken as exact, so that nothing remains of a division."""
    smooth = expression(form).replace(sympy.Mod, lambda a, b: sympy.Integer(0))
    smooth = smooth.replace(sympy.ceiling, lambda a: a).replace(sympy.floor, lambda a: a)
    return sympy.diff(smooth, variable(name))


def value_of(form: Expression, values: Mapping[str, int]) -> Expression:
    """The exact number."""
    return form.subs({symbol: values[symbol.name] for symbol in form.free_symbols})


def names_in(form: Expression) -> set[str]:
    return {symbol.name for symbol in form.free_symbols}


# Spellings


class TextPrinter(StrPrinter):
    """`ceil(a/b)`, `max(a, b)`: roundings by their short names."""

    def _print_ceiling(self, expr: Any) -> str:
        return f"ceil({self._print(expr.args[0])})"

    def _print_Mod(self, expr: Any) -> str:
        return f"mod({', '.join(map(self._print, expr.args))})"

    def _print_Max(self, expr: Any) -> str:
        return f"max({', '.join(sorted(map(self._print, expr.args)))})"

    def _print_Min(self, expr: Any) -> str:
        return f"min({', '.join(sorted(map(self._print, expr.args)))})"


def as_text(form: Expression) -> str:
    return TextPrinter().doprint(form)


def as_latex(form: Expression) -> str:
    """Names of several letters upright."""
    names = {
        symbol: rf"\mathrm{{{symbol.name}}}".replace("_", r"\_")
        for symbol in form.free_symbols
        if len(symbol.name) > 1
    }
    return sympy.latex(form, symbol_names=names)


def identifier(name: str) -> str:
    """A name that Python takes."""
    return re.sub(r"\W", "_", name)


class PythonPrinter(TextPrinter):
    """Exact: quotients are `Fraction`s, roundings whole numbers."""

    def _print_Symbol(self, expr: Any) -> str:
        return identifier(expr.name)

    def _print_Rational(self, expr: Any) -> str:
        return f"Fraction({expr.p}, {expr.q})"

    def _print_Mul(self, expr: Any) -> str:
        top, bottom = sympy.fraction(expr, exact=True)
        if bottom == 1:
            return super()._print_Mul(expr)
        return f"Fraction({self._print(top)}, 1) / ({self._print(bottom)})"

    def _print_ceiling(self, expr: Any) -> str:
        return f"ceil({self._print(expr.args[0])})"

    def _print_Mod(self, expr: Any) -> str:
        left, right = map(self._print, expr.args)
        return f"(({left}) % ({right}))"


def as_python(form: Expression, name: str) -> str:
    """A function of its names that gives the exact number."""
    arguments = ", ".join(sorted(map(identifier, names_in(form))))
    body = PythonPrinter().doprint(form)
    uses = [f"from math import {f}\n" for f in ("ceil", "floor") if f"{f}(" in body]
    uses += ["from fractions import Fraction\n"] if "Fraction(" in body else []
    text = "".join(sorted(uses))
    return f"{text}\n\ndef {identifier(name)}({arguments}):\n    return {body}\n".lstrip()
