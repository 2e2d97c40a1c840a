"""Whose mistake an exception is: that of a pass, or of an op, that somebody else brought."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.diagnostics import Span
from stagec.ir_text import place_of
from stagec.running import is_our_class, is_ours

WRAPPED = "Error while applying pattern"


@dataclass(frozen=True)
class Culprit:
    """What went wrong of whom."""

    what: str
    """The pass `p`, the op `mine.op`."""
    span: Span | None = None
    """Where the model has that op."""


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
