"""What `microbatch` says where a plan serves, which is often of a plan that trains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from stagec.diagnostics import Diagnostic, Span
from stagec.frontend import syntax
from stagec.frontend.plans.merge import Merged
from stagec.frontend.serving.batch import Batch

NO_SIZE = "E0208"
NOTE = "sequences of several kinds, or of each device or iteration its own, are one row"
HELP = "say how many they are, `serve { ..., microbatches = 2 }`, or leave `microbatch` out"


def places_of(merged: Merged) -> list[Span]:
    """Where the size of microbatches is said: in a clause of its own, or in that of the pipeline."""
    found = [clause.span for clause in merged.all(syntax.Microbatch)]
    for clause in merged.all(syntax.Pipeline):
        settings = clause.settings.entries if clause.settings else ()
        found += [each.span for each in settings if each.name.text == "microbatch"]
    return found


def as_served(
    found: Iterable[Diagnostic], batch: Batch, places: Collection[Span]
) -> Iterator[Diagnostic]:
    """The mistakes of a plan, but those of sizes of microbatches that nobody asks for, as `serve` says how many there are.

    A size that follows from the batch is E0308 where what a device serves is one row of it, and not the number that a user said.
    """
    for each in found:
        span = each.span
        is_size = each.code == NO_SIZE and span is not None and any(span in p for p in places)
        if not is_size or not batch.is_packed:
            yield each
        elif batch.serve.microbatches == 1:
            message = "there are no such microbatches: what a device serves in an iteration goes through as one"
            yield Diagnostic("E0308", message, span, notes=[NOTE], help=HELP)


def idle_in_serving(
    batch: Batch | None, size: int, places: Collection[Span]
) -> Iterator[Diagnostic]:
    """A warning for a plan's own microbatches, at `places`: for any where `serve` says how many there are, and for those of one where what a device serves
    is one row. Larger ones are E0308 then.
    """
    if batch is None or not batch.is_packed:
        return
    label, where, help_ = "", [], "leave it out"
    if batch.serve.microbatches > 1:
        where = [(batch.serve.given["microbatches"], "this counts")]
    elif size == 1:
        label, help_ = "what a device serves in an iteration goes through as one", HELP
    else:
        return
    message = "`microbatch` changes nothing here"
    for span in places:
        yield Diagnostic("W0304", message, span, label=label, secondary=where, help=help_)
