"""The dims that a `serve` clause gives their sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from stagec import symbolic
from stagec.diagnostics import Diagnostics, Span
from stagec.dialects import stg
from stagec.dialects.dist.sequences import (
    SAMPLED as SAMPLED_OF_ONE,
)
from stagec.frontend.plans.merge import Merged
from stagec.frontend.serving.batch import Batch, OfOne, begins
from stagec.frontend.serving.roles import Roles
from stagec.frontend.sizes import ServedSize, SizeTable
from stagec.symbolic import ONE, Size, conditions


def served_sizes(
    batch: Batch,
    roles: Roles,
    merged: Merged,
    table: SizeTable,
    named: Collection[str],
    findings: Diagnostics,
) -> dict[str, ServedSize]:
    """The dims that `serve` gives their sizes; those that its sequences have `named` may be given another from outside."""
    known = conditions.unread(table.known)
    found = {roles.batch: batch.rows.size}
    for name, of_one, in_all in sums_of_dims(batch, roles, table, findings):
        if batch.sums is None:
            found[name] = batch.per_row(batch.total(of_one) if in_all is None else in_all)
        else:
            found[name] = named_sum(batch, name, of_one, known)
    # `serve { decode B at 1500 }` says the size of `B` by itself.
    changed = {name: size for name, size in found.items() if size != symbolic.symbol(name)}
    span = batch.serve.span
    assert span is not None
    refuse_said_twice(sorted(changed.keys() - named), span, merged, table, findings)
    differing = {**batch.sums.named, **batch.sums.derived} if batch.sums is not None else {}
    return {
        name: ServedSize(
            size,
            int(size.evaluate(known)),
            span,
            text=table.dims.get(name),
            differs=name in differing,
        )
        for name, size in changed.items()
    }


def sums_of_dims(
    batch: Batch, roles: Roles, table: SizeTable, findings: Diagnostics
) -> Iterator[tuple[str, OfOne, Size | None]]:
    """The dims that are sums over sequences: what each of these has of them, and, where all together do not have that of each, what they have."""
    yield roles.new, lambda new, _: new, None
    yield stg.SEQUENCES, lambda *_: ONE, None
    for name, window in roles.positions.items():
        size = window.size if window is not None else None
        yield name, batch.positions(size), None
        in_all = batch.stored_in_all(size, name) if batch.sums is None else None
        yield stg.stored(name), batch.stored(size, name), in_all
    if batch.is_packed or not batch.all_begin:
        for name, others in roles.in_front.items():
            check_prompts(batch, others, table, findings)
            yield name, positions_of_text(others), None
    if batch.positions_with_logits == stg.SAMPLED:
        sequences = batch.serve.sequences
        in_all = symbolic.total(
            s.count.size * (s.new.size if s.is_verified else ONE) for s in sequences
        )
        yield stg.SAMPLED, lambda *_: symbolic.symbol(SAMPLED_OF_ONE), in_all


def refuse_said_twice(
    names: Sequence[str], serve: Span, merged: Merged, table: SizeTable, findings: Diagnostics
) -> None:
    """E0401 for dims that the plan gives a size too, E0702 for those that come from outside."""
    for name in names:
        said = merged.sizes.get(name)
        message = f"`serve` says how large `{name}` is"
        if name in table.origins:
            help_ = f"leave it out, or say it by `{name}`: `serve {{ decode {name} at 1500 }}`"
            findings.say("E0702", message, origin=table.origins[name], help=help_)
        elif said is not None:
            where = [(serve, "here")]
            findings.say("E0401", message, said.span, secondary=where, help="leave it out")


def positions_of_text(in_front: Sequence[str]) -> OfOne:
    """The new positions that are text: those behind what stands in front of a sequence."""
    images = symbolic.total(map(symbolic.symbol, in_front))
    return lambda new, context: new - begins(context) * images


def check_prompts(
    batch: Batch, in_front: Sequence[str], table: SizeTable, findings: Diagnostics
) -> None:
    """E0424 for a sequence that ends, or goes on, in the middle of what stands in front of its text."""
    images = 0
    for name in in_front:
        size = table.values[name] or 0
        conditions.read(symbolic.symbol(name), size)
        images += size
    names = " + ".join(in_front)
    for new, context in batch.numbers_of_sequences:
        whole = new + context
        if (context == 0 and new <= images) or 0 < context < images:
            message = f"a sequence has {new} new positions after {context}, and {images} in front of its text"
            if context == 0:
                message = f"a sequence begins with {whole} positions, and {images} are in front of its text"
            help_ = f"serve more than `{names} = {images}` positions of sequences that begin"
            findings.say("E0424", message, batch.serve.span, help=help_)
            return


def named_sum(batch: Batch, name: str, of_one: OfOne, known: Mapping[str, int]) -> Size:
    """A dim that is a sum over sequences; of rows, what each has. Its number on the first device in the first iteration."""
    assert batch.sums is not None
    if batch.is_packed:
        batch.sums.size(of_one, name)
        return symbolic.constant(batch.sums.first(name, known))
    batch.sums.derived[name] = batch.sums.size(of_one) / batch.sums.rows
    return symbolic.constant(batch.sums.first_of(batch.sums.derived[name], known))
