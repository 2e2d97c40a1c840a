"""Expressions of sizes and of tensors, and the values of options and settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagec.diagnostics import Span


@dataclass(frozen=True)
class SyntaxNode:
    """A piece of text that means something."""

    span: Span = field(kw_only=True, compare=False, repr=False)


@dataclass(frozen=True)
class Name(SyntaxNode):
    """A word that the user chose."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Reference(SyntaxNode):
    """`x`: a value, a dim, an axis, or a choice of an option."""

    name: Name


@dataclass(frozen=True)
class Number(SyntaxNode):
    """`8192` or `1e-5`, as written."""

    text: str


@dataclass(frozen=True)
class ByteSize(SyntaxNode):
    """`80GiB`, as written."""

    text: str


@dataclass(frozen=True)
class Boolean(SyntaxNode):
    """`true` or `false`."""

    text: str


@dataclass(frozen=True)
class Text(SyntaxNode):
    """`"file.stg"`, without the quotes."""

    text: str


@dataclass(frozen=True)
class ListValue(SyntaxNode):
    """`[1, 2, 3]`, as the value of an option or a setting."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Binary(SyntaxNode):
    """`left operator right`."""

    left: Expr
    operator: str
    right: Expr


@dataclass(frozen=True)
class Negate(SyntaxNode):
    """`-operand`."""

    operand: Expr


@dataclass(frozen=True)
class Renaming(SyntaxNode):
    """`S -> T`."""

    old: Name
    new: Name


@dataclass(frozen=True)
class Rename(SyntaxNode):
    """`k[S -> T]`."""

    operand: Expr
    renamings: tuple[Renaming, ...]


@dataclass(frozen=True)
class Argument(SyntaxNode):
    """An operand of a call, or an option if it has a name."""

    name: Name | None
    value: Value


@dataclass(frozen=True)
class Call(SyntaxNode):
    """`rope(q, theta = 500000)`: of a built-in op, a module, a user's op, or a function of sizes."""

    function: Name
    arguments: tuple[Argument, ...]


Expr = Reference | Number | ByteSize | Boolean | Binary | Negate | Rename | Call
Value = Expr | Text | ListValue
