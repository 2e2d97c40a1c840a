"""Syntax back to text: `text_of`. What it prints parses to an equal tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stagec.frontend import syntax

INDENT = "  "

_LEVELS = (
    ("or",),
    ("and",),
    ("==", "!=", "<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%", "@"),
)
_LEVEL = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}
_NEGATION, _POWER, _POSTFIX, _ATOM = 5, 6, 7, 8


def text_of(node: syntax.SyntaxNode) -> str:
    """A program, a statement, a clause or an expression as text."""
    return _PRINTERS[type(node)](node)


def _level(node: syntax.SyntaxNode) -> int:
    if isinstance(node, syntax.Binary):
        return _POWER if node.operator == "**" else _LEVEL[node.operator]
    if isinstance(node, syntax.Negate):
        return _NEGATION
    return _POSTFIX if isinstance(node, syntax.Rename) else _ATOM


def _operand(node: syntax.SyntaxNode, weakest: int) -> str:
    """In parentheses if it binds more weakly than where it stands."""
    text = text_of(node)
    return text if _level(node) >= weakest else f"({text})"


def _binary(node: syntax.Binary) -> str:
    level = _level(node)
    if node.operator == "**":
        left, right = _POSTFIX, _NEGATION
    else:
        # `a - b - c` is `(a - b) - c`; a comparison has no comparison on either side.
        left, right = level + (level == 2), level + 1
    return f"{_operand(node.left, left)} {node.operator} {_operand(node.right, right)}"


def _list(nodes: Iterable[syntax.SyntaxNode | str]) -> str:
    return ", ".join(n if isinstance(n, str) else text_of(n) for n in nodes)


def _typed(node: Any) -> str:
    name = node.name.text if hasattr(node, "name") else ""
    return name + text_of(node.shape) + (f": {node.dtype}" if node.dtype else "")


def _stored_shape(node: syntax.StoredShape) -> str:
    rest = "" if node.rest is None else f" | {_list(node.rest)}".rstrip()
    return f"[{_list(node.first)}{rest}]"


def _block(nodes: Iterable[syntax.SyntaxNode]) -> str:
    lines = [line for node in nodes for line in text_of(node).split("\n")]
    return "{\n" + "".join(f"{INDENT}{line}\n" for line in lines) + "}"


def _signature(node: Any) -> str:
    return f"{node.name}({_list(node.parameters)})"


def _settings(node: syntax.Settings | None) -> str:
    return f" {text_of(node)}" if node else ""


def _shard_target(node: syntax.ShardTarget) -> str:
    return text_of(node.path) + (f"[{_names(node.dims)}]" if node.dims else "")


def _names(names: Iterable[syntax.Name]) -> str:
    return ", ".join(name.text for name in names)


def _pipeline(node: syntax.Pipeline) -> str:
    over = f" over {node.axis}" if node.axis else ""
    return f"pipeline {_names(node.counts)}{over}{_settings(node.settings)}"


def _zero(node: syntax.Zero) -> str:
    over = f" over {_names(node.axes)}" if node.axes else ""
    return f"zero {text_of(node.level)}{over}{_settings(node.settings)}"


def _recompute(node: syntax.Recompute) -> str:
    where = f" in {_list(node.modules)}" if node.modules else ""
    return f"recompute {_list(node.what)}{where}"


def _device(node: syntax.Device) -> str:
    preset = f" {text_of(node.preset)}" if node.preset else ""
    return f"device{preset}{_settings(node.settings)}"


def _load(node: syntax.Load) -> str:
    name = f" {node.name}" if node.name else ""
    return f"load{name}{_settings(node.settings)}"


def _lengths(what: syntax.Text | syntax.Settings) -> str:
    return f" {text_of(what)}" if isinstance(what, syntax.Text) else _settings(what)


def _sequences(node: syntax.Prefill | syntax.Decode) -> str:
    kind = "prefill" if isinstance(node, syntax.Prefill) else "decode"
    return " ".join([kind, text_of(node.count), *map(text_of, node.measures)])


def _plan(node: syntax.Plan) -> str:
    base = f" extends {node.base}" if node.base else ""
    return f"plan {node.name}{base} {_block(node.clauses)}"


def _pool(node: syntax.Pool) -> str:
    base = f" extends {node.base}" if node.base else ""
    return f"pool {node.name}{base} {_block(node.clauses)}"


def _argument(node: syntax.Argument) -> str:
    return (f"{node.name} = " if node.name else "") + text_of(node.value)


def _module(node: syntax.Module) -> str:
    return f"module {_signature(node)} -> {_list(node.results)} {text_of(node.body)}"


def _op(node: syntax.Op) -> str:
    return f"op {_signature(node)} -> {_list(node.results)} {text_of(node.settings)}"


_PRINTERS: dict[type[syntax.SyntaxNode], Callable[[Any], str]] = {
    syntax.Program: lambda n: "".join(f"{text_of(item)}\n" for item in n.items),
    syntax.Name: lambda n: n.text,
    syntax.Reference: lambda n: n.name.text,
    syntax.Number: lambda n: n.text,
    syntax.ByteSize: lambda n: n.text,
    syntax.Boolean: lambda n: n.text,
    syntax.Text: lambda n: f'"{n.text}"',
    syntax.ListValue: lambda n: f"[{_list(n.values)}]",
    syntax.Binary: _binary,
    syntax.Negate: lambda n: f"-{_operand(n.operand, _NEGATION)}",
    syntax.Renaming: lambda n: f"{n.old} -> {n.new}",
    syntax.Rename: lambda n: f"{_operand(n.operand, _POSTFIX)}[{_list(n.renamings)}]",
    syntax.Argument: _argument,
    syntax.Call: lambda n: f"{n.function}({_list(n.arguments)})",
    syntax.StoredShape: _stored_shape,
    syntax.Shape: lambda n: f"[{_list(n.dims)}]",
    syntax.Weight: lambda n: n.name.text + text_of(n.stored) + (f": {n.dtype}" if n.dtype else ""),
    syntax.Parameter: _typed,
    syntax.Result: _typed,
    syntax.Cache: _typed,
    syntax.Caches: lambda n: f"cache {_list(n.caches)}",
    syntax.Weights: lambda n: f"weight {_list(n.weights)}",
    syntax.Target: lambda n: n.name.text + (text_of(n.shape) if n.shape else ""),
    syntax.Assign: lambda n: f"{_list(n.targets)} = {text_of(n.value)}",
    syntax.Body: lambda n: _block(n.statements),
    syntax.Repeat: lambda n: f"repeat {text_of(n.count)} {text_of(n.body)}",
    syntax.Return: lambda n: f"return {_list(n.values)}",
    syntax.ImportFile: lambda n: f"import {text_of(n.path)}",
    syntax.Dim: lambda n: f"dim {n.name} = {text_of(n.size)}",
    syntax.Require: lambda n: f"require {text_of(n.condition)}",
    syntax.Module: _module,
    syntax.Model: lambda n: f"model {_signature(n)} {text_of(n.body)}",
    syntax.Op: _op,
    syntax.Setting: lambda n: f"{n.name} = {text_of(n.value)}",
    syntax.Settings: lambda n: f"{{ {_list(n.entries)} }}",
    syntax.Path: str,
    syntax.NewSize: lambda n: f"{n.name} = {text_of(n.size)}",
    syntax.Resize: lambda n: f"set {_list(n.sizes)}",
    syntax.MeshAxis: lambda n: n.name.text + (f" = {text_of(n.size)}" if n.size else ""),
    syntax.Mesh: lambda n: f"mesh {_list(n.axes)}",
    syntax.RankOrder: lambda n: f"rank_order {_names(n.axes)}",
    syntax.ShardTarget: _shard_target,
    syntax.Shard: lambda n: (
        f"shard {_list(n.targets)} over {_names(n.axes)}{_settings(n.settings)}"
    ),
    syntax.Pipeline: _pipeline,
    syntax.Microbatch: lambda n: f"microbatch {text_of(n.size)}",
    syntax.Zero: _zero,
    syntax.Unit: lambda n: f"unit {_list(n.modules)}",
    syntax.Freeze: lambda n: f"freeze {_list(n.weights)}",
    syntax.Use: lambda n: (
        f"use {text_of(n.what) if isinstance(n.what, syntax.Reference) else _list(n.what)}"
    ),
    syntax.Replacement: lambda n: f"{n.module} for {n.replaced}",
    syntax.Recompute: _recompute,
    syntax.Precision: lambda n: f"precision {text_of(n.settings)}",
    syntax.Optimizer: lambda n: f"optimizer {n.name}{_settings(n.settings)}",
    syntax.Collectives: lambda n: f"collectives {text_of(n.settings)}",
    syntax.Context: lambda n: f"context {n.axis}{_settings(n.settings)}",
    syntax.Gradients: lambda n: f"gradients {text_of(n.settings)}",
    syntax.Overlap: lambda n: f"overlap {text_of(n.settings)}",
    syntax.Offload: lambda n: f"offload {text_of(n.settings)}",
    syntax.Process: lambda n: f"process {text_of(n.settings)}",
    syntax.LossChunks: lambda n: f"loss_chunks {text_of(n.count)}",
    syntax.Device: _device,
    syntax.Link: lambda n: f"link {n.axis}{_settings(n.settings)}",
    syntax.Load: _load,
    syntax.Documents: lambda n: f"documents {n.dim}{f' {text_of(n.lengths)}' if n.lengths else ''}",
    syntax.Lengths: lambda n: f"{n.form}{_lengths(n.what)}",
    syntax.Measure: lambda n: f"{n.word} {text_of(n.number)}",
    syntax.Prefill: _sequences,
    syntax.Decode: _sequences,
    syntax.Served: lambda n: f"{{ {_list(n.entries)} }}",
    syntax.Serve: lambda n: f"serve {text_of(n.what)}",
    syntax.Pool: _pool,
    syntax.Pass: lambda n: f"pass {n.name}{_settings(n.settings)}",
    syntax.Plan: _plan,
}
