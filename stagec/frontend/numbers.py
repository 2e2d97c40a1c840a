"""Numbers in the text: sizes as exact expressions with their values, conditions, byte counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from stagec import symbolic
from stagec.diagnostics import Diagnostic, Diagnostics, Mistake, did_you_mean, quoted, suggestion
from stagec.frontend import syntax
from stagec.frontend.printing import text_of
from stagec.symbolic import Size, SizeError, conditions
from stagec.symbolic.quantity import Quantity

SIZE_FUNCTIONS = ("ceildiv", "floordiv", "max", "min", "mod")
"""Functions of two sizes."""

LARGEST = 2**63 - 1
"""The largest size of a dim: traces carry 64-bit counts."""

MOST_DIGITS = 40
MOST_BITS = 512
MOST_TERMS = 200
"""Limits of what is computed on the way to a size."""

_UNITS = {"": 1} | {
    f"{letter}{infix}": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("KMGT", start=1)
}


class _Wrong(Exception):
    """Carries a diagnostic out of an expression; None where one was reported before."""

    def __init__(self, diagnostic: Diagnostic | None = None) -> None:
        super().__init__()
        self.diagnostic = diagnostic


Sizes = Mapping[str, int | None]
"""The value of each name that may stand in an expression; None if its definition is wrong."""


def quantity(expr: syntax.Value, sizes: Sizes, findings: Diagnostics) -> Quantity | None:
    """The number that an expression stands for, or None after a finding."""
    try:
        return _number(expr, conditions.unread(sizes))
    except _Wrong as wrong:
        if wrong.diagnostic:
            findings.add(wrong.diagnostic)
        return None


def whole(
    expr: syntax.Value,
    sizes: Sizes,
    findings: Diagnostics,
    what: str,
    least: int = 1,
    help_: str = "",
) -> Quantity | None:
    """The same, which must be a whole number, `least` or more. `what` it is: "the size of `E`"; `help_` is for where nothing else is known."""
    found = quantity(expr, sizes, findings)
    if found is None:
        return None
    problem = not_whole(found.value, least)
    note_whole(found, what, least, help_)
    if problem is None:
        return found
    label, notes = "", ()
    if not isinstance(expr, syntax.Number):
        notes = _facts(expr, sizes)
        label = f"is {shown(found.value)}"
    findings.say(
        "E0208",
        f"{what} is {shown(found.value)}, {problem}",
        expr.span,
        label,
        notes=notes,
        help=_divisor_help(expr, sizes) or help_ or another_number(found.value, least),
    )
    return None


def as_read(found: Quantity) -> int:
    """A whole number that is used as it is: plans where it is another are other plans."""
    conditions.read(found.size, found.value)
    return int(found.value)


def as_varied(found: Quantity, name: str) -> int:
    """One of a setting that has a name in conditions: plans where it is another number may be the same program."""
    conditions.define_setting(name, found.size, found.value)
    return int(found.value)


def note_whole(found: Quantity, what: str, least: int, help_: str = "") -> None:
    """E0208 as conditions."""
    size, value = found.size, found.value
    reason = f"{what}, `{size}`, is not a whole number" + (help_ and f" ({help_})")
    if conditions.note("whole", size, holds=value.denominator == 1, reason=reason):
        conditions.note(">=", size, least, holds=value >= least, reason=f"{what} is not a size")
        conditions.note("<=", size, LARGEST, holds=value <= LARGEST, reason=f"{what} is not a size")


def not_whole(value: Fraction, least: int) -> str | None:
    """Why a number cannot be a size."""
    if value.denominator != 1:
        return "not a whole number"
    if value < least:
        return f"less than {least}"
    if value > LARGEST:
        return "more than 64 bits can count"
    return None


def another_number(value: Fraction, least: int) -> str:
    """What to choose in place of a number that is no size."""
    if value > LARGEST:
        return f"choose a whole number of at most {LARGEST}"
    return f"choose a whole number, such as {max(least, round(value))}"


def shown(value: Fraction) -> str:
    """A number for people: `41.5`, `2/3`."""
    if value.denominator == 1:
        return str(value.numerator) if abs(value) < 10**MOST_DIGITS else "a huge number"
    decimal = value.denominator
    for prime in (2, 5):
        while decimal % prime == 0:
            decimal //= prime
    if decimal == 1 and value.denominator <= 1000:
        return str(float(value))
    return str(value) if len(str(value)) <= MOST_DIGITS else f"about {float(value):.3g}"


def condition(expr: syntax.Expr, sizes: Sizes, findings: Diagnostics) -> bool | None:
    """Whether a condition holds, or None after a finding."""
    try:
        return _truth(expr, conditions.unread(sizes))
    except _Wrong as wrong:
        if wrong.diagnostic:
            findings.add(wrong.diagnostic)
        return None


def facts(expr: syntax.Expr, sizes: Sizes) -> tuple[str, ...]:
    """What the names in an expression are, and what its sides come to."""
    lines: list[str] = []
    for side in _compared(expr):
        if isinstance(side, syntax.Binary | syntax.Call):
            found = quantity(side, sizes, Diagnostics())
            if found is not None:
                lines.append(f"`{text_of(side)}` is {shown(found.value)}")
    return (*lines, *_facts(expr, sizes))


def _compared(expr: syntax.Expr) -> list[syntax.Expr]:
    if isinstance(expr, syntax.Binary) and expr.operator in ("and", "or"):
        return [*_compared(expr.left), *_compared(expr.right)]
    if isinstance(expr, syntax.Binary) and expr.operator in conditions.RELATIONS:
        return [expr.left, expr.right]
    return []


def _facts(expr: syntax.Value, sizes: Sizes) -> tuple[str, ...]:
    known = [f"{name} = {sizes[name]}" for name in names_in(expr) if sizes.get(name) is not None]
    return (quoted(known),) if known else ()


def names_in(expr: syntax.Value) -> list[str]:
    """Every name that an expression refers to, once."""
    if isinstance(expr, syntax.Reference):
        return [expr.name.text]
    parts: tuple[syntax.Value, ...] = ()
    if isinstance(expr, syntax.Binary):
        parts = (expr.left, expr.right)
    elif isinstance(expr, syntax.Negate | syntax.Rename):
        parts = (expr.operand,)
    elif isinstance(expr, syntax.Call):
        parts = tuple(argument.value for argument in expr.arguments)
    elif isinstance(expr, syntax.ListValue):
        parts = expr.values
    return list(dict.fromkeys(name for part in parts for name in names_in(part)))


def _divisor_help(expr: syntax.Value, sizes: Sizes) -> str:
    """For `D / H` that leaves a rest: a size near D that H divides."""
    if not isinstance(expr, syntax.Binary) or expr.operator != "/":
        return ""
    if not isinstance(expr.left, syntax.Reference):
        return ""
    try:
        top, bottom = _number(expr.left, sizes).value, _number(expr.right, sizes).value
    except _Wrong:
        return ""
    if bottom.denominator != 1 or bottom <= 0 or top.denominator != 1 or (top / bottom) <= 0:
        return ""
    name, rounded = expr.left.name.text, -(-top // bottom) * bottom
    if rounded == top:
        return ""
    divided = text_of(expr.right)
    return f"choose a size for `{name}` that `{divided}` divides, such as {rounded}"


def literal(expr: syntax.Number) -> Fraction:
    """The exact value of a number as written."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", expr.text)
    assert match, expr.text
    digits, exponent = match[1] + (match[2] or ""), match[3] or "0"
    if len(digits) > MOST_DIGITS or len(exponent) > 4 or abs(int(exponent)) > MOST_DIGITS:
        message = f"a number of more than {MOST_DIGITS} digits"
        help_ = f"write a number of at most {MOST_DIGITS} digits"
        raise _Wrong(Diagnostic("E0105", message, expr.span, help=help_))
    return Fraction(expr.text)


def byte_count(expr: syntax.ByteSize, findings: Diagnostics) -> int | None:
    """Bytes: `80GiB` is 80 * 2**30. None after a finding."""
    match = re.fullmatch(r"([\d.]+)([kKMGT]?i?)B", expr.text)
    assert match, expr.text
    found = quantity(syntax.Number(match[1], span=expr.span), {}, findings)
    if found is None:
        return None
    count = found.value * _UNITS[match[2].replace("k", "K")]
    if count.denominator == 1:
        return count.numerator
    message = f"`{expr.text}` is not a whole number of bytes"
    findings.say("E0105", message, expr.span, help=f"write `{round(count)}B`")
    return None


def _number(expr: syntax.Value, sizes: Sizes) -> Quantity:
    if isinstance(expr, syntax.Number):
        value = literal(expr)
        return Quantity(symbolic.constant(value), value)
    if isinstance(expr, syntax.Reference):
        return _named(expr, sizes)
    if isinstance(expr, syntax.Negate):
        operand = _number(expr.operand, sizes)
        return Quantity(-operand.size, -operand.value)
    if isinstance(expr, syntax.Call):
        return _function(expr, sizes)
    if isinstance(expr, syntax.Binary) and expr.operator in ("+", "-", "*", "/", "%", "**"):
        return _operation(expr, sizes)
    count = re.match(r"[\d.]+", expr.text) if isinstance(expr, syntax.ByteSize) else None
    help_ = f"sizes have no unit: write `{count[0]}`" if count else "write a number, such as 8"
    raise _Wrong(Diagnostic("E0210", f"{_kind(expr)} is not a size", expr.span, help=help_))


def _kind(expr: syntax.Value) -> str:
    if isinstance(expr, syntax.ByteSize):
        return "a number of bytes"
    if isinstance(expr, syntax.Binary):
        return "a contraction" if expr.operator == "@" else "a condition"
    kinds = {syntax.Boolean: f"`{text_of(expr)}`", syntax.Rename: "a renamed tensor"}
    return kinds.get(type(expr), "a list" if isinstance(expr, syntax.ListValue) else "a text")


def _named(expr: syntax.Reference, sizes: Sizes) -> Quantity:
    name = expr.name.text
    if name not in sizes:
        message = f"there is no size `{name}`"
        help_ = did_you_mean(name, sizes) or f"define it: `dim {name} = 1024`"
        raise _Wrong(
            Diagnostic("E0201", message, expr.span, help=help_, mistake=Mistake("no dim", name))
        )
    value = sizes[name]
    if value is None:
        raise _Wrong
    return Quantity(symbolic.symbol(name), Fraction(value))


def _function(expr: syntax.Call, sizes: Sizes) -> Quantity:
    name = expr.function.text
    if name not in SIZE_FUNCTIONS:
        help_ = suggestion(name, SIZE_FUNCTIONS)
        message = f"there is no function `{name}` of sizes"
        raise _Wrong(Diagnostic("E0201", message, expr.function.span, help=help_))
    options = [a for a in expr.arguments if a.name]
    if options or len(expr.arguments) != 2:
        given = f"{len(expr.arguments)} given" if not options else "none of them by name"
        message = f"`{name}` takes two sizes"
        help_ = f"write `{name}(a, b)`, with two sizes"
        raise _Wrong(Diagnostic("E0203", message, expr.span, given, help=help_))
    left, right = (_number(argument.value, sizes) for argument in expr.arguments)
    if name in ("ceildiv", "floordiv", "mod") and right.value == 0:
        raise _Wrong(_division_by_zero(expr.arguments[1].value))
    value = symbolic.FUNCTIONS[name](left.value, right.value)
    return Quantity(symbolic.call(name, left.size, right.size), value)


def _division_by_zero(expr: syntax.Value) -> Diagnostic:
    help_ = "divide by what is above 0"
    return Diagnostic("E0208", "division by zero", expr.span, "is 0", help=help_)


def _operation(expr: syntax.Binary, sizes: Sizes) -> Quantity:
    left, right = _number(expr.left, sizes), _number(expr.right, sizes)
    a, b = left.value, right.value
    if expr.operator == "**":
        return _power(expr, left, b)
    if expr.operator in ("/", "%") and b == 0:
        raise _Wrong(_division_by_zero(expr.right))
    if expr.operator in ("*", "/") and len(left.size.terms) * len(right.size.terms) > MOST_TERMS:
        raise _Wrong(_too_complex(expr))
    if expr.operator == "+":
        return _bounded(expr, left.size + right.size, a + b)
    if expr.operator == "-":
        return _bounded(expr, left.size - right.size, a - b)
    if expr.operator == "*":
        return _bounded(expr, left.size * right.size, a * b)
    if expr.operator == "%":
        return _bounded(expr, symbolic.call("mod", left.size, right.size), a % b)
    try:
        return _bounded(expr, left.size / right.size, a / b)
    except SizeError:
        message = f"`{text_of(expr.right)}` is a sum, and only single terms can divide"
        help_ = "give the sum a name with `dim`, and divide by that"
        raise _Wrong(Diagnostic("E0208", message, expr.right.span, help=help_)) from None


def _power(expr: syntax.Binary, base: Quantity, exponent: Fraction) -> Quantity:
    if exponent.denominator != 1 or not 0 <= exponent <= 64:
        message = f"the power {shown(exponent)} is not a whole number from 0 to 64"
        help_ = "write a whole number from 0 to 64"
        raise _Wrong(Diagnostic("E0208", message, expr.right.span, help=help_))
    result = Quantity(symbolic.ONE, Fraction(1))
    for _ in range(int(exponent)):
        if len(result.size.terms) * len(base.size.terms) > MOST_TERMS:
            raise _Wrong(_too_complex(expr))
        result = _bounded(expr, result.size * base.size, result.value * base.value)
    return result


def _bounded(expr: syntax.Binary, size: Size, value: Fraction) -> Quantity:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        message, help_ = "this number is too large to be a size", "choose smaller sizes"
        raise _Wrong(Diagnostic("E0208", message, expr.span, help=help_))
    if len(size.terms) > MOST_TERMS:
        raise _Wrong(_too_complex(expr))
    return Quantity(size, value)


def _too_complex(expr: syntax.Binary) -> Diagnostic:
    message = f"this size has more than {MOST_TERMS} terms"
    return Diagnostic("E0208", message, expr.span, help="give parts of it names with `dim`")


def _truth(expr: syntax.Expr, sizes: Sizes) -> bool:
    if isinstance(expr, syntax.Boolean):
        return expr.text == "true"
    if isinstance(expr, syntax.Binary) and expr.operator in ("and", "or"):
        # Both sides are looked at: a mistake in the second is a mistake even if the first decides.
        left, right = _truth(expr.left, sizes), _truth(expr.right, sizes)
        return (left and right) if expr.operator == "and" else (left or right)
    if isinstance(expr, syntax.Binary) and expr.operator in conditions.RELATIONS:
        left, right = _number(expr.left, sizes), _number(expr.right, sizes)
        holds = conditions.RELATIONS[expr.operator](left.value, right.value)
        return conditions.note(expr.operator, left.size, right.size, holds=holds)
    help_ = f"compare it: `{text_of(expr)} == 0`"
    raise _Wrong(Diagnostic("E0210", "a size is not a condition", expr.span, help=help_))
