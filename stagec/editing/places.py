"""Places in the terms of the Language Server Protocol, whose columns count from 0 and in units of UTF-16."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from stagec.diagnostics import Diagnostic, Span


def protocol(each: Diagnostic, lines: Sequence[str]) -> types.Diagnostic:
    """A diagnostic with its advice, where the caret would be."""
    span = each.span or Span("", 1, 1, 1, 1)
    text = "\n".join([each.message, *each.notes, *(f"help: {help_}" for help_ in each.helps)])
    severity = types.DiagnosticSeverity.Error if each.is_error else types.DiagnosticSeverity.Warning
    return types.Diagnostic(span_range(span, lines), text, severity, each.code, source="stagec")


def span_range(span: Span, lines: Sequence[str]) -> types.Range:
    start = types.Position(span.line - 1, to_utf16(lines, span.line, span.column))
    end = types.Position(span.end_line - 1, to_utf16(lines, span.end_line, span.end_column))
    return types.Range(start, end)


def to_utf16(lines: Sequence[str], line: int, column: int) -> int:
    """A column of the protocol, which counts from 0 and in units of UTF-16."""
    text = lines[line - 1] if line <= len(lines) else ""
    return len(text[: column - 1].encode("utf-16-le")) // 2


def from_utf16(lines: Sequence[str], position: types.Position) -> int:
    """A column of ours, which counts from 1 and in characters."""
    text = lines[position.line] if position.line < len(lines) else ""
    before = text.encode("utf-16-le")[: 2 * position.character]
    return len(before.decode("utf-16-le", errors="ignore")) + 1
