"""Where a plan makes a mistake that a pass finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from stagec.diagnostics import CompileError, Span
from stagec.plans.clauses import Plan

PIPELINE_SETTINGS = {"E0405": (), "E0407": ("layers", "first", "last"), "E0409": ("schedule",)}
"""What is wrong if a pipeline cannot be had; the clause itself where none of them is written."""


@contextmanager
def shown_in_the_plan(plan: Plan) -> Iterator[None]:
    """Show mistakes of a pipeline or of microbatches where the plan makes them: the IR, which passes see, has no place for them."""
    try:
        yield
    except CompileError as error:
        found = [replace(d, span=place_in(plan, d.code) or d.span) for d in error.diagnostics]
        raise CompileError(found) from error


def place_in(plan: Plan, code: str) -> Span | None:
    pipeline = plan.pipeline
    if code == "E0308":
        own = pipeline.given.get("microbatch", plan.microbatch_span) if pipeline else None
        return own or plan.microbatch_span or (pipeline.span if pipeline else None)
    if pipeline is None or code not in PIPELINE_SETTINGS:
        return None
    settings = PIPELINE_SETTINGS[code]
    written = [pipeline.given[name] for name in settings if name in pipeline.given]
    return next(iter(written), pipeline.span)
