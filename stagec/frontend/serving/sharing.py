"""`sharing` of a `serve` clause that changes nothing is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import mul

from stagec.diagnostics import Diagnostic, Span
from stagec.frontend.numbers import as_read
from stagec.frontend.serving.batch import Batch
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import Sequences
from stagec.symbolic import conditions
from stagec.symbolic.quantity import Quantity


def idle_sharing(
    batch: Batch | None, table: SizeTable, own: Collection[Span]
) -> Iterator[Diagnostic]:
    """A warning for each of a plan's own entries whose sequences store as much on each device without what they share: no whole block, or one sequence."""
    if batch is None or batch.sums is not None:
        return
    entries: dict[Span, list[Sequences]] = {}
    for each in batch.serve.sequences:
        if each.shared_at is not None and each.span in own:
            entries.setdefault(each.shared_at, []).append(each)
    with conditions.unrecorded():
        caches = [
            (window, int(batch.block(name).evaluate(table.known)))
            for name, window in batch.roles.positions.items()
        ]
        for span, kinds in entries.items():
            wholes = [[whole_blocks(each, *cache) for each in kinds] for cache in caches]
            counts = [as_read(each.count) for each in kinds]
            rows = as_read(batch.rows)
            if any(sum(map(mul, counts, each)) > rows * max(each) for each in wholes):
                continue
            help_ = "it needs several sequences of the entry on a device"
            if not any(map(any, wholes)):
                least = min((block for _, block in caches), default=1)
                help_ = f"whole blocks are shared: of {least} positions here"
            yield Diagnostic("W0304", "`sharing` changes nothing here", span, help=help_)


def whole_blocks(each: Sequences, window: Quantity | None, block: int) -> int:
    """The positions that sequences share, as `Batch.stored_in_all` has them."""
    assert each.shared is not None
    seen = as_read(each.shared)
    if window is not None:
        seen -= max(0, as_read(each.context) + as_read(each.new) - as_read(window))
    return max(0, seen) // block * block
