"""The items of a file: dims, modules, models, ops, plans, imports."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.frontend.syntax.expressions import Expr, Name, SyntaxNode, Text
from stagec.frontend.syntax.plans import Plan, Settings
from stagec.frontend.syntax.statements import Body, Shape


@dataclass(frozen=True)
class ImportFile(SyntaxNode):
    """`import "blocks.stg"`."""

    path: Text


@dataclass(frozen=True)
class Dim(SyntaxNode):
    """`dim E = D / H`."""

    name: Name
    size: Expr


@dataclass(frozen=True)
class Require(SyntaxNode):
    """`require H % K == 0`."""

    condition: Expr


@dataclass(frozen=True)
class Parameter(SyntaxNode):
    """`tokens[B, S]: i32`."""

    name: Name
    shape: Shape
    dtype: Name | None


@dataclass(frozen=True)
class Result(SyntaxNode):
    """`[B, S, K]: i32`, after `->`."""

    shape: Shape
    dtype: Name | None


@dataclass(frozen=True)
class Module(SyntaxNode):
    """`module SwiGLU(x[B, S, D]) -> [B, S, D] { ... }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    body: Body


@dataclass(frozen=True)
class Model(SyntaxNode):
    """`model Llama(tokens[B, S]: i32) { ... }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    body: Body


@dataclass(frozen=True)
class Op(SyntaxNode):
    """`op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    settings: Settings


Item = ImportFile | Dim | Require | Module | Model | Op | Plan


@dataclass(frozen=True)
class Program(SyntaxNode):
    """One file."""

    items: tuple[Item, ...]
