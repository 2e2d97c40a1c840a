"""Expressions of sizes and of tensors, and the values of options and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import dataclass_transform

from stagec.diagnostics import Span


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class SyntaxNode:
    """A piece of text that means something. Each kind is a frozen dataclass."""

    span: Span = field(kw_only=True, compare=False, repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)


class Name(SyntaxNode):
    """A word that the user chose."""

    text: str

    def __str__(self) -> str:
        return self.text


class Reference(SyntaxNode):
    """`x`: a value, a dim, an axis, or a choice of an option."""

    name: Name


class Number(SyntaxNode):
    """`8192` or `1e-5`, as written."""

    text: str


class ByteSize(SyntaxNode):
    """`80GiB`, as written."""

    text: str


class Boolean(SyntaxNode):
    """`true` or `false`."""

    text: str


class Text(SyntaxNode):
    """`"file.stg"`, without the quotes."""

    text: str


class ListValue(SyntaxNode):
    """`[1, 2, 3]`, as the value of an option or a setting."""

    values: tuple[Value, ...]


class Binary(SyntaxNode):
    """`left operator right`."""

    left: Expr
    operator: str
    right: Expr


class Negate(SyntaxNode):
    """`-operand`."""

    operand: Expr


class Renaming(SyntaxNode):
    """`S -> T`."""

    old: Name
    new: Name


class Rename(SyntaxNode):
    """`k[S -> T]`."""

    operand: Expr
    renamings: tuple[Renaming, ...]


class Argument(SyntaxNode):
    """An operand of a call, or an option if it has a name."""

    name: Name | None
    value: Value


class Call(SyntaxNode):
    """`rope(q, theta = 500000)`: of a built-in op, a module, a user's op, or a function of sizes."""

    function: Name
    arguments: tuple[Argument, ...]


Expr = Reference | Number | ByteSize | Boolean | Binary | Negate | Rename | Call
Value = Expr | Text | ListValue
