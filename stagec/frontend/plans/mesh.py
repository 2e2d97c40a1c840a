"""The mesh of a plan: its axes, in the order of its ranks."""

from __future__ import annotations

from stagec import symbolic
from stagec.diagnostics import quoted
from stagec.dialects.dist import MOST_AXES, MOST_RANKS
from stagec.frontend import syntax
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved
from stagec.symbolic import conditions


def read_mesh(reader: PlanReader) -> tuple[resolved.Axis, ...]:
    spans = {name.text: name.span for name in reader.axes}
    copied = reader.table.copied
    spans |= {part: spans[axis] for axis, parts in copied.items() for part in parts}
    real = [
        part
        for n in reader.axis_names
        if n not in reader.table.products or n in copied
        for part in copied.get(n, (n,))
    ]
    if len(real) > MOST_AXES:
        message = f"the mesh has {len(real)} axes, more than {MOST_AXES}"
        help_ = "make one axis of those that split the same dims"
        reader.findings.say("E0306", message, spans[real[MOST_AXES]], help=help_)
        return tuple(resolved.Axis(n, 1, spans[n]) for n in real[:MOST_AXES])
    axes = {n: resolved.Axis(n, reader.table.values.get(n) or 1, spans[n]) for n in real}
    ranks = 1
    for axis in axes.values():
        ranks *= axis.size
    mesh = reader.merged.get(syntax.Mesh)
    number = symbolic.product(map(symbolic.symbol, axes))
    reason = f"more than {MOST_RANKS:,} ranks"
    fits = conditions.note("<=", number, MOST_RANKS, holds=ranks <= MOST_RANKS, reason=reason)
    if not fits and mesh:
        message = f"the mesh has {ranks} ranks, more than {MOST_RANKS}"
        reader.error(
            "E0306",
            message,
            mesh,
            "the product of its sizes is the number of ranks: choose smaller ones",
        )
    return tuple(axes[name] for name in rank_order(reader, list(axes)))


def rank_order(reader: PlanReader, axes: list[str]) -> list[str]:
    clause = reader.merged.get(syntax.RankOrder)
    if clause is None:
        return axes
    order = reader.real_axes(clause.axes, "`rank_order`")
    missing = [a for a in axes if a not in order]
    if missing:
        help_ = f"it names every axis once, the slowest first: add {quoted(missing)}"
        reader.error("E0306", f"`rank_order` leaves out {quoted(missing)}", clause, help_)
    return [*order, *missing]
