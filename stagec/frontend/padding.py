"""Dims that a rule pads: `shard V over tp { pad = 128 }`.

The plan's `V` is then the next multiple of `128 * tp`, in every tensor; sizes that the text makes of `V` are of the `V` that it says, which
is called `V.unpadded`. So Megatron-LM pads a vocabulary: `--make-vocab-size-divisible-by` is what each of the parts is a multiple of.
A padded dim that is the sum of padded dims is the sum of what these are padded to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TypeVar, cast

from stagec.diagnostics import Diagnostic
from stagec.frontend import syntax
from stagec.frontend.plans.merge import Merged

PAD = "pad"

E = TypeVar("E", bound=syntax.Value)


def unpadded(name: str) -> str:
    """What the size of a padded dim is called, as the text has it."""
    return f"{name}.unpadded"


def multiples(merged: Merged, products: Mapping[str, tuple[str, ...]]) -> dict[str, syntax.Expr]:
    """The number that each padded dim becomes a multiple of: what its rules say, times the axes that split it."""
    found: dict[str, syntax.Expr] = {}
    for rule in merged.rules:
        pad = next((e for e in entries(rule) if e.name.text == PAD), None)
        if pad is None or not isinstance(pad.value, syntax.Expr):
            continue
        axes = dict.fromkeys(p for a in rule.axes for p in products.get(a.text, (a.text,)))
        span = pad.span
        multiple = of_axes(pad.value, products)
        parts = [syntax.Reference(syntax.Name(axis, span=span), span=span) for axis in axes]
        for target in rule.targets:
            name = target.path.names[0].text
            first = [found[name]] if name in found else []
            found[name] = reduce(times, [*first, multiple, *parts])
    return found


def of_axes(expr: syntax.Expr, products: Mapping[str, tuple[str, ...]]) -> syntax.Expr:
    """The same size, with the axes that a product of axes is in place of its name."""

    def axes(name: syntax.Name) -> syntax.Expr:
        parts = products.get(name.text, (name.text,))
        named = (replace(name, text=part) for part in parts)
        return reduce(times, [syntax.Reference(each, span=name.span) for each in named])

    return with_references(expr, axes)


def entries(rule: syntax.Shard) -> tuple[syntax.Setting, ...]:
    return rule.settings.entries if rule.settings is not None else ()


def times(left: syntax.Expr, right: syntax.Expr) -> syntax.Expr:
    return syntax.Binary(left, "*", right, span=left.span)


def terms_of(expr: syntax.Expr) -> list[str]:
    """The names of a sum of names; none of any other size."""
    if isinstance(expr, syntax.Reference):
        return [expr.name.text]
    if not isinstance(expr, syntax.Binary) or expr.operator != "+":
        return []
    left, right = terms_of(expr.left), terms_of(expr.right)
    return [*left, *right] if left and right else []


def rounded_up(expr: syntax.Expr, multiple: syntax.Expr) -> syntax.Expr:
    """The next multiple of a number."""
    span = expr.span
    arguments = tuple(syntax.Argument(None, each, span=span) for each in (expr, multiple))
    ways = syntax.Call(syntax.Name("ceildiv", span=span), arguments, span=span)
    return times(ways, multiple)


def with_names(expr: E, names: Mapping[str, str]) -> E:
    """The same expression of other names."""

    def other(name: syntax.Name) -> syntax.Expr:
        text = names.get(name.text, name.text)
        return syntax.Reference(replace(name, text=text), span=name.span)

    return with_references(expr, other)


def with_references(expr: E, of: Callable[[syntax.Name], syntax.Expr]) -> E:
    """The same expression with something else in place of each name."""
    if isinstance(expr, syntax.Reference):
        return cast(E, of(expr.name))
    if isinstance(expr, syntax.Binary):
        left, right = with_references(expr.left, of), with_references(expr.right, of)
        return replace(expr, left=left, right=right)
    if isinstance(expr, syntax.Negate):
        return replace(expr, operand=with_references(expr.operand, of))
    if isinstance(expr, syntax.Call):
        values = [replace(a, value=with_references(a.value, of)) for a in expr.arguments]
        return replace(expr, arguments=tuple(values))
    return expr


def as_written(diagnostic: Diagnostic, names: Mapping[str, str]) -> Diagnostic:
    """What is wrong with a size, in the words of the text."""

    def words(text: str) -> str:
        for name, hidden in names.items():
            text = text.replace(hidden, name)
        return text

    notes = tuple(map(words, diagnostic.notes))
    return replace(diagnostic, notes=notes, help=tuple(map(words, diagnostic.helps)))
