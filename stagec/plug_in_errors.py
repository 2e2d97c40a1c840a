"""Whose mistake an exception is: that of a pass, or of an op, that somebody else brought."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.backend.errors import TraceError
from stagec.diagnostics import CompileError, Diagnostic, Span, printable
from stagec.dialects.op import is_our_class
from stagec.frontend import syntax
from stagec.ir_text import place_of
from stagec.pass_manager import is_ours

WRAPPED = "Error while applying pattern"


@dataclass(frozen=True)
class Culprit:
    """What went wrong of whom."""

    what: str
    """The pass `p`, the op `mine.op`."""
    module: str
    """That of its class."""
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
    text, where = said_by(error, culprit.module)
    return Diagnostic("E0713", f"{culprit.what} failed: {text}", culprit.span, notes=[where])


def said_by(error: Exception, module: str = "") -> tuple[str, str]:
    """What an exception says, and the function, file and line that raised it, or, in a plug-in's module, called what did."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [each for each in frames if each[0].f_globals.get("__name__") == module]
    last = traceback.StackSummary.extract(iter((own or frames)[-1:]))[0]
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
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    found = [each for values in frames if (each := culprit_in(values)) is not None]
    calls = (
        each.span for values in frames for each in [*values.values()] if type(each) is syntax.Call
    )
    call = next(calls, None)
    if not found:
        return None
    innermost = found[0]
    return replace(innermost, span=next((each.span for each in found if each.span), None) or call)


def culprit_in(values: Mapping[str, object]) -> Culprit | None:
    for value in values.values():
        if isinstance(value, ModulePass) and not is_ours(value):
            return Culprit(f"the pass `{value.name}`", type(value).__module__)
        if isinstance(value, Operation) and not is_ours(value):
            # One that is being made is nowhere yet.
            span = place_of(value) if hasattr(value, "location") else None
            return Culprit(f"the op `{value.name}`", type(value).__module__, span)
        if isinstance(value, type) and issubclass(value, Operation) and not is_our_class(value):
            return Culprit(f"the op `{value.name}`", value.__module__)
    return None
