"""Mistakes in a command line, as diagnostics."""

from __future__ import annotations

from stagec.diagnostics import CompileError, Diagnostic


def usage_error(
    origin: str, message: str, code: str = "E0707", help: str = "", note: str = ""
) -> CompileError:
    """One mistake. `origin` is what was written: `--set tp`."""
    notes = (note,) if note else ()
    return CompileError([Diagnostic(code, message, origin=origin, notes=notes, help=help)])
