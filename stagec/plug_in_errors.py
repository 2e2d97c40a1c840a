"""Whose mistake an exception is: that of a pass, or of an op, that somebody else brought."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.backend.errors import TraceError
from stagec.diagnostics import CompileError, Diagnostic, Span, printable
from stagec.ir_text import place_of
from stagec.pass_manager import is_our_class, is_ours

WRAPPED = "Error while applying pattern"


@dataclass(frozen=True)
class Culprit:
    """What went wrong of whom."""

    what: str
    """The pass `p`, the op `mine.op`."""
    span: Span | None = None
    """Where the model has that op."""


@contextmanager
def mistakes_of_plug_ins() -> Iterator[None]:
    """E0713 for what a pass or an op that somebody else brought raises; the exception itself is its cause."""
    try:
        yield
    except (CompileError, TraceError):
        raise
    except Exception as error:
        found = mistake_of_plug_in(error)
        if found is None:
            raise
        raise CompileError([found]) from error


def mistake_of_plug_in(error: Exception) -> Diagnostic | None:
    """E0713, where somebody else's pass or op was being worked with."""
    error = first_cause(error)
    culprit = culprit_of(error)
    if culprit is None or isinstance(error, MemoryError):
        return None
    text, where = said_by(error)
    return Diagnostic("E0713", f"{culprit.what} failed: {text}", culprit.span, notes=[where])


def said_by(error: Exception) -> tuple[str, str]:
    """What an exception says, and the function, file and line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = printable(traceback.format_exception_only(error)[-1].strip().partition("\n")[0])
    return text, f"in `{last.name}`, {os.path.basename(last.filename)}:{last.lineno}"


def first_cause(error: Exception) -> Exception:
    """What a pattern raised that is run without `stagec.rewriting`: xDSL's walker puts the whole module in its place."""
    cause = error.__cause__
    while isinstance(cause, Exception) and WRAPPED in str(error):
        error, cause = cause, cause.__cause__
    return error


def culprit_of(error: BaseException) -> Culprit | None:
    """The op or the pass of someone else that was being worked with where it happened, innermost first; with the place of the innermost op that
    has one."""
    frames = reversed(list(traceback.walk_tb(error.__traceback__)))
    found = [each for frame, _ in frames if (each := culprit_in(frame.f_locals)) is not None]
    if not found:
        return None
    return Culprit(found[0].what, next((each.span for each in found if each.span), None))


def culprit_in(values: Mapping[str, object]) -> Culprit | None:
    for value in values.values():
        if isinstance(value, ModulePass) and not is_ours(value):
            return Culprit(f"the pass `{value.name}`")
        if isinstance(value, Operation) and not is_ours(value):
            # One that is being made is nowhere yet.
            is_made = hasattr(value, "location")
            return Culprit(f"the op `{value.name}`", place_of(value) if is_made else None)
        if isinstance(value, type) and issubclass(value, Operation) and not is_our_class(value):
            return Culprit(f"the op `{value.name}`")
    return None
