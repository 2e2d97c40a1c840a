"""What `microbatch` says where a plan serves, which is often of a plan that trains."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.analysis.sequences import GOES_AS_ONE, SAY_HOW_MANY
from stagec.diagnostics import Diagnostic, Span
from stagec.frontend import syntax
from stagec.frontend.plans.merge import Merged
from stagec.frontend.plans.settings import BatchRows
from stagec.frontend.serving.batch import Batch


def rows_of(batch: Batch | None) -> BatchRows:
    """What rows of the batch are, of which microbatches have some."""
    if batch is None or not batch.is_packed:
        return BatchRows.SEQUENCES
    return BatchRows.SAID_BY_SERVE if batch.serve.microbatches > 1 else BatchRows.ONE


def idle_in_serving(batch: Batch | None, size: int, own: Merged) -> Iterator[Diagnostic]:
    """A warning for what a plan itself says of microbatches: for any size where `serve` says how many there are, and for one of 1 where what a device serves
    is one row. Larger ones are E0308 then.
    """
    rows = rows_of(batch)
    label, where, help_ = "", [], "leave it out"
    if batch is not None and rows is BatchRows.SAID_BY_SERVE:
        where = [(batch.serve.given["microbatches"], "this counts")]
    elif rows is BatchRows.ONE and size == 1:
        label, help_ = GOES_AS_ONE, SAY_HOW_MANY
    else:
        return
    for span in places_of(own):
        message = "`microbatch` changes nothing here"
        yield Diagnostic("W0304", message, span, label=label, secondary=where, help=help_)


def places_of(own: Merged) -> Iterator[Span]:
    """Where the size of microbatches is said: in a clause of its own, or in that of the pipeline."""
    yield from (clause.span for clause in own.all(syntax.Microbatch))
    for clause in own.all(syntax.Pipeline):
        settings = clause.settings.entries if clause.settings else ()
        yield from (each.span for each in settings if each.name.text == "microbatch")
