"""Statements, and the bodies that they make up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from stagec.frontend.syntax.expressions import Call, Expr, Name, SyntaxNode


class Shape(SyntaxNode):
    """`[B, S, D]`. Dims are names; the checker refuses anything else."""

    dims: tuple[Expr, ...]


class StoredShape(SyntaxNode):
    """`[D, H, E]` or `[H, E | D]`: what stands before the bar is stored as rows."""

    first: tuple[Expr, ...]
    rest: tuple[Expr, ...] | None

    @property
    def shape(self) -> Shape:
        return Shape((*self.first, *(self.rest or ())), span=self.span)

    @property
    def num_rows(self) -> int | None:
        """How many dims are rows; None: not said."""
        return None if self.rest is None else len(self.first)


class Weight(SyntaxNode):
    """`wq[D, H, E]: fp32`."""

    name: Name
    stored: StoredShape
    dtype: Name | None


class Weights(SyntaxNode):
    """`weight wq[D, H, E], wk[D, K, E]`."""

    weights: tuple[Weight, ...]


class Cache(SyntaxNode):
    """`k[B, T, K, E]: fp8`."""

    name: Name
    shape: Shape
    dtype: Name | None


class Caches(SyntaxNode):
    """`cache k[B, T, K, E], v[B, T, K, E]`."""

    caches: tuple[Cache, ...]


class Target(SyntaxNode):
    """What is assigned: `q` or `q[B, S, H, E]`."""

    name: Name
    shape: Shape | None


class Assign(SyntaxNode):
    """`gates, experts = topk(x)`."""

    targets: tuple[Target, ...]
    value: Expr


class Body(SyntaxNode):
    """`{ ... }`."""

    statements: tuple[Statement, ...]

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Every call in it, as written."""
        return tuple(calls_in(self))


def calls_in(body: Body) -> Iterator[Call]:
    waiting: list[object] = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Call):
            yield node
        if isinstance(node, SyntaxNode):
            waiting += [getattr(node, name) for name in node.__dataclass_fields__]
        elif isinstance(node, tuple):
            waiting += node


class Repeat(SyntaxNode):
    """`repeat L { x = Block(x) }`."""

    count: Expr
    body: Body


class Return(SyntaxNode):
    """`return a, b`."""

    values: tuple[Expr, ...]


Statement = Weights | Caches | Assign | Repeat | Return
