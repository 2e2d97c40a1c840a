"""The items of a file: dims, modules, models, ops, plans, imports."""

from __future__ import annotations

from stagec.frontend.syntax.expressions import Expr, Name, SyntaxNode, Text
from stagec.frontend.syntax.plans import Plan, Settings
from stagec.frontend.syntax.statements import Body, Shape


class ImportFile(SyntaxNode):
    """`import "blocks.stg"`."""

    path: Text


class Dim(SyntaxNode):
    """`dim E = D / H`."""

    name: Name
    size: Expr


class Require(SyntaxNode):
    """`require H % K == 0`."""

    condition: Expr


class Parameter(SyntaxNode):
    """`tokens[B, S]: i32`."""

    name: Name
    shape: Shape
    dtype: Name | None


class Result(SyntaxNode):
    """`[B, S, K]: i32`, after `->`."""

    shape: Shape
    dtype: Name | None


class Module(SyntaxNode):
    """`module SwiGLU(x[B, S, D]) -> [B, S, D] { ... }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    body: Body


class Model(SyntaxNode):
    """`model Llama(tokens[B, S]: i32) { ... }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    body: Body


class Op(SyntaxNode):
    """`op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    settings: Settings


Item = ImportFile | Dim | Require | Module | Model | Op | Plan


class Program(SyntaxNode):
    """One file."""

    items: tuple[Item, ...]
