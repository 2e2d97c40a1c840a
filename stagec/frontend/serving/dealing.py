"""The batch that a `serve` clause makes: its sequences dealt out to devices and microbatches, and the dims that it gives their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from stagec import symbolic
from stagec.analysis.sequences import OtherPrograms
from stagec.diagnostics import Diagnostics
from stagec.dialects.dist.sequences import DealtSequences
from stagec.frontend.numbers import as_read
from stagec.frontend.plans.iterations import Iterations, deal
from stagec.frontend.plans.merge import Merged
from stagec.frontend.serving.batch import Batch, BatchSums, known_size
from stagec.frontend.serving.roles import Roles
from stagec.frontend.serving.served_sizes import served_sizes
from stagec.frontend.serving.spreads import Spread
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import Sequences, Serve
from stagec.symbolic import conditions
from stagec.symbolic.quantity import Quantity


def batch_of(
    serve: Serve,
    roles: Roles,
    merged: Merged,
    table: SizeTable,
    findings: Diagnostics,
    iterations: Iterations | None = None,
    spreads: Mapping[str, Spread] | None = None,
) -> Batch | None:
    """The batch of an iteration, or of a series. Sequences that do not divide over the devices that have rows of their own are dealt out; fewer
    than devices are E0414."""
    named = {n for each in serve.sequences for n in names_of(each)}
    serve = in_sizes_of_the_text(serve, roles, table)
    axes = axes_of_rows(roles, merged, table)
    first, *others = serve.sequences
    sums = None
    if iterations is not None:
        sums = sums_of_series(iterations, axes, table)
        is_packed = not iterations.in_rows
    else:
        is_packed = bool(others) or first.shared is not None
        divide = do_divide(serve, axes, table)
        if not divide or serve.microbatches > 1:
            is_refused = refuse_sharing(serve, divide, findings)
            sums = None if is_refused else sums_of_one(serve, roles, axes, table, findings)
            if sums is None:
                return None
            is_packed = True
    if sums is not None and not split_sums(sums, serve, iterations, findings):
        return None
    rows = first.count
    if is_packed:
        size = symbolic.product(map(symbolic.symbol, axes))
        rows = Quantity(size, size.evaluate(conditions.unread(table.known)))
    elif sums is not None:
        size = sums.rows * symbolic.product(map(symbolic.symbol, axes))
        sums.derived[roles.batch] = size
        rows = known_size(sums.first_of(size, conditions.unread(table.known)))
    batch = Batch(serve, roles, rows, is_packed, sums=sums, spreads=spreads or {})
    return replace(batch, sizes=served_sizes(batch, roles, merged, table, named, findings))


def axes_of_rows(roles: Roles, merged: Merged, table: SizeTable) -> tuple[str, ...]:
    """The axes along which devices have rows of their own."""
    axes = (
        part
        for rule in merged.rules
        if any(str(target.path) == roles.batch for target in rule.targets)
        for name in rule.axes
        for part in table.products.get(name.text, (name.text,))
    )
    return tuple(axis for axis in dict.fromkeys(axes) if table.values.get(axis))


def read_axes(axes: Sequence[str], table: SizeTable) -> int:
    """How many devices have rows of their own: a number that the program depends on."""
    for axis in axes:
        conditions.read(symbolic.symbol(axis), table.values[axis] or 1)
    return prod(table.values[axis] or 1 for axis in axes)


def do_divide(serve: Serve, axes: Sequence[str], table: SizeTable) -> bool:
    """Whether each device that has rows of its own has equally many sequences of each kind."""
    ways = symbolic.product(map(symbolic.symbol, axes))
    # All are asked, so that each is noted as something that the program depends on.
    return all([conditions.whole(each.count.size / ways, table.known) for each in serve.sequences])


def sums_of_series(iterations: Iterations, axes: tuple[str, ...], table: SizeTable) -> BatchSums:
    """The batches of a series of iterations."""
    ways = read_axes(axes, table)
    joined = iterations.joined
    dealt = joined or iterations.dealt(ways)
    return BatchSums(dealt, axes, numbers=iterations.numbers, are_joined=joined is not None)


def sums_of_one(
    serve: Serve, roles: Roles, axes: tuple[str, ...], table: SizeTable, findings: Diagnostics
) -> BatchSums | None:
    """The batch of one iteration whose sequences are dealt out to devices. E0414 for fewer sequences than devices."""
    kinds: list[tuple[int, int, int, int]] = []
    for each in serve.sequences:
        count, new, context = map(as_read, each.numbers)
        kinds.append((count, new, context, new if each.is_verified else 1))
    number = sum(count for count, *_ in kinds)
    ways = prod(table.values[axis] or 1 for axis in axes)
    if number < ways:
        message = f"{number} sequences, and {ways} devices that have some of their own"
        split = ", ".join(f"{a} = {table.values[a]}" for a in axes)
        notes = [f"`{roles.batch}` is split over {split}"]
        help_ = "serve as many sequences as there are such devices, or more"
        findings.say("E0414", message, serve.sequences[0].span, notes=notes, help=help_)
        return None
    return BatchSums(DealtSequences.of([deal(kinds, read_axes(axes, table))]), axes)


def refuse_sharing(serve: Serve, divide: bool, findings: Diagnostics) -> bool:
    """E0414 for sequences that share what they begin with, where devices do not all have as many, or microbatches have some each."""
    sharing = next((each for each in serve.sequences if each.shared is not None), None)
    if sharing is None:
        return False
    message = "sequences that share what they begin with are not as many on each device"
    help_ = (
        "serve as many of each entry as divide over the devices that have sequences of their own"
    )
    if divide:
        message = "sequences that share what they begin with are served in one microbatch"
        help_ = "leave out `microbatches`, or `sharing`"
    findings.say("E0414", message, sharing.shared_at or sharing.span, help=help_)
    return True


def split_sums(
    sums: BatchSums, serve: Serve, iterations: Iterations | None, findings: Diagnostics
) -> bool:
    """Have a device compute its sequences in the microbatches that are said: in a series in fewer, where it has not as many tokens or sequences.
    E0308 elsewhere."""
    if serve.microbatches == 1:
        return True
    most = sums.sequences.most_microbatches(serve.split)
    numbers = np.minimum(most, serve.microbatches)
    if iterations is None and numbers[0] < serve.microbatches:
        message = f"{serve.microbatches} microbatches of {most[0]} {serve.split}"
        help_ = "serve more of them on each device, or in fewer microbatches"
        findings.say("E0308", message, serve.given["microbatches"], help=help_)
        return False
    if iterations is not None and iterations.in_rows and numbers[0] > 1:
        message = "sequences that are rows of their own are in microbatches of as many rows"
        help_ = "leave out `microbatches`, and say `microbatch 4` beside `serve`"
        findings.say("E0308", message, serve.given["microbatches"], help=help_)
        return False
    if (numbers != numbers[0]).any():
        raise OtherPrograms(numbers == numbers[0])
    sums.microbatches, sums.split = int(numbers[0]), serve.split
    return True


def names_of(sequences: Sequences) -> set[str]:
    """The dims that the numbers of some sequences name."""
    shared = () if sequences.shared is None else (sequences.shared,)
    numbers = (*sequences.numbers, *shared)
    return {*sequences.named, *(name for each in numbers for name in each.size.names)}


def in_sizes_of_the_text(serve: Serve, roles: Roles, table: SizeTable) -> Serve:
    """The same sequences, with what the text says of dims that they give other sizes: in `decode B at 1500, prefill 2 x 512`, `B` is a number
    of sequences, and then the number of rows.

    `decode B at 1500` alone, and `prefill 4 x S`, leave these dims what they are, if no positions are shared: then devices have one row, too.
    """
    alone = len(serve.sequences) == 1 and serve.sequences[0].shared is None
    own = {roles.batch, roles.new, *roles.positions}

    def written(number: Quantity, but: str = "") -> Quantity:
        size = number.size
        if alone and size == symbolic.symbol(but):
            return number
        while found := {n: table.dims[n].size for n in size.names & own if n in table.dims}:
            for name in found.keys() & table.origins.keys():
                conditions.read(symbolic.symbol(name), table.dims[name].value)
            size = size.substitute(found)
        return Quantity(size, number.value)

    return replace(
        serve,
        sequences=tuple(
            replace(
                each,
                count=written(each.count, roles.batch),
                new=written(each.new, roles.new),
                context=written(each.context),
                shared=None if each.shared is None else written(each.shared),
            )
            for each in serve.sequences
        ),
    )
